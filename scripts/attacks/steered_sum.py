"""Server 0 adds offsets to its own share, and then reads training samples in a later aggregate.

    python -m scripts.attacks.steered_sum --seeds 0 1 2 3 4
    python -m scripts.attacks.steered_sum --modes bound --neurons 128 32 8 --mean

Clients train on the row of an item and on dense features. In two rounds server 0 alters its share
before it commits to it. The first offset switches off all neurons of the first layer, so that
reports of the second round leave that layer alone. The second offset lays a trap: all neurons have
one direction, and thresholds that divide the samples by quantiles. Server 0 is honest in the third
round. If a sample is alone between two thresholds, the gradients of these two neurons differ by
this sample alone. Server 0 knows that features are standardised, and nothing else about the data.

Under a bound on the sum, server 0 adds at most 0.8 n `l2_bound` a round, which the bound lets pass.
It aims anew in each round, and takes so many more rounds of lies. Fewer neurons need fewer.

Server 1 and all clients run the library's code. In the noisy aggregates server 0 leaves out its own
noise. Data and first model follow from a seed.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import nn

import torchfsl
from scripts.attacks.result import AttackResult
from scripts.program import Options, option, program
from torchfsl import privacy
from torchfsl.federation.local_servers import LocalServers
from torchfsl.federation.results import RoundResult
from torchfsl.fsl.bodies import share_by_segment
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.evaluation import share_of
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.segments import default_encoding, tensor_spans
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerSGD
from torchfsl.types import Array, Float64, Whole

MODES: Final = "no lies", "no proofs", "norm proofs", "noise", "bound"
Wish: TypeAlias = dict[str, Float64]
"""By tensor the values that server 0 wants."""

ITEMS, WIDTH, FEATURES, SAMPLES = 200, 8, 16, 2
"""Rows of the table and their width, dense features, and samples of a client."""
OUTPUT: Final = 0.5
"""Magnitude of the trap's output weights; their signs alternate, so that no output is extreme."""
NEAR: Final = 0.1
"""Relative error of features up to which a sample counts as read."""
ROUNDS: Final = 3
"""Two of lies and one that is read. The budget pays for no more, which makes the least noise."""
EPSILON: Final = 8.0
LEAST: Final = 5
"""Samples whose reading counts as success."""
SHARE: Final = 0.8
"""Of n `l2_bound`: what server 0 adds at most under a bound on the sum."""
MOST_LIES: Final = 200
"""Rounds after which it gives up."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of one play.

    Attributes:
        samples: of all clients.
        read: those whose features server 0 has within `NEAR`.
        items: those of them whose row it also knows.
        lies: rounds of lying.
        refused: reports that were not accepted.
        noticed: log lines of all parties; servers log values that are out of range.
    """

    samples: int
    read: int
    items: int
    lies: int
    refused: int
    noticed: list[str]


class Model(nn.Module):
    """Features and the vector of one item, two linear layers, one logit."""

    def __init__(self, neurons: int) -> None:
        """Torch's initial values."""
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.first = nn.Linear(FEATURES + WIDTH, neurons)
        self.second = nn.Linear(neurons, 1)

    def forward(self, items: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Logits."""
        joined = torch.cat([features, self.items(items)], dim=1)
        logits: torch.Tensor = self.second(self.first(joined).relu())
        return logits[:, 0]


class LyingServer(Server):
    """Adds to its share what moves the model to `wish`, if there is one.

    Attributes:
        arrived: whether the last offset was all that was missing.
    """

    wish: Wish | None = None
    arrived = False

    def commit(self, *, salt: bytes = b"", share: Buffer = b"") -> bytes:
        """Alter the share before the commitment."""
        reports = self._opening.accepted.values()
        altered = memoryview(bytearray(share_of(self._evaluator, reports, self.reports)))
        if self.wish is not None:
            part = share_by_segment(self.plan, altered)["rest"]
            bits = self.plan.encoding.ring_bits
            honest = np.frombuffer(part, np.uint8).reshape(-1, bits // 8)
            offset = ring.from_int64(self._offset(self.wish, len(reports)), bits)
            part[:] = ring.add(honest, offset).reshape(-1).data
        return super().commit(salt=salt, share=altered)

    def _offset(self, wish: Wish, count: int) -> Whole:
        """What to add to a sum of so many; with reports it stays in range, or a log would tell."""
        segment, encoding = self.plan.segment("rest"), self.plan.encoding
        optimizer = self.model.optimizer
        assert isinstance(optimizer, ServerSGD)
        velocities, most = optimizer.state(), count * (encoding.q_max - self.plan.l2_bound)
        offset = np.zeros(segment.m, dtype=np.int64)
        for tensor, span in tensor_spans(segment):
            if tensor.name in wish:
                now = self.model.state[tensor.name].astype(np.float64)
                mean = ((wish[tensor.name] - now) / optimizer.lr).reshape(-1)
                mean += optimizer.momentum * velocities.get(f"velocity/{tensor.name}", 0.0)
                units = np.ldexp(mean * count, encoding.frac_bits)
                offset[span] = np.rint(units.clip(-most, most))
        norm, reach = float(np.linalg.norm(offset)), SHARE * count * self.plan.l2_bound
        self.arrived = not self.plan.sum_bound or norm <= reach
        return offset if self.arrived else np.trunc(offset * (reach / norm)).astype(np.int64)


def _zeros(_: int, count: int) -> Whole:
    return np.zeros(count, dtype=np.int64)


class Task:
    """The plan, both servers, and all clients with their samples."""

    def __init__(
        self, mode: str, clients: int, neurons: int, rng: np.random.Generator, *, mean: bool
    ) -> None:
        """Nothing is trained yet."""
        self.clients, self.model = clients, Model(neurons)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        encoding = default_encoding(clients)
        self.fed = torchfsl.Federated(self.model, self.optimizer, encoding=encoding)
        options = {"l2_bound": privacy.l2_bound(encoding, 1.0), "above_break_even": "keep"}
        options["proofs"] = "none" if mode == "no proofs" else "norm"
        options["sum_bound"] = mode == "bound"
        sizes = {"max_clients": clients, "rows_per_client": SAMPLES, "max_rounds": ROUNDS}
        if mode == "bound":
            sizes["max_rounds"] = MOST_LIES + 1
        plan = self.fed.make_plan(**sizes, **options)
        if mode == "noise":
            plan = self.fed.plan = privacy.calibrate(plan, epsilon=EPSILON, delta=1e-6)
        chosen = OptimizerSettings() if mean else self.fed.default_optimizer()
        state, make = self.fed.server_state(), chosen.build
        first, second = (ServerModel(state, make()) for _ in range(2))
        self.liar = LyingServer(0, plan=plan, model=first, draw_noise=_zeros)
        home = TwoServers(plan, (first, second))
        home.servers = self.liar, Server(1, plan=plan, model=second)
        home.link = InProcess(*home.servers)
        self.servers, total = LocalServers(home), clients * SAMPLES
        self.features = rng.standard_normal((total, FEATURES)).astype(np.float32)
        self.items = rng.permutation(ITEMS)[:total]
        self.labels = rng.integers(0, 2, total).astype(np.float32)

    def round(self) -> RoundResult:
        """A round of all clients, each with one step on its samples."""
        with self.servers.round() as result:
            for client in range(self.clients):
                mine = slice(client * SAMPLES, (client + 1) * SAMPLES)
                items, features, labels = (
                    torch.tensor(values[mine])
                    for values in (self.items, self.features, self.labels)
                )
                with self.fed.round(self.servers, client, rows=items):
                    self.optimizer.zero_grad()
                    logits = self.model(items, features)
                    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
                    torch.autograd.backward(loss)
                    self.optimizer.step()
        return result

    def count(self, found: Float64, table: Array) -> tuple[int, int]:
        """How many samples are among what was found, and of how many of them the item is known."""
        read = items = 0
        for features, item in zip(self.features, self.items, strict=True):
            errors = np.linalg.norm(found[:, :FEATURES] - features, axis=1)
            if len(errors) and errors.min() <= NEAR * np.linalg.norm(features):
                vector = found[errors.argmin(), FEATURES:]
                read += 1
                items += int(np.linalg.norm(table - vector, axis=1).argmin() == item)
        return read, items


def trap(neurons: int, rng: np.random.Generator) -> tuple[Wish, Wish]:
    """What server 0 wants: a first layer that is off, then the trap."""
    line, steps = rng.standard_normal(FEATURES), (np.arange(neurons) + 0.5) / neurons
    directions = np.zeros((neurons, FEATURES + WIDTH))
    directions[:, :FEATURES] = line / np.linalg.norm(line)
    thresholds = np.array([NormalDist().inv_cdf(step) for step in steps])
    outputs = OUTPUT * (1 - 2 * (np.arange(neurons) % 2))
    off = 0 * directions, np.full(neurons, -1.0), outputs
    names = "first.weight", "first.bias", "second.weight"
    both = off, (directions, -thresholds, outputs)
    first, second = (dict(zip(names, values, strict=True)) for values in both)
    return first, second


def single_samples(plan: Plan, aggregate: Whole, outputs: Array) -> Float64:
    """Inputs of the first layer, one a row, from the differences of neighbours' sums."""
    sums = {
        tensor.name: aggregate[span].reshape(tensor.shape)
        for tensor, span in tensor_spans(plan.segment("rest"))
    }
    both = np.hstack([sums["first.weight"], sums["first.bias"][:, None]])
    both = both / outputs.reshape(-1, 1).astype(np.float64)
    both = both - np.vstack([both[1:], 0 * both[:1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Float64 = both[:, :-1] / both[:, -1:]
    return found[np.isfinite(found).all(axis=1)]


@contextmanager
def noticing() -> Iterator[list[str]]:
    """All that the package logs at any level."""
    seen: list[str] = []
    logger, handler = logging.getLogger("torchfsl"), logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield seen
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def play(
    mode: str, *, clients: int = 20, neurons: int = 128, seed: int = 0, mean: bool = False
) -> Played:
    """Two rounds of lies, or of none, and a third one, from whose aggregate server 0 reads.

    Args:
        mode: one of `MODES`; under `bound` there are as many rounds of lies as it takes.
        clients: of each round.
        neurons: of the first layer.
        seed: of data and model.
        mean: servers take the mean as it is, not torchfsl's default rate and momentum.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    task, wishes = Task(mode, clients, neurons, rng, mean=mean), (*trap(neurons, rng), None)
    refused, liar, lies = 0, task.liar, 0
    with noticing() as noticed:
        for wish in wishes:
            liar.wish, liar.arrived = None if mode == "no lies" else wish, False
            while True:
                before = {name: value.copy() for name, value in liar.model.state.items()}
                result = task.round()
                refused += clients - result.num_clients
                lies += liar.wish is not None
                if liar.wish is None or liar.arrived or lies == MOST_LIES:
                    break
    found = single_samples(liar.plan, result.sums["rest"], before["second.weight"])
    read, items = task.count(found, before["items.weight"])
    return Played(len(task.items), read, items, lies, refused, noticed)


def steered_sum() -> AttackResult:
    """Samples that a lying server reads, without noise and with it."""
    honest, plain, proven, noisy = played = [play(mode) for mode in MODES if mode != "bound"]
    unseen = not any(one.refused or one.noticed for one in played)
    return AttackResult(
        "training samples read by steering",
        off=f"{plain.read} of {plain.samples} read after {plain.lies} rounds of lies; with norm "
        f"proofs {proven.read}, without lies {honest.read}; nothing logged or refused: {unseen}",
        on=f"noise at epsilon {EPSILON:g}: {noisy.read} of {noisy.samples}",
        worked_off=unseen and honest.read == 0 and min(plain.read, proven.read) >= LEAST,
        worked_on=noisy.read > 0,
        cost="the accuracy that noise takes",
    )


@program(
    option("--modes", nargs="+", choices=MODES, default=list(MODES)),
    option("--neurons", [128]),
    option("--mean", False),
    option("--seeds", [0]),
    finds=False,
)
def main(options: Options) -> None:
    """Print what each mode showed."""
    print("mode         neurons seed      read  row, too  lies  refused  logged")
    for mode, neurons, seed in itertools.product(options.modes, options.neurons, options.seeds):
        one = play(mode, neurons=neurons, seed=seed, mean=options.mean)
        read, noticed = f"{one.read} of {one.samples}", "; ".join(one.noticed) or "nothing"
        row = f"{mode:12} {neurons:7} {seed:4} {read:>9} {one.items:9} {one.lies:5} {one.refused:8}"
        print(f"{row}  {noticed}", flush=True)

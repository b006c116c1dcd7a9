"""Reads the update of a client that alone has trained a submodel, from the aggregate.

    python -m scripts.attacks.isolated_submodels                        # on synthetic images
    python -m scripts.attacks.isolated_submodels --data mnist           # a folder, or a Hub name

The attack follows section III of Sami and Guler, *Secure Submodel Aggregation for Resource-Aware
Federated Learning*. Each client has one sample and sends one gradient of a hidden layer in four
shards. In a shard of one client, every unit's gradient of weights is the sample times its gradient
of the bias. The ratio of these gradients is the sample, and if all units agree on it, the client
was alone.

With two clients, the narrow client's shard is among those of the wide client, and the rest follows.
The attacker computes the wide client's gradient in the shared shard from that client's sample, and
subtracts this gradient.

The paper attacks sums whose positions are known. The sums alone also suffice, and every protocol
opens them, also SESA. Therefore hiding positions is not a defence.

The defence here refuses plans and rounds that leave a submodel with fewer than two honest
contributors (`max_isolation`). The program prints what the defence does not stop: a unit that fires
for one client's sample alone gives this sample, in any shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from models import MLP
from scripts.attacks.result import AttackResult
from scripts.parties import zeros
from scripts.program import Options, option, program
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.sesa import Server, SesaPlan, Sharded, Width, build_plan, run_round
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Array, Whole
from training.data.synthetic import synthetic_images
from training.data.tables import Images, Table, load_images
from training.tasks.classification import ImageExamples

SHARDS: Final = 4
TAKES: Final = (1, 2)
"""Shards of the narrow clients and of the wide ones: a quarter and a half of the layer."""

ENCODING: Final = FixedPoint(ring_bits=32, frac_bits=24, clip=4.0)
NO_LIMIT: Final = 1e9
NEAR: Final = 0.01
"""A sample is read if no value is further off; images have deviation 1."""

FIRES: Final = 2.0**-14
"""Least gradient of a bias that the attack distinguishes from rounding."""


class Sample(NamedTuple):
    """An image `float64[d]`, and its class."""

    image: Array
    label: int


@dataclass(frozen=True, eq=False)
class Network:
    """A hidden layer in shards, known to everybody, and samples that are not."""

    examples: ImageExamples
    net: Sharded
    inputs: int

    @classmethod
    def around(cls, table: Table[Images], hidden: int) -> Network:
        """For those images, with fresh weights from a fixed seed."""
        torch.manual_seed(0)
        inputs = int(np.prod(np.shape(table.inputs)[1:]))
        net = Sharded(MLP(inputs=inputs, hidden=(hidden,)), shards=SHARDS).double()
        return cls(ImageExamples(np.asarray(table.inputs), table.labels), net, inputs)

    def sample(self, draw: np.random.Generator) -> Sample:
        """One at random."""
        place = int(draw.integers(len(self.examples.labels)))
        (image,) = self.examples.inputs(np.array([place]), None)
        return Sample(image.double().numpy().ravel(), int(self.examples.labels[place]))

    def gradient(self, sample: Sample, taken: Iterable[int]) -> Update:
        """A client's quantised update from its sample: its shards, and the rest."""
        taken = sorted(taken)
        self.net.take([taken])
        self.net.zero_grad()
        logits = self.net(torch.from_numpy(sample.image)[None])
        torch.nn.functional.cross_entropy(logits, torch.tensor([sample.label])).backward()
        shards, bias = (
            np.rint(p.grad.numpy() * 2.0**ENCODING.frac_bits).astype(np.int64)
            for p in (self.net.units[0].weight, self.net.bias)
        )
        return {
            "shards": SegmentUpdate(np.array(taken), shards[taken]),
            "rest": SegmentUpdate(None, bias[:, None]),
        }

    def unit_samples(self, sums: Whole) -> Array:
        """For each unit of a shard's sum that fires the ratio of gradients, strongest first."""
        values = sums / 2.0**ENCODING.frac_bits
        num_units = len(self.net.units[0].weight[0]) // (self.inputs + 1 + len(self.net.bias))
        weights = values[: num_units * self.inputs].reshape(num_units, self.inputs)
        biases = values[num_units * self.inputs :][:num_units]
        order = [unit for unit in np.argsort(-np.abs(biases)) if abs(biases[unit]) > FIRES]
        return weights[order] / biases[order, None]

    def lone_sample(self, sums: Whole) -> Array | None:
        """The sample behind a shard's sum, if all units agree on it."""
        found = self.unit_samples(sums)
        return found[0] if len(found) > 1 and all(same(one, found[0]) for one in found) else None

    def plan(self, clients: int, max_isolation: float) -> SesaPlan:
        """Of that many clients, half narrow and half wide, one of whom may be an adversary."""
        shape = tuple(self.net.units[0].weight.shape)
        table = (TensorSpec("units.0.weight", shape),)
        bias = (TensorSpec("bias", (len(self.net.bias),)),)
        shards = SegmentSpec("shards", "rows", table, k_max=SHARDS, tau=shape[1])
        options = {"collusion": 1, "max_isolation": max_isolation, "session": bytes(16)}
        options["widths"] = [Width((take, 1), clients // 2) for take in TAKES]
        specs = [shards, SegmentSpec("rest", "dense", bias)]
        return build_plan(specs, encoding=ENCODING, **options)


def same(found: Array, true: Array) -> bool:
    """Whether every value was read."""
    return bool(np.abs(found - true).max() < NEAR)


def plain_sum(updates: Iterable[Update]) -> Whole:
    """The shards' sums, as every exact protocol opens them."""
    updates = list(updates)
    total = np.zeros((SHARDS, updates[0]["shards"].values.shape[1]), dtype=np.int64)
    for update in updates:
        total[update["shards"].indices] += update["shards"].values
    return total


def read_pair(network: Network, sums: Whole, known: tuple[int, int] | None) -> list[Array | None]:
    """The wide and the narrow client's sample from the sums of both.

    Args:
        network: the public model.
        sums: of the shards.
        known: the wide client's own shard and the shared one; None to find them out.
    """
    used = [shard for shard in range(SHARDS) if sums[shard].any()]
    alone = (
        known[0]
        if known
        else next((s for s in used if network.lone_sample(sums[s]) is not None), -1)
    )
    shared = known[1] if known else next((s for s in used if s != alone), -1)
    wide = network.lone_sample(sums[alone])
    if wide is None or shared < 0:
        return [wide, None]
    guesses = [
        plain_sum([network.gradient(Sample(wide, label), (alone, shared))])
        for label in range(len(network.net.bias))
    ]
    fit = min(guesses, key=lambda guess: int(np.abs(guess[alone] - sums[alone]).max()))
    rest = network.unit_samples(sums[shared] - fit[shared])
    return [wide, rest[0] if len(rest) else None]


def pairs(network: Network, trials: int, *, positions_known: bool) -> list[int]:
    """How often the samples of the wide and of the narrow client of two are read."""
    read = [0, 0]
    for trial in range(trials):
        draw = np.random.default_rng(trial)
        narrow, wide = network.sample(draw), network.sample(draw)
        alone, shared = (int(shard) for shard in draw.permutation(SHARDS)[:2])
        sums = plain_sum(
            [network.gradient(narrow, (shared,)), network.gradient(wide, (alone, shared))]
        )
        found = read_pair(network, sums, (alone, shared) if positions_known else None)
        for number, (got, true) in enumerate(zip(found, (wide, narrow), strict=True)):
            read[number] += got is not None and same(got, true.image)
    return read


class Rounds(NamedTuple):
    """In how many rounds a sample was read off a shard whose units agreed, and off any unit."""

    submodels: int
    units: int


def cohorts(network: Network, plan: SesaPlan, rounds: int) -> Rounds:
    """Rounds of the real protocol; what is read off the aggregates alone."""
    shards = units = 0
    server = Server(plan=plan, model=ServerModel(zeros(plan)))
    for number in range(rounds):
        draw = np.random.default_rng(1000 + number)
        samples = [network.sample(draw) for _ in range(plan.max_clients)]
        widths = {client: client % 2 for client in range(plan.max_clients)}
        updates = {
            client: network.gradient(sample, draw.permutation(SHARDS)[: TAKES[widths[client]]])
            for client, sample in enumerate(samples)
        }
        opened = run_round(server, updates, widths, round_number=number).sums["shards"]
        assert np.array_equal(opened, plain_sum(updates.values()))
        whole = [network.lone_sample(sums) for sums in opened]
        single = [one for sums in opened for one in network.unit_samples(sums)]
        shards += _any_read(whole, samples)
        units += _any_read(single, samples)
    return Rounds(shards, units)


def _any_read(found: Iterable[Array | None], samples: list[Sample]) -> bool:
    images = np.stack([sample.image for sample in samples])
    read = [np.abs(images - one).max(axis=1).min() for one in found if one is not None]
    return bool(min(read, default=np.inf) < NEAR)


def isolated_submodels() -> AttackResult:
    """Rounds of the fewest clients that can open, and of some that a plan accepts."""
    images = synthetic_images(0, train=400, test=1, shape=(1, 8, 8), classes=10)
    network, rounds = Network.around(images.train, hidden=80), 8
    off = cohorts(network, network.plan(6, NO_LIMIT), rounds)
    try:
        network.plan(6, SesaPlan.max_isolation)
        refused = False
    except ParameterError:
        refused = True
    on = cohorts(network, network.plan(30, SesaPlan.max_isolation), rounds)
    return AttackResult(
        "submodels of one client",
        off=f"the sum of a submodel was a client's update, and gave its sample, in "
        f"{off.submodels} of {rounds} rounds of 6 clients",
        on=f"6 clients are {'refused' if refused else 'ACCEPTED'}; of 30, in {on.submodels} of "
        f"{rounds} rounds; single units gave a sample in {on.units}, which no limit stops",
        worked_off=off.submodels > 0,
        worked_on=on.submodels > 0 or not refused,
        cost="a rule: more clients a round",
    )


@program(
    option("--data", "synthetic", "images: synthetic, a folder, a name"),
    option("--trials", 200, "pairs of clients"),
    option("--rounds", 60, "rounds of a cohort"),
    finds=False,
)
def main(options: Options) -> int:
    """Print what was read; 1 if an attack or the defence does not do what it should."""
    if options.data == "synthetic":
        data = synthetic_images(0, train=2000, test=1, shape=(1, 28, 28), classes=10)
    else:
        data = load_images(options.data)
    network = Network.around(data.train, hidden=200)
    enough, as_it_must = 0.95 * options.trials, True
    names = {"naive sums, positions known": True, "the sums alone, as SESA's": False}
    for name, known in names.items():
        wide, narrow = pairs(network, options.trials, positions_known=known)
        as_it_must &= min(wide, narrow) >= enough
        print(
            f"N = 2, {name}: sample of the wide client read in {wide}, of the narrow one in "
            f"{narrow} of {options.trials} trials",
            flush=True,
        )
    print(
        "LIMIT: no protocol for sums hides a client that is alone in a submodel; plans of "
        "torchfsl.sesa for 2 clients are refused"
    )
    for clients, limit in ((6, NO_LIMIT), (20, NO_LIMIT), (30, SesaPlan.max_isolation)):
        plan = network.plan(clients, limit)
        found = cohorts(network, plan, options.rounds)
        as_it_must &= (found.submodels > 0) == (clients == 6)
        expected = plan.isolation([clients // 2] * 2)
        print(
            f"N = {clients}, SESA, K = {SHARDS}, expected submodels with at most one honest "
            f"contributor {expected:.2g}{' (limit lifted)' if limit == NO_LIMIT else ''}: a "
            f"submodel of one client in {found.submodels} of {options.rounds} rounds; LIMIT: a "
            f"unit that fired for one client's sample in {found.units}",
            flush=True,
        )
    return 0 if as_it_must else 1

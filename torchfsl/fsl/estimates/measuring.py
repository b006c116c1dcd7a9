"""Speed of this machine in a round, measured on small rounds through both servers.

A client's core-seconds are fitted as `fixed + trees x each`. A server's core-seconds are
`fixed + trees x each + AES blocks / rate` per client, and bytes of a share / rate per round. Rounds
of three sizes, with few and with many clients, give the numbers: few trees, many trees, and few
trees over a long table. Time is that of the processor, over all threads, so that neighbours on the
machine disturb less. Neighbours still disturb, because they share the caches. Proofs take each
party `fixed + values x each` per report, in addition to AES blocks. These numbers are fitted to
rounds of two sizes with and without proofs.

A server has one client after the other. A client trains between two rounds, so the caches keep no
data of its last round. Therefore clients are measured in separate rounds, with empty caches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from torchfsl.crypto.discrete_gaussian import sample
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.messages import share_bytes
from torchfsl.fsl.noise import noise_values
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import Endpoint, InProcess
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Float64

_SIZES: Final = ((1 << 13, 64), (1 << 15, 512), (1 << 18, 64))
"""Rows, and rows per client, of the rounds that rates are fitted to."""

_PROVEN: Final = ((1 << 13, 64), (1 << 15, 512))
"""The same for proofs, of 16 ring values per row."""

_COHORTS: Final = (16, 48)
_REPEAT: Final = 3
_LEAST_SECONDS: Final = 1.0
_COLD: Final = 16
"""Clients of a round in which only these are measured."""

_DRAWN: Final = 1 << 18
_LAGS: Final = 21
"""Values and past rounds by which the rates of noise are measured."""

_CACHES: Final = 1 << 27
"""Bytes that are more than the caches of a core."""

_TABLE: Final = "table"


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of one core; seconds are core-seconds.

    Attributes:
        client_seconds: of a client, whatever the plan.
        client_tree_seconds: of a client for each of its trees.
        report_seconds: of a server for each client, whatever the plan.
        tree_seconds: of a server for each tree of a client.
        server_blocks: AES blocks per second, of a server, all work that grows with them included.
        share_bytes: bytes of its share that a server gathers, opens and applies per second.
        proving_seconds: of a client that proves anything, in addition to its AES blocks.
        proving_value_seconds: of a client for each integer that it proves something about.
        asking_seconds: of a server for each proof, in addition to its AES blocks.
        asking_value_seconds: of a server for each integer of a proof.
        noise_seconds: of a server for each value that it draws noise for.
        noise_tap_seconds: of a server for each value and past round that it correlates.
    """

    client_seconds: float
    client_tree_seconds: float
    report_seconds: float
    tree_seconds: float
    server_blocks: float
    share_bytes: float
    proving_seconds: float = 0.0
    proving_value_seconds: float = 0.0
    asking_seconds: float = 0.0
    asking_value_seconds: float = 0.0
    noise_seconds: float = 0.0
    noise_tap_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0.0 if name.endswith("seconds") else 1.0
            if type(value) is not float or not least <= value < float("inf"):
                raise ParameterError(
                    f"rate {name} is {value!r}: choose a finite float of {least} or more"
                )

    def client(self, plan: Plan) -> float:
        """Core-seconds of a client in a round, without its training.

        Raises:
            ParameterError: a plan with proofs, and rates that were measured without.
        """
        trees = self.client_seconds + num_trees(plan) * self.client_tree_seconds
        return trees + self._of_proof(plan, self.proving_seconds, self.proving_value_seconds)

    def server(self, plan: Plan, clients: int) -> float:
        """Core-seconds of one server in a round of `plan` with so many `clients`.

        Raises:
            ParameterError: as `client` does.
        """
        trees = self.report_seconds + num_trees(plan) * self.tree_seconds
        each = trees + predict(plan).server_aes_blocks / self.server_blocks
        each += self._of_proof(plan, self.asking_seconds, self.asking_value_seconds)
        return clients * each + share_bytes(plan) / self.share_bytes + self.noise(plan)

    def noise(self, plan: Plan) -> float:
        """Core-seconds of one server for the noise of a round.

        Raises:
            ParameterError: a plan with noise, and rates that were measured without.
        """
        if not plan.noise_sigma:
            return 0.0
        if not self.noise_seconds:
            raise ParameterError("these rates were measured without noise: leave out rates=")
        lags = sum(tap != 0 for tap in plan.noise_taps[1:])
        return noise_values(plan) * (self.noise_seconds + lags * self.noise_tap_seconds)

    def _of_proof(self, plan: Plan, fixed: float, value: float) -> float:
        if plan.statement is None:
            return 0.0
        if not fixed + value:
            raise ParameterError("these rates were measured without proofs: leave out rates=")
        return fixed + plan.statement.num_values * value


@dataclass(frozen=True, slots=True)
class Spent:
    """Core-seconds of one round: of a client, and of one server for the whole round."""

    client: float
    server: float


def rows_plan(
    rows: int, width: int, k_max: int, clients: int, ring_bits: int = 64, **options: Any
) -> Plan:
    """A plan of one table whose rows are retrieved privately.

    Raises:
        ParameterError: a limit is exceeded.
    """
    spec = SegmentSpec(
        _TABLE, "rows", (TensorSpec(_TABLE, (rows, width)),), k_max, width, retrieve=True
    )
    encoding = FixedPoint(ring_bits=ring_bits, frac_bits=16, clip=4.0)
    fixed = {"min_clients": 1, "session": bytes(16), "hash_seed": bytes(32)}
    options = {"above_break_even": "keep", **fixed, **options}
    return build_plan([spec], encoding=encoding, max_clients=clients, **options)


@functools.cache
def measured_rates() -> Rates:
    """Rates of this machine and this process's threads; takes a minute, once in a process."""
    counts, clients, servers, closing = [], [], [], []
    for rows, k_max in _SIZES:
        plan = rows_plan(rows, 8, k_max, max(_COHORTS))
        few, many = (server_seconds(plan, cohort, _REPEAT) for cohort in _COHORTS)
        each = (many - few) / (_COHORTS[1] - _COHORTS[0])
        counts.append((1.0, num_trees(plan), predict(plan).server_aes_blocks))
        clients.append(client_seconds(plan, _COHORTS[1], _REPEAT))
        servers.append(each)
        closing.append((share_bytes(plan), max(few - _COHORTS[0] * each, 1e-9)))
    fixed, tree, block = _fit(np.array(counts), np.array(servers))
    client_fixed, client_tree = _fit(np.array(counts)[:, :2], np.array(clients))
    share, seconds = closing[-1]  # the longest table
    rate = 1 / max(block, 1e-12)  # a block takes more than that
    plain = Rates(client_fixed, client_tree, fixed, tree, rate, share / seconds)
    proving, asking = _proofs(rate)
    drawing, correlating = noise_rates()
    return dataclasses.replace(
        plain, proving_seconds=proving[0], proving_value_seconds=proving[1],
        asking_seconds=asking[0], asking_value_seconds=asking[1],
        noise_seconds=drawing, noise_tap_seconds=correlating,
    )  # fmt: skip


def noise_rates() -> tuple[float, float]:
    """Seconds to draw noise for a value, and those to correlate it with one past round."""
    taps = (1 << 8, *[-1] * _LAGS)
    sources = (sample, CorrelatedNoise(taps, _DRAWN, lambda _, count: np.ones(count, np.int64)))
    least = []
    for source in sources:
        seconds = []
        for index in range(_LAGS + _REPEAT):
            if isinstance(source, CorrelatedNoise):
                source.begin(index)
            start = time.process_time()
            source(1 << 20, _DRAWN)
            seconds.append(time.process_time() - start)
        least.append(min(seconds[_LAGS:]))
    return least[0] / _DRAWN, least[1] / _DRAWN / _LAGS


def _proofs(blocks: float) -> tuple[list[float], list[float]]:
    """Seconds of a client and of a server for a proof, fixed and for each value."""
    counts, clients, servers = [], [], []
    for rows, k_max in _PROVEN:
        proven = rows_plan(rows, 16, k_max, _COHORTS[0], 32, l2_bound=1 << 16)
        assert proven.statement is not None
        none = dataclasses.replace(proven, proofs="none")
        with_it, without = (spent_in_round(p, _COHORTS[0], _REPEAT) for p in (proven, none))
        more = predict(proven).server_aes_blocks - predict(none).server_aes_blocks
        counts.append((1.0, proven.statement.num_values))
        clients.append(max(with_it.client - without.client, 1e-9))
        each = (with_it.server - without.server) / _COHORTS[0]
        servers.append(max(each - more / blocks, 1e-9))
    return _fit(np.array(counts), np.array(clients)), _fit(np.array(counts), np.array(servers))


def num_trees(plan: Plan) -> int:
    """Trees of a client."""
    return sum(segment.num_trees for segment in plan.with_trees)


def _fit(counts: Float64, seconds: Float64) -> list[float]:
    """Seconds of each count, none below nothing: least squares relative to what was measured."""
    scaled, ones = counts / seconds[:, None], np.ones(len(seconds))
    solution = np.zeros(counts.shape[1])
    used = np.ones(counts.shape[1], dtype=bool)
    while True:
        solution[:] = 0.0
        solution[used] = np.linalg.lstsq(scaled[:, used], ones, rcond=None)[0]
        if (solution >= 0).all():
            return [float(value) for value in solution]
        used &= solution > 0


def spent_in_round(plan: Plan, clients: int, repeat: int = 2) -> Spent:
    """Core-seconds of a round of this plan, of some rounds and of more where they are short."""
    return Spent(client_seconds(plan, clients, repeat), server_seconds(plan, clients, repeat))


def client_seconds(plan: Plan, clients: int, repeat: int) -> float:
    """Core-seconds that a quarter of the clients stay below, each with empty caches.

    If caches are empty, neighbours on the machine disturb every client.
    """
    other = np.ones(_CACHES // 8)
    rounds = _rounds(plan, min(clients, _COLD), repeat, other)
    return float(np.quantile([seconds for each, _ in rounds for seconds in each], 0.25))


def server_seconds(plan: Plan, clients: int, repeat: int) -> float:
    """Core-seconds of the best round."""
    return min(served for _, served in _rounds(plan, clients, repeat, None))


def _rounds(
    plan: Plan, clients: int, repeat: int, other: Float64 | None
) -> list[tuple[list[float], float]]:
    """What `_round` gives of as many rounds as `repeat`, and of more where they are short."""
    state = {t.name: np.zeros(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
    first, second = (Server(p, plan=plan, model=ServerModel(state)) for p in (0, 1))
    numbers = itertools.count()
    _round((first, second), clients, next(numbers), other)  # warms memory up
    runs: list[tuple[list[float], float]] = []
    end = time.monotonic() + _LEAST_SECONDS
    while len(runs) < repeat or time.monotonic() < end:
        runs.append(_round((first, second), clients, next(numbers), other))
    return runs


def _round(
    servers: tuple[Server, Server], clients: int, number: int, other: Float64 | None
) -> tuple[list[float], float]:
    """Seconds of each client and of a server.

    Before each client `other` is read, if given, which takes the place of all else in the caches.
    """
    watched = tuple(_Watched(server) for server in servers)
    plan, start = servers[0].plan, time.process_time()
    begin_round(servers, number)
    between, own = time.process_time() - start, []
    for client in range(clients):
        update = _update(plan, client)
        wanted = {s.name: update[s.name].positions for s in plan.retrieving}
        if other is not None:
            other.sum()
        serving, start = sum(watch.seconds for watch in watched), time.process_time()
        link = InProcess(watched[0], watched[1])
        mine = Client(plan, link, client_id=client).start_round(number, indices=wanted)
        mine.download()
        if plan.retrieving:
            mine.retrieve()
        mine.submit(update)
        both = time.process_time() - start
        own.append(both - (sum(watch.seconds for watch in watched) - serving))
    start = time.process_time()
    finish_round(servers)
    between += time.process_time() - start
    return own, (sum(watch.seconds for watch in watched) + between) / 2


def _update(plan: Plan, client: int) -> Update:
    """Evenly spaced rows, shifted for each client. The rows only need to be distinct."""
    update: Update = {}
    for s in plan.segments:
        rows = np.sort((np.arange(s.k_max) * (s.m // s.k_max) + client) % s.m).astype(np.int64)
        update[s.name] = SegmentUpdate(rows, np.ones((s.k_max, s.tau), dtype=np.int64))
    return update


class _Watched:
    """Passes messages on to a server and counts its processor time."""

    def __init__(self, server: Endpoint) -> None:
        self._server, self.seconds = server, 0.0

    def receive(self, message: bytes) -> Any:
        return self._timed(self._server.receive, message)

    def relay(self, *what: Any) -> Any:
        return self._timed(self._server.relay, *what)

    def reply(self, *what: Any) -> Any:
        return self._timed(self._server.reply, *what)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.process_time()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.process_time() - start

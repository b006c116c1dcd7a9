"""What playing an attack showed, with its defence off and on, and what the defence costs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from scripts.bench.measure import cpu_seconds
from scripts.checks.round_clients import take_part
from scripts.parties import bench_plan, random_update, two_servers
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec

_ROWS: Final = 8192
_WIDTH: Final = 16
_TAKEN: Final = 64
_DENSE: Final = 4096
_CLIENTS: Final = 6


class Defence(Protocol):
    """Makes a block in which a defence is on or off."""

    def __call__(self, *, on: bool) -> AbstractContextManager[object]:
        """The block."""


def honest_plan(*, malicious_security: bool = True) -> Plan:
    """A small recommender: a retrieved table of 8192 x 16, and 4096 dense parameters."""
    table, rest = TensorSpec("table", (_ROWS, _WIDTH)), TensorSpec("rest", (_DENSE,))
    specs = [
        SegmentSpec("table", "rows", (table,), tau=_WIDTH, k_max=_TAKEN, retrieve=True),
        SegmentSpec("rest", "dense", (rest,)),
    ]
    options = {"max_clients": _CLIENTS, "malicious_security": malicious_security}
    return bench_plan(specs, encoding=FixedPoint(32, 16, 4.0), **options)


def honest_round(plan: Plan, servers: tuple[Server, Server] | None = None) -> None:
    """Six clients retrieve 64 rows and send an update."""
    servers = servers or two_servers(plan)
    begin_round(servers, 1)
    for number in range(_CLIENTS):
        client = Client(plan, InProcess(*servers), client_id=number)
        take_part(client, 1, random_update(plan, number, 99))
    finish_round(servers)


def ratio_of(defence: Defence) -> float:
    """Processor time of an honest round with a defence over that of one without."""

    def play(*, on: bool) -> None:
        with defence(on=on):
            honest_round(honest_plan())

    return ratio(lambda: play(on=False), lambda: play(on=True))


def switched(off: AbstractContextManager[object], *, on: bool) -> AbstractContextManager[object]:
    """Nothing if the defence is on, else the patch that takes it away."""
    return contextlib.nullcontext() if on else off


def ratio(off: Callable[[], object], on: Callable[[], object], repeats: int = 9) -> float:
    """Processor time of `on` over that of `off`: the median of interleaved pairs, after one."""
    pairs = [(*cpu_seconds(off, 1), *cpu_seconds(on, 1)) for _ in range(repeats + 1)]
    return statistics.median(with_it / without for without, with_it in pairs[1:])


def fastest(call: Callable[[], object]) -> float:
    """Processor time of the fastest of five calls."""
    return min(cpu_seconds(call, 5))


@dataclass(frozen=True, slots=True)
class AttackResult:
    """One attack.

    Attributes:
        name: what is attacked, in a few words.
        off: what the attacker read or did with the defence switched off.
        on: what happened with it on.
        worked_off: whether the attack succeeded with the defence off, as it must.
        worked_on: whether it succeeded with the defence on, as it must not.
        extra_bytes: upload that the defence costs a client and round.
        time_ratio: processor time of an honest round with the defence over the same without, in one
            run.
        cost: in words, where the defence is a rule and there is no such round to measure.
    """

    name: str
    off: str
    on: str
    worked_off: bool
    worked_on: bool
    extra_bytes: int = 0
    time_ratio: float = 0.0
    cost: str = ""

    def __post_init__(self) -> None:
        """Every defence says what it costs, in one way."""
        if bool(self.time_ratio) == bool(self.cost):
            raise ValueError(f"{self.name}: give the ratio of times, or the cost in words")

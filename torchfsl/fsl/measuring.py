"""How fast this machine does the work of a round: measured on small rounds through both servers.

A server's core-seconds are fitted as `fixed + AES blocks / rate` a client and `fixed + bytes of a
share / rate` a round; a client's as `fixed + AES blocks / rate`. Rounds of two sizes, each with
few and with many clients, give the six numbers. Time is that of the processor, over all threads, so
that neighbours on the machine disturb less; they still do, by sharing its caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.messages import share_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import Endpoint, InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

_SIZES: Final = ((1 << 12, 32), (1 << 16, 256))
"""Rows, and rows a client, of the rounds that rates are fitted to."""

_COHORTS: Final = (16, 80)
_REPEAT: Final = 3
_TABLE: Final = "table"


@dataclass(frozen=True, slots=True)
class Rates:
    """What one core does; seconds are core-seconds.

    Attributes:
        client_seconds: of a client, whatever the plan.
        client_blocks: AES blocks a second, of a client.
        report_seconds: of a server for each client, whatever the plan.
        server_blocks: AES blocks a second, of a server, all work that grows with them included.
        round_seconds: of a server for each round, whatever the plan.
        share_bytes: bytes of its share that a server gathers, opens and applies a second.
    """

    client_seconds: float
    client_blocks: float
    report_seconds: float
    server_blocks: float
    round_seconds: float
    share_bytes: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            least = 0.0 if name.endswith("seconds") else 1.0
            if type(value) is not float or not least <= value < float("inf"):
                raise ParameterError(f"rate {name} is {value!r}: a float of at least {least}")

    def client(self, plan: Plan) -> float:
        """Core-seconds of a client in a round, without its training."""
        return self.client_seconds + predict(plan).client_aes_blocks / self.client_blocks

    def server(self, plan: Plan, clients: int) -> float:
        """Core-seconds of one server in a round of so many clients."""
        each = self.report_seconds + predict(plan).server_aes_blocks / self.server_blocks
        return clients * each + self.round_seconds + share_bytes(plan) / self.share_bytes


@dataclass(frozen=True, slots=True)
class Spent:
    """Core-seconds of one round: of a client, and of one server for the whole round."""

    client: float
    server: float


def rows_plan(rows: int, width: int, k_max: int, clients: int, **options: Any) -> Plan:
    """A plan of one table whose rows are retrieved privately, 64-bit ring values.

    Raises:
        ParameterError: a limit is exceeded.
    """
    spec = SegmentSpec(
        _TABLE, "rows", (TensorSpec(_TABLE, (rows, width)),), k_max, width, retrieve=True
    )
    return build_plan(
        [spec], encoding=FixedPoint(ring_bits=64, frac_bits=16, clip=4.0), max_clients=clients,
        min_clients=1, session=bytes(16), hash_seed=bytes(32), above_break_even="keep", **options,
    )  # fmt: skip


def measured_rates() -> Rates:
    """Rates of this machine and this process's threads; takes some seconds."""
    sizes = []
    for rows, k_max in _SIZES:
        plan = rows_plan(rows, 8, k_max, max(_COHORTS))
        few, many = (spent_in_round(plan, clients, _REPEAT) for clients in _COHORTS)
        each = (many.server - few.server) / (_COHORTS[1] - _COHORTS[0])
        closing = max(few.server - _COHORTS[0] * each, 0.0)
        sizes.append((predict(plan), share_bytes(plan), many.client, each, closing))
    (small, share, client, each, closing), (large, more, client_2, each_2, closing_2) = sizes
    client_fixed, client_rate = _line(
        small.client_aes_blocks, client, large.client_aes_blocks, client_2
    )
    fixed, rate = _line(small.server_aes_blocks, each, large.server_aes_blocks, each_2)
    round_fixed, share_rate = _line(share, closing, more, closing_2)
    return Rates(client_fixed, client_rate, fixed, rate, round_fixed, share_rate)


def _line(x: int, y: float, x_2: int, y_2: float) -> tuple[float, float]:
    """Fixed part and rate of the line through two points, neither below zero."""
    rate = (x_2 - x) / max(y_2 - y, 1e-9)
    return max(y - x / rate, 0.0), rate


def spent_in_round(plan: Plan, clients: int, repeat: int = 2) -> Spent:
    """Core-seconds of a round of this plan; the best of some, after one that warms memory up."""
    state = {t.name: np.zeros(t.shape, t.dtype) for s in plan.segments for t in s.tensors}
    servers = tuple(Server(p, plan=plan, model=ServerModel(state)) for p in (0, 1))
    runs = [_round((servers[0], servers[1]), clients, number) for number in range(repeat + 1)]
    return Spent(min(r.client for r in runs[1:]), min(r.server for r in runs[1:]))


def _round(servers: tuple[Server, Server], clients: int, number: int) -> Spent:
    watched = tuple(_Watched(server) for server in servers)
    plan, start = servers[0].plan, time.process_time()
    begin_round(servers, number)
    between, start = time.process_time() - start, time.process_time()
    for client in range(clients):
        update = _update(plan, client)
        wanted = {s.name: update[s.name].positions for s in plan.retrieving}
        link = InProcess(watched[0], watched[1])
        mine = Client(plan, link, client_id=client).start_round(number, indices=wanted)
        mine.download()
        mine.retrieve()
        mine.submit(update)
    serving = sum(one.seconds for one in watched)
    own, start = time.process_time() - start - serving, time.process_time()
    finish_round(servers)
    between += time.process_time() - start
    return Spent(own / clients, (serving + between) / 2)


def _update(plan: Plan, client: int) -> Update:
    """Evenly spaced rows, others for each client; of no consequence but for being distinct."""
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

"""What a defence costs: an honest round with it over the same without, in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from scripts.parties import bench_plan, two_servers, zeros
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.hpke import SealKey
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

_ROWS: Final = 8192
_WIDTH: Final = 16
_TAKEN: Final = 64
_DENSE: Final = 4096
_CLIENTS: Final = 6


def honest_plan(*, malicious_security: bool = True) -> Plan:
    """A small recommender: a retrieved table of 8192 x 16, and 4096 dense parameters."""
    table, rest = TensorSpec("table", (_ROWS, _WIDTH)), TensorSpec("rest", (_DENSE,))
    specs = [
        SegmentSpec("table", "rows", (table,), tau=_WIDTH, k_max=_TAKEN, retrieve=True),
        SegmentSpec("rest", "dense", (rest,)),
    ]
    return bench_plan(
        specs, encoding=FixedPoint(32, 16, 4.0), max_clients=_CLIENTS,
        malicious_security=malicious_security,
    )  # fmt: skip


def honest_round(plan: Plan, keys: tuple[SealKey, SealKey] | None = None) -> None:
    """Six clients retrieve 64 rows and send an update; `keys` are those that the plan names."""
    servers = two_servers(plan) if keys is None else _with_keys(plan, keys)
    begin_round(servers, 1)
    for number in range(_CLIENTS):
        rng = np.random.default_rng(number)
        rows = np.sort(rng.choice(_ROWS, size=_TAKEN, replace=False)).astype(np.int64)
        taking = Client(plan, InProcess(*servers), client_id=number)
        with taking.start_round(1, indices={"table": rows}) as client_round:
            client_round.download()
            client_round.retrieve()
            update: Update = {
                "table": SegmentUpdate(rows, rng.integers(-99, 99, size=(_TAKEN, _WIDTH))),
                "rest": SegmentUpdate(None, rng.integers(-99, 99, size=(_DENSE, 1))),
            }
            client_round.submit(update)
    finish_round(servers)


def ratio(off: Callable[[], object], on: Callable[[], object], repeats: int = 9) -> float:
    """Processor time of `on` over that of `off`: the median of interleaved pairs, after one."""
    pairs = [(_seconds(off), _seconds(on)) for _ in range(repeats + 1)]
    return statistics.median(with_it / without for without, with_it in pairs[1:])


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _with_keys(plan: Plan, keys: tuple[SealKey, SealKey]) -> tuple[Server, Server]:
    state = zeros(plan)
    first, second = (
        Server(party, plan=plan, model=ServerModel(state), key=keys[party]) for party in (0, 1)
    )
    return first, second

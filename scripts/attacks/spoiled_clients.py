"""Server 0 spoils the round for every client but one, so that `min_clients` counts dummies.

Three ways: a flipped bit in its answers; one in the model or digest that it shows; refused calls.
With the defence off a client that notices sends an all-dummy report, as it does when something
private fails; the honest server counts that, and the aggregate is the victim's update. With it on
the client is silent: no such round has `min_clients` reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final
from unittest import mock

import numpy as np

from scripts.attacks.result import AttackResult
from scripts.parties import bench_plan, two_servers
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error, ProtocolError, RejectedSubmission
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess, Transport
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update

WAYS: Final = ("answer", "model", "refusal")
CLIENTS: Final = 20
VICTIM: Final = 7
_ROWS, _TAU, _K_MAX = 400, 2, 4


class Spoiling:
    """A transport in which server 0 spoils, one way, whatever it tells some clients."""

    def __init__(self, servers: Transport, way: str, spoiled: Iterable[int]) -> None:
        """Spoil what server 0 says to the clients in `spoiled`."""
        self._servers, self._way, self._spoiled = servers, way, frozenset(spoiled)

    def send(self, party: int, message: bytes) -> None:
        """Deliver untouched."""
        self._servers.send(party, message)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """Fetch, spoiled."""
        data = self._servers.fetch(party, kind, round_number, client)
        if party or client not in self._spoiled:
            return data
        if self._way == "refusal":
            raise RejectedSubmission("not you")
        if (kind is Kind.ANSWER) == (self._way == "answer"):
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data


def make_plan(min_clients: int) -> Plan:
    """One retrieving segment and a dense one."""
    segments = [
        SegmentSpec("rows", "rows", (TensorSpec("rows", (_ROWS, _TAU)),), tau=_TAU, k_max=_K_MAX,
                    retrieve=True),
        SegmentSpec("bias", "dense", (TensorSpec("bias", (3,)),)),
    ]  # fmt: skip
    plan = bench_plan(segments, encoding=FixedPoint(32, 16, 4.0), max_clients=CLIENTS)
    return dataclasses.replace(plan, min_clients=min_clients)


def make_update(plan: Plan, client: int) -> Update:
    """Anything; nobody else's is like it."""
    rng = np.random.default_rng(client)
    rows = np.sort(rng.choice(_ROWS, _K_MAX, replace=False)).astype(np.int64)
    limit = plan.encoding.q_max
    return {
        "rows": SegmentUpdate(rows, rng.integers(-limit, limit, (_K_MAX, _TAU))),
        "bias": SegmentUpdate(None, rng.integers(-limit, limit, (3, 1))),
    }


def take_part(client: Client, round_number: int, update: Update) -> bool:
    """A whole round of an honest client; whether nothing failed."""
    try:
        with client.start_round(round_number, indices={"rows": update["rows"].positions}) as taking:
            taking.download()
            taking.retrieve()
            taking.submit(update)
    except Error:
        return False
    return True


@contextlib.contextmanager
def defence(*, on: bool) -> Iterator[None]:
    """Whether clients withdraw when a server fails; off, they send dummies."""
    off = mock.patch.object(client_round, "_withdrawn_on_error", contextlib.nullcontext)
    with contextlib.nullcontext() if on else off:
        yield


def play(way: str, *, min_clients: int, spoiled: Iterable[int], on: bool) -> Opened | None:
    """A round of all clients, some spoiled: what was opened, if anything."""
    plan = make_plan(min_clients)
    servers = two_servers(plan)
    begin_round(servers, 1)
    wire = Spoiling(InProcess(*servers), way, spoiled)
    with defence(on=on):
        for number in range(CLIENTS):
            take_part(Client(plan, wire, client_id=number), 1, make_update(plan, number))
    try:
        return finish_round(servers)
    except ProtocolError:
        return None


def is_sum_of(opened: Opened | None, clients: Iterable[int], plan: Plan) -> bool:
    """Whether the aggregates are exactly those of these clients' updates."""
    if opened is None:
        return False
    rows, bias = np.zeros((_ROWS, _TAU), np.int64), np.zeros((3, 1), np.int64)
    for client in clients:
        update = make_update(plan, client)
        rows[update["rows"].positions] += update["rows"].values
        bias += update["bias"].values
    return np.array_equal(opened.sums["rows"], rows) and np.array_equal(opened.sums["bias"], bias)


def run() -> AttackResult:
    """Every way, with `min_clients` = all clients and all but one of them spoiled."""
    plan, others = make_plan(CLIENTS), [c for c in range(CLIENTS) if c != VICTIM]
    opened = {
        on: [play(way, min_clients=CLIENTS, spoiled=others, on=on) for way in WAYS]
        for on in (False, True)
    }
    read = sum(is_sum_of(one, [VICTIM], plan) for one in opened[False])
    return AttackResult(
        name="dummies that defeat min_clients",
        off=f"one client's update, bit for bit, with min_clients = {CLIENTS} of {CLIENTS} "
        f"({read} of {len(WAYS)} ways)",
        on="a sum is opened" if any(opened[True]) else "nothing is opened",
        worked_off=read == len(WAYS),
        worked_on=any(opened[True]),
        cost="a rule: the client is silent",
    )

"""Server 0 gets the other server's answers too, and so the rows that a client asked for.

It holds the clients' authority, so that it can ask for a client's answer in the client's name, or
it merely carries the answers (a load balancer that ends TLS). Answers in the clear XOR to the rows.
With the defence on each is sealed under a key from the master seed that its own sender got. Besides
a client's answer is sent a few times only, the same bytes each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

import numpy as np

from scripts.attacks import timing
from scripts.attacks.result import AttackResult
from scripts.parties import bench_plan, two_servers
from torchfsl.crypto import aead
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.types import Array

VICTIM: Final = 5
ROWS: Final = (3, 40, 77)
_SHAPE: Final = (100, 4)


def make_plan() -> Plan:
    """One retrieving segment."""
    spec = SegmentSpec(
        "rows", "rows", (TensorSpec("rows", _SHAPE),), tau=_SHAPE[1], k_max=3, retrieve=True
    )
    return bench_plan([spec], encoding=FixedPoint(32, 16, 4.0), max_clients=4)


def make_rows() -> Array:
    """A model whose rows are all different."""
    return np.random.default_rng(0).normal(size=_SHAPE).astype(np.float32)


@contextlib.contextmanager
def defence(*, on: bool) -> Iterator[None]:
    """Whether answers are sealed; off, they travel in the clear, as long as sealed ones."""
    clear = {
        "seal_once": lambda key, text: bytes(text) + bytes(aead.SEAL_BYTES),
        "unseal": lambda key, sealed: bytes(sealed[: -aead.SEAL_BYTES]),
    }
    with contextlib.nullcontext() if on else mock.patch.multiple(aead, **clear):
        yield


def rows_in(first: bytes, second: bytes) -> set[int]:
    """The rows of the model that the XOR of two answers holds."""
    parts = [np.frombuffer(answer, np.uint8) for answer in (first, second)]
    both = (parts[0] ^ parts[1]).tobytes()
    return {number for number, row in enumerate(make_rows()) if row.tobytes() in both}


def read_rows(*, on: bool) -> set[int]:
    """Which rows of the victim server 0 reads off both answers, in one process."""
    plan = make_plan()
    servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    with defence(on=on):
        taking = Client(plan, servers, client_id=VICTIM).start_round(1, indices={"rows": ROWS})
        assert taking.retrieve()["rows"][0].tolist() == list(ROWS)
        own, other = (server.reply(Kind.ANSWER, 1, VICTIM) for server in servers)
    return rows_in(own[HEADER_BYTES:], other[HEADER_BYTES:])


def times_answered() -> int:
    """How often one client is answered in one round."""
    plan = make_plan()
    servers = two_servers(plan, {"rows": make_rows()})
    begin_round(servers, 1)
    Client(plan, servers, client_id=VICTIM).start_round(1, indices={"rows": ROWS})
    sent = set()
    for count in range(100):
        try:
            sent.add(servers[1].reply(Kind.ANSWER, 1, VICTIM))
        except RejectedSubmission:
            assert len(sent) == 1, "the same bytes each time"
            return count
    return 100


def run() -> AttackResult:
    """Both answers in the hands of server 0."""
    read = {on: read_rows(on=on) for on in (False, True)}
    return AttackResult(
        name="answers read by who carries them, or who can ask for them",
        off=f"all {len(ROWS)} rows that a client asked for, among those of "
        f"{len(read[False]) - len(ROWS)} dummies",
        on=f"{len(read[True])} rows; a client is answered {times_answered()} times at most",
        worked_off=set(ROWS) <= read[False],
        worked_on=bool(read[True]),
        extra_bytes=0,  # 32 more come down
        time_ratio=timing.ratio(lambda: _honest(on=False), lambda: _honest(on=True)),
    )


def _honest(*, on: bool) -> None:
    with defence(on=on):
        timing.honest_round(timing.honest_plan())

"""Who ends TLS before both servers alters a report, and its commitment to fit; reads the rows.

A commitment needs no secret. Off the point a hint adds nothing, at the point all of it: whoever
flips a high bit of every hint marks the positions that the client selected, in the aggregate or,
as here, by what the check of ranges zeroes. With the defence on each upload carries a tag under
the master seed that is sealed to its server.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Final
from unittest import mock

import numpy as np

from scripts.attacks import timing
from scripts.attacks.read_seeds import sealed_servers
from scripts.attacks.result import AttackResult
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import keys
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import CHECK_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.uploads import UPLOADS, ReportBody, ReportCommit
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Indices

VICTIM: Final = 2
ROWS: Final = (1, 6, 11)
_SIZE: Final = 16
_ROUND: Final = 1


def make_plan() -> Plan:
    """Scalars in trees over all of them, as many as a client may select."""
    tensor = TensorSpec("rows", (_SIZE,))
    segment = TreeSegment(
        "rows", "scalars", (tensor,), _SIZE, 1, len(ROWS), stash=len(ROWS), check_bytes=CHECK_BYTES
    )
    return Plan(
        session="0" * 32, hash_seed="0" * 64, encoding=FixedPoint(32, 0, 100.0), max_clients=8,
        segments=(segment,), min_clients=1,
    )  # fmt: skip


class Carrier(InProcess):
    """Between one client and both servers: holds the commitment back until it has the report."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        """Nothing is carried yet."""
        super().__init__(*servers)
        self._plan = plan
        self._held: ReportCommit | None = None

    def send(self, party: int, message: bytes) -> None:
        """Deliver what fits the plan, altered."""
        decoded = messages.decode(self._plan, message, *UPLOADS)
        body = UPLOADS[decoded.kind].decode(self._plan, decoded.body)
        if isinstance(body, ReportCommit):
            self._held = body
            return
        assert isinstance(body, ReportBody)
        assert self._held is not None
        public = flip_hints(self._plan, body.public[0])
        trees = TreeContext(self._plan, _ROUND, VICTIM, body.nonce)
        fitting = ReportContext(trees, _ROUND, body.hint_nonce).commitment(public)
        forged = {
            party: dataclasses.replace(body, public=(public,)),
            1 - party: dataclasses.replace(self._held, commitment=fitting),
        }
        for to in (1 - party, party):
            super().send(to, forged[to].message(self._plan, to, _ROUND, VICTIM))


def flip_hints(plan: Plan, public: bytes | memoryview) -> bytes:
    """The public part with a high bit of every hint flipped."""
    (segment,) = plan.segments
    altered = np.frombuffer(public, np.uint8).copy()
    hints = altered[segment.tree_bytes :].view("<u4")
    hints ^= np.uint32(1 << 30)
    return altered.tobytes()


@contextlib.contextmanager
def defence(*, on: bool) -> Iterator[None]:
    """Whether uploads carry tags; off, they carry as many zeros."""
    off = mock.patch.object(keys, "upload_tag", return_value=bytes(kdf.SEED_BYTES))
    with contextlib.nullcontext() if on else off:
        yield


def attacked_round(*, on: bool) -> Opened:
    """What is opened where everybody sends 9 at every row but the victim, which sends at three."""
    plan, servers = sealed_servers(make_plan(), {"rows": np.zeros(_SIZE, np.float32)})
    begin_round(servers, _ROUND)
    with defence(on=on):
        for number, first in enumerate(range(0, _SIZE, len(ROWS))):
            rows = np.arange(first, min(first + len(ROWS), _SIZE))
            _send(Client(plan, InProcess(*servers), client_id=10 + number), rows)
        with contextlib.suppress(RejectedSubmission):
            _send(Client(plan, Carrier(plan, servers), client_id=VICTIM), np.array(ROWS))
        return finish_round(servers)


def _send(client: Client, rows: Indices) -> None:
    values = np.full((len(rows), 1), 9)
    client.start_round(_ROUND).submit({"rows": SegmentUpdate(rows.astype(np.int64), values)})


def rows_read(opened: Opened) -> set[int]:
    """The rows that are zero in the aggregate, although a client sent to every row."""
    return set(np.flatnonzero(opened.sums["rows"][:, 0] == 0).tolist())


def run() -> AttackResult:
    """The rows read from the aggregates without tags on uploads, and with them."""
    off, on = (attacked_round(on=on) for on in (False, True))
    return AttackResult(
        "a report altered before both servers",
        off=f"rows {sorted(rows_read(off))} of the client, which sent at {list(ROWS)}",
        on="refused, the others' sum is exact" if VICTIM not in on.clients else "accepted",
        worked_off=rows_read(off) == set(ROWS),
        worked_on=VICTIM in on.clients or bool(rows_read(on)),
        extra_bytes=4 * kdf.SEED_BYTES,
        time_ratio=timing.ratio(lambda: _honest(on=False), lambda: _honest(on=True)),
    )


def _honest(*, on: bool) -> None:
    with defence(on=on):
        timing.honest_round(timing.honest_plan())

"""Who carries messages to both servers, and hears them talk, splits the dense sum in two; reads on.

With one mask alone, a server's share of a dense sum is the masks of half of the clients plus the
masked values of the other half, and the carrier has seen all masked values. It subtracts what it
has and gets the sums of even-numbered and of odd-numbered clients; where it held back all but one
of a half, that is the client's update. It reads only. With the defence on what travels carries a
mask of its own addressee, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

import numpy as np
import numpy.typing as npt

from scripts.attacks import timing
from scripts.attacks.read_seeds import sealed_servers
from scripts.attacks.result import AttackResult
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import bodies, messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.fsl.uploads import ReportBody
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Bytes

VALUES: Final = {2: 11, 3: 23, 5: 42}
"""What each client sends everywhere; client 2 is the only one of its half."""
_SIZE: Final = 5
_HONEST: Final = ReportContext.dense_mask


def make_plan() -> Plan:
    """One dense segment."""
    segment = TreeSegment("rest", "dense", (TensorSpec("rest", (_SIZE,)),), _SIZE, 1, _SIZE)
    return Plan(
        session="0" * 32, hash_seed="0" * 64, encoding=FixedPoint(32, 0, 100.0), max_clients=4,
        segments=(segment,), min_clients=3,
    )  # fmt: skip


class Reader(InProcess):
    """Delivers, and adds up the masked values that pass, by addressee."""

    def __init__(self, plan: Plan, servers: tuple[Server, Server]) -> None:
        """Nothing has passed."""
        super().__init__(*servers)
        self._plan = plan
        self.masked = np.zeros((2, _SIZE), dtype="<u4")

    def send(self, party: int, message: bytes) -> None:
        """Deliver."""
        if messages.peek(message).kind is Kind.REPORT:
            body = ReportBody.read(self._plan, message)
            self.masked[party] += np.frombuffer(body.masked[0], "<u4")
        super().send(party, message)


@contextlib.contextmanager
def defence(*, on: bool) -> Iterator[None]:
    """Whether the addressee of masked values has a mask in them, too."""

    def one_mask(context: ReportContext, segment: TreeSegment, seed: bytes, party: int) -> Bytes:
        mask = _HONEST(context, segment, seed, party)
        return np.zeros_like(mask) if party == context.trees.public_party else mask

    off = mock.patch.object(ReportContext, "dense_mask", one_mask)
    with contextlib.nullcontext() if on else off:
        yield


def read_halves(*, on: bool) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """What the carrier takes for the sums of even-numbered and of odd-numbered clients."""
    plan, servers = sealed_servers(make_plan(), {"rest": np.zeros(_SIZE, np.float32)})
    reader = Reader(plan, servers)
    begin_round(servers, 1)
    with defence(on=on):
        for client, value in VALUES.items():
            update = SegmentUpdate(None, np.full((_SIZE, 1), value))
            Client(plan, reader, client_id=client).start_round(1).submit({"rest": update})
        shares = _shares(plan, servers)
    masked = reader.masked
    even, odd = (shares[1 - p] - masked[1 - p] + masked[p] for p in (0, 1))
    return even.view("<i4"), odd.view("<i4")


def _shares(plan: Plan, servers: tuple[Server, Server]) -> list[npt.NDArray[np.uint32]]:
    """The servers' SHARE messages, which a carrier between them sees."""
    one, two = servers
    sets = one.close_round(), two.close_round()
    folds = one.agree(sets[1]), two.agree(sets[0])
    one.verify(folds[1])
    two.verify(folds[0])
    commitments = one.commit(), two.commit()
    said = one.reveal(commitments[1]), two.reveal(commitments[0])
    assert np.all(one.open(said[1]).sums["rest"] == sum(VALUES.values()))
    return [np.frombuffer(bodies.ShareBody.read(plan, share).sums, "<u4") for share in said]


def run() -> AttackResult:
    """The halves of the dense sum with one mask and with both."""
    off, on = (read_halves(on=on)[0] for on in (False, True))
    return AttackResult(
        "a dense sum split by who carries it",
        off=f"client 2 sent {off.tolist()}, with min_clients = 3",
        on="noise" if np.any(on != VALUES[2]) else "the same",
        worked_off=bool(np.all(off == VALUES[2])),
        worked_on=bool(np.any(on == VALUES[2])),
        time_ratio=timing.ratio(lambda: _honest(on=False), lambda: _honest(on=True)),
    )


def _honest(*, on: bool) -> None:
    with defence(on=on):
        timing.honest_round(timing.honest_plan())

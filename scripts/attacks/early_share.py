"""Server 0 asks for server 1's share before it has committed to its own, and then dictates the sum.

It sends a SHARE_COMMIT that names the wrong server, which is refused but made server 1 commit, and
asks for the next step. `_Hasty` is a server that does not mind. A share that was seen lets server 0
choose its own: it commits to what turns the sum into anything it wants.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from scripts.attacks.result import AttackResult
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ShareBody
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.transport import InProcess
from torchfsl.kernels import ring
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.state import vault
from torchfsl.service.state.steps import STEPS
from torchfsl.service.task import Task, bind_plan, encode_task
from torchfsl.submodel.segments import TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole

_ROUND: Final = 1
_WANTED: Final = np.array([7, -7, 70, -70])
"""What server 0 wants the sum to be."""

_FLOORS = ClientPolicy(sealed=False, joint_coin=False, verified=False, min_clients=1)


def run() -> AttackResult:
    """The attack on a server that answers out of order, and on ours."""
    with tempfile.TemporaryDirectory() as folder:
        off = Attack(Path(folder) / "off", _Hasty)
        early, dictated = off.share_before_commitment(), off.dictate()
        on = Attack(Path(folder) / "on", Node)
        refused = not on.share_before_commitment()
        exact = on.finish()
    return AttackResult(
        "share before the commitment",
        off=f"server 1's share read first: {early}; the sum is what server 0 wants: {dictated}",
        on=f"both steps refused: {refused}; the round goes on and its sum is exact: {exact}",
        worked_off=early and dictated,
        worked_on=not (refused and exact),
        cost="a rule: the order of steps",
    )


class Attack:
    """A round of two clients up to the verdicts, at server 0 (malicious) and server 1.

    Args:
        folder: for certificates and state.
        other: what server 1 is.
    """

    def __init__(self, folder: Path, other: type[Node]) -> None:
        """Everybody is honest so far."""
        make_development_certificates(folder, [])
        authorities = TlsFiles.in_folder(folder, "server-0").authorities()
        self.plan = bind_plan(_plan(), authorities, bytes(16))
        made = Node, other
        self.nodes = [self._node(folder, made[b], b, authorities) for b in (0, 1)]
        self._exchange(Kind.ROUND_STATE)
        link = InProcess(*(node.server for node in self.nodes))
        rng = np.random.default_rng(0)
        self.total = np.zeros((4, 1), dtype=np.int64)
        for number in range(2):
            values = rng.integers(-100, 100, size=(4, 1))
            update: Update = {"d": SegmentUpdate(None, values)}
            client = Client(self.plan, link, client_id=number)
            client.start_round(_ROUND, indices={}).submit(update)
            self.total += values
        for kind in (Kind.REPORT_SET, Kind.VERDICTS):
            self._exchange(kind)
        self.seen = b""

    def share_before_commitment(self) -> bool:
        """Whether server 1 gives away its share now, to who has committed to nothing."""
        wrong_party = messages.encode(self.plan, Kind.SHARE_COMMIT, 0, _ROUND, 0, bytes(32))
        with contextlib.suppress(ProtocolError):
            self.nodes[1].exchange(_ROUND, Kind.SHARE_COMMIT, wrong_party)
        try:
            share = self.nodes[1].exchange(_ROUND, Kind.SHARE)
        except ProtocolError:
            return False
        self.seen = bytes(ShareBody.read(self.plan, share).sums)
        return True

    def dictate(self) -> bool:
        """Commit to a share made from the one that was seen; whether the sum is what was wanted."""
        seen = np.frombuffer(self.seen, np.uint8).reshape(-1, self.plan.encoding.ring_bits // 8)
        share = ring.sub(ring.from_int64(_WANTED, self.plan.encoding.ring_bits), seen).tobytes()
        server, victim = self.nodes[0].server, self.nodes[1]
        victim.exchange(_ROUND, Kind.SHARE_COMMIT, server.commit(share=share))
        said = ShareBody(*server.committed()).message(self.plan, 1, _ROUND)
        victim.exchange(_ROUND, Kind.SHARE, said)
        victim.count(_ROUND, Kind.SHARE)
        return np.array_equal(self._opened(1)[:, 0], _WANTED)

    def finish(self) -> bool:
        """The round to its end, both honest again; whether both opened the exact sum."""
        for kind in (Kind.SHARE_COMMIT, Kind.SHARE):
            self._exchange(kind)
        return all(np.array_equal(self._opened(party), self.total) for party in (0, 1))

    def _exchange(self, kind: Kind) -> None:
        said = [node.exchange(_ROUND, kind) for node in self.nodes]
        for node, theirs in zip(self.nodes, reversed(said), strict=True):
            node.exchange(_ROUND, kind, theirs)
            node.count(_ROUND, kind)

    def _opened(self, party: int) -> Whole:
        opened, _ = vault.decode_opened(self.nodes[party].storage.result_bytes())
        return opened.sums["d"]

    def _node(self, folder: Path, made: type[Node], party: int, authorities: Authorities) -> Node:
        settings = NodeSettings(reserve_bytes=0, floors=_FLOORS)
        node = made(party, folder / f"state{party}", authorities, settings)
        state = {"d": np.zeros(4, dtype=np.float32)}
        node.set_up(encode_task(Task(self.plan, bytes(16)), state))
        return node


class _Hasty(Node):
    """A server that fixes and gives out its message of any step, whatever the peer has sent."""

    def exchange(self, number: int, kind: Kind, theirs: bytes | None = None) -> bytes:
        """See `Node.exchange`."""
        for earlier in STEPS[: STEPS.index(kind)]:
            self.count(number, earlier)
        ours = self._own(number, kind)
        if theirs is not None:
            self.transcript.check(self.plan, number, kind, theirs)
            self.transcript.hear(number, kind, theirs)
        return ours


def _plan() -> Plan:
    """One dense segment of four values."""
    segment = TreeSegment("d", "dense", (TensorSpec("d", (4,)),), 4, 1, 4)
    return Plan(
        session=bytes(16).hex(), hash_seed=bytes(32).hex(), encoding=FixedPoint(32, 0, 100.0),
        max_clients=2, min_clients=2, segments=(segment,),
    )  # fmt: skip

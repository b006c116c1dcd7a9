"""Attacks of server 0, which starts the steps of a round, against clients and against server 1."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np

from scripts.attacks.result import AttackResult, switched
from scripts.checks.round_clients import take_part
from scripts.parties import bench_plan, plain_plan, plain_sums, random_update, two_servers
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import Error, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ShareBody
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.transport import InProcess, Transport
from torchfsl.kernels import ring
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.state import vault
from torchfsl.service.state.steps import STEPS
from torchfsl.service.task import Task, bind_plan, encode_task
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Whole

_ROUND: Final = 1
_WANTED: Final = np.array([7, -7, 70, -70])
"""What server 0 wants the sum to be."""

_FLOORS = ClientPolicy(sealed=False, joint_coin=False, verified=False, min_clients=1)


def early_share() -> AttackResult:
    """Server 0 asks for server 1's share before it has committed to its own, and dictates the sum.

    It sends a SHARE_COMMIT that names the wrong server, which is refused but made server 1 commit,
    and asks for the next step. `_Hasty` is a server that does not mind. A share that was seen lets
    server 0 choose its own: it commits to what turns the sum into anything it wants.
    """
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
        make_development_certificates(folder, [])
        authorities = TlsFiles.in_folder(folder, "server-0").authorities()
        self.plan = bind_plan(four_values(), authorities, bytes(16))
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


def four_values() -> Plan:
    """One dense segment of four values."""
    segment = TreeSegment("d", "dense", (TensorSpec("d", (4,)),), 4, 1, 4)
    return plain_plan(segment, max_clients=2, min_clients=2)


WAYS: Final = ("answer", "model", "refusal")
CLIENTS: Final = 20
VICTIM: Final = 7
_ROWS, _TAU, _K_MAX = 400, 2, 4


class Spoiling:
    """A transport in which server 0 spoils, one way, whatever it tells some clients."""

    def __init__(self, servers: Transport, way: str, spoiled: Iterable[int]) -> None:
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
    table, bias = TensorSpec("rows", (_ROWS, _TAU)), TensorSpec("bias", (3,))
    rows = SegmentSpec("rows", "rows", (table,), tau=_TAU, k_max=_K_MAX, retrieve=True)
    segments = [rows, SegmentSpec("bias", "dense", (bias,))]
    plan = bench_plan(segments, encoding=FixedPoint(32, 16, 4.0), max_clients=CLIENTS)
    return dataclasses.replace(plan, min_clients=min_clients)


def make_update(plan: Plan, client: int) -> Update:
    """A random update, unlike that of any other client."""
    return random_update(plan, client, plan.encoding.q_max - 1)


def defence(*, on: bool) -> AbstractContextManager[object]:
    """Whether clients withdraw when a server fails; off, they send dummies."""
    off = mock.patch.object(client_round, "_withdrawn_on_error", contextlib.nullcontext)
    return switched(off, on=on)


def play(way: str, *, min_clients: int, spoiled: Iterable[int], on: bool) -> Opened | None:
    """A round of all clients, some spoiled: what was opened, if anything."""
    plan = make_plan(min_clients)
    servers = two_servers(plan)
    begin_round(servers, 1)
    wire = Spoiling(InProcess(*servers), way, spoiled)
    with defence(on=on):
        for number in range(CLIENTS):
            with contextlib.suppress(Error):
                take_part(Client(plan, wire, client_id=number), 1, make_update(plan, number))
    try:
        return finish_round(servers)
    except ProtocolError:
        return None


def is_sum_of(opened: Opened | None, clients: Iterable[int], plan: Plan) -> bool:
    """Whether the aggregates are exactly those of these clients' updates."""
    wanted = plain_sums(plan, (make_update(plan, client) for client in clients))
    return opened is not None and all(
        np.array_equal(opened.sums[name], total) for name, total in wanted.items()
    )


def spoiled_clients() -> AttackResult:
    """Server 0 spoils a round for all clients except one, so that dummies reach `min_clients`.

    Server 0 has three ways. It flips a bit in its answers, flips a bit in the model or digest that
    it shows, or refuses calls. With the defence off, a client that notices this sends an all-dummy
    report, as it does when something private fails. The honest server counts that report, and the
    aggregate is the victim's update.

    With the defence on, the client is silent, and no such round has `min_clients` reports.
    """
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

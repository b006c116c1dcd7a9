"""What the attack tests share: forged clients in whole rounds, a server's view, broken defences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from scripts.attacks.forged_reports import Forgery, forge
from tests.support.federation import Wire
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import filing
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.kernels import ring
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel

Bytes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int64]
LIMIT = 800
"""Largest sum of honest values in the plans of `forged_reports`: 8 clients of at most 100."""


def servers_of(plan: Plan) -> tuple[Server, Server]:
    """Both servers with a model of zeros."""
    state = {t.name: np.zeros(t.shape, dtype=t.dtype) for s in plan.segments for t in s.tensors}
    return (
        Server(0, plan=plan, model=ServerModel(state)),
        Server(1, plan=plan, model=ServerModel(state)),
    )


def carried_by(report: Forgery) -> Whole:
    """What an honest report adds to the sums: `int64[m]`."""
    plan, segment = report.plan, report.segment
    total = np.zeros(segment.m, dtype=np.int64)
    rows = rows_of_bins(plan)
    for tree, (alpha, value) in enumerate(
        zip(report.alpha.tolist(), ring.to_int64(report.values)[:, 0].tolist(), strict=True)
    ):
        row = rows[tree][alpha] if tree < segment.num_bins else alpha
        if row >= 0:  # a short last bin has positions without a row
            total[row] += value
    return total


def rows_of_bins(plan: Plan) -> Whole:
    """The row at each position of each bin, `[num_bins, theta]`; -1 where there is none."""
    segment = plan.segments[0]
    table = plan.permutations(segment)
    rows = np.full((segment.num_bins * segment.theta), -1, dtype=np.int64)
    for slots in cuckoo.bin_slots(table, segment.theta, segment.theta):
        rows[slots] = np.arange(segment.m)
    return rows.reshape(segment.num_bins, segment.theta)


def deliver(wire: Wire, report: Forgery) -> None:
    """Send a forged report as its client would; a refusal is for the server to know."""
    try:
        for party, message in report.messages():
            wire.send(party, message)
    except RejectedSubmission:
        pass


def round_of(
    plan: Plan, reports: Iterable[Forgery], wire: Wire | None = None, round_number: int = 1
) -> Opened:
    """Open a round of these reports; `wire` may alter messages."""
    wire = wire or Wire(servers_of(plan))
    begin_round(wire.servers, round_number)
    for report in reports:
        deliver(wire, report)
    return finish_round(wire.servers)


def attacked_round(plan: Plan, attacker: Forgery, seed: int = 0) -> tuple[Opened, Whole]:
    """Two honest clients and the attacker: what opened, and the honest clients' sum."""
    rng = np.random.default_rng(seed)
    honest = [forge(plan, client, 1, rng) for client in (5, 6)]
    opened = round_of(plan, [honest[0], attacker, honest[1]])
    return opened, carried_by(honest[0]) + carried_by(honest[1])


def sums(opened: Opened) -> Whole:
    """The sums of the plan's only segment: `int64[m]`."""
    (values,) = opened.sums.values()
    return values[:, 0]


# --- one server's view --------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What one server holds of a report: its master seed, the nonces, the public part."""

    plan: Plan
    party: int
    context: ReportContext
    seed: bytes
    trees: list[dpf.Trees]
    hints: Bytes

    @classmethod
    def of(cls, wire: Wire, party: int, client: int) -> View:
        """Read it off the messages that reached the server in a plan without early trees."""
        plan = wire.servers[0].plan
        bodies: dict[Kind, bytes] = {}
        for event in wire.events:
            if event.party == party and int.from_bytes(event.data[16:24], "little") == client:
                bodies[event.kind] = event.data[HEADER_BYTES:]
                round_number = int.from_bytes(event.data[8:16], "little")
        own = bodies[Kind.REPORT if party == client % 2 else Kind.REPORT_COMMIT]
        public = own[64:] if party == client % 2 else bodies[Kind.REPORT_RELAY][32:]
        trees = TreeContext(plan, round_number, client, own[:16])
        segment = plan.segments[0]
        hints = np.frombuffer(public[segment.tree_bytes :], np.uint8)
        return cls(
            plan,
            party,
            ReportContext(trees, round_number, own[32:48]),
            own[16:32],
            dpf.decode_trees(plan.late, public)[segment.name],
            hints.reshape(segment.num_trees, -1),
        )

    def node_bits(self, tree: int, level: int) -> Bytes:
        """This server's control bits of all nodes at `level` of a bin's tree: `[2**level]`."""
        segment = self.plan.segments[0]
        part = self.trees[0]
        root = self.context.roots(segment, self.seed, self.party)[[tree]]
        words = part.cw[:level, [tree]], part.cw_right[:level, [tree]]
        key = self.context.trees.tree_key(segment)
        return portable_trees.bits_of(portable_trees.tree_eval(key, root, *words, 1 << level)[0])


def place_of_word(plan: Plan, level: int, tree: int) -> int:
    """Where the correction word of a bin's tree starts in a REPORT_RELAY message."""
    return HEADER_BYTES + 32 + 16 * (level * plan.segments[0].groups[0].num_trees + tree)


def place_of_hint(plan: Plan, tree: int) -> int:
    """Where the hint of a bin's tree starts in a REPORT_RELAY message."""
    segment = plan.segments[0]
    size = plan.value_bytes(segment) << segment.nu
    return HEADER_BYTES + 32 + segment.tree_bytes + size * tree


def altering(kind: Kind, client: int, place: int, mask: int = 0x10) -> Any:
    """An `alter` for `Wire` that flips bits of one byte in a client's message of a kind."""

    def alter(event: Any) -> bytes:
        data = bytearray(event.data)
        if event.kind is kind and int.from_bytes(data[16:24], "little") == client:
            data[place] ^= mask
        return bytes(data)

    return alter


def lie_in_answers(server: Server, victim: int, alter: Callable[[bytearray], None]) -> None:
    """A server that alters its answers to one client before it seals them."""
    evaluator: Any = server._evaluator
    honest = evaluator.answer

    def answer(report: Report, model: ServerModel, waiting: Sequence[Report] = ()) -> AnswerBody:
        seed = report.trees.master_seed
        if report.client != victim or seed is None:
            return honest(report, model)
        key = report.tree_context.answer_key(seed, server.party, report.round_number)
        plain = bytearray(b"".join(honest(report, model).unseal(server.plan, key)))
        alter(plain)
        return AnswerBody.seal(key, [plain])

    evaluator.answer = answer


# --- defences switched off ----------------------------------------------------------------------


def ignore_commitments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server takes any relayed part, as in the paper."""
    monkeypatch.setattr(filing, "check_relay", lambda *arguments: None)


def ignore_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers agree on clients by number, not by what they hold of them."""
    monkeypatch.setattr(Report, "digest", lambda report: bytes(32))

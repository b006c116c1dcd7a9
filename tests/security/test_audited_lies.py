"""The replay names a server that lies about its share, and never an honest one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded, small, with_proofs
from tests.support.audited import (
    audited,
    audited_servers,
    auditors,
    reported,
    shown_by,
    until_verified,
)
from tests.support.errors import raises
from tests.support.federation import mixed_plan
from torchfsl.errors import ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.client import proof
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf import checks, lifts
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.noise import KeyedNoise
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round
from torchfsl.fsl.server.evaluation import LocalEvaluator, MakeEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.spool import Spool
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import InProcessGrid
from torchfsl.types import Whole

PLANS: dict[str, Plan] = {
    "norm": small(proofs="norm", l2_bound=400),
    "noise": small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3),
    "session": small(proofs="norm", l2_bound=400, max_epochs=3, noise_sigma=70, lane_sigma=3),
    "few": small(proofs="norm", l2_bound=400, min_contributors=2, noise_sigma=70, lane_sigma=3),
    "mixed": with_proofs(mixed_plan(), "norm"),
}
LIAR = 1


class Lying:
    """An evaluator whose share or verdicts are false in one way."""

    def __init__(self, honest: Any, plan: Plan, how: str) -> None:
        self.honest, self._plan, self.how = honest, plan, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)

    def share(self, reports: Sequence[Report]) -> Buffer:
        kept = list(reports)
        if self.how == "dropped":
            return self._shared(kept[:-1])
        if self.how == "doubled":
            first, again = self._shared(kept), self._alone(kept[-1])
            return _added(self._plan, first, again)
        draw = self.honest._draw
        if self.how == "no noise":
            self.honest._draw = lambda _, count: np.zeros(count, np.int64)
        if self.how == "quarter":
            self.honest._draw = lambda sigma, count: draw(sigma, count) // 4
        if self.how == "other seed":
            assert isinstance(draw, KeyedNoise)
            draw.begin(bytes(16))
        share = bytearray(self._shared(kept))
        if self.how == "offset":
            share[-1] ^= 1
        return bytes(share)

    def folds(self, reports: Any, verify_key: bytes) -> dict[int, bytes]:
        folds: dict[int, bytes] = self.honest.folds(reports, verify_key)
        if self.how == "false verdict":
            client = max(folds)
            folds[client] = bytes([folds[client][0] ^ 1]) + folds[client][1:]
        return folds

    def _shared(self, reports: Sequence[Report]) -> bytes:
        return bytes(self.honest.share(reports))

    def _alone(self, report: Report) -> Buffer:
        def silent(_: int, count: int) -> Whole:
            return np.zeros(count, np.int64)

        party: int = self.honest._party
        return LocalEvaluator(self._plan, party, silent, lambda: None).share([report])


def _added(plan: Plan, first: Buffer, second: Buffer) -> bytes:
    from torchfsl.fsl.audit.replay import _sum

    return bytes(_sum(plan, first, second, subtract=False))


def lying(server: Server, how: str) -> None:
    false: Any = Lying(server._evaluator, server.plan, how)
    server._evaluator = false


def finding_of(name: str, how: str, evaluator: MakeEvaluator = LocalEvaluator) -> tuple[str, str]:
    """Step and reason that the auditor names after a round with a lie of server 1."""
    plan = audited(PLANS[name])
    servers = audited_servers(plan, evaluator=evaluator)
    lying(servers[LIAR], how)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1, 2)})
    until_verified(servers)
    found = auditors(plan)[LIAR].replay(shown_by(servers[LIAR]))
    honest = auditors(plan)[0].replay(shown_by(servers[0]))
    assert (honest.step, honest.party) == ("", 0)
    if found.step:
        assert "server 1 LIED" in str(found)
    return found.step, found.why


LIES = {
    "offset": ("share", "is not the sum"),
    "dropped": ("share", "left out the report of client 2"),
    "doubled": ("share", "client 2 twice"),
    "false verdict": ("verdict", "client 2 is false"),
    "no noise": ("share", "left out its noise"),
    "quarter": ("share", "is not the sum"),
    "other seed": ("share", "is not the sum"),
}


def in_shards(
    plan: Plan, party: int, *more: Any, kind: Callable[..., InProcessGrid] = InProcessGrid
) -> ShardedEvaluator:
    """An evaluator whose work is done by three shards, here in this process."""

    def grid(plan: Plan, party: int) -> InProcessGrid:
        return kind(plan, party, 3)

    return ShardedEvaluator(plan, party, *more, open_grid=grid)


EVALUATORS: dict[str, MakeEvaluator] = {"one process": LocalEvaluator, "shards": in_shards}


@pytest.mark.parametrize("where", EVALUATORS)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("how", LIES)
def test_every_lie_is_named_with_its_step(name: str, how: str, where: str) -> None:
    step, why = finding_of(name, how, EVALUATORS[where])
    if how in ("no noise", "quarter", "other seed") and not PLANS[name].noise_sigma:
        assert (step, why) == ("", "")
        return
    assert step == LIES[how][0]
    assert LIES[how][1] in why


@pytest.mark.parametrize("where", EVALUATORS)
@pytest.mark.parametrize("name", PLANS)
def test_honest_rounds_open_and_nobody_is_named(name: str, where: str) -> None:
    plan = audited(PLANS[name])
    servers = audited_servers(plan, evaluator=EVALUATORS[where])
    rng = np.random.default_rng(6)
    updates = {client: bounded(plan, rng) for client in (0, 1, 2)}
    members: dict[int, Client] = {}
    for number in (1, 2, 3):
        reported(servers, number, updates, members)
        assert finish_round(servers, auditors=auditors(plan)).clients == (0, 1, 2)


class FalseShard(InProcessGrid):
    """Shards of which the last one of server 1 alters the result of one method."""

    method = ""

    def send(self, shard: int, method: str, *arguments: object) -> object:
        result: Any = super().send(shard, method, *arguments)
        if (self._party, shard, method) != (LIAR, 2, self.method):
            return result
        if method == "fold":
            return bytes([result[0] ^ 1]) + result[1:]
        for rows in result.values():
            rows[:1] ^= 1
        return result


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(
    ("method", "step"), [("partial", "share"), ("finish", "share"), ("fold", "verdict")]
)
def test_a_false_result_of_one_shard_is_a_lie_of_its_server(
    name: str, method: str, step: str
) -> None:
    kind = type(method, (FalseShard,), {"method": method})
    assert finding_of(name, "", functools.partial(in_shards, kind=kind))[0] == step


class LostShards(InProcessGrid):
    """Shards each of which ends once, before it gives its rows of the share."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.left, self.fault = {0, 1, 2}, self._ends

    def _ends(self, shard: int, method: str, when: str) -> bool:
        due = (method, when) == ("finish", "before") and shard in self.left
        self.left -= {shard} if due else set()
        return due


def test_lost_shards_change_no_byte_of_what_is_audited() -> None:
    grids: list[LostShards] = []

    def lost(*how: Any) -> LostShards:
        grids.append(LostShards(*how))
        return grids[-1]

    assert finding_of("noise", "", functools.partial(in_shards, kind=lost)) == ("", "")
    assert [grid.left for grid in grids] == [set(), set()]


def altered(what: str) -> Callable[[Server], None]:
    """What a lying server shows in place of what it was sent."""

    def lie(server: Server) -> None:
        assert server.audit is not None
        report = server.audit.reports[1]
        if what == "masked":
            first = bytearray(report.masked[0])
            first[0] ^= 1
            report.masked = (bytes(first), *report.masked[1:])
        elif what == "seed":
            report.trees.master_seed = bytes(16)
        else:
            server.audit.reports = {c: r for c, r in server.audit.reports.items() if c != 1}

    return lie


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("what", ["masked", "seed", "report"])
def test_what_a_server_shows_is_what_clients_sent_it(
    name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = audited(PLANS[name])
    monkeypatch.setattr(Report, "check_unchanged", lambda *_: None)  # a liar leaves that out
    servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1, 2)})
    until_verified(servers)
    found = auditors(plan)[LIAR].replay(shown_by(servers[LIAR], altered(what)))
    assert found.step == "report"


def test_a_replay_expands_trees_once_for_the_sum_and_the_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, _, shown = steps_to_audit(audited(PLANS["norm"]))
    monkeypatch.setattr(lifts, "tree_sums", lambda *_: pytest.fail("trees are expanded again"))
    assert auditors(audited(PLANS["norm"]))[0].replay(shown[0]).step == ""


def test_nothing_of_a_replay_is_left_in_the_next_one() -> None:
    plan = audited(PLANS["norm"])
    judge = auditors(plan)[0]
    for _ in range(2):  # the same clients, other keys
        assert judge.replay(steps_to_audit(plan)[2][0]).step == ""


@pytest.mark.parametrize("name", PLANS)
def test_a_report_whose_proof_fails_is_added_by_the_replay_and_taken_out_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def falsely(statement: Any, trees: Any, context: ReportContext, sent: Any) -> proof.Proven:
        made = prove(statement, trees, context, sent)
        assert made is not None
        if context.trees.client != 2:
            return made
        return proof.Proven(
            made.public, made.masked[:-16] + bytes([made.masked[-16] ^ 1]) + made.masked[-15:]
        )

    prove = proof.prove
    monkeypatch.setattr(proof, "prove", falsely)
    plan = audited(PLANS[name])
    servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1, 2)})
    until_verified(servers)
    assert [set(server._opening.accepted) for server in servers] == [{0, 1}, {0, 1}]
    for server, judge in zip(servers, auditors(plan), strict=True):
        found = judge.replay(shown_by(server))
        assert (found.step, found.why) == ("", "")


@pytest.mark.parametrize("checked", [False, True])
def test_sums_over_leaves_that_rot_in_their_file_are_made_again(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checked:
        monkeypatch.setattr("torchfsl.fsl.server.running_sums.zlib.crc32", lambda _: 0)
    plan = audited(PLANS["norm"])
    servers = audited_servers(plan)
    evaluator = servers[0]._evaluator
    assert isinstance(evaluator, LocalEvaluator)
    sums, add_waiting = evaluator.sums, evaluator.sums.add_waiting

    def rot() -> None:
        add_waiting()
        assert sums._spool._file is not None
        handle = sums._spool._file.fileno()
        os.pwrite(handle, bytes([os.pread(handle, 1, 0)[0] ^ 1]), 0)

    monkeypatch.setattr(sums, "_spool", Spool(window_bytes=0))
    monkeypatch.setattr(sums, "add_waiting", rot)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1, 2)})
    until_verified(servers)
    assert set(servers[1]._opening.accepted) == ({0, 1, 2} if checked else {1, 2})
    found = auditors(plan)[0].replay(shown_by(servers[0]))
    assert found.step == ("" if checked else "verdict")


def test_a_secret_that_was_not_promised_is_named() -> None:
    plan = audited(PLANS["noise"])
    servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1)})
    until_verified(servers)
    servers[LIAR].secrets = bytes(32) + servers[LIAR].secrets[32:]
    found = auditors(plan)[LIAR].replay(shown_by(servers[LIAR]))
    assert (found.step, found.why) == ("secrets", "its noise is not the one that it promised")


@pytest.mark.parametrize("kind", ["coin", "noise_coin"])
def test_a_coin_that_was_not_promised_ends_the_round(kind: str) -> None:
    plan = audited(PLANS["noise"])
    one, two = servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1)})
    places = {"coin": slice(32, 64), "noise_coin": slice(64, 96)}
    secrets = bytearray(two.secrets)
    secrets[places[kind]] = bytes(32)
    two.secrets = bytes(secrets)
    lists = one.close_round(), two.close_round()
    with raises(ProtocolError, code="commitment-mismatch"):
        one.verify((one.agree(lists[1]), two.agree(lists[0]))[1])
    assert one.state.value == "idle"


def steps_to_audit(plan: Plan) -> tuple[tuple[Server, Server], list[bytes], list[bytes]]:
    servers = audited_servers(plan)
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1)})
    until_verified(servers)
    commits = [server.commit() for server in servers]
    shown = [b"".join(transcript.parts(*pair)) for pair in zip(servers, commits, strict=True)]
    return servers, commits, shown


def test_nothing_is_revealed_without_the_pass_of_the_peers_auditor() -> None:
    plan = audited(PLANS["noise"])
    (one, two), commits, shown = steps_to_audit(plan)
    with raises(ProtocolError, code="wrong-step"):
        one.reveal(commits[1])
    one.hear_commit(commits[1])
    two.hear_commit(commits[0])
    judges = auditors(plan)
    own = judges[0].sign(judges[0].replay(shown[0]))
    with raises(ProtocolError, code="bad-signature"):  # its own auditor's, in place of the peer's
        one.reveal(bytes([*own[:7], 0, *own[8:]]))
    assert one.state.value == "idle"
    assert len(two.reveal(own)) > 0


def test_a_pass_is_for_one_record_and_one_commitment() -> None:
    plan = audited(PLANS["noise"])
    first, second = steps_to_audit(plan), steps_to_audit(plan)
    judges = auditors(plan)
    (one, _), commits, _ = first
    one.hear_commit(commits[1])
    with raises(ProtocolError, code="bad-signature"):
        one.reveal(judges[1].sign(judges[1].replay(second[2][1])))


def test_an_unsigned_record_ends_the_round_and_names_nobody() -> None:
    plan = audited(PLANS["noise"])
    (one, _), commits, shown = steps_to_audit(plan)
    forged = commits[1][:-64] + bytes(64)
    with raises(ProtocolError, code="bad-signature"):
        one.hear_commit(forged)
    assert one.state.value == "idle"
    place = shown[1].index(commits[1]) + len(commits[1]) - 64
    unsigned = shown[1][:place] + bytes(64) + shown[1][place + 64 :]
    with raises(ProtocolError, code="bad-signature"):
        auditors(plan)[1].replay(unsigned)


def test_a_liar_gets_no_pass() -> None:
    plan = audited(PLANS["noise"])
    servers = audited_servers(plan)
    lying(servers[LIAR], "offset")
    rng = np.random.default_rng(5)
    reported(servers, 1, {client: bounded(plan, rng) for client in (0, 1)})
    with raises(ProtocolError, code="liar-named"):
        finish_round(servers, auditors=auditors(plan))
    assert [server.state.value for server in servers] == ["idle", "idle"]


def tree_folds(servers: tuple[Server, Server], client: int) -> list[bytes]:
    """Both servers' folds of one client's trees in the running round, without its proof."""
    folds = []
    for server in servers:
        assert server.audit is not None
        evaluator, report = server._evaluator, server.audit.reports[client]
        masks = {s.name: checks.fold_masks(s, b"v" * 16) for s in server.plan.with_trees}
        assert isinstance(evaluator, LocalEvaluator)
        folds.append(evaluator._folded(masks, None, 1, report))
    return folds


@pytest.mark.parametrize("each_round", [False, True])
def test_later_rounds_of_a_session_bind_the_seed_by_the_check(
    each_round: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 2 and server 0 use another seed from round 2 on: server 0's share is then anything."""
    if not each_round:
        monkeypatch.setattr(Report, "trees_verified", property(lambda own: own.trees.verified))
    plan = audited(small(proofs="norm", l2_bound=400, max_epochs=3))
    servers, rng = audited_servers(plan), np.random.default_rng(5)
    members: dict[int, Client] = {}
    updates = {client: bounded(plan, rng) for client in (0, 1, 2)}
    reported(servers, 1, updates, members)
    finish_round(servers, auditors=auditors(plan))
    session = members[2]._session
    assert session is not None
    trees = session._trees
    assert trees is not None
    other = b"another seed 16B"
    trees.master_seeds = other, trees.master_seeds[1]
    servers[0].reports.sessions[2].master_seed = other
    reported(servers, 2, updates, members)
    lists = servers[0].close_round(), servers[1].close_round()
    servers[0].agree(lists[1])
    servers[1].agree(lists[0])
    assert set(servers[1].audit.reports if servers[1].audit else ()) == {0, 1, 2}
    zeros = [bytes(16)] * 2
    assert (tree_folds(servers, 1) == zeros) is not each_round
    found = tree_folds(servers, 2)
    assert (found == zeros) is not each_round
    assert (found[0] != found[1]) is each_round  # the report is refused


@pytest.mark.parametrize("signed", [False, True])
def test_an_auditor_cannot_make_evidence_from_a_transcript(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alters one byte of a report, and says that the server showed it so."""
    if not signed:
        whole = property(lambda own: own.audit.is_signed(own.audit.party, own.said))
        monkeypatch.setattr(transcript.Transcript, "is_signed", whole)
    plan = audited(PLANS["norm"])
    _, _, shown = steps_to_audit(plan)
    forged = bytearray(shown[0])
    forged[-73] ^= 1  # the last byte of the last report
    judge = auditors(plan)[0]
    assert judge.replay(shown[0]).step == ""
    if signed:
        with raises(ProtocolError, code="bad-signature"):
            judge.replay(bytes(forged))
    else:
        assert judge.replay(bytes(forged)).step == "report"

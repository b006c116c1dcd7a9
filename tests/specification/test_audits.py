"""Lies of servers in audited rounds: auditors of the library and of the blocks find the same."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded, small
from tests.security import test_audited_lies as lies
from tests.security import test_audited_noise as noise_lies
from tests.specification import audited, pages, rounds
from tests.specification.rounds import Tape, with_given_ephemerals
from tests.support.audited import audited_servers, reported, until_verified
from tests.support.federation import mixed_plan
from torchfsl.crypto import hpke, kdf
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.audited import AuditedRound
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.service.state import audits

BOUND: dict[str, Any] = {"proofs": "norm", "l2_bound": 400}
NOISY: dict[str, Any] = {**BOUND, "noise_sigma": 70, "lane_sigma": 3}
TAPS: dict[str, Any] = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 50}
PLANS: dict[str, Plan] = {
    "plain": small(**BOUND),
    "noise": small(**NOISY),
    "session": small(max_epochs=3, **NOISY),
    "few": small(min_contributors=2, **NOISY),
    "mixed": dataclasses.replace(mixed_plan(), **BOUND),
    "correlated": small(**NOISY, **TAPS),
}
LIAR = 1


@pytest.fixture(scope="module")
def spec() -> ModuleType:
    return with_given_ephemerals(pages.run())


class Round:
    """Servers of the library in one round after the other, and both kinds of auditors.

    `lie` comes after the reports, `late` after the commitment.
    """

    def __init__(self, spec: ModuleType, plan: Plan) -> None:
        self.plan, self.number = audited.audited(plan), 0
        self.own = spec.read_plan(self.plan.to_json())
        self.servers = audited_servers(self.plan)
        self.judges = audited.Judges(spec, self.plan, self.own)

    def shown(
        self,
        lie: Callable[[Server], None] = lambda _: None,
        late: Callable[[Server], None] = lambda _: None,
    ) -> list[bytes]:
        """Transcripts of both servers, of which server 1 lies."""
        self.number += 1
        rng, liar = np.random.default_rng(self.number), self.servers[LIAR]
        clients = [10 * self.number + client for client in (0, 1, 2)]
        reported(self.servers, self.number, {c: bounded(self.plan, rng) for c in clients})
        lie(liar)
        until_verified(self.servers)
        data = []
        for b, server in enumerate(self.servers):
            assert server.audit is not None
            server.audit.offered = self.judges.offer(b)
            commit = server.commit()
            if server is liar:
                late(server)
            data.append(b"".join(transcript.parts(server, commit)))
        return data

    def passed(self) -> None:
        """An honest round up to the shares, which nobody opens."""
        for b, data in enumerate(self.shown()):
            self.judges.passed(b, data)
        for server in self.servers:
            server.rounds_opened += 1
            server.abandon_round()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("how", ["", *lies.LIES])
def test_lies_about_share_and_verdicts(spec: ModuleType, name: str, how: str) -> None:
    game = Round(spec, PLANS[name])
    if name == "correlated" and how in ("no noise", "quarter", "other seed"):
        return  # below
    shown = game.shown(functools.partial(lies.lying, how=how))
    assert game.judges.outcome(0, shown[0]) == ""
    silent = how in ("no noise", "quarter", "other seed") and not game.plan.noise_sigma
    expected = "" if not how or silent else lies.LIES[how][0]
    assert game.judges.outcome(LIAR, shown[LIAR]) == expected


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("what", ["masked", "seed", "report"])
def test_lies_about_what_clients_have_sent(
    spec: ModuleType, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Report, "check_unchanged", lambda *_: None)
    game = Round(spec, PLANS[name])

    def lie(server: Server) -> None:
        assert server.audit is not None
        reports = dict(server.audit.reports)
        report = reports[11]
        server.audit.reports = {1: report}  # by the number that `altered` takes
        lies.altered(what)(server)
        shown = server.audit.reports.get(1)
        rest = reports if shown else {c: r for c, r in reports.items() if c != 11}
        server.audit.reports = rest

    assert game.judges.outcome(LIAR, game.shown(late=lie)[LIAR]) == "report"


@pytest.mark.parametrize("place", range(3))
def test_lies_about_what_was_promised(
    spec: ModuleType, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends no round for its peer's coin, so that the auditor alone stands there."""
    monkeypatch.setattr(AuditedRound, "check_peer_coin", lambda *_: None)
    game = Round(spec, PLANS["noise"])

    def lie(server: Server) -> None:
        secrets = bytearray(server.secrets)
        secrets[32 * place] ^= 1
        server.secrets = bytes(secrets)

    assert game.judges.outcome(LIAR, game.shown(lie)[LIAR]) == "secrets"


@pytest.mark.parametrize("how", ["", *noise_lies.LIES])
def test_lies_about_correlated_noise(spec: ModuleType, how: str) -> None:
    game = Round(spec, PLANS["correlated"])
    for _ in range(3):
        game.passed()

    def lie(server: Server) -> None:
        kind = type(how, (noise_lies.Lying,), {"how": how})
        assert server.noise is not None
        evaluator = kind(game.plan, LIAR, server.noise, lambda: None)
        assert isinstance(server._evaluator, LocalEvaluator)
        for report in server.reports.complete().values():
            evaluator.take(report)
        server._evaluator = evaluator

    assert game.judges.outcome(LIAR, game.shown(lie)[LIAR]) == ("share" if how else "")


def test_noise_of_one_round_in_the_place_of_another_and_indices_that_go_back(
    spec: ModuleType,
) -> None:
    game = Round(spec, PLANS["correlated"])
    for _ in range(3):
        game.passed()
    noise = game.servers[LIAR].noise
    assert noise is not None
    first, second = noise.rounds.index(2), noise.rounds.index(3)
    noise.rounds[first], noise.rounds[second] = 3, 2
    assert game.judges.outcome(LIAR, game.shown()[LIAR]) == "noise"
    for server in game.servers:
        server.abandon_round()
        server.rounds_opened = 1
    assert game.judges.outcome(LIAR, game.shown()[LIAR]) == "refused: noise-index-used"


def test_an_auditor_that_lost_noise_names_nobody(spec: ModuleType) -> None:
    game = Round(spec, PLANS["correlated"])
    for _ in range(2):
        game.passed()
    shown = game.shown()
    lost = audited.Judges(spec, game.plan, game.own)
    lost.offered = game.judges.offered
    assert lost.outcome(0, shown[0]).startswith("refused")


class Forger:
    """Pieces of a transcript, changed and signed again by the server's key."""

    def __init__(self, spec: ModuleType, own: Any, data: bytes) -> None:
        self.spec, self.own, self.head = spec, own, data[:64]
        self.pieces = spec.unframe(data[64:])[:-1]

    def data(self) -> bytes:
        spec, pieces, key = self.spec, self.pieces, audited.RAW[LIAR]
        number = pieces[0][8:16]
        both = [pieces[i + 1 - speaker] for i in (0, 2, 4) for speaker in (0, 1)]
        record = spec.digest(b"record", self.own.digest, number, *both)
        commitment = pieces[6][64:96]
        pieces[6] = pieces[6][:96] + spec.sign(key, b"record", record, b"\x01", commitment)
        body = spec.frame(*pieces)
        head = self.head[:24] + spec.number(len(body) + 72) + self.head[32:]
        signed = spec.digest_long(b"transcript", head + body)
        return bytes(head + body + spec.frame(spec.sign(key, b"transcript", signed)))


def sized(spec: ModuleType, message: bytes, body: bytes) -> bytes:
    return bytes(message[:24] + spec.number(len(body)) + message[32:64] + body)


def verdict(piece: bytes) -> int:
    """Bytes of one of three verdicts, before a noise coin."""
    return (len(piece) - 96) // 3


def placed(pieces: list[bytes], at: int, piece: bytes) -> list[bytes]:
    return [*pieces[:at], piece, *pieces[at + 1 :]]


Change = Callable[[ModuleType, list[bytes]], list[bytes]]
FORGED: dict[str, tuple[Change, str]] = {
    "all is well": (lambda spec, p: p, ""),
    "its list is not in order": (
        lambda spec, p: placed(p, 2, p[2][:96] + p[2][136:176] + p[2][96:136] + p[2][176:]),
        "set",
    ),
    "its list names a client twice": (
        lambda spec, p: placed(p, 2, sized(spec, p[2], p[2][64:136] + p[2][96:136])),
        "set",
    ),
    "too few are agreed on": (
        lambda spec, p: placed(p[:9], 3, sized(spec, p[3], p[3][64:96])),
        "set",
    ),
    "it has a verdict less": (
        lambda spec, p: placed(p, 4, sized(spec, p[4], p[4][64 + verdict(p[4]) :])),
        "verdict",
    ),
    "its peer has a verdict less": (
        lambda spec, p: placed(p, 5, sized(spec, p[5], p[5][64 + verdict(p[5]) :])),
        "set",
    ),
    "too few pass": (
        lambda spec, p: placed(p, 5, p[5][:64] + b"x" * 3 * verdict(p[5]) + p[5][-32:]),
        "set",
    ),
    "a report is shown twice": (lambda spec, p: [*p, p[-1]], "no transcript"),
    "a salt of another length": (lambda spec, p: placed(p, 8, p[8] + b"x"), "no transcript"),
    "a report is left out": (lambda spec, p: p[:-1], "report"),
    "reports in another order": (lambda spec, p: [*p[:9], p[-1], *p[9:-1]], "report"),
}


@pytest.mark.parametrize("how", FORGED)
def test_lies_about_lists(spec: ModuleType, how: str) -> None:
    game = Round(spec, dataclasses.replace(PLANS["noise"], min_clients=1))
    forger = Forger(spec, game.own, game.shown()[LIAR])
    change, expected = FORGED[how]
    forger.pieces = change(spec, forger.pieces)
    assert game.judges.outcome(LIAR, forger.data()) == expected


def test_badly_encoded_trees_are_no_transcript(spec: ModuleType) -> None:
    """A bit behind the further bits of a group, and an element that is not below the modulus."""
    game = Round(spec, PLANS["mixed"])
    honest = game.shown()[LIAR]
    assert game.own.early
    assert game.own.late
    start, places = 96, []
    hints = SimpleNamespace(groups=[SimpleNamespace(
        num_trees=0, depth=0, size=sum(s.hint_bytes for s in game.own.with_trees))])  # fmt: skip
    for segment in [*game.own.early, *game.own.late, hints, game.own.statement.carries]:
        for group in segment.groups:
            levels = group.num_trees * group.depth
            if levels % 8:
                places.append(start + 16 * levels + levels // 8)
            start += group.size
    for place in places:
        forger = Forger(spec, game.own, honest)
        report = bytearray(forger.pieces[9])
        report[place] ^= 0x80
        forger.pieces[9] = bytes(report)
        assert game.judges.outcome(LIAR, forger.data()) == "no transcript"
    assert len(places) > 2
    forger = Forger(spec, game.own, honest)
    at = next(i for i, piece in enumerate(forger.pieces[9:], 9) if piece[0] % 2 == LIAR)
    forger.pieces[at] = forger.pieces[at][:-16] + b"\xff" * 16
    assert game.judges.outcome(LIAR, forger.data()) == "no transcript"


@pytest.mark.parametrize("name", ["noise", "session", "few", "correlated"])
def test_signed_transcripts_with_any_byte_changed_have_one_outcome(
    spec: ModuleType, name: str
) -> None:
    game = Round(spec, PLANS[name])
    if name == "correlated":
        game.passed()
    honest, rng, found = game.shown()[LIAR], np.random.default_rng(6), []
    for _ in range(40):
        forger = Forger(spec, game.own, honest)
        piece = int(rng.integers(len(forger.pieces)))
        data = bytearray(forger.pieces[piece])
        place = int(rng.integers(len(data)))
        data[place] ^= 1 << int(rng.integers(8))
        forger.pieces[piece] = bytes(data)
        found.append(game.judges.outcome(LIAR, forger.data()))
    assert {"secrets", "report", "no transcript"} <= set(found)


def test_transcripts_that_are_cut_altered_or_not_signed_name_nobody(spec: ModuleType) -> None:
    game = Round(spec, PLANS["plain"])
    data = game.shown()[LIAR]
    rng = np.random.default_rng(7)
    for place in [0, 4, 6, 7, 8, 16, 24, 32, *rng.integers(64, len(data), 40).tolist()]:
        spoiled = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert game.judges.outcome(LIAR, spoiled) in ("no transcript", "refused: bad-signature")
        assert game.judges.outcome(LIAR, data[:place]) == "no transcript"
    assert game.judges.outcome(LIAR, data) == ""
    assert game.judges.outcome(0, data) == "no transcript"  # of the other server


def test_findings_halt_the_server_that_holds_the_commitment(spec: ModuleType) -> None:
    """The library signs; the blocks sign the same, and their server takes nothing else."""
    game = Round(spec, PLANS["noise"])
    shown = game.shown(functools.partial(lies.lying, how="offset"))
    found, why = game.judges.theirs[LIAR].replay(shown[LIAR]), "its share is false"
    held = found.record, found.commitment
    parts = audits.named_parts(game.plan, 1, LIAR, held, found.step, why)
    signature = audited.SIGN_KEYS[2 + LIAR].sign(kdf.LABEL_NAMED, *parts)
    auditor = game.judges.ours[LIAR]
    own = auditor.replay(shown[LIAR])
    assert spec.signed_finding(auditor, own, why) == signature
    server = spec.Audited(0, game.own, None, audited.RAW[0])
    for step, reason in (("share", why), ("set", why), ("share", "")):
        server.held, server.state = own["parts"], "auditing"
        expected = spec.Halted if (step, reason) == ("share", why) else spec.Malformed
        with pytest.raises(expected):
            spec.hear_finding(server, 1, step, reason, signature)
    server.held = None
    with pytest.raises(spec.Malformed):
        spec.hear_finding(server, 1, "share", why, signature)
    with pytest.raises(spec.Malformed):
        auditor.sign(own)
    with pytest.raises(ProtocolError):
        game.judges.theirs[LIAR].sign(found)


def test_two_signed_commitments_halt_the_other_server(spec: ModuleType) -> None:
    game = Round(spec, PLANS["noise"])
    found = game.judges.theirs[LIAR].replay(game.shown()[LIAR])
    named = audits.named_parts(game.plan, 1, LIAR, (found.record, found.commitment), *audits.TWICE)
    signature = audited.SIGN_KEYS[2 + LIAR].sign(kdf.LABEL_NAMED, *named)
    parts = found.record, bytes([LIAR]), found.commitment
    server = spec.Audited(0, game.own, None, audited.RAW[0])
    for held, error in ((parts, spec.Malformed), ((*parts[:2], bytes(32)), spec.Halted)):
        server.held = held
        with pytest.raises(error):
            spec.hear_second(server, 1, parts, found.signed, signature)
    with pytest.raises(spec.Malformed):
        spec.hear_second(server, 1, parts, bytes(64), signature)


SPOILED = [("agree", 0), ("agree", 31), ("verify", -1), ("verify", -32), ("hear_commit", 0),
           ("hear_commit", 31), ("hear_commit", 32), ("reveal", 0), ("reveal", 63)]  # fmt: skip


@pytest.mark.parametrize("spoiled", [*SPOILED, None], ids=str)
def test_a_server_ends_the_round_for_a_false_coin_signature_or_pass(
    spec: ModuleType, spoiled: tuple[str, int] | None
) -> None:
    pair = rounds.Pair(spec, audited.audited(PLANS["noise"]), 0)
    pair.spoiled = spoiled
    with contextlib.nullcontext() if spoiled is None else pytest.raises(rounds.Ended):
        pair.round()
    states = [pair.theirs[0].state.value, pair.ours[0].state]
    assert states == ["idle", "idle"]


def test_noise_follows_from_the_agreed_set_if_a_report_fails(spec: ModuleType) -> None:
    """Server 0 hears another verdict on the first client: it commits to the sum of the others."""
    plan = dataclasses.replace(PLANS["noise"], min_clients=1, max_clients=5)
    pair = rounds.Pair(spec, audited.audited(plan), 1)
    pair.spoiled = "verify", 0
    with pytest.raises(rounds.Ended):  # the records differ
        pair.round()
    server = pair.ours[0]
    assert 0 < len(server.accepted) < len(server.agreed)
    assert server.said[64:96]


def test_trees_of_a_session_are_checked_in_each_round(spec: ModuleType) -> None:
    plan = dataclasses.replace(PLANS["session"], max_clients=7)  # all six clients come
    pair, seen, again = rounds.Pair(spec, audited.audited(plan), 3), set(), 0
    server = pair.ours[0]
    for _ in range(2):
        server.agreed, server.folds = {}, []
        pair.round()
        for client, fold in zip(server.agreed, server.folds, strict=True):
            assert fold != bytes(16)
            again += client in seen
            seen.add(client)
    assert again


def correlated(spec: ModuleType, count: int = 2, **options: Any) -> rounds.Pair:
    """Both implementations after so many rounds that have opened."""
    plan = dataclasses.replace(PLANS["correlated"], **options)
    pair = rounds.Pair(spec, audited.audited(plan), 4)
    while pair.theirs[0].rounds_opened < count:
        pair.round()
    return pair


def test_a_round_whose_tap_is_zero_is_not_stated(spec: ModuleType) -> None:
    pair = correlated(spec, 3, noise_taps=(16, 0, 6))
    assert pair.ours[0].past() == [spec.NO_ROUND, pair.ours[0].rounds[1]]


def test_a_server_refuses_a_noise_index_that_was_revealed_before(spec: ModuleType) -> None:
    pair = correlated(spec)
    state(pair, 1)  # that of the second round, which opened
    with pytest.raises(rounds.Ended):
        pair.round()
    end(pair)
    state(pair, 5)
    pair.spoiled = "open", 0
    with pytest.raises(rounds.Ended):
        pair.round()
    end(pair)
    pair.spoiled = None
    for index, is_refused in ((4, True), (5, False)):
        state(pair, index)
        with pytest.raises(rounds.Ended) if is_refused else contextlib.nullcontext():
            pair.round()
        end(pair)


def state(pair: rounds.Pair, index: int) -> None:
    """Let server 1 state this index in the next round."""
    pair.theirs[1].rounds_opened = pair.ours[1].rounds_opened = index


def end(pair: rounds.Pair) -> None:
    """End the round at servers that have not ended it yet."""
    for theirs, ours in zip(pair.theirs, pair.ours, strict=True):
        theirs.abandon_round()
        ours.end([])


def test_noise_that_an_auditor_lost_never_counts_again(spec: ModuleType) -> None:
    pair = correlated(spec)
    assert pair.judges is not None
    for theirs, ours in zip(pair.judges.theirs, pair.judges.ours, strict=True):
        assert theirs.noise is not None
        theirs.noise.forget(1)
        lost = ours.added.pop(1)
    pair.round()
    assert 1 not in pair.ours[0].added
    assert lost
    while pair.theirs[0].rounds_opened < 5:  # a slot more than there are taps
        pair.round()


def test_a_server_that_lost_noise_which_it_has_stated_ends_the_round(spec: ModuleType) -> None:
    pair = correlated(spec)
    commit = pair.commit

    def without_noise(b: int) -> bytes:
        noise = pair.theirs[b].noise
        assert noise is not None
        noise.forget(1)
        del pair.ours[b].added[1]
        with pytest.raises(spec.Unopened):
            pair.ours[b].commit(lambda *_: bytes(32), [1, 2, 3, 4, 5, 6, 7, 8, 9])
        return commit(b)

    pair.commit = without_noise  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="which is missing here"):
        pair.round()


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sealed_transcripts_and_offers(spec: ModuleType, more: int) -> None:
    plan = audited.audited(PLANS["correlated"])
    own, key = spec.read_plan(plan.to_json()), SealKey.from_raw(bytes(range(32)))
    info, data = audits.transcript_info(plan.digest, 7, 1), bytes(spec.CHUNK + more)
    assert spec.audit_info(own, 7, 1) == info
    with Tape(3).patched():
        theirs = b"".join(hpke.seal_pieces(key.public, info, [data]))
    ours = spec.seal_transcript(key.public, info, data, Tape(3).rand)
    assert ours == theirs
    assert spec.unseal_transcript(key.raw, info, theirs) == data
    offer, signature = spec.signed_offer(audited.RAW[3], info, key.public, [4, 2])
    assert offer == key.public + audits.pack_rounds([4, 2])
    assert signature == audited.SIGN_KEYS[3].sign(kdf.LABEL_AUDIT_KEY, info, offer)

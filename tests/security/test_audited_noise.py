"""The replay of shares whose noise is correlated over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded, small
from tests.support.audited import (
    audited,
    audited_servers,
    auditors,
    reported,
    shown_by,
    until_verified,
)
from tests.support.errors import raises
from torchfsl.errors import ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.audit.replay import Auditor
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.round import finish_round
from torchfsl.fsl.server.audited import AuditedRound
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.server import Server
from torchfsl.service.auditor import Replayer
from torchfsl.service.state.ledger import LedgerError
from torchfsl.service.state.noise_ring import NoiseRing
from torchfsl.submodel.correlated_noise import NO_ROUND, CorrelatedNoise

TAPS = {"noise_taps": (16, 8, 6), "min_separation": 3, "max_rounds": 50}
PLAN = audited(small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3, **TAPS))
LIAR = 1
Servers = tuple[Server, Server]
Auditors = tuple[Auditor, Auditor]


def report(servers: Servers, number: int) -> None:
    """Clients that come in no other round report."""
    rng = np.random.default_rng(number)
    updates = {10 * number + client: bounded(PLAN, rng) for client in (0, 1, 2)}
    reported(servers, number, updates)


def opened(servers: Servers, judges: Auditors, *numbers: int) -> None:
    """Rounds that both auditors pass."""
    for number in numbers:
        report(servers, number)
        assert len(finish_round(servers, auditors=judges).clients) == 3


def ready(servers: Servers, judges: Auditors, number: int) -> None:
    """Both servers may commit in this round; both auditors have said what they hold."""
    report(servers, number)
    until_verified(servers)
    for server, judge in zip(servers, judges, strict=True):
        noise_of(server)
        assert server.audit is not None
        server.audit.offered = judge.offer()


def noise_of(party: Server | Auditor) -> CorrelatedNoise:
    assert party.noise is not None
    return party.noise


def test_an_auditor_holds_the_noise_that_its_server_added() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2, 4, 7)
    for server, judge in zip(servers, judges, strict=True):
        ours, theirs = noise_of(judge), noise_of(server)
        assert ours.past(4) == theirs.past(4) == (7, 4)
        assert np.array_equal(ours.slots, theirs.slots)
        assert len(np.unique(ours.slots)) > 20


class Lying(LocalEvaluator):
    """An evaluator whose noise is false in one way."""

    how = ""

    def share(self, reports: Sequence[Report]) -> Buffer:
        noise = self._draw
        assert isinstance(noise, CorrelatedNoise)
        before = (noise.index - 1) % 3
        if self.how == "no noise":
            self._draw = lambda _, count: np.zeros(count, np.int64)
        elif self.how == "fresh noise alone":
            noise._lags = []
        elif self.how == "another draw":
            noise._draw = lambda _, count: np.ones(count, np.int64)
        elif self.how == "one value of an old slot":
            noise.slots[before, 0] += 2  # half a grid unit more
        elif self.how == "older slot":
            noise.slots[before] = noise.slots[(noise.index - 2) % 3]
        elif self.how == "noise of the round before":
            again = iter(noise.slots[before].tolist())
            self._draw = lambda _, count: np.fromiter(again, np.int64, count)
        return super().share(reports)


LIES = ("no noise", "fresh noise alone", "another draw", "one value of an old slot")
LIES += ("older slot", "noise of the round before")


@pytest.mark.parametrize("how", ["", *LIES])
def test_every_lie_about_correlated_noise_is_named(how: str) -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2, 3)
    liar = servers[LIAR]
    kind = type(how, (Lying,), {"how": how})
    liar._evaluator = kind(PLAN, LIAR, noise_of(liar), lambda: None)
    ready(servers, judges, 4)
    assert judges[0].replay(shown_by(servers[0])).step == ""
    found = judges[LIAR].replay(shown_by(liar))
    assert found.step == ("share" if how else "")
    assert ("left out its noise" in found.why) is (how == "no noise")
    assert 4 not in (judges[LIAR].offer() or ())


def test_noise_of_a_round_that_is_stated_in_the_place_of_another_is_named() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2, 3)
    rounds = noise_of(servers[LIAR]).rounds
    first, second = rounds.index(2), rounds.index(3)
    rounds[first], rounds[second] = 3, 2
    ready(servers, judges, 4)
    found = judges[LIAR].replay(shown_by(servers[LIAR]))
    assert found.step == "noise"
    assert "another noise index of round 2 than before" in found.why


def test_an_auditor_that_lost_noise_refuses_and_names_nobody_and_the_next_round_opens() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    ready(servers, judges, 3)
    shown = shown_by(servers[0])
    lost = auditors(PLAN)[0]
    with pytest.raises(ProtocolError, match=r"rounds \[2, 1\].* Open another round") as refused:
        lost.replay(shown)
    assert refused.value.code != "liar-named"
    for server in servers:
        server.abandon_round()
    opened(servers, (lost, judges[1]), 4)
    assert noise_of(servers[0]).past(3) == (4, NO_ROUND)  # what an auditor lost is lost for good
    opened(servers, (lost, judges[1]), 5, 6, 7)
    assert noise_of(lost).past(6) == noise_of(servers[0]).past(6) == (7, 6)


def test_noise_of_an_attempt_that_was_tried_again_out_of_the_auditors_sight_does_not_count() -> (
    None
):
    """Auditor 0 holds round 2 at the index at which server 0 then revealed round 3."""
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1)
    for number in (2, 3):
        ready(servers, judges, number)
        said = [server.commit() for server in servers]
        if number == 2:
            judges[0].audit(servers[0], said[0])
        else:
            passed = judges[1].audit(servers[1], said[1])
            servers[0].hear_commit(said[1])
            servers[0].reveal(passed)
        for server in servers:
            server.abandon_round()
    assert noise_of(servers[0]).past(2) == (3, 1)
    assert noise_of(judges[0]).past(2) == (2, 1)
    ready(servers, judges, 4)
    finding = judges[0].replay(shown_by(servers[0]))
    assert (finding.step, finding.why) == ("", "")
    assert noise_of(servers[0])._lags == [2]


def test_a_server_that_lost_noise_which_it_has_stated_ends_the_round() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    ready(servers, judges, 3)
    noise_of(servers[0]).forget(1)
    with pytest.raises(ProtocolError, match=r"rounds \[2\].* Open another round"):
        servers[0].commit()
    assert servers[0].state.value == "idle"
    servers[1].abandon_round()
    opened(servers, judges, 4)
    assert noise_of(servers[0])._lags == [2]


def test_what_counts_is_fixed_before_the_coins_are_known() -> None:
    """Rounds of past noise stand in ROUND_STATE: to leave one out later changes the record."""
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    ready(servers, judges, 3)
    audit = servers[LIAR].audit
    assert audit is not None
    assert audit.past_noise() == (2, (2, 1))
    audit.offered = (1,)  # in the place of (1, 2)
    found = judges[LIAR].replay(shown_by(servers[LIAR]))
    assert found.step == "share"
    assert NO_ROUND in audit.past_noise()[1]


def test_transcripts_of_the_first_round_need_no_past() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    ready(servers, judges, 1)
    shown = shown_by(servers[0])
    assert transcript.decode(PLAN, shown, 0).audit.past_noise() == (0, (NO_ROUND, NO_ROUND))
    assert judges[0].replay(shown).step == ""


@pytest.mark.parametrize("checked", [False, True])
def test_a_server_cannot_take_the_same_noise_off_in_round_after_round(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 1 states its index again after a round that has opened, so that round 1 stays next."""
    if not checked:
        monkeypatch.setattr(AuditedRound, "check_peer_noise", lambda _, least: least)
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1)
    liar = noise_of(servers[LIAR])
    first = liar.slots[0].astype(np.int64)
    pushed = []
    for number in (2, 3, 4):
        servers[LIAR].rounds_opened = 1
        if checked and number > 2:
            report_refused(servers, number)
            continue
        opened(servers, judges, number)
        assert liar._lags == [1]
        pushed.append(int(np.sign(first) @ liar.slots[1]))
    assert len(pushed) == (1 if checked else 3)
    assert all(push < 0 for push in pushed)  # away from the noise of round 1, each time


def report_refused(servers: Servers, number: int) -> None:
    states = [server.open_round(number) for server in servers]
    with raises(ProtocolError, code="noise-index-used"):
        servers[0].start(states[1])
    assert servers[0].state.value == "idle"
    servers[1].abandon_round()


def test_an_index_whose_round_did_not_open_may_come_again() -> None:
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1)
    ready(servers, judges, 2)
    said = [server.commit() for server in servers]
    judges[0].audit(servers[0], said[0])
    for server in servers:
        server.abandon_round()
    opened(servers, judges, 3, 4)
    assert [server.peer_noise for server in servers] == [3, 3]


@pytest.mark.parametrize("who", ["server", "auditor"])
@pytest.mark.parametrize("final", [False, True])
def test_noise_that_one_side_has_once_said_to_be_lost_never_counts_again(
    who: str, final: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could choose in each round what counts, after it has seen the noise."""
    if not final:
        monkeypatch.setattr(CorrelatedNoise, "begin", chosen_anew)
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    chooser = noise_of(servers[LIAR] if who == "server" else judges[LIAR])
    held = chooser.held.copy()
    chooser.held[1] = -1  # of round 2
    opened(servers, judges, 3)
    assert noise_of(servers[LIAR])._lags == [2]
    chooser.held[1] = held[1]
    opened(servers, judges, 4)
    assert noise_of(servers[LIAR])._lags == ([1] if final else [1, 2])


def chosen_anew(
    noise: CorrelatedNoise, index: int, number: int, past: Sequence[int] | None = None
) -> None:
    """`CorrelatedNoise.begin` without what makes losses final."""
    assert past is not None
    noise._lags = [lag for lag in noise._held_lags(index) if past[lag - 1] != NO_ROUND]
    noise.index, noise._place = index, 0
    noise.held[index % 3], noise.rounds[index % 3] = index, number


def test_noise_of_rounds_that_a_server_makes_up_alone_does_not_count() -> None:
    """Server 1 speaks for both servers until it likes its noise, and shows its auditor that."""
    tries: list[tuple[int, bytes, CorrelatedNoise]] = []
    for _ in range(6):
        alone = audited_servers(PLAN)  # server 0 is not there, and signs nothing
        report(alone, 1)
        until_verified(alone)
        shown, noise = shown_by(alone[LIAR]), noise_of(alone[LIAR])
        tries.append((int(noise.slots[0].sum()), shown, noise))
    _, shown, liked = max(tries, key=lambda one: one[0])
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    assert judges[LIAR].replay(shown).step == ""
    assert judges[LIAR].offer() == ()
    noise = noise_of(servers[LIAR])
    noise.slots[:], noise.held, noise.rounds = liked.slots, liked.held, liked.rounds
    servers[LIAR].rounds_opened = 1
    opened(servers, judges, 2)
    assert noise._lags == []  # nothing of the made-up round is in what opened


def test_an_auditor_refuses_a_noise_index_below_that_of_a_round_before() -> None:
    """Server 1 goes back over rounds that server 0 revealed and did not open."""
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    servers[LIAR].rounds_opened = 5
    for number, index in ((3, 5), (4, 4)):
        servers[LIAR].rounds_opened = index
        ready(servers, judges, number)
        shown = shown_by(servers[LIAR])
        if index == 5:
            assert judges[LIAR].replay(shown).step == ""
            assert judges[LIAR].keep(number)
        else:
            with raises(ProtocolError, code="noise-index-used"):
                judges[LIAR].replay(shown)
        for server in servers:
            server.abandon_round()


@pytest.mark.parametrize("checked", [False, True])
def test_an_older_copy_of_an_auditors_noise_lets_no_index_come_back_that_was_revealed(
    checked: bool,
) -> None:
    """Server 0 revealed in round 3 and did not open; auditor 1 has forgotten that round."""
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    opened(servers, judges, 1, 2)
    noise = noise_of(judges[LIAR])
    copy = noise.slots.copy(), noise.held.copy(), noise.rounds.copy()
    servers[LIAR].rounds_opened = 5
    ready(servers, judges, 3)
    said = [server.commit() for server in servers]
    judges[0].audit(servers[0], said[0])
    passed = judges[LIAR].audit(servers[LIAR], said[LIAR])
    servers[0].hear_commit(said[LIAR])
    servers[0].reveal(passed)
    for server in servers:
        server.abandon_round()
    noise.slots[:], noise.held, noise.rounds = copy
    servers[LIAR].rounds_opened = 4
    if checked:
        report_refused(servers, 4)
        servers[LIAR].rounds_opened = 5  # an honest server states it again
        opened(servers, judges, 5)
    else:
        servers[0].peer_noise = 2  # of rounds that opened alone
        opened(servers, judges, 4)


def test_evidence_has_the_noise_that_counted_in_the_replay_and_no_other(tmp_path: Path) -> None:
    """Server 1 has left out round 3 in a round that never opened, and goes back before it lies."""
    servers, judges = audited_servers(PLAN), auditors(PLAN)
    liar, judge = servers[LIAR], judges[LIAR]
    ring, stored = NoiseRing(tmp_path, PLAN), b"{}"
    ring.attach(noise_of(judge), stored)
    with pytest.raises(
        LedgerError, match=f"expected past noise in places 0 to {len(ring.slots) - 1}, got .99"
    ):
        ring.attach(noise_of(judge), b'{"99": [1, "", 1]}')
    for number in (1, 2, 3):
        opened(servers, judges, number)
        stored = ring.keep(noise_of(judge), number - 1)
    noise_of(liar).forget(2)
    ready(servers, judges, 4)
    assert judge.replay(shown_by(liar)).step == ""
    for server in servers:
        server.abandon_round()
    liar.rounds_opened, servers[0].peer_noise = 1, 0  # of servers 0 that it makes up
    liar._evaluator = LocalEvaluator(PLAN, LIAR, lambda _, n: np.zeros(n, np.int64), lambda: None)
    ready(servers, judges, 5)
    shown, offered = shown_by(liar), judge.offer()
    found = judge.replay(shown)
    assert found.step == "share"
    for word in (ring.word(noise_of(judge)), stored):
        replayer = Replayer(PLAN, LIAR)
        NoiseRing(tmp_path, PLAN, "c").attach(noise_of(replayer), word)
        if word != stored:
            assert replayer.replay(shown, offered) == found
        else:  # with what lies on the disk it would be no evidence
            with raises(ProtocolError, code="noise-index-used"):
                replayer.replay(shown, offered)

"""A server that is started again at any point goes on where it was."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.service.test_records import flip
from tests.support.federation import (
    make_plan,
    make_segment,
    make_state,
    mixed_plan,
    random_update,
    wanted_rows,
)
from tests.support.reference import plaintext
from torchfsl.crypto import kdf
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.messages import HEADER_BYTES, Header, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.states import RoundState
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.server.storage import NodeSettings
from torchfsl.service.state import vault
from torchfsl.service.state.ledger import LedgerError, RoundRow
from torchfsl.service.state.records import StoreFull
from torchfsl.service.state.steps import OPEN_STATES, STEPS, StoredState, steps_of
from torchfsl.service.task import Task, bind_plan, encode_task

FLOORS = ClientPolicy(min_clients=1, joint_coin=False, sealed=False)
SETTINGS = NodeSettings(
    segment_bytes=1 << 16, reserve_bytes=0, floors=FLOORS, may_replace=True
)  # fmt: skip
NONCE = bytes(16)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return TlsFiles.in_folder(folder, "server-0").authorities()


class Duo:
    """Two nodes and the messages between them; `crash` starts one again from its folder."""

    def __init__(self, folder: Path, authorities: Authorities, plan: Plan) -> None:
        self.folder, self.authorities = folder, authorities
        self.plan = bind_plan(plan, authorities, NONCE)
        self.nodes = [self._node(party) for party in (0, 1)]
        data = encode_task(Task(self.plan, NONCE), make_state(self.plan))
        for node in self.nodes:
            node.set_up(data)
        self.after_event: Callable[[], None] = lambda: None

    def _node(self, party: int) -> Node:
        return Node(party, self.folder / str(party), self.authorities, SETTINGS)

    def crash(self, party: int) -> None:
        self.nodes[party].storage.ledger.close()
        self.nodes[party] = self._node(party)

    def event(self) -> None:
        self.after_event()

    def send(self, party: int, message: bytes) -> None:
        """As a client's transport: store, file, relay."""
        node = self.nodes[party]
        if node.open_server().reports.holds(message):
            return
        (view,) = node.storage.report_log.append([message])
        assert isinstance(view, memoryview)
        self.event()
        if self.nodes[party] is node:
            node.open_server().receive(view)
        relay = None
        if message[6] in (Kind.TREES, Kind.REPORT):
            kind = Kind.TREES_RELAY if message[6] == Kind.TREES else Kind.REPORT_RELAY
            client = int.from_bytes(message[16:24], "little")
            relay = self.nodes[party].server.relay(kind, client)
        self.event()
        if relay is not None:
            self.send(1 - party, relay)

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        return self.nodes[party].open_server().reply(kind, round_number, client)

    def step(self, number: int, kind: Kind) -> None:
        own = [node.exchange(number, kind) for node in self.nodes]
        for party in (0, 1):
            self.event()
            assert self.nodes[party].exchange(number, kind) == own[party]  # also after a crash
            assert self.nodes[party].exchange(number, kind, own[1 - party]) == own[party]
            self.event()
            self.nodes[party].count(number, kind)
            self.event()

    def play(
        self, number: int, updates: dict[int, object], kinds: tuple[Kind, ...] = STEPS
    ) -> list[plaintext.Contribution]:
        self.step(number, kinds[0])
        contributions = self.play_reports(number, updates)
        for kind in kinds[1:]:
            self.step(number, kind)
        return contributions

    def play_reports(self, number: int, updates: dict[int, object]) -> list[plaintext.Contribution]:
        contributions = []
        for client, update in updates.items():
            rounds = Client(self.plan, self, client_id=client)
            session = rounds.start_round(number, indices=wanted_rows(self.plan, update))  # type: ignore[arg-type]
            session.retrieve()
            receipt = session.submit(update)  # type: ignore[arg-type]
            missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
            contributions.append(plaintext.Contribution(update, 1, missing))  # type: ignore[arg-type]
        return contributions

    def digests(self) -> list[str]:
        return [node.storage.model_version["digest"] for node in self.nodes]


def assert_same_state(row: RoundRow | None, node: Node) -> None:
    """The ledger's state is the server's, by name."""
    if row is not None and not row.state.has_ended and row.state is not StoredState.OPENED:
        assert node.server.state.name == row.state.name


def some_updates(plan: Plan, seed: int, clients: int = 3) -> dict[int, object]:
    rng = np.random.default_rng(seed)
    return {client: random_update(plan, rng) for client in range(clients)}


@pytest.mark.parametrize("party", [0, 1])
def test_a_crash_after_every_single_event_changes_nothing(
    party: int, authorities: Authorities, tmp_path: Path
) -> None:
    quiet = Duo(tmp_path / "quiet", authorities, mixed_plan())
    shaken = Duo(tmp_path / "shaken", authorities, mixed_plan())
    seen: set[str] = set()

    def crash() -> None:
        row = shaken.nodes[party].storage.ledger.last_round()
        seen.add(row.state if row else "")
        assert_same_state(row, shaken.nodes[party])
        shaken.crash(party)
        assert_same_state(shaken.nodes[party].storage.ledger.last_round(), shaken.nodes[party])

    shaken.after_event = crash
    for number in (1, 2):
        updates = some_updates(quiet.plan, number)
        contributions = quiet.play(number, updates)
        shaken.play(number, updates)
        opened, round_number = vault.decode_opened(shaken.nodes[party].storage.result_bytes())
        assert round_number == number
        sums = plaintext.sums(quiet.plan, contributions)
        assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
        assert len(set(quiet.digests() + shaken.digests())) == 1
    assert seen >= set(OPEN_STATES) - {"opened", "counted", "auditing"} | {"applied"}


@pytest.mark.parametrize("party", [0, 1])
def test_a_crash_between_the_two_openings_loses_and_doubles_nothing(
    party: int, authorities: Authorities, tmp_path: Path
) -> None:
    plan = dataclasses.replace(mixed_plan(lane="count"), min_contributors=2)
    quiet, shaken = Duo(tmp_path / "q", authorities, plan), Duo(tmp_path / "s", authorities, plan)
    kinds = tuple(steps_of(plan))
    seen: set[str] = set()

    def crash() -> None:
        row = shaken.nodes[party].storage.ledger.last_round()
        seen.add(row.state if row else "")
        shaken.crash(party)
        assert_same_state(shaken.nodes[party].storage.ledger.last_round(), shaken.nodes[party])

    for number in (1, 2):
        updates = some_updates(quiet.plan, number)
        contributions = quiet.play(number, updates, kinds)
        at = kinds.index(Kind.SHARE_COMMIT)
        shaken.play(number, updates, kinds[:at])
        shaken.after_event = crash
        for kind in kinds[at:]:
            shaken.step(number, kind)
        shaken.after_event = lambda: None
        opened, _ = vault.decode_opened(shaken.nodes[party].storage.result_bytes())
        sums = plaintext.sums(quiet.plan, contributions)
        for name, counts in plaintext.lanes(quiet.plan, contributions).items():
            sums[name][counts < 2] = 0
        assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
        assert opened.withheld
        assert len(set(quiet.digests() + shaken.digests())) == 1
        for node in shaken.nodes:
            assert node.storage.ledger.setting("share") is None
    assert seen >= {"aggregated", "counted", "committed", "applied"}


def test_stored_states_are_called_as_ever() -> None:
    assert OPEN_STATES == (
        "opening", "open", "closed", "agreed", "verified", "aggregated", "auditing", "counted",
        "committed", "opened",
    )  # fmt: skip
    assert set(StoredState) - set(OPEN_STATES) == {"applied", "unopened"}


def test_folds_that_an_earlier_version_had_not_stored_yet_are_made_again(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    kinds = STEPS[: STEPS.index(Kind.REPORT_SET) + 1]
    duo.play(1, some_updates(duo.plan, 5), kinds)
    said = duo.nodes[0].exchange(1, Kind.VERDICTS)
    duo.nodes[0].storage.ledger._do("DELETE FROM steps WHERE sent AND kind = ?", Kind.VERDICTS)
    duo.crash(0)
    assert duo.nodes[0].exchange(1, Kind.VERDICTS) == said
    for kind in STEPS[len(kinds) :]:
        duo.step(1, kind)
    assert len(set(duo.digests())) == 1


def test_a_crash_between_the_sums_and_the_model_applies_them_once(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    quiet = Duo(tmp_path / "quiet", authorities, mixed_plan())
    updates = some_updates(duo.plan, 5)
    quiet.play(1, updates)

    def die(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torchfsl.service.server.storage.encode_model", die)
        with pytest.raises(KeyboardInterrupt):
            duo.play(1, updates)
    row = duo.nodes[0].storage.ledger.last_round()
    assert row is not None
    assert row.state == "opened"
    duo.crash(0)
    duo.nodes[1].exchange(1, Kind.SHARE, duo.nodes[0].exchange(1, Kind.SHARE))
    duo.nodes[1].count(1, Kind.SHARE)
    assert set(duo.digests()) == set(quiet.digests())
    assert duo.nodes[0].storage.model_version["version"] == 1


def test_sessions_survive_crashes_between_and_inside_rounds(
    authorities: Authorities, tmp_path: Path
) -> None:
    table = make_segment("t", "rows", (13, 3), k_max=4, tau=3, theta=3, stash=1, retrieve=True)
    duo = Duo(tmp_path, authorities, make_plan(table, max_epochs=3))
    rng = np.random.default_rng(0)
    update = random_update(duo.plan, rng, rows=3)
    indices: npt.NDArray[np.int64] | None = update["t"].indices
    assert indices is not None
    session = Client(duo.plan, duo, client_id=1).open_session(indices={"t": indices})
    for number in range(5):  # re-keys after the third
        duo.step(number, Kind.ROUND_STATE)
        one = session.start_round(number)
        one.retrieve()
        duo.crash(number % 2)
        one.submit(update)
        for kind in STEPS[1:]:
            duo.step(number, kind)
        duo.crash(1 - number % 2)
        opened, _ = vault.decode_opened(duo.nodes[0].storage.result_bytes())
        assert np.array_equal(opened.sums["t"][indices], update["t"].values)
    assert len(duo.nodes[0].storage.ledger.sessions()) == 1
    (client,) = duo.nodes[0].storage.ledger.sessions()
    duo.nodes[0].storage.ledger.put_session(client, b"part")
    with pytest.raises(LedgerError, match="the stored record of the clients' reusable keys is dam"):
        duo.crash(0)


def test_the_peer_cannot_change_what_it_said(authorities: Authorities, tmp_path: Path) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.step(1, Kind.ROUND_STATE)
    said = duo.nodes[1].exchange(1, Kind.REPORT_SET)
    ours = duo.nodes[0].exchange(1, Kind.REPORT_SET, said)
    assert duo.nodes[0].exchange(1, Kind.REPORT_SET, said) == ours
    other = said[:HEADER_BYTES] + bytes(32)
    told = "the other server sent two different REPORT_SET messages for round 1: ask its operator"
    with pytest.raises(ProtocolError, match=told):
        duo.nodes[0].exchange(1, Kind.REPORT_SET, other)


def test_too_few_reports_end_the_round_unopened_and_say_so(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan(min_clients=3))
    with pytest.raises(ProtocolError, match="acceptable reports: 2, the plan wants 3"):
        duo.play(1, some_updates(duo.plan, 0, clients=2))
    duo.crash(0)
    row = duo.nodes[0].storage.ledger.round(1)
    assert row is not None
    assert row.state == "unopened"
    assert "the plan wants 3" in row.reason
    with pytest.raises(ProtocolError, match="unopened"):
        duo.nodes[0].exchange(1, Kind.SHARE)
    with pytest.raises(RejectedSubmission, match="no round is open, round 1 has ended: start"):
        duo.nodes[0].open_server()
    header = Header(Kind.REPORT_RELAY, 0, 1, 5, HEADER_BYTES)
    with pytest.raises(RejectedSubmission, match="has ended: client 5 can take part in the next"):
        duo.nodes[0].open_server(header)


def test_servers_with_different_models_halt_for_good(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.nodes[1].server.model.state["bias.0"][0] += 1
    with pytest.raises(ProtocolError, match="different models"):
        duo.step(1, Kind.ROUND_STATE)
    duo.crash(0)
    with pytest.raises(ProtocolError, match="halted: the servers hold different models"):
        duo.nodes[0].begin(2)
    with pytest.raises(ProtocolError, match="halted"):
        duo.fetch(0, Kind.MODEL, 1, 0)


def test_a_full_disk_refuses_reports_and_keeps_those_it_has(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.step(1, Kind.ROUND_STATE)
    updates = some_updates(duo.plan, 3)
    client = Client(duo.plan, duo, client_id=0)
    client.start_round(1, indices=wanted_rows(duo.plan, updates[0])).submit(updates[0])  # type: ignore[arg-type]
    report_log = duo.nodes[0].storage.report_log
    report_log._reserve = 1 << 60
    report_log._end = report_log._segments[-1].size  # the segment is used up
    (refused,) = report_log.append([b"x" * 100])
    assert isinstance(refused, StoreFull)
    duo.crash(0)
    for kind in STEPS[1:]:
        duo.step(1, kind)
    assert len(set(duo.digests())) == 1
    opened, _ = vault.decode_opened(duo.nodes[0].storage.result_bytes())
    assert opened.clients == (0,)


def test_nothing_of_a_round_is_left_after_it(authorities: Authorities, tmp_path: Path) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    seeds: list[bytes] = []
    send = duo.send

    def listen(party: int, message: bytes) -> None:
        if message[6] in (Kind.TREES, Kind.TREES_COMMIT, Kind.REPORT, Kind.REPORT_COMMIT):
            seeds.append(message[HEADER_BYTES + 16 : HEADER_BYTES + 32])
        send(party, message)

    duo.send = listen  # type: ignore[method-assign]
    duo.play(1, some_updates(duo.plan, 3))
    assert len(seeds) == 12
    for party in (0, 1):
        assert not list((tmp_path / str(party) / "reports").iterdir())
        duo.nodes[party].storage.ledger.close()
        for path in (tmp_path / str(party)).rglob("*"):
            if path.is_file():
                assert not any(seed in path.read_bytes() for seed in seeds), path


def test_nothing_of_ended_sessions_and_older_shares_is_left_while_the_server_runs(
    authorities: Authorities, tmp_path: Path
) -> None:
    table = make_segment("t", "rows", (13, 3), k_max=4, tau=3, theta=3, stash=1, retrieve=True)
    duo = Duo(tmp_path, authorities, make_plan(table, max_epochs=2))
    update = random_update(duo.plan, np.random.default_rng(0), rows=3)
    session = Client(duo.plan, duo, client_id=1).open_session(indices={"t": update["t"].indices})  # type: ignore[dict-item]
    seeds: list[bytes] = []
    shares: list[bytes] = []
    for number in range(5):  # two epochs a set of trees: the first two sets have ended
        duo.step(number, Kind.ROUND_STATE)
        one = session.start_round(number)
        one.retrieve()
        one.submit(update)
        for node in duo.nodes:
            seeds += [
                bytes(r.master_seed) for r in node.storage.sessions().values() if r.master_seed
            ]
        for kind in STEPS[1:]:
            duo.step(number, kind)
        shares += [node.exchange(number, Kind.SHARE)[HEADER_BYTES:] for node in duo.nodes]
    live = [bytes(r.master_seed or b"?") for n in duo.nodes for r in n.storage.sessions().values()]
    ended = [seed for seed in seeds if seed not in live]
    assert ended
    assert live
    content = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(seed in text for seed in live for text in content)  # the search finds what is there
    assert not any(seed in text for seed in ended for text in content)
    assert not any(share in text for share in shares[:-2] for text in content)


def test_a_state_folder_of_the_other_server_is_refused(
    authorities: Authorities, tmp_path: Path
) -> None:
    Node(0, tmp_path, authorities, SETTINGS).storage.ledger.close()
    told = "holds the state of server 0, not of server 1: name the folder of server 1 with .* lost"
    with pytest.raises(ParameterError, match=told):
        Node(1, tmp_path, authorities, SETTINGS)


LOST = {
    "the folder is gone": shutil.rmtree,
    "a bit is flipped": lambda folder: flip(folder / "000000.log", 100),
    "a file is gone": lambda folder: (folder / "000000.log").unlink(),
}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("place", range(len(STEPS)), ids=STEPS)
def test_a_lost_report_ends_the_round_unopened_and_the_next_one_goes_on(
    place: int, how: str, authorities: Authorities, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    quiet = Duo(tmp_path / "quiet", authorities, mixed_plan())
    duo.play(1, some_updates(duo.plan, 3), STEPS[: place + 1])
    if place:
        duo.nodes[0].exchange(1, STEPS[place])
    ended = place == len(STEPS) - 1
    if not ended:
        LOST[how](tmp_path / "0" / "reports" / "1")
    duo.crash(0)
    row = duo.nodes[0].storage.ledger.round(1)
    assert row is not None
    assert row.state == ("applied" if ended else "unopened")
    assert not list((tmp_path / "0" / "reports").iterdir())
    if ended:
        return
    assert "the report log is damaged" in row.reason
    assert "acknowledged reports are lost" in caplog.text
    assert ("counts as opened" in row.reason) == (place >= STEPS.index(Kind.SHARE_COMMIT))
    assert duo.nodes[0].storage.rounds_opened == (place >= STEPS.index(Kind.SHARE_COMMIT))
    assert duo.nodes[0].server.state is RoundState.IDLE
    duo.nodes[1].abandon(1, "server 0 went on", forced=True)
    updates = some_updates(duo.plan, 4)
    duo.play(2, updates)
    quiet.play(2, updates)
    assert set(duo.digests()) == set(quiet.digests())


def test_a_refused_message_stays_refused_after_a_crash(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.step(1, Kind.ROUND_STATE)
    update = some_updates(duo.plan, 3)[0]
    client = Client(duo.plan, duo, client_id=0)
    client.start_round(1, indices=wanted_rows(duo.plan, update))  # type: ignore[arg-type]
    with pytest.raises(RejectedSubmission, match="second, different"):
        client.start_round(1, indices=wanted_rows(duo.plan, update))  # type: ignore[arg-type]
    duo.crash(1)
    with pytest.raises(RejectedSubmission, match="was rejected"):
        client.start_round(1, indices=wanted_rows(duo.plan, update))  # type: ignore[arg-type]


def test_a_plan_for_other_servers_is_refused(authorities: Authorities, tmp_path: Path) -> None:
    node = Node(0, tmp_path, authorities, SETTINGS)
    plan = mixed_plan()
    assert plan.session != kdf.digest(b"x")[:16].hex()
    with pytest.raises(ValueError, match="not bound to these two servers"):
        node.set_up(encode_task(Task(plan, NONCE), make_state(plan)))


def misaddressed(message: bytes) -> bytes:
    """The message with the other server's number in its header."""
    return message[:7] + bytes([1 - message[7]]) + message[8:]


@pytest.mark.parametrize("kind", STEPS)
def test_a_malformed_step_is_refused_and_leaves_nothing(
    kind: Kind, authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    before = STEPS[: STEPS.index(kind)]
    if before:
        duo.play(1, some_updates(duo.plan, 3), before)
    said = duo.nodes[0].exchange(1, kind)
    state = duo.nodes[1].storage.ledger.last_round()
    for wrong in (misaddressed(said), said[:-1], said[:8] + bytes([9]) + said[9:]):
        with pytest.raises((ProtocolError, DecodeError)):
            duo.nodes[1].exchange(1, kind, wrong)
    assert duo.nodes[1].storage.ledger.last_round() == state
    if not before:
        duo.play(1, some_updates(duo.plan, 3))
    for later in STEPS[len(before) :] if before else ():
        duo.step(1, later)
    assert len(set(duo.digests())) == 1
    assert duo.nodes[1].storage.model_version["version"] == 1


def test_no_step_is_taken_before_those_in_front_of_it(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    honest = duo.nodes[1]
    with pytest.raises(ProtocolError, match="expected ROUND_STATE of the other"):
        honest.exchange(1, Kind.REPORT_SET)
    duo.play(1, some_updates(duo.plan, 3), STEPS[:1])
    for place, kind in enumerate(STEPS[1:], 1):
        for later in STEPS[place + 1 :]:
            with pytest.raises(ProtocolError, match=f"expected {kind.name} of the other server"):
                honest.exchange(1, later)
        duo.step(1, kind)
    assert len(set(duo.digests())) == 1


def test_a_round_that_ends_after_a_share_says_so_and_the_next_one_begins(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.play(1, some_updates(duo.plan, 3), STEPS[:-1])
    said = bytearray(duo.nodes[0].exchange(1, Kind.SHARE))
    said[-1] ^= 1
    duo.nodes[1].exchange(1, Kind.SHARE, bytes(said))
    with pytest.raises(ProtocolError, match="does not fit its commitment"):
        duo.nodes[1].count(1, Kind.SHARE)
    duo.nodes[0].abandon(1, "the other one did not open", forced=True)
    for node in duo.nodes:
        row = node.storage.ledger.round(1)
        assert row is not None
        assert row.state == "unopened"
        assert "so the round counts as opened" in row.reason
        assert node.server.state is RoundState.IDLE
    duo.play(2, some_updates(duo.plan, 4))
    assert len(set(duo.digests())) == 1


def test_a_round_that_ends_unopened_ends_in_memory_too(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = Duo(tmp_path, authorities, mixed_plan())
    duo.play(1, some_updates(duo.plan, 3), STEPS[:-2])
    duo.nodes[1].exchange(1, Kind.SHARE_COMMIT, duo.nodes[0].exchange(1, Kind.SHARE_COMMIT))

    def fail(_: bytes) -> bytes:
        raise ProtocolError("no")

    monkeypatch.setattr(duo.nodes[1].server, "reveal", fail)
    with pytest.raises(ProtocolError, match="no"):
        duo.nodes[1].count(1, Kind.SHARE_COMMIT)
    monkeypatch.undo()
    row = duo.nodes[1].storage.ledger.round(1)
    assert row is not None
    assert "counts as opened" not in row.reason
    duo.nodes[0].abandon(1, "the other one failed")
    duo.play(2, some_updates(duo.plan, 4))
    assert len(set(duo.digests())) == 1

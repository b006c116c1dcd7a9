"""A server of an audited task that is started again at any point goes on where it was."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded, small
from tests.service.test_node import SETTINGS, Duo, assert_same_state
from tests.support.audited import SIGN_KEYS, audited, auditors
from tests.support.errors import raises
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ProtocolError
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.reports import Report
from torchfsl.service.auditor import destroy, judged
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.node import Node
from torchfsl.service.server.transcript import Transcript
from torchfsl.service.state import vault
from torchfsl.service.state.audits import pack_rounds
from torchfsl.service.state.steps import OPEN_STATES, StoredState, steps_of
from torchfsl.submodel.correlated_noise import NO_ROUND

PLAN = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3)
FEW = dataclasses.replace(PLAN, min_contributors=2)
BAND = dataclasses.replace(PLAN, noise_taps=(16, 8, 6), min_separation=3, max_rounds=9)
KEY = SealKey.generate()


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    folder = tmp_path_factory.mktemp("certs")
    make_development_certificates(folder, [])
    return TlsFiles.in_folder(folder, "server-0").authorities()


class AuditedDuo(Duo):
    """Two nodes of an audited task, with both auditors in the place of their calls."""

    def __init__(self, folder: Path, authorities: Authorities, plan: Plan) -> None:
        super().__init__(folder, authorities, audited(plan))
        self.judges = auditors(self.plan)

    def _node(self, party: int) -> Node:
        floors = dataclasses.replace(SETTINGS.floors, auditors=audited(PLAN).auditors)
        settings = dataclasses.replace(SETTINGS, floors=floors, sign_key=SIGN_KEYS[party])
        return Node(party, self.folder / str(party), self.authorities, settings)

    def step(self, number: int, kind: Kind) -> None:
        if kind is Kind.AUDIT_PASS:
            self.audit(number)
            return
        if kind is Kind.SHARE_COMMIT:
            for node, judge in zip(self.nodes, self.judges, strict=True):
                node.storage.audits.keep_key(KEY.public + pack_rounds(judge.offer()))
        super().step(number, kind)

    def audit(self, number: int) -> None:
        passes = []
        for judge, node in zip(self.judges, self.nodes, strict=True):
            data = node.storage.audits.path(number).read_bytes()
            key = KEY.raw + pack_rounds(node.storage.audits.offered)
            passes.append(judge.sign(judged(judge, number, key, data)))
            judge.keep(number)
        for party in (0, 1):
            self.event()
            self.nodes[party].take_pass(number, passes[1 - party])
            self.event()
            self.nodes[party].take_pass(number, passes[1 - party])  # twice, as after a crash

    def go(self, number: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        clients = range(4 * number, 4 * number + 3)
        updates: dict[int, Any] = {client: bounded(self.plan, rng) for client in clients}
        self.play(number, updates, tuple(steps_of(self.plan)))


@pytest.mark.parametrize("plan", [PLAN, FEW, BAND], ids=["plain", "counts first", "correlated"])
@pytest.mark.parametrize("party", [0, 1])
def test_a_crash_after_every_event_changes_nothing(
    party: int, plan: Plan, authorities: Authorities, tmp_path: Path
) -> None:
    duo = AuditedDuo(tmp_path, authorities, plan)
    seen: set[str] = set()

    def crash() -> None:
        row = duo.nodes[party].storage.ledger.last_round()
        seen.add(row.state if row else "")
        before = duo.nodes[party].server.secrets
        duo.crash(party)
        if duo.nodes[party].storage.running() is not None:  # what was stored counts at the start
            assert duo.nodes[party].server.secrets == before
        assert_same_state(duo.nodes[party].storage.ledger.last_round(), duo.nodes[party])

    duo.after_event = crash
    for number in (1, 2):
        duo.go(number)
        opened, round_number = vault.decode_opened(duo.nodes[party].storage.result_bytes())
        assert (round_number, opened.num_clients) == (number, 3)
        assert len(set(duo.digests())) == 1
        parties = duo.nodes[party].server, duo.judges[party]
        past = [one.noise.past(number) for one in parties if one.noise is not None]
        assert past == [(number, number - 1 or NO_ROUND)] * (2 if plan is BAND else 0)
        duo.crash(party)
        assert duo.nodes[party].server.peer_noise == (number if plan is BAND else 0)
    counted = set() if plan is FEW else {StoredState.COUNTED}
    assert seen >= set(OPEN_STATES) - {StoredState.OPENED} - counted | {"applied"}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_noise_that_is_lost_inside_a_round_ends_it_and_the_next_one_opens(
    damaged: bool, restarts: bool, authorities: Authorities, tmp_path: Path
) -> None:
    duo = AuditedDuo(tmp_path, authorities, BAND)
    duo.go(1)
    kinds = tuple(steps_of(duo.plan))
    at = kinds.index(Kind.SHARE_COMMIT)
    rng = np.random.default_rng(3)
    duo.play(2, {c: bounded(duo.plan, rng) for c in (20, 21)}, kinds[:at])
    (ring,) = (tmp_path / "0").glob("noise-*.ring")
    if damaged:
        with ring.open("r+b") as file:
            file.write(bytes(ring.stat().st_size))
    if restarts:
        duo.crash(0)
    if not damaged:
        duo.step(2, Kind.SHARE_COMMIT)
        return
    duo.nodes[0].storage.audits.keep_key(KEY.public + pack_rounds(duo.judges[0].offer()))
    with pytest.raises(ProtocolError, match=r"rounds \[1\].* Open another round"):
        duo.nodes[0].exchange(2, Kind.SHARE_COMMIT)
    row = duo.nodes[0].storage.ledger.round(2)
    assert row is not None
    assert (row.state, "noise of rounds [1]" in row.reason) == (StoredState.UNOPENED, True)
    duo.nodes[1].abandon(2, "its peer has")
    duo.go(3)
    assert len(set(duo.digests())) == 1


def test_the_peers_noise_index_of_a_round_that_was_revealed_is_known_after_a_start(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = AuditedDuo(tmp_path, authorities, BAND)
    duo.go(1)
    kinds, rng = tuple(steps_of(duo.plan)), np.random.default_rng(3)
    updates: dict[int, Any] = {c: bounded(duo.plan, rng) for c in (20, 21)}
    for node in duo.nodes:
        node.server.rounds_opened += 3
    duo.play(2, updates, kinds[: kinds.index(Kind.SHARE)])
    duo.nodes[0].abandon(2, "its peer is gone", forced=True)
    duo.crash(0)
    assert duo.nodes[0].server.peer_noise == 4


def test_noise_that_an_auditor_once_lost_counts_no_more_after_a_start_either(
    authorities: Authorities, tmp_path: Path
) -> None:
    duo = AuditedDuo(tmp_path, authorities, BAND)
    duo.go(1)
    judge = duo.judges[0].noise
    assert judge is not None
    held = judge.held.copy()
    judge.held[:] = [-1] * 3
    duo.go(2)
    judge.held[0] = held[0]
    duo.crash(0)
    noise = duo.nodes[0].server.noise
    assert noise is not None
    assert noise.past(2) == (2, NO_ROUND)
    duo.go(3)
    assert noise._lags == [1]


def test_nothing_secret_of_a_round_stays_on_disk(authorities: Authorities, tmp_path: Path) -> None:
    duo = AuditedDuo(tmp_path, authorities, PLAN)
    secrets: set[bytes] = set()

    def note() -> None:
        for node in duo.nodes:
            secrets.add(node.server.secrets[:32])
            if node.server.audit is not None:
                reports = node.server.audit.reports.values()
                secrets.update(r.trees.master_seed or b"" for r in reports)

    duo.after_event = note
    duo.go(1)
    secrets.discard(b"")
    assert {len(secret) for secret in secrets} == {16, 32}
    for node in duo.nodes:
        assert not node.storage.audits.secrets
        assert not node.storage.audits.path(1).exists()
        for path in node.storage.folder.rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            assert not any(secret in data for secret in secrets), path


def test_a_transcript_is_there_before_the_commitment_is_said(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at the new step: nothing is said, and the step succeeds once there is room."""
    duo = AuditedDuo(tmp_path, authorities, PLAN)
    kinds = tuple(steps_of(duo.plan))
    at = kinds.index(Kind.SHARE_COMMIT)
    rng = np.random.default_rng(3)
    duo.play(1, {c: bounded(duo.plan, rng) for c in range(3)}, kinds[:at])
    node = duo.nodes[0]
    node.storage.audits.keep_key(KEY.public)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("torchfsl.service.state.audits.os.fsync", full)
        with pytest.raises(OSError, match="space"):
            node.exchange(1, Kind.SHARE_COMMIT)
    assert node.transcript.said(1, Kind.SHARE_COMMIT) is None
    duo.crash(0)  # the process ends at such an error
    node = duo.nodes[0]
    with monkeypatch.context() as patch:
        patch.setattr(Transcript, "say", full)
        with pytest.raises(OSError, match="space"):
            node.exchange(1, Kind.SHARE_COMMIT)
    assert node.storage.audits.path(1).exists()
    desk = AuditDesk(SimpleNamespace(node=node))  # type: ignore[arg-type]
    assert not desk._transcript(1)  # it would show the first of two signed commitments
    duo.crash(0)
    for kind in kinds[at:]:
        duo.step(1, kind)
    assert len(set(duo.digests())) == 1
    mode = duo.nodes[0].storage.folder.stat().st_mode
    assert not mode & 0o077


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("part", ["trees", "public", "masked"])
def test_a_report_that_rots_on_the_disk_ends_its_round_and_names_no_server(
    part: str, checked: bool, authorities: Authorities, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    duo = AuditedDuo(tmp_path, authorities, PLAN)
    kinds = tuple(steps_of(duo.plan))
    rng = np.random.default_rng(3)
    updates: dict[int, Any] = {c: bounded(duo.plan, rng) for c in range(3)}
    duo.play(1, updates, kinds[: kinds.index(Kind.SHARE_COMMIT)])
    node = duo.nodes[0]
    assert node.server.audit is not None
    report = node.server.audit.reports[2]
    path = tmp_path / "0" / "reports" / "1" / "000000.log"
    flip_first_bit(path, {"trees": report.trees.public, "public": report.public,
                          "masked": report.masked[0]}[part])  # fmt: skip
    if not checked:
        monkeypatch.setattr(Report, "check_unchanged", lambda *_: None)
        duo.step(1, Kind.SHARE_COMMIT)
        with raises(ProtocolError, code="liar-named"):
            duo.audit(1)
        return
    node.storage.audits.keep_key(KEY.public)
    with raises(ProtocolError, code="report-changed"):
        node.exchange(1, Kind.SHARE_COMMIT)
    row = node.storage.ledger.round(1)
    assert row is not None
    assert row.state is StoredState.UNOPENED
    assert "report of client 2 has changed on the disk" in row.reason
    assert row.reason.endswith(str(path))
    duo.nodes[1].abandon(1, "its peer has")
    duo.go(2)
    assert len(set(duo.digests())) == 1


def flip_first_bit(path: Path, part: Buffer | None) -> None:
    """Change one bit of a part of a report in the file that holds it."""
    assert part is not None
    with path.open("r+b") as file:
        place = file.read().index(bytes(part))
        file.seek(place)
        file.write(bytes([part[0] ^ 1]))


def test_without_a_key_or_a_pass_no_step_is_taken(authorities: Authorities, tmp_path: Path) -> None:
    duo = AuditedDuo(tmp_path, authorities, PLAN)
    kinds = tuple(steps_of(duo.plan))
    at = kinds.index(Kind.SHARE_COMMIT)
    rng = np.random.default_rng(3)
    duo.play(1, {c: bounded(duo.plan, rng) for c in range(3)}, kinds[:at])
    with raises(ProtocolError, code="wrong-step"):
        duo.nodes[0].exchange(1, Kind.SHARE_COMMIT)
    duo.step(1, Kind.SHARE_COMMIT)
    with raises(ProtocolError, code="wrong-step"):
        duo.nodes[0].exchange(1, Kind.SHARE)
    judge = auditors(duo.plan)[0]
    data = duo.nodes[0].storage.audits.path(1).read_bytes()
    passed = judge.sign(judged(judge, 1, KEY.raw, data))
    forged = passed[:-1] + bytes([passed[-1] ^ 1])
    with raises(ProtocolError, code="bad-signature"):
        duo.nodes[1].take_pass(1, forged)
    assert duo.nodes[1].storage.ledger.running_round(1).state is StoredState.AUDITING
    assert duo.nodes[1].storage.rounds_opened == 0  # nothing has left, nothing is charged
    duo.nodes[1].take_pass(1, passed)
    assert duo.nodes[1].storage.rounds_opened == 1
    record = duo.nodes[1].storage.audits.record(duo.plan, 1)
    assert set(record) == {"record", "said", "share_commit", "audit_pass"}


def test_the_pass_of_a_round_that_was_applied_may_come_again_and_no_other_may(
    authorities: Authorities, tmp_path: Path
) -> None:
    """An auditor keeps noise of a round whose pass was taken: that is one of this very record."""
    duo = AuditedDuo(tmp_path, authorities, PLAN)
    duo.go(1)
    duo.go(2)
    node = duo.nodes[1]
    passed = bytes.fromhex(node.storage.audits.record(duo.plan, 1)["audit_pass"])
    node.take_pass(1, passed)
    with raises(ProtocolError, code="wrong-step"):
        node.take_pass(1, passed[:-1] + bytes([passed[-1] ^ 1]))


def test_a_key_is_overwritten_before_its_file_goes(tmp_path: Path) -> None:
    path = tmp_path / "1.key"
    path.write_bytes(KEY.raw)
    other = tmp_path / "hard link"
    os.link(path, other)
    destroy(path)
    assert not path.exists()
    assert other.read_bytes() == bytes(32)

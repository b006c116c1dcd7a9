"""Audited rounds of running servers: auditors pass them, name a liar, or are missed in time."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import json
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import torchfsl
from tests.fsl.test_proofs import bounded, small
from tests.support.federation import make_state, wanted_rows
from tests.support.network import CONFIG, Pair, wait_until
from tests.support.odd_servers import ODD
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.audit.transcript import auditor_bytes
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import Owner, connect
from torchfsl.service.auditor import LIAR, REFUSED, AuditorProcess, audit_file
from torchfsl.service.backup import Backup, restore
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import NotAllowed
from torchfsl.service.state.steps import StoredState
from torchfsl.service.state.vault import write_whole
from torchfsl.submodel.opened import Opened

PLAN = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3)
FEW = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3, min_contributors=2)
BAND = dataclasses.replace(PLAN, noise_taps=(16, 8, 6), min_separation=3, max_rounds=3)


class Audited(Pair):
    """Servers whose task has an audit, and auditors in this process."""

    def __init__(self, folder: Path, *, seconds: float = 60.0, odd: int = -1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        make_development_certificates(folder / "certs", range(8), auditors=True)
        self.keys = tuple(
            (folder / "certs" / f"auditor-{party}-sign.pub").read_text().strip() for party in (0, 1)
        )
        floors = f'\n[floors]\nauditors = ["{self.keys[0]}", "{self.keys[1]}"]\n'
        limits = f"{CONFIG.rstrip()}\naudit_seconds = {seconds}\n"
        super().__init__(folder, PLAN, limits + floors, odd=odd)
        self.auditors: list[AuditorProcess] = []

    def set_up(self, *, replace: bool = True) -> None:
        self.owner = Owner(self.urls, self.tls, policy=self.policy)
        self.task = self.owner.bind(self._plan, auditors=self.keys)
        self.plan = self.task.plan
        self.owner.set_up(self.task, make_state(self.plan), replace=replace)
        self.number = 0

    def auditor(self, party: int) -> AuditorProcess:
        files = TlsFiles.in_folder(self.tls, f"auditor-{party}")
        return AuditorProcess(party, self.urls, files, self.folder / f"auditor{party}")

    @contextlib.contextmanager
    def audited_by(self, *parties: int) -> Iterator[None]:
        """Both servers' auditors at work, or one."""
        ends = threading.Event()
        made = [self.auditor(party) for party in parties]
        threads = [
            threading.Thread(target=one.run, args=(lambda: not ends.is_set(), 0.05)) for one in made
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ends.set()
            for thread, one in zip(threads, made, strict=True):
                thread.join()
                one.close()

    def report(self, *clients: int) -> None:
        floors = ClientPolicy(min_clients=1, auditors=self.keys, audited=True)
        for client in clients:
            with connect(self.urls, self.tls, client, require=floors, policy=self.policy) as link:
                update = bounded(self.plan, np.random.default_rng(client))
                wanted = wanted_rows(self.plan, update)
                session = link.client.start_round(self.number, indices=wanted)
                session.download()
                session.retrieve()
                session.submit(update)

    def metrics(self, party: int) -> str:
        url = f"http://127.0.0.1:{self.metrics_ports[party]}/metrics"
        with urllib.request.urlopen(url) as answer:
            return str(answer.read().decode())

    def round_of(self, *clients: int) -> Opened:
        self.open()
        self.report(*clients)
        return self.close()


def verdicts(pair: Audited, party: int) -> list[Path]:
    return sorted((pair.folder / f"auditor{party}" / "verdicts").glob("*.json"))


@pytest.mark.parametrize("plan", [PLAN, FEW], ids=["plain", "counts first"])
def test_rounds_open_once_both_auditors_have_passed_them(tmp_path: Path, plan: object) -> None:
    with Audited(tmp_path) as pair:
        pair._plan = plan  # type: ignore[assignment]
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1):
            for _ in range(2):
                assert pair.round_of(2, 3).clients == (2, 3)
        pair.owner.model(pair.task)
        for party in (0, 1):
            assert len(verdicts(pair, party)) == 2
            assert not list((pair.folder / f"auditor{party}" / "keys").iterdir())
            assert not (pair.state(party) / "audit").exists()


def test_an_auditor_that_comes_after_the_other_one_has_passed_still_audits(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        pair.set_up()
        early = pair.auditor(0)
        pair.open()
        early.look()  # gives its key
        late = pair.auditor(1)
        late.look()
        pair.report(2, 3)
        closing = threading.Thread(target=pair.close)
        closing.start()
        while pair.owner.links.info(1)["state"] != StoredState.REVEALED:
            early.look()
        late.look()
        closing.join()
        assert pair.owner.links.info(0)["state"] == StoredState.APPLIED
        assert len(verdicts(pair, 1)) == 1
        early.close()
        late.close()


def test_without_the_auditor_of_the_other_server_nothing_is_opened(tmp_path: Path) -> None:
    with Audited(tmp_path, seconds=3.0) as pair:
        pair.start()
        pair.set_up()
        with pair.audited_by(0):
            pair.open()
            pair.report(2, 3)
            with pytest.raises(ProtocolError, match="audit_missing"):
                pair.owner.close_round(pair.number)
        with pair.audited_by(0, 1):  # nobody is named, and the next round opens
            assert pair.round_of(2, 3).clients == (2, 3)


def test_a_server_that_steers_is_named_and_the_honest_one_halts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ODD, "add")
    with Audited(tmp_path, odd=1) as pair:
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1):
            pair.open()
            pair.report(2, 3)
            with pytest.raises(ProtocolError, match="audit_liar_named"):
                pair.owner.close_round(pair.number)
            assert "server 1 found that it lied (share:" in pair.owner.links.info(0)["halted"]
            with pytest.raises(ProtocolError, match="halted"):
                pair.owner.open_round(pair.number + 1)
        metrics = pair.metrics(0)
        assert 'torchfsl_audit_alerts_total{why="audit_liar_named"} 1.0' in metrics
        evidence = pair.folder / "auditor1" / "named"
        (kept,), (key,) = evidence.glob("*.tfsa"), evidence.glob("*.key")
        status, told = audit_file(kept, verdicts(pair, 1)[0], key)
        assert status == LIAR
        assert "server 1 LIED (share)" in told
        altered = kept.read_bytes()
        kept.write_bytes(altered[:-1] + bytes([altered[-1] ^ 1]))
        assert audit_file(kept, verdicts(pair, 1)[0], key)[0] == REFUSED


def test_a_finding_that_comes_after_its_round_has_ended_still_halts_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ODD, "add")
    with Audited(tmp_path, seconds=3.0, odd=1) as pair:
        pair.start()
        pair.set_up()
        with monkeypatch.context() as patch, pair.audited_by(0, 1):
            patch.setattr(AuditorProcess, "_tell", lambda _: None)
            pair.open()
            pair.report(2, 3)
            with pytest.raises(ProtocolError, match="audit_missing"):
                pair.owner.close_round(pair.number)
            wait_until(lambda: bool(verdicts(pair, 1)))
        assert not pair.owner.links.info(0)["halted"]
        pair.open()  # the next round runs when the finding comes
        for _ in range(2):
            with contextlib.closing(pair.auditor(1)) as late:
                late.look()
            assert "server 1 found that it lied (share:" in pair.owner.links.info(0)["halted"]
            told = json.loads(verdicts(pair, 1)[0].read_bytes())
            assert told["told"]
            verdicts(pair, 1)[0].write_text(json.dumps(told | {"told": False}))
        assert 'alerts_total{why="audit_liar_named"} 1.0' in pair.metrics(0)
        pair.kill(0)
        pair.start(0)
        assert "server 1 found that it lied (share:" in pair.owner.links.info(0)["halted"]


@contextlib.contextmanager
def with_correlated_noise(folder: Path) -> Iterator[Audited]:
    """Servers that have opened one round."""
    with Audited(folder) as pair:
        pair._plan = BAND
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1):
            assert pair.round_of(0, 1).clients == (0, 1)
        yield pair


def held(pair: Audited, party: int) -> set[int]:
    """Rounds whose noise an auditor holds on disk."""
    words = (pair.folder / f"auditor{party}" / "noise").glob("*.json")  # one, or none as yet
    return {number for word in words for _, _, number in json.loads(word.read_bytes()).values()}


def test_auditors_keep_correlated_noise_over_restarts_and_losses_until_the_task_ends(
    tmp_path: Path,
) -> None:
    with with_correlated_noise(tmp_path) as pair:
        assert held(pair, 0) == held(pair, 1) == {1}
        folder = pair.folder / "auditor0"
        rings = [next(pair.state(0).glob("noise-*.ring")), *folder.glob("noise/*.ring")]
        assert rings[0].read_bytes() == rings[1].read_bytes()
        assert any(rings[0].read_bytes())
        shutil.rmtree(folder)  # a lost folder: its server leaves out what auditor 0 does not hold
        pair.kill(1)
        pair.start(1)
        with pair.audited_by(0, 1):
            assert pair.round_of(2, 3).clients == (2, 3)
            wait_until(lambda: (held(pair, 0), held(pair, 1)) == ({2}, {1, 2}))
            assert pair.round_of(4, 5).clients == (4, 5)
            wait_until(lambda: not [*pair.folder.glob("auditor?/noise/*")])  # no round is left
        assert not [*pair.folder.glob("auditor?/named/*")]


@pytest.mark.parametrize("step", ["verdicts", "noise"])
def test_an_auditor_that_dies_before_its_verdict_or_after_its_pass_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Noise counts once server 1 has taken the pass; where it dies then, it counts as 0."""

    def dies(path: Path, content: bytes) -> None:
        if path.parent == pair.folder / "auditor0" / step:
            raise OSError(errno.EIO, "the disk fails")
        write_whole(path, content)

    with with_correlated_noise(tmp_path) as pair, pair.audited_by(1):
        dying, again = pair.auditor(0), pair.auditor(0)
        with contextlib.closing(dying), contextlib.closing(again):
            pair.open()
            dying.look()  # gives its key
            pair.report(2, 3)
            closing = threading.Thread(target=pair.close)
            closing.start()
            with monkeypatch.context() as patch:
                patch.setattr("torchfsl.service.auditor.write_whole", dies)
                with pytest.raises(OSError, match="the disk fails"):
                    dying.run(lambda: True, 0.05)
            assert held(pair, 0) == {1}
            assert len(verdicts(pair, 0)) == 1 + (step == "noise")
            again.look()
            closing.join()
        assert pair.owner.links.info(0)["state"] == StoredState.APPLIED
        assert len(verdicts(pair, 0)) == 2
        assert held(pair, 0) == ({1, 2} if step == "verdicts" else {1})
        with pair.audited_by(0):
            assert pair.round_of(4, 5).clients == (4, 5)


@pytest.mark.parametrize("plan", [PLAN, BAND], ids=["plain", "correlated"])
def test_a_restored_task_is_audited_and_its_next_round_opens(tmp_path: Path, plan: Plan) -> None:
    with Audited(tmp_path) as pair:
        pair._plan = plan
        pair.start()
        pair.set_up()
        with pair.audited_by(0, 1):
            assert pair.round_of(0, 1).clients == (0, 1)
        pair.open()
        pair.report(2)  # in a round that never opens
        backup = Backup.of_state(pair.state(0))
        pair.owner.abandon_round(pair.number, "the disk of server 1 is lost")
        pair.kill(1)
        shutil.rmtree(pair.state(1))
        (pair.folder / "state1.witness").unlink()
        pair.start(1)
        pair.task, pair.number = restore(pair.owner, backup, replace=True), 0
        assert (pair.task.plan.auditors, pair.task.plan.digest != pair.plan.digest) == (
            pair.keys,
            True,
        )
        pair.plan = pair.task.plan
        with pair.audited_by(0, 1):
            assert pair.round_of(4, 5).clients == (4, 5)
        assert [len(verdicts(pair, party)) for party in (0, 1)] == [2, 2]
        assert not [*pair.folder.glob("auditor?/named/*")]
        if plan.noise_taps:  # noise of the task before went with it
            assert len([*pair.folder.glob("auditor?/noise/*.ring")]) == 2


def test_an_auditor_warns_of_a_disk_that_is_too_small(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        pair.set_up()
        needed = auditor_bytes(pair.plan, pair.plan.max_clients)
        for free, words in ((needed, 0), (needed - 1, 1)):
            disk = SimpleNamespace(f_bavail=free, f_frsize=1)
            monkeypatch.setattr("torchfsl.service.auditor.os.statvfs", lambda _, d=disk: d)
            with contextlib.closing(pair.auditor(0)) as auditor:
                auditor.look()
            assert caplog.text.count(f"the evidence of a round can need {needed}") == words


def test_a_lie_that_builds_on_past_noise_is_shown_by_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_correlated_noise(tmp_path) as pair:
        pair.kill(1)
        monkeypatch.setenv(ODD, "add")
        pair._odd = 1
        pair.start(1)
        with pair.audited_by(0, 1):
            pair.open()
            pair.report(2, 3)
            with pytest.raises(ProtocolError, match="audit_liar_named"):
                pair.owner.close_round(pair.number)
            evidence = pair.folder / "auditor1" / "named"
        (kept,), (key,) = evidence.glob("*.tfsa"), evidence.glob("*.key")
        (ring,) = evidence.glob("*.ring")
        before = ring.read_bytes()
        stored = kept.stat().st_size + 2 * len(before)  # here, and until the halt in noise/
        assert stored <= auditor_bytes(pair.plan, 2) <= stored + 5000  # 4,096 for small parts
        status, told = audit_file(kept, verdicts(pair, 1)[1], key)
        assert (status, "server 1 LIED (share)" in told) == (LIAR, True)
        assert ring.read_bytes() == before
        ring.write_bytes(bytes(len(before)))
        status, told = audit_file(kept, verdicts(pair, 1)[1], key)
        assert (status, "noise of rounds [1], which is missing here" in told) == (REFUSED, True)


def test_servers_and_clients_take_no_auditors_that_they_have_not_pinned(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        keys = pair.keys
        pair.keys = keys[::-1]
        with pytest.raises((ProtocolError, DecodeError), match="floor 'auditors' pins"):
            pair.set_up()
        pair.keys = keys
        pair.set_up()
        with pytest.raises(Exception, match="floor 'auditors' pins none"):
            pair.client(2)


def test_an_auditor_that_asks_too_early_or_for_another_server_stops_nothing(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        judge = pair.auditor(0)
        with contextlib.closing(judge):
            early = calls.encode_request(round=pair.number)
            with pytest.raises(calls.NotReady, match="no transcript"):
                judge.links.links[0].once("Transcript", early, limit=1 << 20)
            with pytest.raises(NotAllowed, match="expected the auditor of this server, got"):
                judge.links.links[1].once("Transcript", early, limit=1 << 20)
            forged = calls.encode_request(
                round=pair.number, step="share", why="?", signature="00" * 64
            )
            with pytest.raises(ProtocolError, match="no signed commitment of server 0"):
                judge.links.links[1].once("Named", forged, limit=0)
            with pytest.raises(NotAllowed, match="expected the auditor of the other server, got"):
                judge.links.links[0].once("Named", forged, limit=0)
            own = {"round": pair.number, "signature": "00" * 64}
            for size in (0, 31, 33, 39, 41, 32 + 8 * 65, 1 << 16):  # 32, and 8 a round of noise
                wrong = calls.encode_request(key="00" * size, **own)
                with pytest.raises(DecodeError):
                    judge.links.links[0].once("AuditKey", wrong, limit=0)
            unsigned = calls.encode_request(key="00" * 40, **own)
            with pytest.raises(ProtocolError, match="not signed by the plan's auditor"):
                judge.links.links[0].once("AuditKey", unsigned, limit=0)
            for size in (0, 63, 65, 1 << 16):
                wrong = calls.encode_request(round=pair.number, message="00" * size)
                with pytest.raises(DecodeError):
                    judge.links.links[1].once("Passed", wrong, limit=0)
        with pair.audited_by(0, 1):
            pair.report(2, 3)
            assert pair.close().clients == (2, 3)


def test_a_coordinator_starts_an_audited_task_and_goes_on_with_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(40, 2), torch.nn.Linear(2, 1))
    fed = torchfsl.Federated(
        model, torch.optim.SGD(model.parameters(), lr=0.1), max_clients=2, rows_per_client=8,
        retrieve=False, l2_bound=1 << 20, proofs="norm", above_break_even="keep",
    )  # fmt: skip

    def take_part(client: int) -> None:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        floors = ClientPolicy(auditors=pair.keys, audited=True)
        with torchfsl.connect(
            pair.urls, client_id=client, tls=pair.tls, require=floors, timeout=60
        ) as servers:
            mine = torchfsl.Federated(own, optimizer, plan=servers.plan)
            with mine.round(servers):
                own(torch.arange(4)).sum().backward()
                optimizer.step()

    with Audited(tmp_path) as pair:
        pair.start()
        with torchfsl.Coordinator(pair.urls, tls=pair.tls) as task, pair.audited_by(0, 1):
            task.start(fed, auditors=pair.keys)
            assert task.plan.auditors == pair.keys
            for number in range(2):
                task.open_round(expected=2, timeout=60)
                for client in (2, 3):
                    take_part(client)
                task.run_round(timeout=60)
                assert len(verdicts(pair, 0)) == len(verdicts(pair, 1)) == number + 1
        with torchfsl.Coordinator(pair.urls, tls=pair.tls) as again:
            again.start(fed, auditors=pair.keys)
            assert again.rounds_applied == 2
            with pytest.raises(ProtocolError, match="another task"):
                again.start(fed, auditors=pair.keys[::-1])

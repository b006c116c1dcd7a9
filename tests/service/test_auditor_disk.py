"""What an auditor has on disk: room, full disks, lost folders, and copies put in place again."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.test_audits import BAND, PLAN, Audited, held, verdicts
from tests.support.errors import raises
from tests.support.network import wait_until
from tests.support.odd_servers import ODD
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.audit.transcript import auditor_bytes
from torchfsl.fsl.noise import ring_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import auditor as auditors
from torchfsl.service.auditor import LIAR, AuditorProcess, audit_file
from torchfsl.service.command import main
from torchfsl.service.server.failures import EXIT_STATE_FAILED
from torchfsl.service.state import vault
from torchfsl.service.state.steps import StoredState

LONG = dataclasses.replace(BAND, max_rounds=60)
PLANS = pytest.mark.parametrize("plan", [PLAN, LONG], ids=["plain", "correlated"])


@contextlib.contextmanager
def audited(folder: Path, plan: Plan, *, seconds: float = 60.0, odd: int = -1) -> Iterator[Audited]:
    with Audited(folder, seconds=seconds, odd=odd) as pair:
        pair._plan = plan
        pair.start()
        pair.set_up()
        yield pair


def clients(pair: Audited) -> tuple[int, int]:
    """Of the next round, who report in every third round."""
    first = 2 * ((pair.number + 1) % 3)
    return first, first + 1


def keys(pair: Audited, party: int) -> list[Path]:
    return sorted((pair.folder / f"auditor{party}" / "keys").iterdir())


class Closing(threading.Thread):
    """Closes the open round, and keeps the text of an error."""

    error = ""

    def __init__(self, pair: Audited) -> None:
        super().__init__(daemon=True)
        self._pair = pair
        self.start()

    def run(self) -> None:
        try:
            self._pair.close()
        except ProtocolError as error:
            self.error = str(error)


class Disk:
    """Fails at write number `fatal` of this thread, and notes all of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fatal, self.writes = -1, list[str]()
        self._thread = threading.current_thread()
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (np.memmap, "flush")):
            patch.setattr(owner, name, self._failing(name, getattr(owner, name)))

    def _failing(self, name: str, write: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if threading.current_thread() is self._thread:
                self.writes.append(name)
                if len(self.writes) - 1 == self.fatal:
                    raise OSError(errno.ENOSPC, "no space left")
            return write(*given, **named)

        return call


def play(pair: Audited, disk: Disk, fatal: int) -> bool:
    """A round whose auditor 0 ends at a write and is started again; whether it had that write."""
    reporting = clients(pair)
    pair.open()
    closing: Closing | None = None
    disk.fatal, disk.writes = fatal, []
    judge = pair.auditor(0)
    while closing is None or closing.is_alive():
        try:
            judge.look()
            if closing is None:
                pair.report(*reporting)
                closing = Closing(pair)
        except OSError:
            judge.close()
            judge = pair.auditor(0)
    had = len(disk.writes) > fatal
    disk.fatal = -1
    judge.look()  # destroys what is left
    judge.close()
    return had


def test_an_auditor_whose_disk_is_full_at_any_write_passes_the_round_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with audited(tmp_path, LONG) as pair, pair.audited_by(1):
        disk, fatal = Disk(monkeypatch), 0
        while play(pair, disk, fatal):
            assert pair.owner.result()[1] == pair.number
            assert not keys(pair, 0), f"write {fatal}"
            fatal += 1
        pair.owner.model(pair.task)
        assert fatal >= 14
        assert len(verdicts(pair, 0)) == pair.number
        assert not [*pair.folder.glob("auditor?/named/*")]
        assert held(pair, 0) == {pair.number - 2, pair.number - 1, pair.number}


def test_evidence_that_does_not_fit_names_nobody_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        if path.suffix == ".tfsa":
            path.with_name(path.name + ".part").write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "no space left")
        whole(path, content)

    whole = vault.write_whole
    monkeypatch.setenv(ODD, "add")
    with audited(tmp_path, LONG, odd=1) as pair, pair.audited_by(0):
        judge, named = pair.auditor(1), pair.folder / "auditor1" / "named"
        pair.open()
        judge.look()  # gives its key
        pair.report(0, 1)
        closing = Closing(pair)
        with monkeypatch.context() as patch:
            patch.setattr(auditors, "write_whole", full)
            with pytest.raises(OSError, match="no space"):
                judge.run(closing.is_alive, 0.05)
        judge.close()
        assert not verdicts(pair, 1)
        assert not pair.owner.links.info(0)["halted"]
        with contextlib.closing(pair.auditor(1)) as again:
            again.look()
        closing.join()
        assert "audit_liar_named" in closing.error
        assert "server 1 found that it lied (share:" in pair.owner.links.info(0)["halted"]
        (kept,), (key,) = named.glob("*.tfsa"), named.glob("*.key")
        assert audit_file(kept, verdicts(pair, 1)[0], key)[0] == LIAR


def test_an_auditor_without_room_for_past_noise_gives_no_key_until_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with audited(tmp_path, LONG) as pair, contextlib.closing(pair.auditor(0)) as judge:
        pair.open()
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            for _ in range(2):
                with raises(ParameterError, "no-room"):
                    judge.look()
        assert not keys(pair, 0)
        assert not [*pair.folder.glob("auditor0/noise/*.ring")]
        with pair.audited_by(1):
            judge.look()
            pair.report(0, 1)
            closing = Closing(pair)
            while closing.is_alive():
                judge.look()
        assert pair.owner.links.info(0)["state"] == StoredState.APPLIED


def options(pair: Audited, party: int = 0) -> list[str]:
    state = pair.folder / f"auditor{party}"
    given = {"party": party, "servers": ",".join(pair.urls), "tls": pair.tls, "state": state}
    return [f"--{name}={value}" for name, value in given.items()]


@pytest.mark.parametrize("step", ["__init__", "run"])
def test_the_command_ends_with_a_plain_error_where_the_disk_is_full(
    step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    pair = Audited(tmp_path)
    monkeypatch.setattr(AuditorProcess, step, full)
    assert main(["auditor", *options(pair)]) == EXIT_STATE_FAILED
    (line,) = capsys.readouterr().err.splitlines()
    said = "cannot be read or written: [Errno 28] No space left"
    assert f"the folder {tmp_path / 'auditor0'} {said}" in line


@PLANS
def test_an_older_copy_of_an_auditors_folder_names_nobody_and_the_next_round_opens(
    plan: Plan, tmp_path: Path
) -> None:
    with audited(tmp_path, plan) as pair:
        folder, copy = pair.folder / "auditor0", pair.folder / "copy"
        with pair.audited_by(0, 1):
            pair.round_of(*clients(pair))
        reporting = clients(pair)
        pair.open()
        with contextlib.closing(pair.auditor(0)) as judge:
            judge.look()  # gives its key
        shutil.copytree(folder, copy)  # while the round is open
        (told,) = (copy / "verdicts").glob("*.json")
        told.write_text(json.dumps(json.loads(told.read_bytes()) | {"told": False}))
        with pair.audited_by(0, 1):
            pair.report(*reporting)
            pair.close()
        opened = pair.owner.result()[1]
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        with contextlib.closing(pair.auditor(0)) as judge:
            judge.look()
        assert not keys(pair, 0)  # of the round that the copy took for open
        assert (pair.owner.result()[1], len(verdicts(pair, 0))) == (opened, 1)
        with pair.audited_by(0, 1):
            assert pair.round_of(*clients(pair)).num_clients == 2
            assert len(verdicts(pair, 0)) == 2
        pair.owner.model(pair.task)
        assert not [*pair.folder.glob("auditor?/named/*")]
        assert not pair.owner.links.info(0)["halted"]
        if plan is LONG:
            assert held(pair, 0) == {1, 3}  # the third share builds on the first


@PLANS
@pytest.mark.parametrize("committed", [False, True])
def test_a_disk_lost_in_a_round_ends_it_unopened_and_the_next_one_opens(
    committed: bool, plan: Plan, tmp_path: Path
) -> None:
    with audited(tmp_path, plan, seconds=2.0) as pair, pair.audited_by(1):
        judge, folder = pair.auditor(0), pair.folder / "auditor0"
        reporting = clients(pair)
        pair.open()
        judge.look()  # gives its key
        pair.report(*reporting)
        closing = Closing(pair) if committed else None
        if committed:
            wait_until(lambda: pair.owner.links.info(0)["state"] in auditors._SEALED)
        judge.close()
        shutil.rmtree(folder)
        closing = closing or Closing(pair)
        with contextlib.closing(pair.auditor(0)) as judge:
            while closing.is_alive():
                judge.look()
            judge.look()
        assert "audit_missing" in closing.error
        (told,) = verdicts(pair, 0)
        assert "refused" in json.loads(told.read_bytes())
        assert not keys(pair, 0)
        with pair.audited_by(0):
            assert pair.round_of(*clients(pair)).num_clients == 2
        pair.owner.model(pair.task)
        assert not [*pair.folder.glob("auditor?/named/*")]


def doctor(pair: Audited, capsys: pytest.CaptureFixture[str], *changed: str) -> list[str]:
    """The lines that failed, else the one about the disk."""
    status = main(["doctor", *options(pair), *changed])
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("FAILED")]
    assert status == bool(failed)
    return failed or [line for line in lines if line.startswith("ok      disk")]


def test_doctor_finds_what_keeps_an_auditor_from_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.statvfs

    def leave(free: int) -> None:
        found = os.statvfs_result((1, 1, free, free, free, *real(tmp_path)[5:]))
        monkeypatch.setattr(os, "statvfs", lambda _: found)

    with Audited(tmp_path) as pair:
        pair._plan = LONG
        pair.start()
        assert doctor(pair, capsys) == ["ok      disk: no task yet: ask again once there is one"]
        pair.set_up()
        needed, ring = auditor_bytes(pair.plan, pair.plan.max_clients), ring_bytes(pair.plan)
        assert doctor(pair, capsys) == [f"ok      disk: the task needs {needed:,} bytes at most"]
        with contextlib.closing(pair.auditor(0)) as judge:
            judge.look()  # takes room for past noise
        for free, fails in ((needed - ring, False), (needed - ring - 1, True)):
            leave(free)
            (line,) = doctor(pair, capsys)
            assert line.startswith("FAILED  disk") == fails
            assert f"needs {needed - ring:,}" in line
        leave(needed)
        assert "needs --party 0 or 1" in doctor(pair, capsys, "--party=2")[0]
        sign = pair.tls / "auditor-0-sign.key"
        sign.chmod(0o644)
        assert f"others can read {sign}" in doctor(pair, capsys)[0]
        sign.unlink()
        assert any("--auditors` makes" in line for line in doctor(pair, capsys))
        pair.kill(1)
        assert any("server 1: no answer" in line for line in doctor(pair, capsys))

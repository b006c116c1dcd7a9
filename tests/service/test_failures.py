"""Full disks, descriptors that run out, bugs: a server ends, or says that it is not ready."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import shutil
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.service.test_limits import small_disk as small_disk
from tests.support.federation import mixed_plan
from tests.support.network import HASTY, Pair
from torchfsl.errors import Error, ProtocolError
from torchfsl.service.client.owner import Owner
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.failures import EXIT_STATE_FAILED, EXIT_STATE_REFUSED, Failures
from torchfsl.service.server.round_driver import RoundDriver
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.state.records import StoreDamaged
from torchfsl.service.state.steps import StoredState

STATE_ERRORS = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EMFILE, "Too many open files"),
    OSError(errno.EROFS, "Read-only file system"),
    sqlite3.OperationalError("database or disk is full"),
    sqlite3.DatabaseError("database disk image is malformed"),
    StoreDamaged("the report log cannot be written"),
]


@pytest.mark.parametrize("error", STATE_ERRORS, ids=str)
def test_an_error_of_the_state_ends_the_process_with_a_status_of_its_own(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    failures = Failures(ended.append)
    failures.take("handler", error)
    assert ended == [EXIT_STATE_FAILED] == [74]
    assert failures.counts == {"state": 1}
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    assert str(error) in caplog.text
    failures.stop()
    failures.take("handler", error)  # of a state that is being closed
    assert ended == [74]


@pytest.mark.parametrize("error", [TypeError("oops"), TimeoutError(), ConnectionResetError()])
def test_any_other_error_shows_in_log_metric_and_readiness(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[int] = []
    failures = Failures(ended.append)
    failures.take("driver", error)
    assert not ended
    assert failures.counts == {"driver": 1}
    assert type(error).__name__ in failures.unready
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].exc_info


def test_a_task_of_the_rounds_that_fails_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(lambda _: None)

    async def fail(error: Exception | None) -> None:
        if error is not None:
            raise error

    async def play() -> None:
        for error in (None, ProtocolError("known"), KeyError("bug"), sqlite3.Error("full")):
            task = asyncio.create_task(fail(error))
            task.add_done_callback(failures.watch)
            with contextlib.suppress(Exception):
                await task
        task = asyncio.create_task(asyncio.sleep(9))
        task.add_done_callback(failures.watch)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
    assert failures.counts == {"driver": 1, "state": 1}


class Standing:
    """What a coordinator sees of a server whose round is open and stays so."""

    def __init__(self, ledger: Ledger) -> None:
        self.node = SimpleNamespace(storage=SimpleNamespace(ledger=ledger))
        self.waited = 0
        self.gate = SimpleNamespace(close=self._close)

    async def wait(self, seconds: float) -> None:
        self.waited += 1
        await asyncio.sleep(min(seconds, 0.02))

    async def _close(self) -> None:
        return


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_jump_of_the_wall_clock_neither_closes_a_round_nor_keeps_it_open(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    now, start = time.time(), time.monotonic()
    ledger.start_round(1, 0, now + 0.5)
    relays: Any = SimpleNamespace(restart=lambda: None)
    station: Any = Standing(ledger)
    driver = RoundDriver(station, None, relays, AuditDesk(station))  # type: ignore[arg-type]
    driver._deadline = time.monotonic() + driver._seconds_left(1)
    monkeypatch.setattr(time, "time", lambda: now + jump)
    asyncio.run(driver._collect(1))
    assert time.monotonic() - start >= 0.45
    assert station.waited
    if jump < 0:  # and one while the server was down makes no round longer than it was to be
        assert driver._seconds_left(1) == pytest.approx(0.5, abs=0.2)
    ledger.close()


def test_rounds_are_counted_by_an_index(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    for number, state in enumerate(["applied", "applied", "unopened", "open"]):
        ledger.start_round(number, 0, 0.0)
        ledger.change_round(number, state=state)
    found = {state: ledger.num_rounds(state) for state in StoredState}
    assert (found["applied"], found["unopened"], found["open"], found["closed"]) == (2, 1, 1, 0)
    plan = ledger._one("EXPLAIN QUERY PLAN SELECT COUNT(*) FROM rounds WHERE state = ?", "applied")
    assert "COVERING INDEX rounds_by_state" in plan[3]
    ledger.close()


# --- a disk without room, at the beginning and at the end of a round, at either server ---


def supervise(pair: Pair, party: int) -> int:
    """Wait until a server ends; its exit status."""
    process = pair.processes[party]
    assert process is not None
    status = process.wait(timeout=120)
    assert process.stdout is not None
    process.stdout.close()
    pair.processes[party] = None
    return status


def try_to_start(pair: Pair, party: int) -> int:
    """Start a server as a supervisor does: until it listens, 0, or ends, its status."""
    pair.spawn(party)
    try:
        pair.wait(party)
    except RuntimeError:
        return supervise(pair, party)
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("when", ["opening", "closing"])
def test_a_server_without_room_ends_and_goes_on_when_there_is(
    tmp_path: Path, small_disk: Path, when: str, party: int
) -> None:
    config = "[storage]\nreserve_bytes = 1048576\nsegment_bytes = 65536\n"
    with Pair(tmp_path / "pair", mixed_plan(), config) as pair:
        pair.state(party).symlink_to(small_disk)
        pair.start()
        pair.set_up()
        if when == "closing":
            pair.open()
            pair.take_part([0, 1, 2])
        ballast = fill(small_disk)
        hasty = Owner(pair.urls, pair.tls, policy=HASTY)
        with contextlib.suppress(Error):  # server 0 is gone, or waits for server 1
            if when == "closing":
                hasty.close_round(1)
            else:
                pair.number = 1
                hasty.open_round(1, seconds=900)
        hasty.close()
        assert supervise(pair, party) == EXIT_STATE_FAILED
        critical = [line for line in pair.log(party).splitlines() if '"critical"' in line]
        assert len(critical) == 1
        assert "status 74" in json.loads(critical[0])["message"]
        assert try_to_start(pair, party) in (0, EXIT_STATE_FAILED)
        if pair.processes[party] is not None:
            supervise_or_kill(pair, party)
        ballast.unlink()
        assert try_to_start(pair, party) == 0
        if when == "opening":
            pair.owner.open_round(1, seconds=900)
            pair.take_part([0, 1, 2])
        opened = pair.close()
        assert opened.clients == (0, 1, 2)
        pair.owner.model(pair.task)
        pair.open()
        pair.assert_serves()


def supervise_or_kill(pair: Pair, party: int) -> None:
    """A server that came up on the full disk ends by itself, or has nothing to write."""
    process = pair.processes[party]
    assert process is not None
    deadline = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    pair.kill(party)


def fill(disk: Path) -> Path:
    """Write until nothing fits any more; the file to delete."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)) == 4096:
            pass
    assert shutil.disk_usage(disk).free == 0
    return ballast


# --- a disk that is lost for good ---


@pytest.mark.slow
@pytest.mark.parametrize("party", [0, 1])
def test_a_pair_goes_on_with_the_model_of_the_server_that_kept_its_disk(
    tmp_path: Path, party: int
) -> None:
    """As "Recover from a lost disk" in docs/operate/backup.md says."""
    with Pair(tmp_path, mixed_plan()) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.assert_serves()
        pair.open()
        pair.take_part([0, 1])
        pair.kill(party)
        shutil.rmtree(pair.state(party))
        assert try_to_start(pair, party) == EXIT_STATE_REFUSED  # the disk is not empty by mistake
        pair.state(party).with_name(f"state{party}.witness").unlink()
        assert try_to_start(pair, party) == 0
        with contextlib.suppress(ProtocolError):  # server 0 may have ended it: server 1 knows none
            pair.owner.abandon_round(pair.owner.running_round(), "a disk was lost")
        model = pair.owner.model(pair.task, party=1 - party)
        with pytest.raises(Error):
            Owner(pair.urls, pair.tls, policy=HASTY).model(pair.task)
        pair.task = pair.owner.bind(pair.plan)
        pair.plan, pair.number = pair.task.plan, 0
        pair.owner.set_up(pair.task, model.state, model.optimizer.state(), replace=True)
        pair.open()
        pair.assert_serves()

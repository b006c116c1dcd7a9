"""What a supervisor hears of a server, over a real datagram socket."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchfsl.service.local import LoopbackServers
from torchfsl.service.server.supervision import Supervisor, supervised


@pytest.fixture
def ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The supervisor's end; processes that are started know of it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield end


def waiting(ear: socket.socket) -> list[bytes]:
    """What has arrived and was not read."""
    ear.setblocking(False)
    said = []
    try:
        while True:
            said.append(ear.recv(100))
    except BlockingIOError:
        return said
    finally:
        ear.settimeout(60)


def test_a_server_says_that_it_is_ready_that_it_lives_and_that_it_stops(
    tmp_path: Path, ear: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "50000")
    with LoopbackServers(tmp_path / "servers", clients=1) as servers:
        servers.start(0)
        heard = [ear.recv(100) for _ in range(4)]
        assert heard[0] == b"READY=1"
        assert set(heard[1:]) == {b"WATCHDOG=1"}
    assert waiting(ear)[-1] == b"STOPPING=1"


def test_a_loop_that_hangs_is_silent(ear: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")

    async def hang_then_live() -> None:
        async with supervised():
            await asyncio.sleep(0.01)
            assert waiting(ear)[:2] == [b"READY=1", b"WATCHDOG=1"]
            time.sleep(0.05)  # the whole loop
            assert waiting(ear) == []
            await asyncio.sleep(0.01)
            assert b"WATCHDOG=1" in waiting(ear)

    asyncio.run(hang_then_live())
    assert waiting(ear)[-1] == b"STOPPING=1"


def test_without_a_supervisor_nothing_is_sent_and_nothing_fails(tmp_path: Path) -> None:
    silent = Supervisor({"WATCHDOG_USEC": "1000000"})
    assert silent.watchdog_seconds == 0
    silent.tell("READY=1")


def test_a_supervisor_that_does_not_listen_is_logged_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).tell("READY=1")
    assert "cannot notify the supervisor at $NOTIFY_SOCKET" in caplog.text


def test_a_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    names = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
    assert Supervisor(names).watchdog_seconds == 3
    assert Supervisor({**names, "WATCHDOG_PID": "1"}).watchdog_seconds == 0


def test_a_name_that_begins_with_an_at_is_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("")  # the kernel chooses an abstract name
        name = end.getsockname()
        Supervisor({"NOTIFY_SOCKET": "@" + name[1:].decode()}).tell("READY=1")
        end.settimeout(60)
        assert end.recv(100) == b"READY=1"

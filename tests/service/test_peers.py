"""The link between the servers: one call's failure is no other call's."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from torchfsl.errors import Error
from torchfsl.fsl.messages import Kind
from torchfsl.service.local import LoopbackServers
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles, server_certificate
from torchfsl.service.server import peers
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.round_driver import RoundDriver

NO_FILES = TlsFiles.in_folder(Path(), "nobody")


async def serving(handlers: Any, monkeypatch: pytest.MonkeyPatch) -> grpc.aio.Server:
    """A server of these calls, to which every channel of `peers` leads."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(calls.SERVICE, handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    monkeypatch.setattr(
        peers, "aio_channel", lambda *_: grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    )
    return server


@pytest.mark.parametrize("code", [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE])
def test_a_call_that_fails_leaves_the_others_alone(
    code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relay may be refused while a step is under way, as when a round closes."""

    async def run() -> list[Any]:
        relay_failed = asyncio.Event()

        async def step(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await relay_failed.wait()
            yield b"done"

        async def relay(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await context.abort(code, "no")
            yield b""

        handlers = {
            name: grpc.stream_stream_rpc_method_handler(call)
            for name, call in (("Step", step), ("Relay", relay))
        }
        server = await serving(handlers, monkeypatch)
        make_development_certificates(tmp_path, [])
        certificate = (tmp_path / "server-1.pem").read_bytes()
        monkeypatch.setattr(peers, "server_certificate", lambda *_: certificate)
        link = PeerLink("https://unused:1", 1, NO_FILES)
        under_way = asyncio.create_task(link.call("Step", b"x", limit=10))
        with pytest.raises(Error):
            await link.call("Relay", b"x", limit=10)
        await asyncio.sleep(0.05)
        relay_failed.set()
        answers = [await under_way, await link.call("Step", b"", limit=10)]
        await link.close()
        await server.stop(None)
        return answers

    assert asyncio.run(run()) == [b"done", b"done"]


def test_a_time_without_answers_is_logged_when_it_begins_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torchfsl.service.peers")
    make_development_certificates(tmp_path, [])
    certificate = (tmp_path / "server-1.pem").read_bytes()
    failures = [calls.NotReady(f"server 1: down {count}") for count in range(3)]
    whys = []

    def answer(*_: Any) -> bytes:
        if failures:
            raise failures.pop(0)
        return certificate

    def still(why: str) -> bool:
        whys.append(why)
        assert link.why == why
        assert link.unreachable == bool(why)
        return True

    async def step(_: bytes, __: Any) -> bytes:
        return b"done"

    async def run() -> bytes:
        handlers = {"Step": grpc.unary_unary_rpc_method_handler(step)}
        server = await serving(handlers, monkeypatch)
        monkeypatch.setattr(peers, "server_certificate", answer)
        said = await link.insist("Step", b"x", limit=10, still=still)
        await link.close()
        await server.stop(None)
        return said

    link = PeerLink("https://unused:1", 1, NO_FILES)
    assert asyncio.run(run()) == b"done"
    assert whys == ["", "server 1: down 0", "server 1: down 1", "server 1: down 2"]
    assert not link.unreachable
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the other server does not answer: server 1: down 0 (peer = https://unused:1)"),
        ("INFO", "the other server answers again, 0 s after the first call without an answer"),
    ]


def test_a_server_that_is_started_with_the_url_of_another_logs_it_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def watched(url: str, lines: int) -> list[str]:
        link = PeerLink(url, 1, TlsFiles.in_folder(tmp_path / "certs", "server-0"))
        caplog.clear()
        watching = asyncio.create_task(link.watch())
        async with asyncio.timeout(60):
            while not looked.is_set() or len(caplog.records) < lines:
                await asyncio.sleep(0.05)
        watching.cancel()
        return [record.getMessage() for record in caplog.records]

    looked = threading.Event()

    def look(*arguments: Any) -> bytes:
        try:
            return server_certificate(*arguments)
        finally:
            looked.set()

    with LoopbackServers(tmp_path, clients=0) as servers, pytest.MonkeyPatch.context() as patch:
        servers.start(0)
        patch.setattr(peers, "server_certificate", look)
        (told,) = asyncio.run(watched(servers.urls[0], 1))
        assert told.startswith(
            f"--peer: expected server 1 at {servers.urls[0]}, got server 0: give"
        )
        looked.clear()
        assert asyncio.run(watched(servers.urls[1], 0)) == []  # it is not started yet


def test_a_step_that_takes_long_is_logged_once_as_a_stalled_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    station, link = SimpleNamespace(stalled=""), SimpleNamespace(unreachable=False)
    driver: Any = SimpleNamespace(_station=station, _link=link)
    still = RoundDriver._patient(driver, 3, Kind.SHARE)
    assert still("")
    assert station.stalled == ""
    for _ in range(3):
        assert still("no answer in 15 s")
    assert re.fullmatch(
        r"waiting for the other server's SHARE since [-\d]+ [:\d]+ UTC: no answer in 15 s",
        station.stalled,
    )
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "round 3 is stalled")
    assert record.__dict__["reason"] == station.stalled

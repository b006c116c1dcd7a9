"""The link between the servers: one call's failure is no other call's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from torchfsl.errors import Error
from torchfsl.service.net import calls
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.server import peers
from torchfsl.service.server.peers import PeerLink

NO_FILES = TlsFiles.in_folder(Path(), "nobody")


@pytest.mark.parametrize("code", [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE])
def test_a_call_that_fails_leaves_the_others_alone(
    code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch
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

        server = grpc.aio.server()
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(call)
            for name, call in (("Step", step), ("Relay", relay))
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(calls.SERVICE, handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        monkeypatch.setattr(
            peers, "aio_channel", lambda *_: grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        )
        monkeypatch.setattr(peers, "server_certificate", lambda *_: b"")
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

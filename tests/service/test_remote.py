"""A client's transport by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.federation import mixed_plan, random_update, wanted_rows
from tests.support.network import FLOORS, HANGS_AFTER, Pair
from torchfsl.errors import ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.remote import RemoteTransport, connect
from torchfsl.service.net import calls
from torchfsl.service.net.calls import NotReady


class FakeLinks:
    """Notes what goes to which server; fails while `down`."""

    def __init__(self) -> None:
        self.down = False
        self.sent: list[tuple[str, int, int, int]] = []

    def both(self, ask: Any) -> tuple[bytes, bytes]:
        if self.down:
            raise NotReady("down")
        ask(FakeLink(self, 0)), ask(FakeLink(self, 1))
        return b"", b""

    def info(self, party: int) -> dict[str, str]:
        """What a server says that holds no task, so that refusals keep their own words."""
        return {"plan_digest": ""}


class FakeLink:
    def __init__(self, links: FakeLinks, party: int) -> None:
        self.links, self.party = links, party

    def call(self, method: str, data: bytes, *, limit: int) -> bytes:
        number = int.from_bytes(data[8:16], "little")
        self.links.sent.append((method, self.party, data[6], number))
        return b""


def test_a_round_that_failed_on_the_way_leaves_nothing_behind_for_the_next_one() -> None:
    plan, links = mixed_plan(), FakeLinks()
    client = Client(plan, RemoteTransport(links, plan), client_id=1)  # type: ignore[arg-type]
    update = random_update(plan, np.random.default_rng(0))
    links.down = True
    with pytest.raises(NotReady):
        client.start_round(1, indices=wanted_rows(plan, update)).submit(update)
    links.down = False
    client.start_round(2, indices=wanted_rows(plan, update)).submit(update)
    assert links.sent == [
        ("Retrieve", 0, Kind.TREES_COMMIT, 2),
        ("Retrieve", 1, Kind.TREES, 2),
        ("Submit", 0, Kind.REPORT_COMMIT, 2),
        ("Submit", 1, Kind.REPORT, 2),
    ]


@pytest.mark.parametrize("code", ["INTERNAL", "UNKNOWN", "UNAVAILABLE", "CANCELLED"])
def test_what_grpc_says_of_a_broken_connection_is_no_refusal(code: str) -> None:
    class Broken(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode[code]

        def details(self) -> str:
            return "Internal error from Core"

    assert isinstance(calls.error_of(Broken(), "server 0"), calls.RETRIED)


@pytest.mark.parametrize("number", [-1, 2**64, "0", None])
def test_who_connects_has_a_client_number(number: Any, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"client_id is .*\[0, 2\*\*64\)"):
        connect(["https://a:1", "https://b:1"], tmp_path, number)


@pytest.mark.parametrize("kind", [bytes, memoryview])
@pytest.mark.parametrize("size", [0, 1, calls.CHUNK_BYTES, calls.CHUNK_BYTES + 1])
def test_a_message_travels_in_chunks_and_as_it_is_where_one_is_enough(kind: Any, size: int) -> None:
    message = kind(b"\x01" * size)
    sent = list(calls.chunks(message))
    assert [len(chunk) for chunk in sent] == (
        [size] if size <= calls.CHUNK_BYTES else [calls.CHUNK_BYTES, 1]
    )
    assert b"".join(sent) == message
    assert all(type(chunk) is bytes for chunk in sent)  # which is what gRPC takes
    assert (sent[0] is message) == (kind is bytes and size <= calls.CHUNK_BYTES)


def test_a_client_may_come_before_the_task_and_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "torchfsl.service.remote")
    with Pair(tmp_path) as pair, ThreadPoolExecutor(1) as early:

        def come(seconds: float) -> str:
            policy = RetryPolicy(total_seconds=1.0)
            with connect(pair.urls, pair.tls, 0, require=FLOORS, policy=policy, wait=seconds) as c:
                return c.plan.digest.hex()

        with pytest.raises(
            calls.NotReady, match=r"refused; waited for 1 s. Start this client again"
        ):
            come(1.0)
        pair.start()
        with pytest.raises(calls.NotReady, match=r"no task yet.*; waited for 1 s"):
            come(1.0)
        waiting = early.submit(come, HANGS_AFTER)
        pair.set_up()
        assert waiting.result(HANGS_AFTER) == pair.plan.digest.hex()
    assert "waiting for the servers" in caplog.text

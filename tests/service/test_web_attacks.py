"""Attacks on the HTTPS door, each with its defence off, where it works, and on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment, mixed_plan
from tests.support.web import FIRST, VERSION, Answer, WebKey, WebLink, WebPair
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.transport import InProcess
from torchfsl.service.command import main
from torchfsl.service.net.addresses import bound_socket
from torchfsl.service.net.calls import NotReady, Overloaded
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.net.issuers import Issuers
from torchfsl.service.server import door as door_module
from torchfsl.service.server import passages
from torchfsl.service.server.door import Door
from torchfsl.service.server.intake import Budget, Limits, Turns
from torchfsl.submodel.update import SegmentUpdate, Update

h11 = pytest.importorskip("h11")
from torchfsl.service.server import http, web  # noqa: E402 (need h11)

ONE, OTHER = Identity(Role.CLIENT, 1), Identity(Role.CLIENT, 2)
BIG = make_plan(make_segment("bias", "dense", (20000,)))
HELD = 0.6
"""Seconds after which an attack that no time limit has ended counts as one that works."""

POST = b"POST /torchfsl/v1/Submit HTTP/1.1\r\nHost: a\r\n"


class Writer:
    """The side of a connection that is written to; `drain` waits until `is_read`."""

    def __init__(self) -> None:
        self.sent, self.is_read = b"", asyncio.Event()

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        await self.is_read.wait()


def wire_of(data: bytes, limits: Limits | None = None) -> tuple[http.Wire, Writer]:
    """A connection on which this has come; more does not."""
    reader, writer = asyncio.StreamReader(), Writer()
    reader.feed_data(data)
    return http.Wire(reader, writer, limits or Limits()), writer  # type: ignore[arg-type]


# --- heads ---


def test_thousands_of_lines_of_headers_are_refused_before_they_cost_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = POST + b"a:\r\n" * 3000 + b"\r\n"

    async def first(data: bytes) -> http.Request | None:
        return await wire_of(data)[0].head()

    async def second() -> http.Request | None:
        wire, writer = wire_of(POST + b"Content-Length: 2\r\n\r\n{}" + head)
        writer.is_read.set()
        await wire.head()
        wire.begin(204, (), 0)  # before the body, with which the next head has come
        assert await wire.end()
        return await wire.head()

    for attack in (first(head), first(head.replace(b"\r", b"")), second()):
        with raises(DecodeError, "decode"):
            asyncio.run(attack)
    monkeypatch.setattr(http, "_HEAD_LINES", 1 << 20)
    for attack in (first(head), second()):
        taken = asyncio.run(attack)
        assert taken is not None
        assert len(taken.headers["a"]) == 3000


def test_an_answer_to_head_has_no_body_and_ends_in_no_error() -> None:
    async def refuse(defence: bool) -> bytes:
        wire, writer = wire_of(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        await wire.head()
        wire._has_no_body &= defence
        wire.begin(404, (), 2)
        wire.add(b"{}")
        return writer.sent

    with pytest.raises(h11.LocalProtocolError, match="Too much data"):
        asyncio.run(refuse(False))
    assert asyncio.run(refuse(True)).endswith(b"\r\n\r\n")


# --- time limits ---


def report() -> bytes:
    """Of a client of a large plan."""
    kept: list[bytes] = []

    class Kept(InProcess):
        def send(self, party: int, message: bytes) -> None:
            kept.append(message)

    Client(BIG, Kept(None, None), client_id=1).start_round(1, indices={}).abort()  # type: ignore[arg-type]
    return max(kept, key=len)


async def _rest(limits: Limits) -> None:
    assert await wire_of(b"", limits)[0].head() is None


async def _stop_in_the_head(limits: Limits) -> None:
    assert await wire_of(POST, limits)[0].head() is None


async def _send_no_body(limits: Limits) -> None:
    wire, _ = wire_of(POST + b"Content-Length: 2\r\n\r\n", limits)
    await wire.head()
    await web.WebStream(wire, limits, Budget(limits), 2).request()


async def _drip(limits: Limits) -> None:
    body = report()
    wire, _ = wire_of(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body[:4096], limits)
    await wire.head()

    async def drip() -> None:
        for byte in body[4096:]:
            wire._reader.feed_data(bytes([byte]))
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    try:
        stream = web.WebStream(wire, limits, Budget(limits), len(body))
        async with stream.message(BIG, Kind.REPORT, Kind.REPORT_COMMIT):
            raise AssertionError
    finally:
        dripping.cancel()


async def _do_not_read(limits: Limits) -> None:
    wire, _ = wire_of(POST + b"Content-Length: 0\r\n\r\n", limits)
    await wire.head()
    await web.WebStream(wire, limits, Budget(limits), 0).send(bytes(1 << 20))


OFF = Limits(bytes_per_second=1)


@pytest.mark.parametrize(
    ("attack", "defence", "end"),
    [
        (_rest, {"conversation_seconds": 0.1}, None),
        (_stop_in_the_head, {"idle_seconds": 0.1}, None),
        (_send_no_body, {"idle_seconds": 0.1}, "the caller sent nothing for 0.1 s"),
        (_drip, {"call_seconds": 0.1}, "the message took longer than 0.1 s"),
        (
            _drip,
            {"idle_seconds": 0.1, "bytes_per_second": 1 << 20},
            "bytes per second from the caller",
        ),
        (_do_not_read, {"idle_seconds": 0.1}, "does not read its answer"),
    ],
)
def test_who_is_slow_is_dropped_and_without_the_limit_would_not_be(
    attack: Callable[[Limits], Awaitable[None]], defence: dict[str, Any], end: str | None
) -> None:
    async def run(limits: Limits, seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            await attack(limits)

    with pytest.raises(TimeoutError):
        asyncio.run(run(OFF, HELD))
    limits = dataclasses.replace(OFF, **defence)
    if end is None:
        asyncio.run(run(limits))
        return
    with pytest.raises(NotReady, match=end):
        asyncio.run(run(limits))


# --- connections ---


@contextlib.asynccontextmanager
async def silent(limits: Limits, said: bytes = b"", turns: Turns | None = None) -> AsyncIterator[
    tuple[Door, list[Any]]
]:  # fmt: skip
    """Forty connections from one address, and who got through to what is behind the door."""
    door, came, held = Door(limits, turns), list[Any](), list[asyncio.StreamWriter]()
    server = await asyncio.start_unix_server(lambda *_: came.append(_), door.inside)
    listening = bound_socket("127.0.0.1:0")
    door.open(listening)
    for _ in range(40):
        held.append((await asyncio.open_connection(*listening.getsockname()))[1])
        held[-1].write(said)
    await asyncio.sleep(HELD)
    yield door, came
    for writer in held:
        writer.close()
    door.close()
    server.close()


@pytest.mark.parametrize(
    ("defence", "left"), [({}, 40), ({"handshakes_per_address": 4}, 4), ({"handshakes": 5}, 5),
                          ({"handshake_seconds": 0.1}, 0)],
)  # fmt: skip
def test_silent_connections_of_one_address_keep_few_places_for_a_short_time(
    defence: dict[str, Any], left: int
) -> None:
    limits = Limits(handshakes_per_address=64)

    async def run() -> int:
        async with silent(dataclasses.replace(limits, **defence)) as (door, _):
            return door.guests.num_strangers

    assert asyncio.run(run()) == left


def test_who_never_reads_the_rest_of_an_answer_is_gone_once_its_sender_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(16 << 20))
        await asyncio.sleep(0.1)
        writer.transport.abort()

    async def run() -> int:
        door, listening = Door(Limits()), bound_socket("127.0.0.1:0")
        server = await asyncio.start_unix_server(answer, door.inside)
        door.open(listening)
        with socket.create_connection(listening.getsockname()) as caller:
            caller.sendall(b"call")
            await asyncio.sleep(HELD)
            left = len(door.guests.everybody())
        door.close()
        server.close()
        return left

    assert asyncio.run(run()) == 1
    monkeypatch.setattr(passages, "_STALL_SECONDS", 0.02)
    assert asyncio.run(run()) == 0


def test_strangers_go_on_one_after_the_other_and_those_who_left_take_no_turn() -> None:
    async def run(turns: Turns | None, limits: Limits) -> int:
        async with silent(limits, b"\x16", turns) as (_, came):
            return len(came)

    many = Limits(handshakes_per_address=64)
    assert asyncio.run(run(None, many)) == 40
    assert asyncio.run(run(Turns(10, 10), many)) in range(1, 30)  # they come for longer than HELD

    async def pass_by() -> None:
        turns, come = Turns(1, 1), asyncio.Event()
        turns.wait("a", lambda: True, lambda: None)
        for _ in range(1000):
            turns.wait("a", lambda: False, lambda: None)
        turns.wait("a", lambda: True, come.set)
        async with asyncio.timeout(10):
            await come.wait()

    asyncio.run(pass_by())


def test_a_flood_of_handshakes_of_one_address_does_not_keep_another_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def came_through() -> bool:
        limits = Limits(handshakes_per_address=64)
        async with silent(limits, b"\x16", Turns(20, 20)) as (door, came):
            listening = door._listening
            assert listening is not None
            with socket.create_connection(
                listening.getsockname(), source_address=("127.0.0.2", 0)
            ) as other:
                other.sendall(b"\x16")
                await asyncio.sleep(HELD)
                names = [str(writer.get_extra_info("peername")) for _, writer in came]
                return any(door.address_of(name).startswith("127.0.0.2:") for name in names)

    assert asyncio.run(came_through())
    monkeypatch.setattr(door_module, "group_of", lambda host: "one")
    assert not asyncio.run(came_through())


def test_an_address_has_so_many_turns_a_second_and_no_more() -> None:
    async def run(per_address: float) -> list[str]:
        turns, went = Turns(1000, per_address), list[str]()
        for address in ("a", "b") * 20:
            turns.wait(address, lambda: True, functools.partial(went.append, address))
        await asyncio.sleep(HELD)
        return went

    assert len(asyncio.run(run(1000))) == 40
    went = asyncio.run(run(10))
    assert went[:4] == ["a", "b", "a", "b"]
    assert 4 <= len(went) <= 16


def test_requests_of_strangers_wait_for_turns_and_grpc_does_not(tmp_path: Path) -> None:
    limits = "strangers_per_second = 4\ncalls = 4\n"
    with WebPair(tmp_path, mixed_plan(), limits) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        with pair.raw() as connection:
            lines = [f"{name}: {value}" for name, value in VERSION.items()]
            head = ["POST /torchfsl/v1/Plan HTTP/1.1", "Host: a", *lines, "Content-Length: 2"]
            start = time.monotonic()
            for _ in range(9):
                connection.sendall("\r\n".join([*head, "", "{}"]).encode())
                assert Answer.read_from(connection).status == 200
            assert time.monotonic() - start > 1.9
        _tokens_take_half_of_the_calls_at_most(pair)


def _tokens_take_half_of_the_calls_at_most(pair: WebPair) -> None:
    """Uploads that stop after their header hold calls; those of gRPC have some left."""
    held, answers = [], []
    for number in range(FIRST, FIRST + 3):
        key, body = WebKey(), pair.first_messages(number)[0]
        token = pair.admit(number, key)[0]
        link = WebLink(pair, 0, key, token)
        assert link.ask("Info", b"{}").status == (200 if number < FIRST + 2 else 429)
        given = key.headers(0, "Upload", token, body, link._nonce) | VERSION
        lines = [f"{name}: {value}" for name, value in given.items()]
        head = ["POST /torchfsl/v1/Upload HTTP/1.1", "Host: a", *lines,
                f"Content-Length: {len(body)}", "", ""]  # fmt: skip
        connection = link._connection.sock
        assert connection is not None
        connection.sendall("\r\n".join(head).encode() + body[:64])
        held.append(link)
        if number == FIRST + 2:
            answers.append(Answer.read_from(connection))
        time.sleep(0.3)
    assert json.loads(answers[0].body)["code"] == "overloaded"
    pair.take_part((2,))
    for link in held:
        link.close()


def test_bytes_of_tokens_leave_half_of_the_room_to_grpc() -> None:
    limits = Limits(bytes_in_flight=8, wait_seconds=0.1)
    half = dataclasses.replace(limits, bytes_in_flight=4)

    async def run(defence: bool) -> None:
        whole = Budget(limits)
        part = web._Part(half, whole) if defence else whole
        async with contextlib.AsyncExitStack() as held:
            for client in (ONE, OTHER):
                with contextlib.suppress(Overloaded):
                    await held.enter_async_context(part.hold(4, client))
            async with whole.hold(4, Identity(Role.CLIENT, 3)):
                assert whole.used == 8

    with raises(Overloaded, "overloaded"):
        asyncio.run(run(False))
    asyncio.run(run(True))


# --- issuers ---


def test_reports_of_an_issuer_that_was_taken_out_in_the_round_count_no_more(tmp_path: Path) -> None:
    plan = dataclasses.replace(mixed_plan(), max_clients=8, min_clients=3)
    with WebPair(tmp_path, plan, counts=1) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        pair.take_part((2,))
        pair.take_part_by_web((FIRST, FIRST + 1, FIRST + 2))
        pair.admission.write_text("")
        assert Issuers(pair.admission).counted((2, FIRST, FIRST + 1, FIRST + 2)) == 4
        time.sleep(1.1)
        with pytest.raises(ProtocolError, match="count towards min_clients, got 1 of 4"):
            pair.close()


class Crowd(WebPair):
    """Client 2 alone has something to add to row 7; clients of the issuer touch it, and add 0."""

    def update(self, client: int, seed: int = 0) -> Update:
        row, value = 7 if client == 2 or client >= FIRST else client, 41 * (client == 2)
        return {"items": SegmentUpdate(np.array([row]), np.full((1, 2), value))}


def test_an_issuer_fills_min_contributors_with_as_many_reports_as_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = make_segment("items", "rows", (20, 2), k_max=2, tau=2, retrieve=True)
    counted = make_plan(items, lane="count", max_clients=8)
    plan = dataclasses.replace(counted, min_contributors=3)

    def row_of_a_round(pair: WebPair) -> int:
        pair.open()
        pair.take_part((2, 3, 4))
        pair.take_part_by_web((FIRST,))
        with contextlib.suppress(AssertionError):
            pair.take_part_by_web((FIRST + 1,))
        opened = pair.close()
        assert opened.num_clients == 4 + (opened.lanes["items"][7] == 3)
        return int(opened.sums["items"][7, 0])

    with Crowd(tmp_path, plan, counts=2) as pair:
        pair.start()
        pair.set_up()
        assert row_of_a_round(pair) == 41  # the operator trusts the issuer for two reports
        main(["doctor", *pair.command(0)[4:]])
        assert "a thief of its key can open rows of one client" in capsys.readouterr().out
        text = pair.admission.read_text()
        pair.open()
        pair.take_part((2, 3))
        pair.take_part_by_web((FIRST, FIRST + 1))
        pair.admission.write_text(text.replace("counts = 2", "counts = 1"))
        time.sleep(1.1)
        with pytest.raises(ProtocolError, match="1 of 4 reports exceed `counts`"):
            pair.close()
        assert row_of_a_round(pair) == 0


def test_a_changed_entry_frees_no_number_and_a_share_of_0_stops_an_issuer(tmp_path: Path) -> None:
    path = tmp_path / "admission.toml"
    entry = f'[[issuer]]\nname = "a"\nkey = "{"1" * 64}"\nshare = 0.5\ncounts = 2\nnumbers = '
    path.write_text(entry + "[[10, 19]]")
    issuers = Issuers(path)
    for numbers, share, counted in (
        ("[[10, 14]]", 0.5, 2), ("[[10, 19]]", 0.0, 0), ("[[10, 19]]", 0.5, 2),
    ):  # fmt: skip
        path.write_text((entry + numbers).replace("0.5", str(share)))
        issuers.look()
        assert issuers.whose(17) is not None
        assert issuers.counted((10, 11, 12)) == counted
        assert issuers.counted((17,)) == (1 if numbers == "[[10, 19]]" and share else 0)


def test_a_key_is_made_through_no_link(tmp_path: Path) -> None:
    key, elsewhere = tmp_path / "issuer.key", tmp_path / "elsewhere"
    key.symlink_to(elsewhere)
    assert not key.exists()  # to look for the file alone would not do
    with pytest.raises(SystemExit):
        main(["admit", "--key", str(key), "--issuer", "a", "--new", "1-9"])
    assert not elsewhere.exists()
    key.unlink()
    assert main(["admit", "--key", str(key), "--issuer", "a", "--new", "1-9"]) == 0

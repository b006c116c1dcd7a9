"""Who connects is counted before gRPC sees anybody, and files are left for the state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import bound_socket, group_of, split_address
from torchfsl.service.net.calls import Overloaded
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.door import Door, connections_for, files_for
from torchfsl.service.server.guests import Guest, GuestBook
from torchfsl.service.server.intake import Limits

ROOT = Path(__file__).resolve().parents[2]
FEW = Limits(
    connections=6, handshakes=4, handshakes_per_address=2, connections_per_client=2,
    handshake_seconds=1.0,
)  # fmt: skip
CLIENTS = [Identity(Role.CLIENT, number) for number in range(4)]


# --- the book ---


def stranger(book: GuestBook, name: str, group: str) -> Guest:
    """One more, after whoever is in the way has gone."""
    crowding = book.in_the_way(group)
    if crowding is not None:
        book.leave(crowding[0])
    guest = Guest(name, f"{group}:1", group)
    book.arrive(guest)
    return guest


def caller(book: GuestBook, name: str, who: Identity) -> Guest:
    guest = stranger(book, name, "a")
    crowding = book.in_the_way_of(who)
    if crowding is not None:
        book.leave(crowding[0])
    book.admit(guest, who)
    return guest


def names(book: GuestBook) -> list[str]:
    return [guest.name for guest in book.everybody()]


def test_a_newcomer_takes_the_place_of_the_silent_one_of_its_own_address() -> None:
    book = GuestBook(FEW)
    stranger(book, "a1", "a").steps = 1
    stranger(book, "a2", "a")
    stranger(book, "b1", "b")
    stranger(book, "a3", "a")
    assert names(book) == ["a1", "b1", "a3"]
    book.find("a3").steps = 1  # type: ignore[union-attr]
    stranger(book, "a4", "a").steps = 1
    assert names(book) == ["b1", "a3", "a4"]  # where all have spoken, the oldest goes
    book.find("a3").steps = 2  # type: ignore[union-attr]
    stranger(book, "a5", "a")
    assert names(book) == ["b1", "a3", "a5"]  # but who answers the handshake stays


def test_where_strangers_are_too_many_the_most_crowding_address_loses_one() -> None:
    book = GuestBook(FEW)
    for name, group in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")):
        stranger(book, name, group)
    stranger(book, "d1", "d")
    assert names(book) == ["a1", "b2", "c1", "d1"]
    assert book.num_strangers == 4


def test_a_client_with_too_many_connections_loses_its_idlest() -> None:
    book = GuestBook(FEW)
    first, second = caller(book, "1", CLIENTS[0]), caller(book, "2", CLIENTS[0])
    first.used, second.used = 2.0, 1.0
    caller(book, "3", CLIENTS[0])
    assert names(book) == ["1", "3"]
    for guest in book.everybody():
        guest.calls = 1
    with pytest.raises(Overloaded, match="client 0 has too many connections"):
        caller(book, "4", CLIENTS[0])


def test_callers_leave_room_for_strangers_and_servers_and_owner_always_come_in() -> None:
    book = GuestBook(FEW)
    for guest in (caller(book, "1", CLIENTS[0]), caller(book, "2", CLIENTS[1])):
        guest.calls = 1
    with pytest.raises(Overloaded, match="the server has too many connections"):
        caller(book, "3", CLIENTS[2])
    caller(book, "4", Identity(Role.OWNER))
    caller(book, "5", Identity(Role.SERVER, 1))
    book.find("1").calls = 0  # type: ignore[union-attr]
    caller(book, "6", CLIENTS[2])
    assert book.find("1") is None
    assert (book.num_callers, book.num_strangers) == (4, 1)


def test_a_guest_leaves_once() -> None:
    book = GuestBook(FEW)
    guest = stranger(book, "1", "a")
    assert book.leave(guest)
    assert not book.leave(guest)


# --- addresses and files ---


def test_addresses_are_hosts_and_ports_with_brackets_around_ipv6() -> None:
    assert split_address("a.example:70") == ("a.example", 70)
    assert split_address("[::1]:70") == ("::1", 70)
    for bad in ("7000", ":7000", "host:", "::1:70", "host:http", "host:65536"):
        with pytest.raises(ParameterError, match="expected HOST:PORT"):
            split_address(bad)


def test_an_ipv6_network_counts_as_one_caller() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:2") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == group_of("10.0.0.1") != group_of("10.0.0.2")
    assert group_of("fe80::1%eth0") == "fe80::/64"


def test_a_port_that_is_taken_is_named() -> None:
    with bound_socket("127.0.0.1:0") as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ParameterError, match=f"cannot listen on 127.0.0.1:{port} .Address"):
            bound_socket(f"127.0.0.1:{port}")


def test_connections_fit_under_the_limit_of_files_or_the_server_does_not_start() -> None:
    assert connections_for(files_for(1000), 1000) == 1000
    assert connections_for(1024, 1000) == 277
    assert connections_for(1 << 30, 1000) == 1000
    with pytest.raises(ParameterError, match=r"raise the hard limit \(ulimit -Hn, LimitNOFILE"):
        connections_for(256, 1000)


# --- the door ---


@contextlib.asynccontextmanager
async def echoing(limits: Limits) -> AsyncIterator[tuple[Door, int, list[str]]]:
    """A door with an echo behind it; the door, its port, and names of who came through."""
    door, came = Door(limits), []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername"))
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(echo, door.inside)
    listening = bound_socket("127.0.0.1:0")
    door.open(listening)
    try:
        yield door, int(listening.getsockname()[1]), came
    finally:
        door.close()
        server.close()


def test_bytes_pass_both_ways_as_they_are_and_slow_readers_stop_the_sender() -> None:
    data = os.urandom(20 << 20)

    async def run() -> bytes:
        async with echoing(Limits()) as (door, port, came):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            await asyncio.sleep(0.05)  # nobody reads yet
            back = await reader.readexactly(len(data))
            own = "{}:{}".format(*writer.get_extra_info("sockname"))
            assert door.address_of(f"unix:{came[0]}") == own
            writer.close()
            while door.guests.everybody():
                await asyncio.sleep(0.01)
            assert door.address_of(f"unix:{came[0]}") == ""
            with pytest.raises(Overloaded, match="has ended"), door.call(came[0], CLIENTS[0]):
                raise AssertionError
            return back

    assert asyncio.run(run()) == data


def test_who_comes_while_grpc_begins_again_at_another_path_waits_for_it() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"here")

    async def run() -> None:
        async with echoing(Limits()) as (door, port, _):
            door.new_inside()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"call")
            await asyncio.sleep(0.1)  # nobody listens there yet
            server = await asyncio.start_unix_server(greet, door.inside)
            assert await reader.read(4) == b"here"
            assert door.dropped == {}
            writer.close()
            server.close()

    asyncio.run(run())


def test_what_one_end_said_last_leaves_after_it_has_gone() -> None:
    data = os.urandom(1 << 19)  # more than the sockets hold

    async def run() -> bytes:
        door, listening = Door(Limits()), bound_socket("127.0.0.1:0")
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)

        async def speak_and_go(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(data)
            await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(speak_and_go, door.inside)
        port = int(listening.getsockname()[1])
        door.open(listening)
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
            caller.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(caller, ("127.0.0.1", port))
            await loop.sock_sendall(caller, b"hello")
            while not door.guests.everybody():
                await asyncio.sleep(0.01)
            back = b""
            while part := await loop.sock_recv(caller, 1 << 14):
                back += part
                await asyncio.sleep(0)
        door.close()
        server.close()
        return back

    assert asyncio.run(run()) == data


def test_a_stranger_is_dropped_in_time_and_a_caller_stays() -> None:
    async def run() -> None:
        async with echoing(FEW) as (door, port, came):
            known = await asyncio.open_connection("127.0.0.1", port)
            known[1].write(b"call")
            assert await known[0].read(4) == b"call"
            with door.call(f"unix:{came[0]}", CLIENTS[0]):
                pass
            assert door.guests.everybody()[0].steps == 1
            known[1].write(b"more")
            assert await known[0].read(4) == b"more"
            assert door.guests.everybody()[0].steps == 2
            silent = await asyncio.open_connection("127.0.0.1", port)
            talking = await asyncio.open_connection("127.0.0.1", port)
            talking[1].write(b"hello")
            assert await talking[0].read(5) == b"hello"
            for reader, _ in (silent, talking):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            known[1].write(b"more")
            assert await known[0].read(4) == b"more"
            assert door.dropped == {"silent": 2}
            for _, writer in (known, silent, talking):
                writer.close()

    asyncio.run(run())


def test_the_folder_of_the_door_goes_with_it() -> None:
    async def run() -> Path:
        async with echoing(FEW) as (door, _, _):
            folder = Path(door.inside).parent
            assert folder.stat().st_mode & 0o777 == 0o700
            return folder

    assert not asyncio.run(run()).exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_folders_of_killed_servers_go_when_the_next_one_starts(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path = short_path
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal\n"
        "from torchfsl.service.server.door import Door\n"
        "from torchfsl.service.server.intake import Limits\n"
        "print(Door(Limits()).inside, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command, there = [sys.executable, "-c", program], {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip()).parent
    (left / "grpc").touch()
    (tmp_path / "torchfsl-door-notes").write_text("a file of somebody")
    (tmp_path / "other").mkdir()
    door = Door(FEW)
    assert left.exists()  # it is so new that its maker may not hold it yet
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    Door(FEW).close()
    ours = Path(door.inside).parent
    names = {ours.name, "torchfsl-door-notes", "other"}
    assert {path.name for path in tmp_path.iterdir()} == names
    door.close()
    assert not ours.exists()


PROGRAM = """
import asyncio, sys
from tests.service.test_door import echoing
from torchfsl.service.server.intake import Limits

async def run():
    limits = Limits(handshakes=int(sys.argv[1]), handshakes_per_address=int(sys.argv[1]))
    async with echoing(limits) as (door, port, _):
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.sleep(1)  # whoever stands before the door is accepted
        try:
            files = [open("/dev/null") for _ in range(32)]
            print("files are left", flush=True)
        except OSError as error:
            print(error.strerror, flush=True)

asyncio.run(run())
"""


@pytest.mark.parametrize(
    ("handshakes", "said"),
    [(100_000, "Too many open files"), (50, "files are left")],
    ids=["off", "on"],
)
def test_strangers_take_every_file_without_the_limit_and_not_with_it(
    handshakes: int, said: str
) -> None:
    command = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        [*command, str(handshakes)], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        port = int(program.stdout.readline())
        held = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=1))
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline().strip() == said
        for one in held:
            one.close()

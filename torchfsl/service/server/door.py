"""The door: this process listens itself, and counts who connects before gRPC sees anybody.

gRPC accepts what comes until no file is left for the state. Here a connection that says nothing
costs one file; with its first bytes the door connects it to gRPC, which ends TLS, over a socket in
a folder of this user, and passes bytes on as they are. `guests` says who is dropped for whom. How
many connections there may be follows from the files that this process may have open.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import resource
import shutil
import socket
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import group_of
from torchfsl.service.net.calls import Overloaded
from torchfsl.service.net.identity import Identity
from torchfsl.service.server.guests import Guest, GuestBook
from torchfsl.service.server.intake import Limits, Turns
from torchfsl.service.server.passages import Passage

log = logging.getLogger("torchfsl.service.door")

_BACKLOG: Final = 1024
_ACCEPTS_AT_ONCE: Final = 16
"""Between which dropped connections get to give their files back."""

_TELL_SECONDS: Final = 10.0
_TOLD_ADDRESSES: Final = 5
_RECENT_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.02
_LONGEST_PATH: Final = 90
_PREFIX: Final = "torchfsl-door-"
_NEW_SECONDS: Final = 60.0
"""A folder's age from which its maker, if it lives, holds it."""


class Door:
    """Listens, and passes connections on to gRPC, which listens on the socket `inside`.

    Args:
        limits: of connections.
        turns: of connections without a caller, which otherwise go on as they come.

    Attributes:
        inside: path of gRPC's socket.
        `guests`: the connections.
        dropped: connections that were dropped or never had a caller, by why.

    Raises:
        ParameterError: the folder for temporary files has too long a name.
    """

    def __init__(self, limits: Limits, turns: Turns | None = None) -> None:
        """Make the folder; nothing is open yet."""
        self._limits, self._turns, self.guests = limits, turns, GuestBook(limits)
        remove_abandoned(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._inside_count = 0
        self.inside = self.new_inside()
        if len(self.inside) > _LONGEST_PATH:
            self._folder.rmdir()
            raise ParameterError(
                f"the path {self._folder} is too long for a socket: set TMPDIR to a shorter folder"
            )
        self._held = _hold(self._folder)
        self._left: deque[Guest] = deque(maxlen=_TOLD_ADDRESSES)
        self.dropped: Counter[str] = Counter()
        self._count = 0
        self._listening: socket.socket | None = None
        self._passages: dict[str, Passage] = {}
        self._told: Counter[tuple[str, str]] = Counter()
        self._telling: asyncio.TimerHandle | None = None

    def open(self, listening: socket.socket) -> None:
        """Take connections from a bound socket, once gRPC listens."""
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def new_inside(self) -> str:
        """A path for the next gRPC server: the one before deletes its own when it ends."""
        self._inside_count += 1
        self.inside = str(self._folder / f"grpc{self._inside_count}")
        return self.inside

    def recent(self) -> list[str]:
        """Callers that have just sent something, the newest first."""
        since = asyncio.get_running_loop().time() - _RECENT_SECONDS
        guests = [g for g in (*self.guests.everybody(), *self._left) if g.heard >= since]
        guests.sort(key=lambda guest: -guest.heard)
        return [f"{g.caller or 'unknown'} at {g.address}" for g in guests[:_TOLD_ADDRESSES]]

    def address_of(self, peer: str) -> str:
        """Whose connection gRPC means by `peer`, `HOST:PORT`; empty if it is gone."""
        guest = self._find(peer)
        return "" if guest is None else guest.address

    @contextlib.contextmanager
    def call(self, peer: str, caller: Identity) -> Iterator[None]:
        """A call of a certified caller, during which its connection stays.

        A connection is that of its last caller.

        Raises:
            Overloaded: there are too many connections, and all have calls under way.
        """
        guest = self._find(peer)
        if guest is None:
            raise Overloaded("the connection has ended")
        clock = asyncio.get_running_loop().time
        guest.calls, guest.used = guest.calls + 1, clock()
        try:
            if guest.caller != caller:
                crowding = self.guests.in_the_way_of(caller)
                if crowding is not None:
                    self._drop(*crowding)
                self.guests.admit(guest, caller)
                self._passages[guest.name].stop_timer()
            yield
        finally:
            guest.calls, guest.used = guest.calls - 1, clock()

    async def turn(self, peer: str) -> None:
        """Wait for the turn of a connection without a caller."""
        guest = self._find(peer)
        if self._turns is not None and guest is not None and guest.caller is None:
            come = asyncio.Event()
            self._turns.wait(guest.group, lambda: guest.name in self._passages, come.set)
            await come.wait()

    def close_listening(self) -> None:
        """Take no more connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def close(self) -> None:
        """Drop everything."""
        self.close_listening()
        for guest in self.guests.everybody():
            self._end(guest)
        if self._telling is not None:
            self._telling.cancel()
            self._tell()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._held)

    # --- who comes in -------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                outside, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left, which the limits are to prevent
                if self.guests.num_strangers:
                    self._drop(self.guests.most_crowding(), "files")
                else:
                    log.error("cannot accept a connection: %s", error)
                return
            self._arrive(outside, str(address[0]), int(address[1]))

    def _arrive(self, outside: socket.socket, host: str, port: int) -> None:
        loop, group = asyncio.get_running_loop(), group_of(host)
        crowding = self.guests.in_the_way(group)
        if crowding is not None:
            self._drop(*crowding)
        self._count += 1
        name = str(self._folder / str(self._count))
        guest = Guest(name, f"[{host}]:{port}" if ":" in host else f"{host}:{port}", group)
        self.guests.arrive(guest)
        outside.setblocking(False)
        timer = loop.call_later(self._limits.handshake_seconds, self._drop, guest, "silent")
        ended = functools.partial(self.gone, guest)
        self._passages[name] = Passage(guest, outside, timer, ended)
        loop.add_reader(outside.fileno(), self._begin if self._turns is None else self._hear, guest)

    def _hear(self, guest: Guest) -> None:
        """The first bytes are here, and wait for their turn."""
        guest.steps = 1
        asyncio.get_running_loop().remove_reader(self._passages[guest.name].outside.fileno())
        assert self._turns is not None
        is_there, begin = lambda: guest.name in self._passages, lambda: self._begin_again(guest)
        self._turns.wait(guest.group, is_there, begin)

    def _begin(self, guest: Guest) -> None:
        """The first bytes are here: connect to gRPC, under the name of the connection."""
        guest.steps = 1
        inside = socket.socket(socket.AF_UNIX)
        try:
            inside.setblocking(False)
            inside.bind(guest.name)
            inside.connect(self.inside)
        except (FileNotFoundError, ConnectionRefusedError):  # gRPC has ended, and begins again
            inside.close()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._passages[guest.name].outside.fileno())
            loop.call_later(_RETRY_SECONDS, self._begin_again, guest)
            return
        except OSError:  # gRPC has too many to accept, or no file is left
            inside.close()
            self._drop(guest, "backlog")
            return
        finally:
            Path(guest.name).unlink(missing_ok=True)
        self._passages[guest.name].join(inside)

    def _begin_again(self, guest: Guest) -> None:
        if guest.name in self._passages:
            self._begin(guest)

    # --- who goes -----------------------------------------------------------------------------

    def gone(self, guest: Guest) -> None:
        """Close a connection after one of its ends has closed; count it if it has no caller.

        A connection that leaves after the handshake has read this server's certificate, as all
        callers do. Another connection without a caller perhaps lacks a certificate.
        """
        if self.guests.leave(guest):
            if guest.caller is None and guest.has_left and guest.steps == 2:
                self.dropped["left"] += 1
            elif guest.caller is None:
                self._note(guest, "handshake")
            self._left.append(guest)
            self._passages.pop(guest.name).close()

    def _drop(self, guest: Guest, why: str) -> None:
        self._note(guest, why)
        self._end(guest)

    def _note(self, guest: Guest, why: str) -> None:
        self.dropped[why] += 1
        self._told[guest.group, why] += 1
        if self._telling is None:
            later = asyncio.get_running_loop().call_later
            self._telling = later(_TELL_SECONDS, self._tell)

    def _end(self, guest: Guest) -> None:
        if self.guests.leave(guest):
            self._passages.pop(guest.name).abort()

    def _find(self, peer: str) -> Guest | None:
        return self.guests.find(peer.removeprefix("unix:"))

    def _tell(self) -> None:
        """A line for each of the addresses with most drops, instead of one a connection."""
        self._telling = None
        told, self._told = self._told, Counter()
        for (group, why), count in told.most_common(_TOLD_ADDRESSES):
            log.warning("connections dropped", extra={"peer": group, "why": why, "count": count})


def remove_abandoned(temporary: Path) -> None:
    """Delete the folders of doors whose processes were killed.

    A door holds a lock on its folder, which ends with its process, however that ends. Folders that
    are not a door's, or another user's, or too new to be locked yet are left alone.
    """
    for folder in temporary.glob(f"{_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime < _NEW_SECONDS:
                continue
            held = _hold(folder)
        except OSError:
            continue
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def _hold(folder: Path) -> int:
    """Lock a folder of this user; its descriptor, with which the lock ends.

    Raises:
        OSError: if another process holds it, or this user does not own the folder.
    """
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid != os.getuid():
            raise PermissionError(f"another user owns {folder}: remove this folder")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held


RESERVED: Final = 192
"""Files that connections never take: the state's, the log's, the peer's, those of metrics."""

FILES_A_CONNECTION: Final = 3
"""The caller's socket, and both ends of the way from the door to gRPC."""

_FEWEST_CONNECTIONS: Final = 32


def raise_file_limit() -> int:
    """Raise the limit of open files as far as this process may; the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def file_limit() -> int:
    """The limit that `raise_file_limit` would reach."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return hard if hard != resource.RLIM_INFINITY else 1 << 30


def files_for(connections: int) -> int:
    """The limit of open files under which so many connections fit."""
    return RESERVED + FILES_A_CONNECTION * connections


def connections_for(files: int, wanted: int) -> int:
    """How many of the wanted connections fit under a limit of open files.

    Raises:
        ParameterError: too few to serve anybody.
    """
    fit = (files - RESERVED) // FILES_A_CONNECTION
    if fit < min(wanted, _FEWEST_CONNECTIONS):
        raise ParameterError(
            f"expected a limit of at least {files_for(_FEWEST_CONNECTIONS)} open files, and of "
            f"{files_for(wanted)} for {wanted} connections, got {files}: raise the hard limit "
            "(ulimit -Hn, LimitNOFILE= of systemd)"
        )
    return min(fit, wanted)

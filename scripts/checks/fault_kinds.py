"""The faults of `faults.py`: what is done to servers and clients, and the wait until all is well.

A fault is done, and withdrawn where it is one that passes (a full disk). Then nothing is touched:
both servers must be ready again by themselves. Only for what docs/operate/incidents.md leaves to a
person (`PERSON`: older and damaged states, status 65) may a supervisor have given up. This program
is the person then: it puts the newest state back and starts the server.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scripts.checks.fault_servers import Supervised
from scripts.checks.round_clients import Clients
from torchfsl.service.server.failures import EXIT_STATE_REFUSED
from torchfsl.service.state.steps import SHARE_MAY_HAVE_LEFT

PERSON: Final = (
    "rollback of one",
    "rollback of both",
    "ledger damaged",
    "ledger gone",
    "model damaged",
)
"""A person has to look: see 'When the state is refused' in docs/operate/incidents.md."""
CLIENT_KINDS: Final = ("kill client", "kill client, report acknowledged")
KILLS: Final = ("kill", "kill both", *CLIENT_KINDS)
KINDS: Final = (
    *(*KILLS, "freeze", "freeze, then kill", "disk full", "disk full, then kill", "no descriptors"),
    *("writes refused", "read-only at the start", *PERSON, "report log damaged"),
)
"""Every kind of fault."""

RECOVERS_WITHIN: Final = 300.0
"""Seconds in which a server must serve again; more is a wedge."""
_STANDS_SECONDS: Final = 2.0
"""How long a fault that passes lasts."""
_ATTEMPT_SECONDS: Final = 60.0
"""How long a start may take that a fault makes fail."""
_KILLED: Final = 128 + signal.SIGKILL


class Faults:
    """Does faults to two servers, whose states lie on separate file systems if we are root.

    Attributes:
        statuses: exit statuses of servers that ended, by fault.
        by_person: faults by kind after which a supervisor had given up.
        seconds: longest time in seconds that a kind kept a server away, from the end of the fault.
        wedged: faults after which a server did not serve again.
        accepted: rollbacks and damages that a server started with although it should not.
    """

    def __init__(self, servers: Supervised, clients: Clients, seed: int) -> None:
        self.servers, self.clients, self.random = servers, clients, random.Random(seed)
        self.statuses: dict[str, collections.Counter[int]] = {}
        self.by_person: collections.Counter[str] = collections.Counter()
        self.seconds: dict[str, float] = {}
        self.wedged: list[str] = []
        self.accepted: list[str] = []
        self.kept: dict[int, Path] = {}
        self.mounted = all(_mount(servers.state(party)) for party in (0, 1))

    def unmount(self) -> None:
        """Give the file systems back."""
        for party in (0, 1):
            subprocess.run(["umount", "-l", str(self.servers.state(party))], capture_output=True)

    def freeze(self, party: int, number: int = signal.SIGSTOP) -> None:
        """Stop a server, or let it go on."""
        os.kill(self._running(party), number)

    def do(self, kind: str, party: int) -> None:
        """One fault, and what follows from it without us."""
        if kind in CLIENT_KINDS:
            self._kill_client(acknowledged=kind != "kill client")
            return
        parties = (0, 1) if kind.endswith("both") else (party,)
        before = [len(self.servers.ends(one)) for one in (0, 1)]
        if kind.startswith("freeze"):
            self.freeze(party)
            time.sleep(1.0)
        newest = self._strike(kind, parties)
        start = time.monotonic()
        self._wait(kind, newest)
        self.seconds[kind] = max(self.seconds.get(kind, 0.0), time.monotonic() - start)
        for path in newest.values():
            shutil.rmtree(path)
        for one, count in enumerate(before):
            ended = self.servers.ends(one)[count:]
            self.statuses.setdefault(kind, collections.Counter()).update(ended)

    # --- what faults are made of --------------------------------------------------------------

    def _strike(self, kind: str, parties: tuple[int, ...]) -> dict[int, Path]:
        """Do it; by server the newest state, where that is not in place any more."""
        (party,) = parties[-1:]
        if kind == "freeze":
            self.freeze(party, signal.SIGCONT)
        elif kind.startswith("disk full") and self.mounted:
            self._fill_up(party, killed=kind.endswith("kill"))
        elif kind.startswith("disk full") or kind in ("no descriptors", "writes refused"):
            self._starve(party, kind == "no descriptors")
        else:
            return self._while_down(kind, parties)
        return {}

    def _while_down(self, kind: str, parties: tuple[int, ...]) -> dict[int, Path]:
        """Kill, and change what the servers will find when they are started again."""
        keepers, pids = self.servers.keepers(parties), [self._running(party) for party in parties]
        for number, targets in ((signal.SIGSTOP, keepers), (signal.SIGKILL, pids)):
            for pid in targets:
                os.kill(pid, number)
        while not all(map(_is_dead, pids)):
            time.sleep(0.005)
        newest: dict[int, Path] = {}
        for party in parties:
            if kind.startswith(("kill", "freeze")):
                if party not in self.kept or self.random.random() < 0.3:
                    self._keep(party)
            elif kind != "read-only at the start":
                newest[party] = self._copy(party)
                if not self._change(kind, party):
                    shutil.rmtree(newest.pop(party))
        state = str(self.servers.state(parties[0]))
        is_locked = kind == "read-only at the start" and self.mounted
        if is_locked:
            subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        for pid in keepers:
            os.kill(pid, signal.SIGCONT)
        if is_locked:
            self._wait_for_attempt(parties[0])
            if self.servers.is_ready(parties[0]):
                self.accepted.append(f"{kind}: server {parties[0]} started")
            subprocess.run(["mount", "-o", "remount,rw", state], check=True)
        return newest

    def _kill_client(self, *, acknowledged: bool) -> None:
        """Kill a client; if so, as soon as both servers have acknowledged its report."""
        client, limit = self.random.randrange(len(self.clients.processes)), time.monotonic() + 8.0
        while acknowledged and time.monotonic() < limit:
            number, state = round_of(self.servers.state(0))
            if state == "open" and number in self.clients.acknowledged(client):
                break
            time.sleep(0.005)
        if not acknowledged:
            time.sleep(self.random.random() * 0.5)
        self.clients.kill(client)
        self.clients.start(client)

    def _fill_up(self, party: int, *, killed: bool) -> None:
        """Take all room for a while; if the server is killed, its start finds none either."""
        ballast = self.servers.state(party) / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            owner = ballast.parent.stat()  # as if the server itself had filled it
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            while file.write(bytes(4096)) == 4096:
                pass
        self.freeze(party, signal.SIGCONT)  # it may stand still
        if killed:
            os.kill(self._running(party), signal.SIGKILL)
            self._wait_for_attempt(party)
        for _ in self._attended(_STANDS_SECONDS):
            pass
        ballast.unlink()

    def _starve(self, party: int, descriptors: bool) -> None:
        """Let the running process open no file more, or write to none, for a while."""
        pid, what = self._running(party), resource.RLIMIT_FSIZE
        what, least = (resource.RLIMIT_NOFILE, 3) if descriptors else (what, 0)
        hard = resource.prlimit(pid, what)[1]
        resource.prlimit(pid, what, (least, hard))
        os.kill(pid, signal.SIGCONT)  # it may stand still
        for _ in self._attended(_STANDS_SECONDS):
            pass
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, what, (hard, hard))

    def _wait_for_attempt(self, party: int) -> None:
        """Until a server that was killed has failed to start, or does not mind."""
        before = len(self.servers.ends(party))
        for _ in self._attended(_ATTEMPT_SECONDS):
            if set(self.servers.ends(party)[before:]) - {_KILLED} or self.servers.is_ready(party):
                return

    def _attended(self, seconds: float) -> Iterator[None]:
        """Some moments in which both servers are started again if they end."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            for party in (0, 1):
                self.servers.attend(party)
            yield
            time.sleep(0.05)

    def _running(self, party: int) -> int:
        """The server's process, once there is one."""
        while not (pid := self.servers.pid(party)):
            self.servers.attend(party)
            time.sleep(0.05)
        return pid

    def _wait(self, kind: str, newest: dict[int, Path]) -> None:
        """Until both are ready; if a supervisor has given up, we are the person."""
        waiting, is_refused = [0, 1], dict.fromkeys(newest, False)
        for _ in self._attended(RECOVERS_WITHIN):
            for party in list(waiting):
                status = self.servers.given_up(party)
                if status is not None:
                    is_refused[party] = status == EXIT_STATE_REFUSED
                    self._be_the_person(kind, party, newest)
                elif self.servers.is_ready(party):
                    waiting.remove(party)
            if not waiting:
                break
        else:
            self.wedged.append(f"{kind}, servers {waiting}")
            raise SystemExit(f"{kind}: servers {waiting} are not ready again")
        # zeros may lie where newer pages are in the ledger's log
        if kind in PERSON and kind != "ledger damaged":
            self.accepted += [f"{kind}: {p}" for p, refused in is_refused.items() if not refused]

    def _be_the_person(self, kind: str, party: int, newest: dict[int, Path]) -> None:
        self.by_person[kind] += 1
        if party in newest:
            _replace(self.servers.state(party), newest[party])
        self.servers.own(party)
        self.servers.start_again(party)

    # --- what lies on the disk ----------------------------------------------------------------

    def _change(self, kind: str, party: int) -> bool:
        """Do it; False where there is nothing to change yet."""
        state = self.servers.state(party)
        if kind.startswith("rollback"):
            old = self.kept.get(party)
            if old is None or _generation(old) >= _generation(state):
                return False
            _replace(state, old)
        elif kind == "ledger damaged":
            content = bytearray((state / "state.sqlite").read_bytes())
            content[4096:] = bytes(len(content[4096:]))
            (state / "state.sqlite").write_bytes(content)
        elif kind == "ledger gone":
            for path in state.glob("state.sqlite*"):
                path.unlink()
        elif kind == "model damaged":
            newest = max((state / "models").glob("*.fsl"), key=lambda p: int(p.stem.split("-")[1]))
            _flip(newest, newest.stat().st_size // 2)
        else:
            logs = list((state / "reports").glob("*/000000.log"))
            if not logs or round_of(state)[1] in SHARE_MAY_HAVE_LEFT:
                return False
            _flip(logs[0], 40)  # in the first message, if there is one
        self.servers.own(party)
        return True

    def _keep(self, party: int) -> None:
        """An older state, to be put back some time."""
        if party in self.kept:
            shutil.rmtree(self.kept[party])
        self.kept[party] = self._copy(party)

    def _copy(self, party: int) -> Path:
        there = self.servers.folder / f"copy{party}-{self.random.randrange(1 << 40)}"
        shutil.copytree(self.servers.state(party), there)
        return there


def round_of(state: Path) -> tuple[int, str]:
    """Number and state of the last round in a state folder, which a server may be using."""
    row = asked(state, "SELECT number, state FROM rounds ORDER BY number DESC LIMIT 1")
    return (int(row[0][0]), str(row[0][1])) if row else (-1, "")


def asked(state: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a ledger, which a server may be using; none while it cannot be read."""
    path = f"file:{state}/state.sqlite?mode=ro"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(path, uri=True)) as database,
    ):
        return database.execute(query).fetchall()
    return []


def _generation(state: Path) -> int:
    """How many changes a state has seen."""
    row = asked(state, "SELECT value FROM settings WHERE name = 'generation'")
    return int(row[0][0]) if row else -1


def _is_dead(pid: int) -> bool:
    """Whether a process whose parent has not looked yet has ended, all of its threads."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return len(tasks) == 1 and (tasks[0] / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def _mount(folder: Path) -> bool:
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None
        and not subprocess.run(command, capture_output=True).returncode
    )


def _replace(folder: Path, source: Path) -> None:
    """Make a folder's content that of another; the folder itself may be a mount point."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(source, folder, dirs_exist_ok=True)


def _flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))

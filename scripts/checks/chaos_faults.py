"""The faults of `chaos.py`: what is done to a server, and how a supervisor gets it back.

Each fault is done to server processes that run; `recover` then starts what has ended, as a
supervisor does. Where a state is refused (status 65), the person is this program: it puts the
newest state back, as the manual says.
"""

from __future__ import annotations

import collections
import contextlib
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from torchfsl.service.local import LoopbackServers
from torchfsl.service.server.failures import EXIT_STATE_REFUSED
from torchfsl.service.state.steps import SHARE_MAY_HAVE_LEFT

KINDS = (
    "kill", "kill both", "freeze, then kill", "disk full", "disk full, then kill", "no descriptors",
    "writes refused", "read-only at the start", "rollback of one", "rollback of both",
    "ledger damaged", "ledger gone", "model damaged", "report log damaged",
)  # fmt: skip
"""Every kind of fault."""

RECOVERS_WITHIN = 300.0
"""Seconds in which a server must serve again; more is a wedge."""


class Faults:
    """Does faults to two servers, whose states lie on file systems of their own if we are root.

    Attributes:
        statuses: exit statuses of servers that ended by themselves, or did not start, by fault.
        wedged: faults after which a server did not serve again.
        accepted: rollbacks and damages that a server started with although it should not.
    """

    def __init__(self, servers: LoopbackServers, seed: int) -> None:
        """Mount what can be mounted; before the first start."""
        self.servers = servers
        self.random = random.Random(seed)
        self.statuses: dict[str, collections.Counter[int]] = {}
        self.wedged: list[str] = []
        self.accepted: list[str] = []
        self.kept: dict[int, Path] = {}
        self.mounted = all(_mount(servers.state(party)) for party in (0, 1))

    def unmount(self) -> None:
        """Give the file systems back."""
        for party in (0, 1):
            subprocess.run(["umount", "-l", str(self.servers.state(party))], capture_output=True)

    def do(self, kind: str, party: int) -> None:
        """One fault, and what a supervisor does after it."""
        both = kind.endswith("both")
        if kind.startswith("kill"):
            self._kill(*((0, 1) if both else (party,)))
        elif kind == "freeze, then kill":
            self._signal(party, signal.SIGSTOP)
            time.sleep(1.0)
            self._kill(party)
        elif kind.startswith("disk full"):
            self._fill(kind, party)
        elif kind in ("no descriptors", "writes refused"):
            what = resource.RLIMIT_NOFILE if kind == "no descriptors" else resource.RLIMIT_FSIZE
            self._limit(kind, party, what)
        elif kind == "read-only at the start":
            self._read_only(kind, party)
        else:
            self._change_disk(kind, (0, 1) if both else (party,))
        self.recover(kind)

    def recover(self, kind: str) -> None:
        """Start what has ended until both serve; remember states for rollbacks to come."""
        limit = time.monotonic() + RECOVERS_WITHIN
        for party in (0, 1):
            while self._ended(kind, party) and not self._start(kind, party):
                if time.monotonic() > limit:
                    self.wedged.append(f"{kind}, server {party}")
                    raise SystemExit(f"{kind}: server {party} does not start any more")
                time.sleep(0.2)

    # --- what faults are made of --------------------------------------------------------------

    def _kill(self, *parties: int) -> None:
        for party in parties:
            self._signal(party, signal.SIGKILL)
        for party in parties:
            self.servers.kill(party)
            if party not in self.kept or self.random.random() < 0.3:
                self.keep(party)

    def _signal(self, party: int, number: int) -> None:
        process = self.servers.processes[party]
        if process is not None:
            process.send_signal(number)

    def _fill(self, kind: str, party: int) -> None:
        """Take all room for a while; with `then kill` the start finds none either."""
        if not self.mounted:
            self._limit(kind, party, resource.RLIMIT_FSIZE)
            return
        ballast = self.servers.state(party) / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        self._wait_for_end(kind, party)
        if kind.endswith("kill"):
            self.servers.kill(party)
            self._start(kind, party)
            self._wait_for_end(kind, party)
        ballast.unlink()

    def _limit(self, kind: str, party: int, what: int) -> None:
        """Let the running process open no file more, or write to none, for a while."""
        process = self.servers.processes[party]
        if process is None:
            return
        hard = resource.prlimit(process.pid, what)[1]
        resource.prlimit(process.pid, what, (3 if what == resource.RLIMIT_NOFILE else 0, hard))
        if not self._wait_for_end(kind, party):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process.pid, what, (hard, hard))

    def _read_only(self, kind: str, party: int) -> None:
        """Its disk is read-only when the server starts, as after an error of the file system."""
        self._kill(party)
        state = str(self.servers.state(party))
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,ro", state], check=True)
            if self._start(kind, party):
                self.accepted.append(f"{kind}: a server started")
            subprocess.run(["mount", "-o", "remount,rw", state], check=True)

    def _change_disk(self, kind: str, parties: tuple[int, ...]) -> None:
        """Change what a dead server has on its disk; put the newest back if it is refused."""
        for party in parties:
            self.servers.kill(party)
        newest = {party: self.copy(party) for party in parties}
        changed = [party for party in parties if self.change(kind, party)]
        for party in changed:
            started = self._start(kind, party)
            if kind == "report log damaged":
                continue
            if started and kind == "ledger damaged":
                continue  # the zeros lay where newer pages are in its log
            if started:
                self.servers.kill(party)
                self.accepted.append(f"{kind}: server {party} started")
            replace(self.servers.state(party), newest[party])
        for path in newest.values():
            shutil.rmtree(path)

    def change(self, kind: str, party: int) -> bool:
        """Do it; False where there is nothing to change yet."""
        state = self.servers.state(party)
        if kind.startswith("rollback"):
            old = self.kept.get(party)
            if old is None or generation(old) >= generation(state):
                return False
            replace(state, old)
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
        return True

    def keep(self, party: int) -> None:
        """An older state, to be put back some time."""
        if party in self.kept:
            shutil.rmtree(self.kept[party])
        self.kept[party] = self.copy(party)

    def copy(self, party: int) -> Path:
        """A copy of a server's state."""
        there = self.servers.folder / f"copy{party}-{self.random.randrange(1 << 40)}"
        shutil.copytree(self.servers.state(party), there)
        return there

    def _wait_for_end(self, kind: str, party: int, seconds: float = 1.5) -> bool:
        """Whether the server ends by itself within some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._ended(kind, party):
                return True
            time.sleep(0.02)
        return False

    def _ended(self, kind: str, party: int) -> bool:
        """Whether no process of this server runs; the status of one that has ended is noted."""
        process = self.servers.processes[party]
        if process is not None and process.poll() is not None:
            self.statuses.setdefault(kind, collections.Counter())[process.returncode] += 1
            self.servers.kill(party)
        return self.servers.processes[party] is None

    def _start(self, kind: str, party: int) -> bool:
        """Whether the server starts; if it ends instead, its status is noted."""
        self.servers.spawn(party)
        try:
            self.servers.wait(party)
        except RuntimeError:
            process = self.servers.processes[party]
            assert process is not None
            process.wait()
            status = process.returncode
            self._ended(kind, party)
            if status == EXIT_STATE_REFUSED and kind.startswith(("kill", "disk", "no", "writes")):
                self.wedged.append(f"{kind}: server {party} refuses its own state")
                raise SystemExit(self.servers.log(party)[-2000:]) from None
            return False
        return True


def round_of(state: Path) -> tuple[int, str]:
    """Number and state of the last round in a state folder, which a server may be using."""
    row = _ask(state, "SELECT number, state FROM rounds ORDER BY number DESC LIMIT 1")
    return (int(row[0]), str(row[1])) if row else (-1, "")


def generation(state: Path) -> int:
    """How many changes a state has seen."""
    row = _ask(state, "SELECT value FROM settings WHERE name = 'generation'")
    return int(row[0]) if row else -1


def _ask(state: Path, query: str) -> tuple[object, ...] | None:
    try:
        path = f"file:{state}/state.sqlite?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True)) as database:
            row: tuple[object, ...] | None = database.execute(query).fetchone()
            return row
    except sqlite3.Error:
        return None


def _mount(folder: Path) -> bool:
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(folder)]
    return (
        shutil.which("mount") is not None
        and not subprocess.run(command, capture_output=True).returncode
    )


def replace(folder: Path, source: Path) -> None:
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

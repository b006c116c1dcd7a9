"""The faults of `chaos.py` at two servers under a supervisor: what needs no person.

    python -m scripts.checks.supervised --faults 56 --json FILE

Both servers run under `deploy/loop/torchfsl-loop`, which starts them again as systemd does. A fault
is done, withdrawn where it is one that passes (a full disk), and then nothing is touched: both
servers must be ready again by themselves. Only for what docs/operations.md says that a person has
to look at (`PERSON`: older and damaged states, status 65) may a loop have ended; this program is
the person then, puts the newest state back and starts the loop. Rounds go on meanwhile, and are
checked as `chaos.py` checks them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from scripts.checks.chaos import BAD, CONFIG, run_rounds
from scripts.checks.chaos_faults import RECOVERS_WITHIN, Faults, replace
from torchfsl.service.local import LoopbackServers, free_ports
from torchfsl.service.server.failures import EXIT_STATE_REFUSED

LOOP = Path(__file__).resolve().parents[2] / "deploy" / "loop" / "torchfsl-loop"
PERSON = ("rollback of one", "rollback of both", "ledger damaged", "ledger gone", "model damaged")
"""After these a person has to look: see 'When the state is refused' in docs/operations.md."""

_PAUSE_SECONDS = "0.5"
_STANDS_SECONDS = 2.0
"""How long a fault that passes lasts."""

_ATTEMPT_SECONDS = 60.0
"""How long a start may take that a fault makes vain."""


class Supervised(LoopbackServers):
    """Two servers, each under a loop; `processes` are the loops."""

    def __init__(self, folder: Path, *, clients: int, config: str) -> None:
        """Make certificates; nothing runs."""
        super().__init__(folder, clients=clients, config=config)
        self.pages = free_ports(2)

    def command(self, party: int) -> list[str]:
        """The loop, around a server whose pages are always at the same port."""
        *server, _ = super().command(party)
        return ["sh", str(LOOP), _PAUSE_SECONDS, *server, f"127.0.0.1:{self.pages[party]}"]

    def pid(self, party: int) -> int:
        """Of the server under the loop; 0 while none runs."""
        loop = self.processes[party]
        if loop is not None and loop.poll() is None:
            children = Path(f"/proc/{loop.pid}/task/{loop.pid}/children").read_text().split()
            for child in map(int, children):
                if b"torchfsl" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return 0

    def is_ready(self, party: int) -> bool:
        """Whether the server can do its work."""
        url = f"http://127.0.0.1:{self.pages[party]}/readyz"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as page:
            return bool(page.status == 200)
        return False


class LoopFaults(Faults):
    """Does faults, and leaves it to the loops to start what has ended.

    Attributes:
        by_person: faults by kind after which a loop had ended.
        seconds: the longest that a kind kept a server away, from the end of the fault.
    """

    servers: Supervised

    def __init__(self, servers: Supervised, seed: int) -> None:
        """Mount what can be mounted; before the first start."""
        super().__init__(servers, seed)
        self.by_person: collections.Counter[str] = collections.Counter()
        self.seconds: dict[str, float] = {}

    def do(self, kind: str, party: int) -> None:
        """One fault, and what follows from it without us."""
        parties = (0, 1) if kind.endswith("both") else (party,)
        logged = [len(self.servers.log(one)) for one in (0, 1)]
        if kind == "freeze, then kill":
            os.kill(self._running(party), signal.SIGSTOP)
            time.sleep(1.0)
        newest = self._strike(kind, parties)
        start = time.monotonic()
        self._wait(kind, newest)
        self.seconds[kind] = max(self.seconds.get(kind, 0.0), time.monotonic() - start)
        for path in newest.values():
            shutil.rmtree(path)
        for one, before in enumerate(logged):
            ended = re.findall(r"ended with status (\d+)", self.servers.log(one)[before:])
            self.statuses.setdefault(kind, collections.Counter()).update(map(int, ended))

    def _strike(self, kind: str, parties: tuple[int, ...]) -> dict[int, Path]:
        """Do it; by server the newest state, where that is not in place any more."""
        (party,) = parties[-1:]
        if kind in ("disk full", "disk full, then kill") and self.mounted:
            self._fill_up(party, killed=kind.endswith("kill"))
        elif kind in ("no descriptors", "writes refused", "disk full", "disk full, then kill"):
            self._starve(party, kind == "no descriptors")
        else:
            return self._while_down(kind, parties)
        return {}

    def _while_down(self, kind: str, parties: tuple[int, ...]) -> dict[int, Path]:
        """Kill, and change what the servers will find when the loops, which wait, start them."""
        loops = [loop.pid for party in parties if (loop := self.servers.processes[party])]
        pids = [self._running(party) for party in parties]
        for number, found in ((signal.SIGSTOP, loops), (signal.SIGKILL, pids)):
            for pid in found:
                os.kill(pid, number)
        while not all(map(_is_dead, pids)):
            time.sleep(0.005)
        newest: dict[int, Path] = {}
        for party in parties:
            if kind.startswith(("kill", "freeze")):
                if party not in self.kept or self.random.random() < 0.3:
                    self.keep(party)
            elif kind != "read-only at the start":
                newest[party] = self.copy(party)
                if not self.change(kind, party):
                    shutil.rmtree(newest.pop(party))
        state = str(self.servers.state(parties[0]))
        is_locked = kind == "read-only at the start" and self.mounted
        if is_locked:
            subprocess.run(["mount", "-o", "remount,ro", state], check=True)
        for pid in loops:
            os.kill(pid, signal.SIGCONT)
        if is_locked:
            self._wait_for_attempt(parties[0])
            subprocess.run(["mount", "-o", "remount,rw", state], check=True)
        return newest

    def _fill_up(self, party: int, *, killed: bool) -> None:
        ballast = self.servers.state(party) / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            owner = ballast.parent.stat()  # as if the server itself had filled it
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            while file.write(bytes(4096)) == 4096:
                pass
        if killed:
            os.kill(self._running(party), signal.SIGKILL)
            self._wait_for_attempt(party)
        time.sleep(_STANDS_SECONDS)
        ballast.unlink()

    def _wait_for_attempt(self, party: int) -> None:
        """Until a server that was killed has been started in vain, or does not mind."""
        limit, before = time.monotonic() + _ATTEMPT_SECONDS, len(self.servers.log(party))
        while time.monotonic() < limit:
            ended = re.findall(r"ended with status (\d+)", self.servers.log(party)[before:])
            if set(ended) - {str(128 + signal.SIGKILL)} or self.servers.is_ready(party):
                return
            time.sleep(0.05)

    def _starve(self, party: int, descriptors: bool) -> None:
        """Let the running process open no file more, or write to none, for a while."""
        pid, what = self._running(party), resource.RLIMIT_FSIZE
        what, least = (resource.RLIMIT_NOFILE, 3) if descriptors else (what, 0)
        hard = resource.prlimit(pid, what)[1]
        resource.prlimit(pid, what, (least, hard))
        time.sleep(_STANDS_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, what, (hard, hard))

    def _running(self, party: int) -> int:
        """The server's process, once there is one."""
        while not (pid := self.servers.pid(party)):
            time.sleep(0.05)
        return pid

    def _wait(self, kind: str, newest: dict[int, Path]) -> None:
        """Until both are ready; where a loop has ended, we are the person."""
        limit = time.monotonic() + RECOVERS_WITHIN
        waiting, is_refused = [0, 1], dict.fromkeys(newest, False)
        while waiting:
            for party in list(waiting):
                loop = self.servers.processes[party]
                if loop is not None and loop.poll() is not None:
                    is_refused[party] = loop.returncode == EXIT_STATE_REFUSED
                    self._be_the_person(kind, party, newest)
                elif self.servers.is_ready(party):
                    waiting.remove(party)
            if time.monotonic() > limit:
                self.wedged.append(f"{kind}, servers {waiting}")
                raise SystemExit(f"{kind}: servers {waiting} do not come back")
            time.sleep(0.05)
        # zeros may lie where newer pages are in the ledger's log
        if kind in PERSON and kind != "ledger damaged":
            self.accepted += [f"{kind}: {p}" for p, refused in is_refused.items() if not refused]

    def _be_the_person(self, kind: str, party: int, newest: dict[int, Path]) -> None:
        self.by_person[kind] += 1
        if party in newest:
            replace(self.servers.state(party), newest[party])
        self.servers.spawn(party)


def _is_dead(pid: int) -> bool:
    """Whether a process whose parent has not looked yet has ended, all of its threads."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return len(tasks) == 1 and (tasks[0] / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"


def run_batch(
    folder: Path, wanted: int, seed: int, hit: collections.Counter[str], clients: int = 3
) -> dict[str, Any]:
    """So many faults on a fresh pair under loops; what was found."""
    with Supervised(folder, clients=clients, config=CONFIG) as servers:
        faults = LoopFaults(servers, seed)
        try:
            found = run_rounds(servers, faults, wanted, seed, hit, clients)
        finally:
            servers.stop()
            faults.unmount()
    seconds = {kind: round(value, 1) for kind, value in faults.seconds.items()}
    return found | {"by_person": dict(faults.by_person), "seconds": seconds}


def is_good(found: dict[str, Any]) -> bool:
    """Whether nothing is wrong, and nobody was needed but where the manual says so."""
    unheard = set(found["by_person"]) - set(PERSON)
    return not unheard and found["model_equal"] and not any(found[name] for name in BAD)


def main() -> int:
    """Run one batch; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=56, help="default 56: each kind four times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    hit: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        found = run_batch(Path(folder), options.faults, options.seed, hit)
    about = {
        "command": f"python -m scripts.checks.supervised --faults {options.faults}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    text = json.dumps(about | found | {"states_hit": dict(hit)}, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return int(not is_good(found))


if __name__ == "__main__":
    sys.exit(main())

"""Two servers that are started again whenever they end, for `faults.py`.

Under `process` the program itself does it, under `loop` it is `deploy/loop/torchfsl-loop`.
`machines.py` has servers under systemd. All of them stop where a state is refused.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from pathlib import Path
from typing import Final

from scripts.program import ROOT
from torchfsl.service.local import LoopbackServers, free_ports
from torchfsl.service.server.failures import EXIT_STATE_REFUSED

LOOP: Final = ROOT / "deploy" / "loop" / "torchfsl-loop"
CONFIG: Final = "[storage]\nreserve_bytes = 1048576\nsegment_bytes = 65536\n"
"""Of the servers: their disks are small."""
_PAUSE_SECONDS: Final = "0.5"


class Supervised(LoopbackServers):
    """Two servers under a supervisor; with `loop`, `processes` are the loops."""

    def __init__(self, folder: Path, *, clients: int, under: str = "process") -> None:
        """Make certificates; nothing runs."""
        super().__init__(folder, clients=clients, config=CONFIG)
        self.under, self.pages = under, free_ports(2)
        self._ends: tuple[list[int], list[int]] = ([], [])

    def command(self, party: int) -> list[str]:
        """Start a server whose pages are always at the same port."""
        *server, _ = super().command(party)
        loop = ["sh", str(LOOP), _PAUSE_SECONDS] if self.under == "loop" else []
        return [*loop, *server, f"127.0.0.1:{self.pages[party]}"]

    def attend(self, party: int) -> None:
        """Under `process`: start the server again if it has ended and its state is not refused."""
        process = self.processes[party]
        if self.under == "process" and process is not None and process.poll() is not None:
            status = process.returncode
            if status == EXIT_STATE_REFUSED:
                return
            self._ends[party].append(status if status >= 0 else 128 - status)
            self.kill(party)
            self.spawn(party)

    def start_again(self, party: int) -> None:
        """Start a server whose state was refused and has been mended."""
        self._ends[party].append(EXIT_STATE_REFUSED)
        self.kill(party)
        self.spawn(party)

    def given_up(self, party: int) -> int | None:
        """The status with which the supervisor left the server down; None while it did not."""
        process = self.processes[party]
        status = None if process is None else process.poll()
        return None if self.under == "process" and status != EXIT_STATE_REFUSED else status

    def ends(self, party: int) -> list[int]:
        """Statuses with which the server has ended so far, as a shell counts them."""
        if self.under == "process":
            return list(self._ends[party])
        return [int(n) for n in re.findall(r"ended with status (\d+)", self.log(party))]

    def keepers(self, parties: tuple[int, ...]) -> list[int]:
        """Processes that would start the servers again, and that may be stopped for a while."""
        found = [self.processes[party] for party in parties]
        return [] if self.under == "process" else [one.pid for one in found if one is not None]

    def pid(self, party: int) -> int:
        """Of the server; 0 while none runs."""
        process = self.processes[party]
        if process is None or process.poll() is not None:
            return 0
        if self.under == "process":
            return process.pid
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
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

    def own(self, party: int) -> None:
        """Give the state folder to the server's user; here it is ours."""

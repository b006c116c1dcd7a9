"""The faults of `chaos.py` at two machines that systemd booted, each with the unit of `deploy/`.

    python -m scripts.checks.booted --root FOLDER --faults 28 --json FILE     # as root

FOLDER becomes the root of a Debian 12 (`debootstrap`, once, some hundred megabytes), in which the
commands of docs/operations.md, "Under systemd", are run as they are printed. Two copies of it are
booted by `systemd-nspawn`, with systemd as their first process and the network of this machine;
each gets a server's settings and files, and nothing is done in them but `systemctl`. Then

  - a server that is frozen is ended by the watchdog within its minute, and started again;
  - a stop is a clean one; the unit's own view of the sandbox is asked of systemd;
  - the faults of `supervised.py` follow, with systemd in the place of its loop, and their checks.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.checks.chaos import CONFIG, run_rounds
from scripts.checks.machines import BOOT_SECONDS, UNIT, Unit, make_root, run, say
from scripts.checks.supervised import LoopFaults, Supervised, is_good

_STATE = "var/lib/torchfsl/state"
_WATCHDOG_SECONDS = 100.0
"""Longer than `WatchdogSec` and `RestartSec` of the unit together."""


class Booted(Supervised):
    """Two servers, each the unit of a machine of its own; `processes` are `Unit`."""

    def __init__(self, folder: Path, root: Path, *, clients: int) -> None:
        """Copy the machines and give each its settings; nothing runs."""
        super().__init__(folder, clients=clients, config=CONFIG)
        for party in (0, 1):
            run("cp", "--archive", "--reflink=auto", str(root), str(self.root(party)))
            self._configure(party)

    def root(self, party: int) -> Path:
        """The root folder of a machine."""
        return self.folder / f"machine{party}"

    def _configure(self, party: int) -> None:
        there = self.root(party) / "etc/torchfsl"
        shutil.copytree(self.tls, there / "certs")
        settings = {
            "party": party, "listen": f"127.0.0.1:{self.ports[party]}",
            "peer": self.urls[1 - party], "state": f"/{_STATE}", "tls": "/etc/torchfsl/certs",
            "metrics": f"127.0.0.1:{self.pages[party]}",
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        (there / "serve.toml").write_text("".join(lines) + self.config.read_text())
        run("chroot", str(self.root(party)), "chgrp", "-R", "torchfsl", "/etc/torchfsl")
        run("chmod", "-R", "u=rwX,g=rX,o=", str(there))

    def state(self, party: int) -> Path:
        """The state folder of a server, from outside."""
        return self.root(party) / _STATE

    def own(self, party: int) -> None:
        """Give the state folder, and the one around it, to the server's user."""
        run("chroot", str(self.root(party)), "chown", "-R", "torchfsl:", "/var/lib/torchfsl")
        run("chmod", "700", str(self.state(party).parent))

    def log(self, party: int) -> str:
        """What systemd says of the server's ends, in the words of the loop."""
        unit = self.processes[party]
        if unit is None:
            return ""
        text = unit.inside("journalctl", "--unit", UNIT, "--output", "cat")  # type: ignore[attr-defined]
        ends = re.findall(r"Main process exited, code=(\w+), status=(\d+)/", text)
        return "".join(
            f"ended with status {int(status) + 128 * (code != 'exited')}\n" for code, status in ends
        )

    def spawn(self, party: int) -> None:
        """Boot the machine if it is not, and start the unit."""
        if self.processes[party] is None:
            self.own(party)
            console = self.folder / f"machine{party}.log"
            self.processes[party] = Unit(self.root(party), console)  # type: ignore[call-overload]
        unit = self.processes[party]
        unit.control("daemon-reload")  # type: ignore[union-attr]
        unit.control("reset-failed", UNIT)  # type: ignore[union-attr]
        unit.control("start", "--no-block", UNIT)  # type: ignore[union-attr]

    def wait(self, party: int) -> None:
        """Until systemd has heard that the server is ready."""
        limit = time.monotonic() + BOOT_SECONDS
        while self.processes[party].show("ActiveState") != "active":  # type: ignore[union-attr]
            if time.monotonic() > limit:
                raise RuntimeError(f"the unit of server {party} does not become active")
            time.sleep(0.1)

    def pid(self, party: int) -> int:
        """Of the server."""
        unit = self.processes[party]
        return 0 if unit is None else unit.server()  # type: ignore[attr-defined,no-any-return]

    def stop(self) -> None:
        """Stop the units, then the machines."""
        for party, unit in enumerate(self.processes):
            if unit is not None:
                unit.control("stop", UNIT)  # type: ignore[attr-defined]
                unit.power_off()  # type: ignore[attr-defined]
                self.processes[party] = None


class UnitFaults(LoopFaults):
    """The same faults; what is put into a state folder is given to the server's user."""

    servers: Booted

    def change(self, kind: str, party: int) -> bool:
        """Do it."""
        changed = super().change(kind, party)
        self.servers.own(party)
        return changed

    def _be_the_person(self, kind: str, party: int, newest: dict[int, Path]) -> None:
        super()._be_the_person(kind, party, newest)
        self.servers.own(party)


def watch(servers: Booted) -> dict[str, Any]:
    """Freeze a server and wait for the watchdog; stop and start it; look at its sandbox."""
    servers.start()
    unit: Any = servers.processes[0]
    frozen, start = servers.pid(0), time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    while servers.pid(0) in (0, frozen) or not servers.is_ready(0):
        if time.monotonic() - start > _WATCHDOG_SECONDS:
            raise SystemExit("the watchdog does not end a frozen server")
        time.sleep(0.5)
    back = time.monotonic() - start
    unit.control("stop", UNIT)
    result = f"{unit.show('Result')}, status {unit.show('ExecMainStatus')}"
    unit.control("start", UNIT)
    exposure = re.findall(
        r"exposure level for \S+: ([\d.]+)",
        unit.inside("systemd-analyze", "security", "--no-pager", UNIT),
    )
    return {
        "frozen_back_after_seconds": round(back, 1), "stop": result, "exposure": exposure,
        "restarts": unit.show("NRestarts"), "files": unit.show("LimitNOFILE"),
        "systemd": unit.inside("systemctl", "--version").splitlines()[0],
    }  # fmt: skip


def main() -> int:
    """Boot, watch, run one batch; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="made if it is not there")
    parser.add_argument("--faults", type=int, default=28, help="default 28: each kind twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    missing = [name for name in ("debootstrap", "systemd-nspawn") if shutil.which(name) is None]
    if os.geteuid() or missing:
        parser.error(f"needs root, and of Debian's packages: {', '.join(missing) or 'nothing'}")
    make_root(options.root)
    hit: collections.Counter[str] = collections.Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        Booted(Path(folder) / "run", options.root, clients=3) as servers,
    ):
        faults = UnitFaults(servers, options.seed)
        try:
            seen = watch(servers)
            say(json.dumps(seen))
            servers.stop()
            found = run_rounds(servers, faults, options.faults, options.seed, hit, 3)
        finally:
            servers.stop()
            faults.unmount()
    found |= {"by_person": dict(faults.by_person), "watch": seen}
    found["seconds"] = {kind: round(value, 1) for kind, value in faults.seconds.items()}
    about = {
        "command": f"python -m scripts.checks.booted --root FOLDER --faults {options.faults}",
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

"""Two servers on machines booted by systemd, with the unit of `deploy/`, for `faults.py`.

FOLDER of `--root` becomes the root of a Debian 12 (`debootstrap`, once, some hundred megabytes). In
it the program runs the commands of docs/operate/deploy.md, "Under systemd", as the page prints
them. `systemd-nspawn` boots two copies of it, with systemd as first process and the network of this
machine. Each copy gets a server's settings and files, and the program changes nothing in a running
copy except through `systemctl`.

First the watchdog must end a frozen server within its minute, and systemd must start the server
again. Then the program stops and starts the unit and notes how it stopped, which is to be a clean
stop. It also notes systemd's view of the unit's sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.checks.fault_servers import Supervised
from scripts.program import ROOT, Found, UsageError

MANUAL = ROOT / "docs" / "operate" / "deploy.md"
UNIT = "torchfsl.service"

_NSPAWN = ("systemd-nspawn", "--quiet", "--register=no", "--keep-unit")
_PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,ca-certificates"
_STATE = "var/lib/torchfsl/state"
_BOOT_SECONDS = 60.0
_WATCHDOG_SECONDS = 100.0
"""Longer than `WatchdogSec` and `RestartSec` of the unit together."""


def printed_commands() -> list[str]:
    """The manual's commands for a machine under systemd, but the last, which starts the server."""
    section = MANUAL.read_text().split("\n## Under systemd\n")[1].split("\n## ")[0]
    printed = re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    lines = [line.split("    #")[0].strip() for line in printed[1].splitlines()] if printed else []
    if not lines or not lines[-1].startswith("systemctl daemon-reload"):
        raise SystemExit("the manual's section 'Under systemd' does not end with starting the unit")
    return lines[:-1]


def need_machine(root: Path | None) -> None:
    """Make the Debian if it is not there.

    Raises:
        UsageError: this user or this machine cannot boot it, or it has no name.
    """
    missing = [name for name in ("debootstrap", "systemd-nspawn") if shutil.which(name) is None]
    if os.geteuid() or missing:
        packages = f" and these programs: {', '.join(missing)}" if missing else ""
        raise UsageError(f"this check needs root{packages}")
    if root is None:
        raise UsageError("the folder of the Debian is missing: pass --root FOLDER")
    make_root(root)


def make_root(root: Path) -> None:
    """A Debian with torchfsl installed by the manual; left as it is where there is one."""
    if (root / "etc/systemd/system" / UNIT).exists():
        return
    if not (root / "usr/bin/systemctl").exists():
        say(f"debootstrap into {root}")
        debian = ["bookworm", str(root)]
        run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", *debian)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        skipped = (".git", "build", ".venv", "runs", "results", "*.so", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*skipped))
        for command in printed_commands():
            say(command)
            _install(root, copy, command)
    (root / "etc/machine-id").write_text("")


def _install(root: Path, checkout: Path, command: str) -> None:
    """One of the manual's commands, in the checkout, with this machine's settings of pip."""
    pip = [f"--setenv={name}={value}" for name, value in os.environ.items() if "PIP_" in name]
    bound = [f"--bind={checkout}:/checkout", "--bind-ro=/etc/ssl/certs", "--chdir=/checkout"]
    run(*_NSPAWN, f"--directory={root}", *bound, *pip, "sh", "-ec", command)


def say(line: str) -> None:
    """One line of progress."""
    print(f"[booted] {line}", file=sys.stderr, flush=True)


def run(*words: str) -> str:
    """A command that must succeed; what it printed."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def first_process(parent: int) -> int:
    """The child of a process that is the first of a pid namespace; 0 while there is none.

    `systemd-nspawn` has another child before, which sets the machine up and ends.
    """
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{child}/status").read_text()
            if re.search(r"(?m)^NSpid:\t\d+\t(\d+\t)*1$", status):
                return int(child)
    return 0


class Unit:
    """The server's unit in one booted machine; looks like the process of a loop.

    Attributes:
        pid: of the machine's first process, systemd.
        returncode: the status with which the unit has failed for good.
    """

    def __init__(self, root: Path, log: Path) -> None:
        console = log.open("a")
        command = [*_NSPAWN, "--boot", "--console=pipe", f"--directory={root}"]
        command.append("systemd.unified_cgroup_hierarchy=1")
        self._machine = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console
        )
        self.stdout, self.returncode = console, 0
        try:
            self.pid = self._first_process()
            self._await_boot(root, log)
        except SystemExit:
            self._machine.kill()  # its machine ends with it
            self._machine.wait()
            console.close()
            raise

    def _first_process(self) -> int:
        limit = time.monotonic() + _BOOT_SECONDS
        while not (found := first_process(self._machine.pid)):
            if time.monotonic() > limit:
                raise SystemExit("systemd-nspawn did not start the machine")
            time.sleep(0.05)
        return found

    def _await_boot(self, root: Path, log: Path) -> None:
        limit = time.monotonic() + _BOOT_SECONDS
        while self.control("is-system-running").strip() not in ("running", "degraded"):
            if time.monotonic() > limit:
                raise SystemExit(f"{root} does not boot: {log}")
            time.sleep(0.5)

    def inside(self, *words: str) -> str:
        """Standard output of a command in the machine."""
        enter = ["nsenter", "--all", f"--target={self.pid}", "env", "-i", "PATH=/usr/bin:/bin"]
        return subprocess.run([*enter, *words], capture_output=True, text=True, check=False).stdout

    def control(self, *words: str) -> str:
        """`systemctl` in the machine."""
        return self.inside("systemctl", *words)

    def show(self, name: str) -> str:
        """A property of the unit."""
        return self.control("show", "--property", name, "--value", UNIT).strip()

    def server(self) -> int:
        """The server's process as this machine numbers it; 0 while none runs."""
        number, space = self.show("MainPID"), os.readlink(f"/proc/{self.pid}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns/pid") == space:
                    status = (path / "status").read_text()
                    if re.findall(r"(?m)^NSpid:.*\s(\d+)$", status) == [number]:
                        return int(path.name)
        return 0

    def poll(self) -> int | None:
        """The status with which systemd has given the unit up; None while it has not."""
        if self.show("ActiveState") != "failed":
            return None
        self.returncode = int(self.show("ExecMainStatus"))
        return self.returncode

    def power_off(self) -> None:
        """End the machine like a loss of power, except for what the kernel still has to write."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._machine.wait()
        self.stdout.close()


class Booted(Supervised):
    """Two servers, each the unit of a separate machine; `processes` are `Unit`."""

    processes: list[Any]

    def __init__(self, folder: Path, root: Path, *, clients: int) -> None:
        super().__init__(folder, clients=clients, under="systemd")
        for party in (0, 1):
            run("cp", "--archive", "--reflink=auto", str(root), str(self.root(party)))
            self._configure(party)

    def root(self, party: int) -> Path:
        """The root folder of a machine."""
        return self.folder / f"machine{party}"

    def _configure(self, party: int) -> None:
        there = self.root(party) / "etc/torchfsl"
        shutil.copytree(self.tls, there / "certs")
        settings = {"party": party, "listen": f"127.0.0.1:{self.ports[party]}"}
        settings |= {"peer": self.urls[1 - party], "state": f"/{_STATE}"}
        settings |= {"tls": "/etc/torchfsl/certs", "metrics": f"127.0.0.1:{self.pages[party]}"}
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
        """What systemd and the server have logged, by the machine's journal."""
        unit = self.processes[party]
        if unit is None:
            return ""
        return str(unit.inside("journalctl", "--unit", UNIT, "--output", "cat"))

    def ends(self, party: int) -> list[int]:
        """Statuses with which the server has ended so far, as a shell counts them."""
        ends = re.findall(r"Main process exited, code=(\w+), status=(\d+)/", self.log(party))
        return [int(status) + 128 * (code != "exited") for code, status in ends]

    def spawn(self, party: int) -> None:
        """Boot the machine if it is not, and start the unit."""
        if self.processes[party] is None:
            self.own(party)
            self.processes[party] = Unit(self.root(party), self.folder / f"machine{party}.log")
        for words in (("daemon-reload",), ("reset-failed", UNIT), ("start", "--no-block", UNIT)):
            self.processes[party].control(*words)

    def start_again(self, party: int) -> None:
        """Start a unit whose state was refused and has been mended."""
        self.spawn(party)

    def wait(self, party: int) -> None:
        """Return when the server has reported to systemd that it is ready."""
        limit = time.monotonic() + _BOOT_SECONDS
        while self.processes[party].show("ActiveState") != "active":
            if time.monotonic() > limit:
                raise RuntimeError(f"the unit of server {party} does not become active")
            time.sleep(0.1)

    def pid(self, party: int) -> int:
        """Of the server; 0 while none runs."""
        unit = self.processes[party]
        return 0 if unit is None else int(unit.server())

    def stop(self) -> None:
        """Stop the units, then the machines."""
        for party, unit in enumerate(self.processes):
            if unit is not None:
                unit.control("stop", UNIT)
                unit.power_off()
                self.processes[party] = None


def watch(servers: Booted) -> Found:
    """Freeze a server until the watchdog replaces it, stop and start it, look at its sandbox."""
    servers.start()
    unit, frozen, start = servers.processes[0], servers.pid(0), time.monotonic()
    os.kill(frozen, signal.SIGSTOP)
    while servers.pid(0) in (0, frozen) or not servers.is_ready(0):
        if time.monotonic() - start > _WATCHDOG_SECONDS:
            raise SystemExit("the watchdog does not end a frozen server")
        time.sleep(0.5)
    seen = {"frozen_back_after_seconds": round(time.monotonic() - start, 1)}
    unit.control("stop", UNIT)
    seen["stop"] = f"{unit.show('Result')}, status {unit.show('ExecMainStatus')}"
    unit.control("start", UNIT)
    security = unit.inside("systemd-analyze", "security", "--no-pager", UNIT)
    seen["exposure"] = re.findall(r"exposure level for \S+: ([\d.]+)", security)
    seen |= {"restarts": unit.show("NRestarts"), "files": unit.show("LimitNOFILE")}
    seen["systemd"] = unit.inside("systemctl", "--version").splitlines()[0]
    say(json.dumps(seen))
    servers.stop()
    return {"watch": seen}

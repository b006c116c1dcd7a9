"""A Debian on which the manual's commands were run, and its copies, booted with systemd."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
MANUAL = CHECKOUT / "docs" / "operations.md"
UNIT = "torchfsl.service"

_PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,ca-certificates"
BOOT_SECONDS = 60.0


def printed_commands() -> list[str]:
    """The manual's commands for a machine under systemd, but the last, which starts the server."""
    section = MANUAL.read_text().split("\n## Under systemd\n")[1].split("\n## ")[0]
    printed = re.findall(r"(?m)^    (.*)$", section)
    lines = [line.split("    #")[0].strip() for line in printed]
    if not lines or not lines[-1].startswith("systemctl daemon-reload"):
        raise SystemExit("the manual's section 'Under systemd' does not end with starting the unit")
    return lines[:-1]


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
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*skipped))
        for command in printed_commands():
            say(command)
            _install(root, copy, command)
    (root / "etc/machine-id").write_text("")


def _install(root: Path, checkout: Path, command: str) -> None:
    """One of the manual's commands, in the checkout, with this machine's settings of pip."""
    pip = [f"--setenv={name}={value}" for name, value in os.environ.items() if "PIP_" in name]
    run(
        "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={root}",
        f"--bind={checkout}:/checkout", "--bind-ro=/etc/ssl/certs", "--chdir=/checkout", *pip,
        "sh", "-ec", command,
    )  # fmt: skip


def say(line: str) -> None:
    """One line of progress."""
    print(f"[booted] {line}", file=sys.stderr, flush=True)


def run(*words: str) -> str:
    """A command that must succeed; what it printed."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


class Unit:
    """The server's unit in one booted machine; looks like the process of a loop.

    Attributes:
        pid: of the machine's first process, systemd.
        returncode: the status with which the unit has failed for good.
    """

    def __init__(self, root: Path, log: Path) -> None:
        """Boot the machine."""
        console = log.open("a")
        self._machine = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot",
             "--console=pipe", f"--directory={root}", "systemd.unified_cgroup_hierarchy=1"],
            stdin=subprocess.DEVNULL, stdout=console, stderr=console,
        )  # fmt: skip
        self.stdout, self.returncode = console, 0
        self.pid = self._first_process()
        limit = time.monotonic() + BOOT_SECONDS
        while self.control("is-system-running").strip() not in ("running", "degraded"):
            if time.monotonic() > limit:
                raise SystemExit(f"{root} does not boot: {log}")
            time.sleep(0.5)

    def _first_process(self) -> int:
        children = Path(f"/proc/{self._machine.pid}/task/{self._machine.pid}/children")
        limit = time.monotonic() + BOOT_SECONDS
        while not (found := children.read_text().split()):
            if time.monotonic() > limit:
                raise SystemExit("systemd-nspawn starts nothing")
            time.sleep(0.05)
        return int(found[0])

    def inside(self, *words: str) -> str:
        """What a command prints in the machine."""
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
        """End the machine as a loss of power does, but for what the kernel has to write."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._machine.wait()
        self.stdout.close()

"""Two server processes on loopback, and small tasks for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from federation import make_state, mixed_plan

from torchfsl.plan import Plan
from torchfsl.service.certificates import make_development_certificates
from torchfsl.service.remote import Connection, Owner, RetryPolicy, connect
from torchfsl.service.task import OptimizerSettings, Task, bind_plan

QUICK = RetryPolicy(attempt_seconds=20, total_seconds=30, longest_pause=0.3)
NONCE = bytes(range(16))


def free_ports(count: int) -> list[int]:
    """Ports on loopback that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Pair:
    """Both servers as processes, their state and certificates in one folder."""

    def __init__(
        self, folder: Path, *, clients: int = 8, config: str = "", peers: list[int] | None = None
    ) -> None:
        """Make certificates; nothing runs. `peers` are ports by which servers reach 0 and 1."""
        self.folder, self.tls = folder, folder / "certs"
        make_development_certificates(self.tls, range(clients))
        self.ports = free_ports(2)
        self.peers = peers or self.ports
        self.config = folder / "serve.toml"
        self.config.write_text(
            'min-clients = 1\nlog-level = "info"\n'
            "[storage]\nreserve_bytes = 1048576\nsegment_bytes = 1048576\n" + config
        )
        self.processes: list[subprocess.Popen[str] | None] = [None, None]

    @property
    def urls(self) -> list[str]:
        return [f"https://127.0.0.1:{port}" for port in self.ports]

    def start(self, *parties: int) -> None:
        """Start servers (both by default) and wait until they listen."""
        for party in parties or (0, 1):
            self.spawn(party)
        for party in parties or (0, 1):
            process = self.processes[party]
            assert process is not None
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready"), self.log(party)

    def spawn(self, party: int) -> None:
        command = [
            sys.executable, "-m", "torchfsl.service.command", "serve", "--party", str(party),
            "--config", str(self.config), "--listen", f"127.0.0.1:{self.ports[party]}",
            "--peer", f"https://127.0.0.1:{self.peers[1 - party]}",
            "--state", str(self.folder / f"state{party}"), "--tls", str(self.tls),
            "--metrics", "127.0.0.1:0",
        ]  # fmt: skip
        with (self.folder / f"server{party}.log").open("a") as log:
            self.processes[party] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, "TORCHFSL_BACKEND": os.environ.get("TORCHFSL_BACKEND", "auto")},
            )  # fmt: skip

    def kill(self, party: int) -> None:
        """kill -9."""
        process = self.processes[party]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.processes[party] = None

    def stop(self) -> None:
        """SIGTERM to both."""
        for process in filter(None, self.processes):
            process.terminate()
        for process in filter(None, self.processes):
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
        self.processes = [None, None]

    def log(self, party: int) -> str:
        return (self.folder / f"server{party}.log").read_text()

    def owner(self) -> Owner:
        return Owner(self.urls, self.tls, policy=QUICK)

    def client(self, number: int, *, outbox: Path | None = None) -> Connection:
        return connect(self.urls, self.tls, number, outbox=outbox, policy=QUICK)

    def set_up(
        self, owner: Owner, plan: Plan | None = None, optimizer: OptimizerSettings | None = None
    ) -> Task:
        """Give both servers a task with a random model."""
        bound = bind_plan(plan or mixed_plan(), owner.files.authorities(), NONCE)
        task = Task(bound, NONCE, optimizer or OptimizerSettings())
        owner.set_up(task, make_state(bound))
        return task

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)

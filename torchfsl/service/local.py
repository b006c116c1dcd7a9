"""Two server processes on loopback with fresh certificates, for trials and tests.

One folder then holds the keys of both servers, so this does not protect any client's data.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from torchfsl.service.net.certificates import make_development_certificates

_FIRST, _SPAN = 10_000, 22_000
"""Ports that systems do not give to programs that ask for any port.

Otherwise another program could take a port before its server starts.
"""

_numbers = itertools.count()


def free_ports(count: int) -> list[int]:
    """Ports on loopback that were free a moment ago; of one process never the same twice."""
    found: list[int] = []
    for number in itertools.islice(_numbers, _SPAN):
        if len(found) == count:
            return found
        port = _FIRST + (7919 * os.getpid() + number) % _SPAN  # processes begin at different ones
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
    last = _FIRST + _SPAN - 1
    raise OSError(f"expected {count} free ports from {_FIRST} to {last} on loopback, got fewer")


class LoopbackServers:
    """Both servers; certificates, state folders and logs lie in one folder.

        with LoopbackServers(folder, clients=2) as servers:
            servers.start()
            owner = Owner(servers.urls, servers.tls)
            ...
            connection = connect(servers.urls, servers.tls, 0)

    Leaving the block stops both. A server that was stopped or killed can be started again, and goes
    on with its state.

    Args:
        folder: made when missing.
        clients: certificates for clients 0 to `clients` - 1.
        config: TOML put behind the settings; see `torchfsl serve --help`.
        level: of the logs.

    Attributes:
        tls: folder of all certificates, for `Owner` and `connect`.
        ports: where the servers listen.
        seen_ports: where others reach them: the same, or ports of proxies.
        metrics_ports: of `/metrics` and `/health`, once a server listens.
        web_ports: of the HTTPS doors, likewise; 0 without one.
        processes: those that run, by server; None where none does.
    """

    def __init__(
        self, folder: Path, *, clients: int = 8, config: str = "", level: str = "info"
    ) -> None:
        """Make certificates; nothing runs."""
        self.folder, self.tls = folder, folder / "certs"
        folder.mkdir(parents=True, exist_ok=True)
        make_development_certificates(self.tls, range(clients))
        self.ports = free_ports(2)
        self.seen_ports = list(self.ports)
        self.config = folder / "serve.toml"
        settings = f'min-clients = 1\nreplace = "owner"\nlog-level = "{level}"\n'
        self.config.write_text(settings + config)
        self.processes: list[subprocess.Popen[str] | None] = [None, None]
        self.metrics_ports, self.web_ports = [0, 0], [0, 0]

    @property
    def urls(self) -> list[str]:
        """Addresses for clients and the other server."""
        return [f"https://127.0.0.1:{port}" for port in self.seen_ports]

    def state(self, party: int) -> Path:
        """The state folder of the server `party`, 0 or 1."""
        return self.folder / f"state{party}"

    def log(self, party: int) -> str:
        """The log of the server `party`, 0 or 1."""
        return (self.folder / f"server{party}.log").read_text()

    def start(self, *parties: int) -> None:
        """Start `parties` (both by default) and wait until they listen; raises as `wait` does."""
        for party in parties or (0, 1):
            self.spawn(party)
        for party in parties or (0, 1):
            self.wait(party)

    def spawn(self, party: int) -> None:
        """Start the server `party`, 0 or 1."""
        with (self.folder / f"server{party}.log").open("a") as log:
            self.processes[party] = subprocess.Popen(  # noqa: S603, our own command
                self.command(party), stdout=subprocess.PIPE, stderr=log, text=True
            )

    def command(self, party: int) -> list[str]:
        """The command that starts the server `party`, 0 or 1."""
        return [
            sys.executable, "-m", "torchfsl.service.command", "serve", "--party", str(party),
            "--config", str(self.config), "--listen", f"127.0.0.1:{self.ports[party]}",
            "--peer", self.urls[1 - party], "--state", str(self.state(party)),
            "--tls", str(self.tls), "--metrics", "127.0.0.1:0",
        ]  # fmt: skip

    def wait(self, party: int) -> None:
        """Wait until the server `party`, which was spawned, listens.

        Raises:
            RuntimeError: if it ended instead; with the end of its log.
        """
        process = self.processes[party]
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"server {party} did not start:\n{self.log(party)[-2000:]}")
        told = dict(part.split("=") for part in line.split()[1:])
        self.metrics_ports[party] = int(told["metrics"])
        self.web_ports[party] = int(told.get("web", 0))

    def kill(self, party: int) -> None:
        """Send SIGKILL to the server `party`, and wait until it has ended."""
        process = self.processes[party]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            self.processes[party] = None

    def stop(self) -> None:
        """SIGTERM to both."""
        running = [process for process in self.processes if process is not None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.processes = [None, None]

    def __enter__(self) -> Self:
        """Until the block ends SIGTERM ends this program as Ctrl-C does, with both servers.

        Without this the servers would run on. A handler of the program stays in force.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _end(self, number: int, _: object) -> None:
        for process in filter(None, self.processes):
            process.terminate()  # now: what is raised here may be swallowed on its way
        raise SystemExit(128 + number)

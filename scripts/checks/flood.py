"""Flood both servers without certificates, and check that honest clients are in the sum.

    python -m scripts.checks.flood --json FILE         # 60 s at open, in the round and at close
    python -m scripts.checks.flood --seconds 3         # a taste

Each server may open at most 1,024 files (--files). Callers without a certificate connect from eight
addresses, one of which is that of the honest clients. A caller sends nothing, sends only a
ClientHello, sends garbage, or connects and leaves. The program runs a round for each phase, and the
flood begins just before the phase. The round must end applied and exact, with every honest client.
The exit status is 1 if one round does not.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import resource
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from scripts.checks.round_clients import POLICY, make_update, set_up_owner, sums_of, take_part
from scripts.program import Found, Options, check, option
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import connect
from torchfsl.service.local import LoopbackServers

CALLERS = ("silent", "half-open", "garbage", "churn")
"""In this order: no data, only a ClientHello, no TLS, connect and leave."""


def client_hello() -> bytes:
    """The first message of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    tls = context.wrap_bio(incoming, outgoing, server_hostname="server-0.torchfsl")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


class Flooder:
    """Holds up to `most` connections to each port, from several addresses of loopback.

    Attributes:
        made: connections made.
    """

    def __init__(self, ports: list[int], addresses: list[str], most: int, seed: int) -> None:
        self._addresses, self._most = addresses, most
        self._held: dict[int, deque[socket.socket]] = {port: deque() for port in ports}
        self._hello = client_hello()
        self._random = random.Random(seed)
        self.made = 0

    def step(self) -> None:
        """One more connection to each port; the oldest goes where there are too many."""
        for port, held in self._held.items():
            kind = self._random.choice(CALLERS)
            with contextlib.suppress(OSError):
                held.append(self._connect(port, kind))
                self.made += 1
                if kind == "churn":
                    held.pop().close()
            while len(held) > self._most:
                held.popleft().close()

    def close(self) -> None:
        """Leave."""
        for held in self._held.values():
            for one in held:
                one.close()

    def _connect(self, port: int, kind: str) -> socket.socket:
        one = socket.socket()
        try:
            one.settimeout(0.5)
            one.bind((self._random.choice(self._addresses), 0))
            one.connect(("127.0.0.1", port))
            if kind == "half-open":
                one.sendall(self._hello)
            elif kind == "garbage":
                one.sendall(self._random.randbytes(200))
            one.setblocking(False)
        except OSError:
            one.close()
            raise
        return one


def flood(
    ports: list[int],
    addresses: list[str],
    most: int,
    rate: float,
    begun: Event,
    done: Event,
    made: list[int],
) -> None:
    """Flood from `begun` to `done`, `rate` connections a second to each port, counted in `made`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flooder = Flooder(ports, addresses, most, seed=1)
    start = time.monotonic()
    begun.set()
    while not done.is_set():
        if flooder.made < (time.monotonic() - start) * rate * len(ports):
            flooder.step()
        else:
            time.sleep(0.001)
    made.append(flooder.made)
    flooder.close()


_START_SECONDS = 60.0
PHASES = ("open", "round", "close")
ADDRESSES = [f"127.0.0.{n}" for n in range(1, 9)]


class FewFiles(LoopbackServers):
    """Both servers, each with a hard limit of open files."""

    def __init__(self, folder: Path, files: int, clients: int) -> None:
        super().__init__(folder, clients=clients)
        self.files = files

    def command(self, party: int) -> list[str]:
        """Under a shell that lowers the limit and is gone then."""
        limited = f'ulimit -n {self.files}; exec "$@"'
        return ["sh", "-c", limited, "sh", *super().command(party)]

    def open_files(self, party: int) -> int:
        """Files that a server has open now."""
        process = self.processes[party]
        assert process is not None
        return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


@contextlib.contextmanager
def flooded(servers: FewFiles, options: Options, found: dict[str, Any]) -> Iterator[None]:
    """A flood for at least the seconds asked for; what it did goes to `found`."""
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    with context.Manager() as manager:
        made = manager.list()
        attacker = context.Process(
            target=flood,
            args=(servers.ports, ADDRESSES, options.held, options.rate, begun, done, made),
        )
        attacker.start()
        if not begun.wait(_START_SECONDS):
            raise TimeoutError(f"the flood did not begin within {_START_SECONDS} seconds")
        start, most = time.monotonic(), 0
        time.sleep(min(2.0, options.seconds / 2))  # the flood is there first
        try:
            yield
            found["seconds"] = round(time.monotonic() - start, 2)
            while time.monotonic() - start < options.seconds:
                most = max(most, servers.open_files(0), servers.open_files(1))
                time.sleep(0.1)
        finally:
            most = max(most, servers.open_files(0), servers.open_files(1))
            done.set()
            attacker.join()
        found |= {"connections_made": next(iter(made)), "most_files_open": most}


def send_reports(servers: LoopbackServers, plan: Plan, number: int, clients: int) -> list[str]:
    """Honest clients, four at a time; their complaints."""
    failed: list[str] = []

    def send(client: int) -> None:
        how: dict[str, Any] = {"require": ClientPolicy(min_clients=1), "policy": POLICY}
        try:
            with connect(servers.urls, servers.tls, client, **how) as connection:
                take_part(connection.client, number, make_update(plan, 0, number, client))
        except Exception as error:
            failed.append(f"client {client}: {type(error).__name__}: {error}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(clients)))
    return failed


def run_phase(
    servers: FewFiles, owner: Owner, plan: Plan, number: int, phase: str, options: Options
) -> dict[str, Any]:
    """One round with a flood in one of its phases."""
    found: dict[str, Any] = {"phase": phase, "failed": []}

    def during(name: str) -> Any:
        return flooded(servers, options, found) if name == phase else contextlib.nullcontext()

    with during("open"):
        owner.open_round(number, seconds=3600)
    with during("round"):
        found["failed"] = send_reports(servers, plan, number, options.clients)
    with during("close"):
        row = owner.close_round(number)
    opened, _ = owner.result()
    wanted = sums_of(plan, 0, number, tuple(range(options.clients)))
    exact = all(np.array_equal(opened.sums[name], total) for name, total in wanted.sums.items())
    found |= {"in_the_sum": len(opened.clients), "state": row["state"], "exact": exact}
    found["ok"] = exact and not found["failed"] and len(opened.clients) == options.clients
    return found


@check(
    option("--files", 1024, "limit of open files of a server"),
    option("--seconds", 60.0, "of the flood in each phase"),
    option("--rate", 200.0, "connections a second and server"),
    option("--held", 1500, "connections kept open to each server"),
    option("--clients", 8),
)
def main(options: Options, folder: Path) -> Found:
    """Run a round for each phase."""
    with FewFiles(folder, options.files, options.clients) as servers:
        servers.start()
        owner, task, _ = set_up_owner(servers)
        phases = []
        for number, phase in enumerate(PHASES, start=1):
            phases.append(run_phase(servers, owner, task.plan, number, phase, options))
            print(json.dumps(phases[-1]), flush=True)
        owner.close()
    found = {"files": options.files, "clients": options.clients, "seconds": options.seconds}
    return found | {"phases": phases, "ok": all(phase["ok"] for phase in phases)}

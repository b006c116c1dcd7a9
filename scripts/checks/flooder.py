"""Callers without a certificate who hold as many connections to servers as they can."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import ssl
import time
from collections import deque
from multiprocessing.synchronize import Event

KINDS = ("silent", "half-open", "garbage", "churn")
"""Says nothing; a ClientHello and no more; no TLS at all; connects and leaves."""


def client_hello() -> bytes:
    """What a TLS client says first."""
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
        """Nothing is open yet."""
        self._ports, self._addresses, self._most = ports, addresses, most
        self._held: dict[int, deque[socket.socket]] = {port: deque() for port in ports}
        self._hello = client_hello()
        self._random = random.Random(seed)
        self.made = 0

    def step(self) -> None:
        """One more connection to each port; the oldest goes where there are too many."""
        for port, held in self._held.items():
            kind = self._random.choice(KINDS)
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
    ports: list[int], addresses: list[str], most: int, rate: float, done: Event, made: list[int]
) -> None:
    """Flood until `done`, `rate` connections a second to each port; their number goes to `made`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flooder = Flooder(ports, addresses, most, seed=1)
    start = time.monotonic()
    while not done.is_set():
        if flooder.made < (time.monotonic() - start) * rate * len(ports):
            flooder.step()
        else:
            time.sleep(0.001)
    made.append(flooder.made)
    flooder.close()

"""Both servers' time by stage, and of it what passes inside native code."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from torchfsl.crypto import kdf
from torchfsl.fsl.server.server import Server
from torchfsl.kernels.backends import KERNELS, kernels

PATH = ("receive", "verify", "accumulate")
"""Stages of a server that grow with the clients."""


ACCOUNTS = ("native", "sums", "HKDF")
"""What is noted of a stage; see `Clock`."""


class Clock:
    """Seconds of both servers by stage, and those inside native code.

    Native are the kernels, of which expansion and accumulation is noted apart as `sums`, hashes and
    key streams. HKDF, by `cryptography`, has an account of its own; the rest is Python, parsing and
    copies.
    """

    def __init__(self) -> None:
        self.seconds: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self._stage = (self.seconds[0], "")
        self._inside: list[float] = []
        self._notes: list[tuple[dict[str, float], str, str, float]] = []

    def time(self, party: int, stage: str, call: Callable[[], Any]) -> Any:
        """Run `call` on the account of a server and a stage; stages inside it are not its own."""
        before, self._stage = self._stage, (self.seconds[party], stage)
        self._inside.append(0.0)
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        self._add(party, stage, seconds - self._inside.pop())
        if self._inside:
            self._inside[-1] += seconds
        self._stage = before
        return result

    def noted(self, call: Callable[..., Any], account_name: str) -> Callable[..., Any]:
        """`call`, noted as `account_name` in the stage in which it happens.

        What noting takes beside it, `noting_seconds`, is on nobody's account.
        """
        note, now = self._notes.append, time.perf_counter

        def timed(*arguments: Any, **named: Any) -> Any:
            start = now()
            result = call(*arguments, **named)
            note((*self._stage, account_name, now() - start))
            return result

        return timed

    def settle_notes(self) -> None:
        """Add what was noted to the accounts, and take what noting took out of their stages."""
        for account, stage, account_name, seconds in self._notes:
            name = f"{account_name} {stage}"
            account[name] = account.get(name, 0.0) + seconds
            account[stage] -= noting_seconds()
        self._notes.clear()

    def _add(self, party: int, stage: str, seconds: float) -> None:
        account = self.seconds[party]
        account[stage] = account.get(stage, 0.0) + seconds

    def slower(self) -> dict[str, float]:
        """Stages of the server that took longer over `PATH`."""
        return max(self.seconds, key=lambda account: sum(account[stage] for stage in PATH))


@functools.cache
def noting_seconds() -> float:
    """What `Clock.noted` takes for a call, beside the seconds that it notes."""
    calls, least = 100, float("inf")
    for _ in range(20):
        clock = Clock()
        nothing = clock.noted(lambda: None, "")
        start = time.perf_counter()
        for _ in range(calls):
            nothing()
        seconds = time.perf_counter() - start
        least = min(least, (seconds - sum(note[-1] for note in clock._notes)) / calls)
    return least


@contextlib.contextmanager
def watched(servers: tuple[Server, Server], clock: Clock) -> Iterator[None]:
    """Time native code, and additions to the sums apart from the stage they happen in."""
    module = kernels()
    with contextlib.ExitStack() as stack:
        for name in KERNELS:
            account_name = "sums" if name == "accumulate_batch" else "native"
            timed = clock.noted(getattr(module, name), account_name)
            stack.enter_context(mock.patch.object(module, name, timed))
        for name, account_name in (("digest", "native"), ("stream", "native"), ("derive", "HKDF")):
            timed = clock.noted(getattr(kdf, name), account_name)
            stack.enter_context(mock.patch.object(kdf, name, timed))
        for party, server in enumerate(servers):
            sums = server._evaluator.sums
            change = functools.partial(_on_account, clock, party, sums._change)
            stack.enter_context(mock.patch.object(sums, "_change", change))
        yield


def _on_account(
    clock: Clock, party: int, change: Callable[..., None], *arguments: Any, **named: Any
) -> None:
    clock.time(party, "accumulate", lambda: change(*arguments, **named))

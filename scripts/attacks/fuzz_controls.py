"""Every field of every control message at its ends, beyond, of another type, of another encoding.

    python -m scripts.attacks.fuzz_controls --messages 100000 --json found.json

Both servers run in this process with a task, and owner, peer and clients send them requests, tasks
and headers made from a grammar. After each message no server may have met an unexpected
error or be unready, and both must be in one state, if need be once the owner has abandoned the
round. Every thousand messages a round of honest clients must be applied. Exit status 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.attacks.control_grammar import Drawn, Grammar
from scripts.attacks.in_process_servers import InProcessServers
from scripts.checks.outcome import report
from torchfsl.errors import Error


@dataclass
class Found:
    """Results of the messages.

    Attributes:
        calls: by role, method and outcome.
        unexpected: errors without a refusal, with the message.
        unready: messages after which a server was not ready.
        apart: messages after which the servers were not in one state.
        remedied: how often the owner had to abandon the round for that.
        rounds: honest rounds; failed: of those, not applied.
    """

    calls: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    remedied: int = 0
    rounds: int = 0
    failed: int = 0


class Watching(logging.Handler):
    """Collects what is logged with a trace: unexpected errors."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__(logging.ERROR)
        self.traces: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if record.exc_info and record.exc_info[1] is not None:
            self.traces.append("".join(traceback.format_exception(record.exc_info[1])[-3:]))


async def fuzz(folder: Path, count: int, seed: int, seconds: float = 1e9) -> Found:
    """Send `count` messages, and look at the servers after each."""
    servers, found, grammar, watching = InProcessServers(folder), Found(), Grammar(seed), Watching()
    logging.getLogger("torchfsl").addHandler(watching)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: watching.traces.append(str(context))
    )
    deadline = time.monotonic() + seconds
    try:
        await servers.set_up()
        for at in range(count):
            if at % 1000 == 0 or at == count - 1:
                await honest(servers, found)
            last = max(0, *(row[0] for row in servers.states()))
            if at % 20 == 10:  # messages of an open round are to meet one
                with contextlib.suppress(Error):
                    await servers.ask("Open", round=last + 1, expected=0, seconds=600.0)
                    last += 1
            one = grammar.draw(servers.task.plan, last, servers.data)
            await send(servers, found, one)
            await look(servers, found, watching, shown(one))
            if len(found.unexpected) > 20 or time.monotonic() > deadline:
                break
    finally:
        logging.getLogger("torchfsl").removeHandler(watching)
        await servers.stop()
    return found


def shown(one: Drawn) -> str:
    """A message as it is reported."""
    size = int.from_bytes(one.data[8:16], "little") + 16 if one.data[:4] == b"TFSA" else 300
    return f"{one.caller} {one.method} {one.metadata[0]} {one.data[:size]!r}"


async def send(servers: InProcessServers, found: Found, one: Drawn) -> None:
    """A message to the servers that it is for: both, but of the peer to server 1 as of server 0."""
    names = {"peer": "server-0", "client": "client-1"}
    tasks = []
    for party in (1,) if one.caller == "peer" else (0, 1):
        caller = names.get(one.caller, one.caller)
        call = servers.call(party, caller, one.method, one.data, one.metadata)
        tasks.append(asyncio.create_task(call))
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        outcome = "taken" if isinstance(result, bytes) else type(result).__name__
        found.calls[f"{one.caller} {one.method} {outcome}"] += 1
        if not isinstance(result, bytes | Error):
            told = "".join(traceback.format_exception(result)[-3:])  # type: ignore[arg-type]
            found.unexpected.append(f"{shown(one)}: {told}")


async def look(servers: InProcessServers, found: Found, watching: Watching, what: str) -> None:
    """After a message: errors, readiness, and whether both servers are in one state."""
    for station, ended in zip(servers.stations.values(), servers.ended, strict=True):
        if ended or station.failures.unready or station.node.storage.halted:
            why = station.failures.unready or station.node.storage.halted
            found.unready.append(f"{what}: {why}")
            station.failures.unready = ""
            ended.clear()
    found.unexpected += [f"{what}: {trace}" for trace in watching.traces]
    watching.traces.clear()
    first, second = servers.states()
    running = not first[1].endswith(("applied", "unopened", "")) if first[1] else False
    if first != second and not await servers.settle(0.05):
        await abandon(servers)
        found.remedied += 1
        if not await servers.settle(2.0):
            found.apart.append(f"{what}: {servers.states()}")
    elif running and random.Random(what).random() < 0.1:
        await abandon(servers)
    nodes = [station.node for station in servers.stations.values()]
    changed = any(node.task is None or node.plan != servers.task.plan for node in nodes)
    if changed or max(first[0], second[0]) > 1 << 62:
        await abandon(servers)
        await servers.set_up()


async def abandon(servers: InProcessServers) -> None:
    """As an owner who finds the servers apart or in a round that he does not want."""
    number = max(row[0] for row in servers.states())
    with contextlib.suppress(Error):
        await servers.ask("Abandon", round=number, reason="abandoned")


async def honest(servers: InProcessServers, found: Found) -> None:
    """A round of honest clients."""
    await abandon(servers)
    found.rounds += 1
    servers.be_patient(5.0)
    found.failed += not await servers.honest_round()
    servers.be_patient(0.02)


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The messages, and what they led to."""
    start = time.perf_counter()
    found = asyncio.run(fuzz(folder, options.messages, options.seed, options.seconds))
    calls = sum(found.calls.values())
    bad = {"unexpected": found.unexpected, "unready": found.unready, "apart": found.apart}
    return {
        "messages": options.messages, "calls": calls,
        "by_outcome": dict(sorted(found.calls.items())),
        **{name: len(of) for name, of in bad.items()}, "remedied": found.remedied,
        "honest_rounds": found.rounds, "honest_rounds_failed": found.failed,
        "first": {name: of[:5] for name, of in bad.items() if of},
        "seconds": round(time.perf_counter() - start, 1), "seed": options.seed,
        "ok": not (any(bad.values()) or found.failed),
    }  # fmt: skip


def main() -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    return report(parser, run)


if __name__ == "__main__":
    sys.exit(main())

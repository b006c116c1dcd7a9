"""Every field of every control message at its ends, beyond, of another type, of another encoding.

    python -m scripts.attacks.fuzz_controls --messages 100000 --json found.json

Both servers run in this process with a task, and owner, peer and clients send them requests, tasks
and headers made from a grammar. After each message no server may have met an unexpected
error or be unready, and both must be in one state, if need be once the owner has abandoned the
round. Every thousand messages a round of honest clients must be applied. Exit status 1 if not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import struct
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scripts.attacks.in_process_servers import InProcessServers
from scripts.program import Found, Options, check, option
from torchfsl.errors import Error
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net import calls

INTEGERS: list[Any] = [
    -1, 0, 1, 2, 7, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 2, (1 << 64) - 1, 1 << 64, -(1 << 63), 10**30, 10**400,
]  # fmt: skip
FLOATS: list[Any] = [0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, 2.0**64, float("nan"), float("inf")]
TEXTS: list[Any] = [
    "", "x", "ab" * 32, "AB" * 32, "é" * 32, "x" * 3000, "x" * 5000, "\ud800", "\udfff", "a\ud834",
    "\x00", "\x1b[2J", "\u202e", "\U0001f600", "' OR 1=1 --", "<script>", "../..", "0", "-1",
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, [], {}, [[]], {"x": 1}, [1, "x"]]
ANYTHING = INTEGERS + FLOATS + TEXTS + OTHERS

OWNER: dict[str, dict[str, type]] = {
    "Toss": {"template": str},
    "Reveal": {"template": str, "peer": str},
    "Open": {"round": int, "expected": int, "seconds": float},
    "Close": {"round": int},
    "Abandon": {"round": int, "reason": str},
    **{name: {} for name in ("Result", "State", "Info", "Plan", "Certificate")},
}
PEER: dict[str, dict[str, type]] = {"Abandon": {"round": int, "reason": str}, "Info": {}}
CLIENT: dict[str, dict[str, type]] = {
    **{name: {"round": int} for name in ("Model", "Answer")},
    **{name: {} for name in ("Info", "Plan", "Certificate")},
}
_TREES = (Kind.TREES, Kind.TREES_COMMIT)
_STEPS = (Kind.ROUND_STATE, Kind.REPORT_SET, Kind.VERDICTS, Kind.SHARE_COMMIT, Kind.SHARE)
KINDS: dict[str, dict[str, tuple[Kind, ...]]] = {
    "client": {
        "Retrieve": _TREES,
        "Upload": _TREES,
        "Submit": (Kind.REPORT, Kind.REPORT_COMMIT),
        "Fetch": (Kind.FETCH, Kind.FETCH_COMMIT),
    },
    "peer": {
        "Relay": (Kind.TREES_RELAY, Kind.REPORT_RELAY),
        "RelayFetch": (Kind.FETCH_RELAY,),
        "Step": (*_STEPS, Kind.COUNTS),
    },
}


class Drawn(NamedTuple):
    """A message: who sends it (`owner`, `peer` or `client`), the method, bytes, versions."""

    caller: str
    method: str
    data: bytes
    metadata: tuple[tuple[str, str], ...]


class Grammar:
    """Draws messages for the servers' present task and round."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self, plan: Plan, number: int, task: bytes) -> Drawn:
        """A message for servers with this plan and task, whose last round has this number."""
        rng = self._random
        self._ints = [*INTEGERS, number, number, number + 1, number + 1]
        role, method, data = self._call(plan, number, task)
        metadata = calls.metadata()
        if rng.random() < 0.03:  # of another version, or none
            metadata = (("torchfsl-wire", str(rng.choice(["", "x", *self._ints]))[:40]),)
        if rng.random() < 0.03:
            role = rng.choice(["owner", "peer", "client"])
        if rng.random() < 0.1:
            method, data = calls.CONVERSE, method.encode() + rng.choice([b"\n", b"\n", b""]) + data
        return Drawn(role, method, data, metadata)

    def _call(self, plan: Plan, number: int, task: bytes) -> tuple[str, str, bytes]:
        """Caller, method and bytes."""
        rng = self._random
        role = rng.choice(["owner", "peer", "client"])
        if role == "owner" and rng.random() < 0.15:
            return "owner", rng.choice(["SetUp", "Replace"]), self._task(task)
        if role != "owner" and rng.random() < 0.6:
            method, kinds = rng.choice(list(KINDS[role].items()))
            return role, method, self._message(plan, rng.choice(kinds), number)
        table = {"owner": OWNER, "peer": PEER, "client": CLIENT}[role]
        method = rng.choice(list(table))
        return role, method, self._request(table[method])

    def _request(self, kinds: dict[str, type]) -> bytes:
        rng = self._random
        fields: dict[str, Any] = {name: self._valid(kind) for name, kind in kinds.items()}
        for name in fields:
            if rng.random() < 0.5:
                fields[name] = self._odd(kinds[name])
        way = rng.random()
        if way < 0.05 and fields:
            del fields[rng.choice(list(fields))]
        elif way < 0.1:
            fields[rng.choice(["", "x", "round", "\ud800"])] = rng.choice(ANYTHING)
        elif way < 0.13:
            return json.dumps(rng.choice([fields, [fields], *OTHERS, *TEXTS])).encode("utf-16")
        elif way < 0.18:
            return json.dumps(rng.choice(ANYTHING)).encode()
        elif way < 0.21:
            text = json.dumps(fields, ensure_ascii=False)
            return text.encode(rng.choice(["latin-1", "utf-8-sig", "utf-7"]), "replace")
        elif way < 0.24:
            return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")
        elif way < 0.26:
            return b"[" * 4000 + b"]" * rng.choice([0, 90])
        elif way < 0.28:
            return self._cut(json.dumps(fields).encode())
        return json.dumps(fields).encode()

    def _valid(self, kind: type) -> Any:
        if kind is str:
            return self._random.choice(["ab" * 32, "cd" * 32, "a reason"])
        return self._random.choice(self._ints[-4:]) if kind is int else 600.0

    def _odd(self, kind: type) -> Any:
        """Mostly of its type: what is of another is soon refused."""
        own = {int: self._ints, float: FLOATS + INTEGERS, str: TEXTS}[kind]
        return self._random.choice(own if self._random.random() < 0.7 else ANYTHING)

    def _message(self, plan: Plan, kind: Kind, number: int) -> bytes:
        """A protocol message; of a valid form, or with one or two fields of its header changed."""
        rng = self._random
        size = messages.body_bytes(plan, kind)
        if size is None:
            size = rng.choice([0, 16, 32, 72, 112, 32 + 40 * plan.max_clients])
        body = rng.choice([bytes, rng.randbytes, lambda n: b"\xff" * n])(size)
        if kind is Kind.ROUND_STATE:  # a true one says that the models are the same
            size -= 1
            body = body[:size]
        numbers = [value for value in self._ints if 0 <= value < 1 << 64]
        head: list[Any] = [b"TFSL", messages.WIRE_VERSION, int(kind), rng.randrange(2)]
        head += [rng.choice([number, number, *numbers]), rng.choice([0, 1, 1, 2, 3, *numbers])]
        head += [size, plan.digest]
        odd = {0: [b"TFSM", bytes(4)], 1: [0, 3, 5, 65535], 2: range(256), 3: range(256)}
        odd |= dict.fromkeys((4, 5, 6), numbers) | {7: [bytes(32), rng.randbytes(32)]}
        for _ in range(rng.choice([0, 0, 1, 2])):
            place = rng.randrange(8)
            head[place] = rng.choice(list(odd[place]))
        data = struct.pack("<4sHBBQQQ32s", *head) + body
        return self._cut(data) if rng.random() < 0.1 else data

    def _task(self, task: bytes) -> bytes:
        """The task with one field of its settings or of a tensor's description changed."""
        rng = self._random
        size = int.from_bytes(task[8:16], "little")
        fields = json.loads(task[16 : 16 + size])
        target = rng.choice([fields, fields["meta"], fields["meta"]["optimizer"]])
        if rng.random() < 0.4:
            plan = json.loads(fields["meta"]["plan"])
            inner = rng.choice([plan, plan["encoding"], rng.choice(plan["segments"])])
            inner[rng.choice([*inner, "x"])] = rng.choice(ANYTHING)
            fields["meta"]["plan"] = json.dumps(plan)
        elif rng.random() < 0.3:
            described = rng.choice(fields["arrays"])
            described[rng.randrange(3)] = rng.choice([*ANYTHING, [1 << 40], [-1], "float64"])
        else:
            target[rng.choice([*target, "x"])] = rng.choice(ANYTHING)
        text = json.dumps(fields).encode()
        body = task[:8] + len(text).to_bytes(8, "little") + text + task[16 + size : -32]
        return body + hashlib.sha256(body).digest()

    def _cut(self, data: bytes) -> bytes:
        """A message that ends too soon or too late."""
        at = self._random.randrange(len(data) + 1)
        return data[:at] if self._random.random() < 0.7 else data + data[:at]


@dataclass
class Results:
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
        super().__init__(logging.ERROR)
        self.traces: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        if record.exc_info and record.exc_info[1] is not None:
            self.traces.append("".join(traceback.format_exception(record.exc_info[1])[-3:]))


async def fuzz(folder: Path, count: int, seed: int, seconds: float = 1e9) -> Results:
    """Send `count` messages, and look at the servers after each."""
    servers, found, grammar, watching = (
        InProcessServers(folder),
        Results(),
        Grammar(seed),
        Watching(),
    )
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


async def send(servers: InProcessServers, found: Results, one: Drawn) -> None:
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


async def look(servers: InProcessServers, found: Results, watching: Watching, what: str) -> None:
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


async def honest(servers: InProcessServers, found: Results) -> None:
    """A round of honest clients."""
    await abandon(servers)
    found.rounds += 1
    servers.be_patient(5.0)
    found.failed += not await servers.honest_round()
    servers.be_patient(0.02)


@check(
    option("--messages", 100_000),
    option("--seconds", 1e9, "stop after so long"),
    option("--seed", 0),
)
def main(options: Options, folder: Path) -> Found:
    """Send the messages, and report what they led to."""
    start = time.perf_counter()
    found = asyncio.run(fuzz(folder, options.messages, options.seed, options.seconds))
    calls = sum(found.calls.values())
    bad = {"unexpected": found.unexpected, "unready": found.unready, "apart": found.apart}
    counts: Found = {"messages": options.messages, "calls": calls}
    counts["by_outcome"] = dict(sorted(found.calls.items()))
    counts |= {name: len(of) for name, of in bad.items()} | {"remedied": found.remedied}
    counts |= {"honest_rounds": found.rounds, "honest_rounds_failed": found.failed}
    counts["first"] = {name: of[:5] for name, of in bad.items() if of}
    counts |= {"seconds": round(time.perf_counter() - start, 1), "seed": options.seed}
    return counts | {"ok": not (any(bad.values()) or found.failed)}

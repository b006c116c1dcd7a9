"""Messages of owner, peer and clients: valid, and with fields at their ends or beyond."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from typing import Any, NamedTuple

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
    "Toss": {"template": str}, "Reveal": {"template": str, "peer": str},
    "Open": {"round": int, "expected": int, "seconds": float}, "Close": {"round": int},
    "Abandon": {"round": int, "reason": str}, "Result": {}, "State": {}, "Info": {}, "Plan": {},
    "Certificate": {},
}  # fmt: skip
PEER: dict[str, dict[str, type]] = {"Abandon": {"round": int, "reason": str}, "Info": {}}
CLIENT: dict[str, dict[str, type]] = {
    "Model": {"round": int}, "Answer": {"round": int}, "Info": {}, "Plan": {}, "Certificate": {},
}  # fmt: skip
KINDS: dict[str, dict[str, tuple[Kind, ...]]] = {
    "client": {
        "Retrieve": (Kind.TREES, Kind.TREES_COMMIT), "Upload": (Kind.TREES, Kind.TREES_COMMIT),
        "Submit": (Kind.REPORT, Kind.REPORT_COMMIT), "Fetch": (Kind.FETCH, Kind.FETCH_COMMIT),
    },
    "peer": {
        "Relay": (Kind.TREES_RELAY, Kind.REPORT_RELAY), "RelayFetch": (Kind.FETCH_RELAY,),
        "Step": (Kind.ROUND_STATE, Kind.REPORT_SET, Kind.VERDICTS, Kind.SHARE_COMMIT, Kind.SHARE,
                 Kind.COUNTS),
    },
}  # fmt: skip


class Drawn(NamedTuple):
    """A message: who sends it (`owner`, `peer` or `client`), the method, bytes, versions."""

    caller: str
    method: str
    data: bytes
    metadata: tuple[tuple[str, str], ...]


class Grammar:
    """Draws messages for the servers' present task and round."""

    def __init__(self, seed: int) -> None:
        """From the beginning."""
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
        head: list[Any] = [
            b"TFSL", messages.WIRE_VERSION, int(kind), rng.randrange(2),
            rng.choice([number, number, *numbers]), rng.choice([0, 1, 1, 2, 3, *numbers]), size,
            plan.digest,
        ]  # fmt: skip
        odd = {0: [b"TFSM", bytes(4)], 1: [0, 3, 5, 65535], 2: range(256), 3: range(256),
               4: numbers, 5: numbers, 6: numbers, 7: [bytes(32), rng.randbytes(32)]}  # fmt: skip
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

"""Scenes: rounds that the blocks of the specification play, with every draw and message noted.

Nothing here or in what it imports belongs to torchfsl. `tests/vectors/README.md` has the format.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.support.reference import hpke as reference

Json = dict[str, Any]
Rand = Callable[[str, int], bytes]

PRIVATE_KEYS = tuple(bytes([33 + party]) * 32 for party in (0, 1))
"""X25519 keys of servers 0 and 1 in scenes whose plan names server keys."""


def drawn(about: str, size: int) -> bytes:
    """Bytes that follow from a text."""
    return hashlib.shake_128(about.encode()).digest(size)


@dataclass(frozen=True)
class Visit:
    """One client in one round."""

    client: int
    weight: int = 1
    downloads: bool = True
    reports: bool = True


@dataclass(frozen=True)
class Entry:
    """A scene as it is written down: a plan, settings of the servers, rounds.

    `rounds` has the number of each round and its visits. `fetches` has clients that fetch while
    the last round is open, and after it.
    """

    about: str
    plan: Json
    rounds: tuple[tuple[int, tuple[Visit, ...]], ...]
    settings: tuple[float, str, str] = (1.0, "delta", "mean")
    fetches: tuple[int, ...] = ()


class Scene:
    """One entry played by the blocks: steps and messages in order.

    Attributes:
        steps: what each party did, in order; see the README of the vectors.
        sent: every message by its number.
    """

    def __init__(self, spec: ModuleType, name: str, entry: Entry) -> None:
        self.spec, self.name, self.entry = spec, name, entry
        vars(spec)["seal_seed"] = sealed_with_a_given_key
        self.text = spec.canonical(entry.plan)
        self.plan = spec.read_plan(self.text)
        self.tensors = first_model(entry.plan)
        self.steps: list[Json] = []
        self.sent: list[bytes] = []
        self._draws: list[list[str]] = []
        self._counts: Counter[str] = Counter()
        self._trees: dict[int, Any] = {}
        keys = PRIVATE_KEYS if entry.plan["server_keys"] else (None, None)
        self.servers = [
            spec.Fetching(b, self.plan, spec.Model(self.plan, self.tensors, *entry.settings), key)
            for b, key in enumerate(keys)
        ]

    def content(self) -> Json:
        """Plan, settings, model, steps."""
        rate, source, reduce = self.entry.settings
        keys = [key.hex() for key in PRIVATE_KEYS] if self.entry.plan["server_keys"] else []
        return {
            "about": self.entry.about,
            "plan": self.text,
            "private_keys": keys,
            "settings": {"rate": rate, "source": source, "reduce": reduce},
            "model": hexed(self.tensors),
            "steps": self.steps,
        }

    # --- what a step is ---------------------------------------------------------------------------

    def rand(self, who: str) -> Rand:
        """Draws of one party, noted in the step that is made."""

        def draw(name: str, size: int) -> bytes:
            about = f"{self.name}, {who}, {name}"
            self._counts[about] += 1
            data = drawn(f"{about}, {self._counts[about]}", size)
            self._draws.append([name, data.hex()])
            return data

        return draw

    def note(self, by: str, do: str, sends: Iterable[tuple[str, bytes]] = (), **more: Any) -> None:
        """Add a step, with the draws since the last one."""
        step: Json = {"by": by, "do": do, **more}
        if self._draws:
            step["draws"], self._draws = self._draws, []
        noted = []
        for to, data in sends:
            noted.append({"message": len(self.sent), "to": to, "kind": self.kind(data)})
            noted[-1]["data"] = data.hex()
            self.sent.append(data)
        step |= {"sends": noted} if noted else {}
        if by.startswith("server"):
            step["after"] = after(self.servers[int(by[-1])])
        self.steps.append(step)

    def kind(self, data: bytes) -> str:
        """The name of a message's kind."""
        return str(self.spec.NAMES[data[6] - 1])

    def server(self, b: int, do: str, *args: Any, **more: Any) -> bytes | None:
        """A step of a server that returns a message for its peer, or nothing."""
        said: bytes | None = getattr(self.servers[b], do)(*args)
        self.note(f"server {b}", do, [(f"server {1 - b}", said)] if said else [], **more)
        return said

    def crossed(self, do: str) -> None:
        """A step of both servers on the last two messages."""
        last = len(self.sent)
        takes = [last - 1, last - 2]
        for b in (0, 1):
            self.server(b, do, self.sent[takes[b]], takes=[takes[b]])

    # --- rounds -----------------------------------------------------------------------------------

    def play(self) -> Json:
        """All rounds and fetches; the content of the file."""
        fetches = list(self.entry.fetches)
        for number, visits in self.entry.rounds:
            for b in (0, 1):
                self.server(b, "open_round", number, round=number)
            self.crossed("start")
            for visit in visits:
                self.visit(number, visit)
            if fetches and number == self.entry.rounds[-1][0]:
                self.fetch(fetches.pop(0))
            self.finish()
        for client in fetches:
            self.fetch(client)
        return self.content()

    def finish(self) -> None:
        """From closing to the changed model."""
        for b in (0, 1):
            self.server(b, "close_round", self.rand(f"server {b}"))
        self.crossed("agree")
        takes = len(self.sent) - 1
        for b in (0, 1):
            self.servers[b].verify(self.sent[takes - b])
            self.note(f"server {b}", "verify", takes=[takes - b])
        for b in (0, 1):
            self.commit(b)
        if self.plan.min_contributors > 1:
            self.crossed("reveal_counts")
            self.crossed("reveal_kept")
        else:
            self.crossed("reveal")
        takes = len(self.sent) - 1
        for b in (0, 1):
            opened = self.servers[b].open(self.sent[takes - b])
            self.note(f"server {b}", "open", takes=[takes - b], **once(b, opened=opened))
        for b in (0, 1):
            self.servers[b].apply()
            model = hexed(self.servers[b].model.tensors)
            self.note(f"server {b}", "apply", **once(b, model=model))

    def commit(self, b: int) -> None:
        """Share and commitment of one server."""
        rand, source = self.rand(f"server {b}"), None
        if self.plan.noise_sigma:
            source = noise_source(self.spec, rand("noise key", 16))
        self.server(b, "commit", rand, source)

    def deliver(self, client: int, count: int) -> None:
        """The last messages of a client, each with its relay."""
        for n in range(len(self.sent) - count, len(self.sent)):
            self.receive(int(self.steps_to(n)[-1]), n)

    def steps_to(self, n: int) -> str:
        """To whom message n goes."""
        sends = (s for step in self.steps for s in step.get("sends", ()))
        return str(next(s["to"] for s in sends if s["message"] == n))

    def receive(self, b: int, n: int) -> None:
        """A server takes message n, and its peer the relay."""
        do = "receive_fetch" if self.kind(self.sent[n]).startswith("FETCH") else "receive"
        if self.server(b, do, self.sent[n], takes=[n]) is not None:
            self.receive(1 - b, len(self.sent) - 1)

    def ask(self, client: int, replies: Sequence[tuple[int, str]], do: str) -> list[int]:
        """Replies of servers to a client; the numbers of their messages."""
        for b, kind in replies:
            data = getattr(self.servers[b], do)(kind, client)
            self.note(f"server {b}", do, [(f"client {client}", data)], kind=kind, client=client)
        return list(range(len(self.sent) - len(replies), len(self.sent)))

    # --- clients ----------------------------------------------------------------------------------

    def visit(self, number: int, visit: Visit) -> None:
        """One client in an open round."""
        by, spec = f"client {visit.client}", self.spec
        trees = self._trees.get(visit.client)
        if trees is None:
            trees = spec.ClientTrees(self.plan, visit.client, number, self.rand(by))
            wanted = {s.name: chosen(f"{self.name} {by} {s.name}", s) for s in self.plan.early}
            sends = addressed(spec.ask(trees, number, wanted))
            placed = self.placed(trees)
            self.note(by, "ask", sends, round=number, wanted=wanted, **placed)
            self.deliver(visit.client, len(sends))
        if self.plan.max_epochs > 1:
            self._trees[visit.client] = trees
        heard = self.download(trees, number) if visit.downloads else b""
        if self.plan.retrieving:
            takes = self.ask(visit.client, [(0, "ANSWER"), (1, "ANSWER")], "reply")
            rows = spec.read_rows(trees, number, [self.sent[n] for n in takes])
            self.note(by, "read_rows", takes=takes, rows={k: hexed(v) for k, v in rows.items()})
        if visit.reports:
            self.report(trees, number, visit, heard)

    def download(self, trees: Any, number: int) -> bytes:
        """Both replies about the model; its digests."""
        replies = [(trees.S_a, "MODEL"), (trees.S_b, "MODEL_DIGEST")]
        takes = self.ask(trees.client, replies, "reply")
        tensors, heard = self.spec.read_model(trees, number, *(self.sent[n] for n in takes))
        named = {t["name"]: data for (_, t), data in zip(self.plan.clear, tensors, strict=True)}
        self.note(f"client {trees.client}", "read_model", takes=takes, tensors=hexed(named))
        return bytes(heard)

    def report(self, trees: Any, number: int, visit: Visit, heard: bytes) -> None:
        """Both messages of a report, and their way."""
        by = f"client {trees.client}"
        update = {
            s.name: self.part(f"{self.name} {by} {number} {s.name}", s, trees, visit.weight)
            for s in self.plan.segments
        }
        sends = addressed(self.spec.report(trees, number, update, heard, visit.weight))
        given = {"update": update, "weight": visit.weight, "downloaded": bool(heard)}
        self.note(by, "report", sends, round=number, **given, **self.placed(trees))
        self.deliver(trees.client, len(sends))

    def part(self, about: str, segment: Any, trees: Any, weight: int) -> Any:
        """What a client sends of one segment: the largest value first, then smaller ones."""
        most = segment.q_max
        if self.plan.l2_bound:
            count = sum(s.k_max * s.tau for s in self.plan.segments)
            most = min(most, math.isqrt(self.plan.l2_bound**2 // count))
        if segment.is_dense:
            return numbers(about, segment.m, most)
        where = trees.placed[segment.name][0] if segment.name in trees.placed else None
        where = chosen(about, segment) if where is None else where[: max(1, len(where) - 1)]
        values = numbers(about, len(where) * segment.tau, most)
        return {x: values[i * segment.tau : (i + 1) * segment.tau] for i, x in enumerate(where)}

    def placed(self, trees: Any) -> Json:
        """By segment the positions of the trees, and what found none."""
        alphas = {name: list(placed[2]) for name, placed in trees.placed.items()}
        return {"alphas": alphas, "unmatched": {n: x for n, x in trees.unmatched.items() if x}}

    def fetch(self, client: int) -> None:
        """Rows without a round."""
        by, spec = f"client {client}", self.spec
        trees = spec.ClientTrees(self.plan, client, spec.FETCH_ROUND, self.rand(by))
        wanted = {s.name: chosen(f"{self.name} {by} {s.name}", s) for s in self.plan.retrieving}
        commitment, messages = spec.ask_fetch(trees, wanted)
        self.note(by, "ask_fetch", addressed(messages), wanted=wanted, **self.placed(trees))
        self.deliver(client, len(messages))
        replies = [(trees.S_a, "FETCH_MODEL"), (trees.S_b, "FETCH_ANSWER")]
        takes = self.ask(client, replies, "reply_fetch")
        tensors, rows = spec.read_fetch(trees, commitment, *(self.sent[n] for n in takes))
        named = {t["name"]: data for (_, t), data in zip(self.plan.clear, tensors, strict=True)}
        found = {k: hexed(v) for k, v in rows.items()}
        self.note(by, "read_fetch", takes=takes, tensors=hexed(named), rows=found)


def sealed_with_a_given_key(public: bytes, info: bytes, seed: bytes, rand: Rand) -> bytes:
    """HPKE, whose ephemeral key is a draw."""
    return reference.seal(rand("ephemeral key", 32), public, info, seed)


def noise_source(spec: ModuleType, key: bytes) -> Callable[[int, int], Any]:
    """Words that follow from a key, as the README of the vectors says."""

    def source(number: int, chunk: int) -> Callable[[int], list[int]]:
        own = spec.derive(key, b"noise", spec.frame(b"stream", *map(spec.number, (number, chunk))))
        used = [0]

        def words(count: int) -> list[int]:
            start, used[0] = used[0], used[0] + 16 * -(-count // 2)
            found: list[int] = spec.unpacked(spec.stream(own, start + 8 * count)[start:], 8)
            return found

        return words

    return source


def after(server: Any) -> Json:
    """The state of a server after a step."""
    found: Json = {"state": server.state}
    if server.state in ("open", "closed"):
        found["complete"] = list(server.complete())
    if server.state in ("agreed", "verified", "committed", "counted", "revealed"):
        found["accepted"] = list(server.accepted)
    if server.state in ("agreed", "verified"):
        found["set"] = server.set_digest.hex()
    if server.state == "idle":
        found["rounds_opened"] = server.rounds_opened
        sessions = {client: trees.epochs for client, trees in server.sessions.items()}
        found |= {"sessions": sessions} if server.plan.max_epochs > 1 else {}
    return found


def once(b: int, **what: Any) -> Json:
    """What is equal at both servers, noted for server 0."""
    return what if b == 0 else {}


def addressed(messages: Iterable[tuple[int, bytes]]) -> list[tuple[str, bytes]]:
    """Messages as a step has them."""
    return [(f"server {party}", data) for party, data in messages]


def hexed(items: dict[Any, bytes]) -> Json:
    """Byte strings in hex, by the same keys."""
    return {key: bytes(data).hex() for key, data in items.items()}


def numbers(about: str, count: int, most: int) -> list[int]:
    """Whole numbers up to `most` in magnitude, of which the first two reach it."""
    data = drawn(about, 8 * count)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return [most, -most, *(word % (2 * most + 1) - most for word in words)][:count]


def chosen(about: str, segment: Any) -> list[int]:
    """`k_max` positions of a segment, increasing."""
    space = segment.subset or range(segment.m)
    order = sorted(space, key=lambda x: drawn(f"{about} {x}", 8))
    return sorted(order[: segment.k_max])


def first_model(plan: Json) -> dict[str, bytes]:
    """Tensors of multiples of 1/16, by name."""
    tensors = [tensor for segment in plan["segments"] for tensor in segment["tensors"]]
    found = {}
    for tensor in tensors:
        count = math.prod(tensor["shape"])
        form = {"float16": "e", "float32": "f", "float64": "d"}[tensor["dtype"]]
        values = [(number - 128) / 16 for number in drawn(tensor["name"], count)]
        found[tensor["name"]] = struct.pack(f"<{count}{form}", *values)
    return found


def short(value: Any) -> str:
    """JSON without white space."""
    return json.dumps(value, separators=(",", ":"))


def lines(content: Json) -> str:
    """JSON with an item of each list of steps or cases on a line of its own."""
    parts = []
    for name, value in content.items():
        text = short(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(map(short, value)) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"

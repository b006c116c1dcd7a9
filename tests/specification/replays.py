"""Transcripts played again with altered messages, by the blocks or by another implementation.

Nothing here belongs to torchfsl. `tests/vectors/README.md` has the format of a case.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.specification.scenes import Json, addressed, noise_source

Play = Callable[[Json, list[bytes]], Any]
"""A step of a server on the messages that it takes: bytes to send, clients opened, or nothing."""


def edited(data: bytes, edits: list[list[Any]]) -> bytes:
    """A message with bytes replaced: an offset, how many are removed, and what stands there."""
    for offset, removed, put in edits:
        data = data[:offset] + bytes.fromhex(put) + data[offset + removed :]
    return data


def edits_of(old: bytes, new: bytes) -> list[list[Any]]:
    """Edits that make `new` of `old`: of equal lengths one for each stretch that differs."""
    if old == new:
        return []
    if len(old) == len(new):
        places = [at for at in range(len(old)) if old[at] != new[at]]
        starts = [at for i, at in enumerate(places) if not i or at > places[i - 1] + 8]
        ends = [max(at for at in places if at < start) + 1 for start in [*starts[1:], len(old)]]
        pairs = zip(starts, ends, strict=True)
        return [[start, end - start, new[start:end].hex()] for start, end in pairs]
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return [[start, len(old) - end - start, new[start : len(new) - end].hex()]]


class Replay:
    """The servers' side of a transcript, with the alterations of a case.

    Attributes:
        refused: who refused first in which step, and the error.
        opened: by server the clients whose sum it opened, or None.
    """

    def __init__(
        self, content: Json, case: Json, play: Play, errors: tuple[type[Exception], ...]
    ) -> None:
        self.case, self.play, self.errors = case, play, errors
        self.altered = {one["message"]: one["edits"] for one in case.get("altered", ())}
        self.refused: tuple[str, str, Any] | None = None
        self.opened: list[list[int] | None] = [None, None]
        self.messages: dict[int, bytes] = {}
        self.written = {
            one["message"]: bytes.fromhex(one["data"])
            for step in content["steps"]
            for one in step.get("sends", ())
        }
        for index, step in enumerate([*content["steps"], {"by": "nobody", "do": "end"}]):
            if case.get("before") == index:
                self.extra()
            if step["by"] != "nobody":
                self.step(step)

    def extra(self) -> None:
        """The additional step of a case, on a message of the transcript."""
        step = self.case["step"]
        taken = [edited(self.written[n], self.case["edits"]) for n in step.get("takes", ())]
        self.attempt(step, taken)

    def step(self, step: Json) -> None:
        """A step of the transcript, as far as what it takes is there."""
        sends = [one["message"] for one in step.get("sends", ())]
        if step["by"].startswith("client"):
            for one in step.get("sends", ()):
                self.messages[one["message"]] = bytes.fromhex(one["data"])
            return
        takes = step.get("takes", ())
        if all(n in self.messages for n in takes):
            taken = [edited(self.messages[n], self.altered.get(n, [])) for n in takes]
            said = self.attempt(step, taken)
            if step["do"] == "open" and said is not None:
                self.opened[int(step["by"][-1])] = list(said)
            elif sends and said is not None:
                self.messages[sends[0]] = bytes(said)

    def attempt(self, step: Json, taken: list[bytes]) -> Any:
        """What the server says, or nothing if it refuses."""
        try:
            return self.play(step, taken)
        except self.errors as error:
            if self.refused is None:
                self.refused = step["by"], step["do"], error
            return None


class Blocks:
    """Servers and clients of the blocks, on the draws of a transcript."""

    def __init__(self, spec: ModuleType, content: Json) -> None:
        self.spec, self.plan = spec, spec.read_plan(content["plan"])
        self.errors = spec.Malformed, spec.Rejected, spec.Unopened, spec.Halted
        self.content, self.trees = content, {}  # type: ignore[var-annotated]
        tensors = {name: bytes.fromhex(data) for name, data in content["model"].items()}
        keys: list[Any] = [bytes.fromhex(key) for key in content["private_keys"]] or [None] * 2
        settings = content["settings"].values()
        self.servers = [
            spec.Fetching(b, self.plan, spec.Model(self.plan, tensors, *settings), key)
            for b, key in enumerate(keys)
        ]

    def replay(self, case: Json) -> Replay:
        """The servers' side."""
        return Replay(self.content, case, self.play, self.errors)

    def play(self, step: Json, taken: list[bytes]) -> Any:
        """One step of a server."""
        server, do = self.servers[int(step["by"][-1])], step["do"]
        draws = [bytes.fromhex(data) for _, data in step.get("draws", ())]
        if do in ("reply", "reply_fetch"):
            return getattr(server, do)(step["kind"], step["client"])
        if do == "open_round":
            return server.open_round(step["round"])
        if do == "close_round":
            return server.close_round(lambda *_: draws.pop(0))
        if do == "commit":
            source = noise_source(self.spec, draws.pop(0)) if self.plan.noise_sigma else None
            return server.commit(lambda *_: draws.pop(0), source)
        said = getattr(server, do)(*taken)
        return said["clients"] if do == "open" else said

    def client(self, case: Json) -> tuple[str, str, Any] | None:
        """The step in which the client of a case withdraws, and the error."""
        altered = {one["message"]: one["edits"] for one in case["altered"]}
        messages: dict[int, bytes] = {}
        for step in self.content["steps"]:
            for one in step.get("sends", ()):
                n = one["message"]
                messages[n] = edited(bytes.fromhex(one["data"]), altered.get(n, []))
            if step["by"] == case["by"]:
                taken = [messages[n] for n in step.get("takes", ())]
                try:
                    self.client_step(step, taken)
                except (self.spec.Malformed, self.spec.Withdrawn) as error:
                    return step["by"], step["do"], error
        return None

    def client_step(self, step: Json, taken: list[bytes]) -> None:
        """Asking and reading, in a round or a fetch."""
        spec, do, client = self.spec, step["do"], int(step["by"].split()[1])
        draws = [bytes.fromhex(data) for _, data in step.get("draws", ())]

        def rand(name: str, size: int) -> bytes:
            return draws.pop(0)

        if do == "ask":
            self.trees = spec.ClientTrees(self.plan, client, step["round"], rand)
            self.number = step["round"]
            addressed(spec.ask(self.trees, self.number, step["wanted"]))
        elif do == "ask_fetch":
            self.trees = spec.ClientTrees(self.plan, client, spec.FETCH_ROUND, rand)
            self.commitment = spec.ask_fetch(self.trees, step["wanted"])[0]
        elif do == "read_model":
            spec.read_model(self.trees, self.number, *taken)
        elif do == "read_rows":
            spec.read_rows(self.trees, self.number, taken)
        elif do == "read_fetch":
            spec.read_fetch(self.trees, self.commitment, *taken)

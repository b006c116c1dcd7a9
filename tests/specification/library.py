"""Transcripts of the specification, played by the library's servers and clients."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tests.support.reference import hpke as reference
from torchfsl.crypto import entropy, hpke
from torchfsl.crypto.hpke import SealKey
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.noise import KeyedNoise
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.halves import heard
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerSGD
from torchfsl.submodel.update import SegmentUpdate, Update

FOLDER = Path(__file__).resolve().parents[1] / "vectors"
Json = dict[str, Any]


def read(name: str) -> Json:
    """A file of vectors."""
    content: Json = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def sent(steps: list[Json]) -> dict[int, bytes]:
    """Every message of a transcript by its number."""
    return {one["message"]: bytes.fromhex(one["data"])
            for step in steps for one in step.get("sends", ())}  # fmt: skip


def drawn(steps: list[Json]) -> list[tuple[str, bytes]]:
    """The draws of these steps in order."""
    return [(name, bytes.fromhex(data)) for step in steps for name, data in step.get("draws", ())]


class KeyedServer(Server):
    """A server whose noise follows from a key."""

    def __init__(self, party: int, **given: Any) -> None:
        """As `Server`; `keyed` draws the noise."""
        self.keyed = KeyedNoise()
        super().__init__(party, draw_noise=self.keyed, **given)


def make_servers(content: Json) -> list[KeyedServer]:
    """Both servers of a transcript before its first step."""
    plan, settings = Plan.from_json(content["plan"]), content["settings"]
    state = {
        t.name: np.frombuffer(bytes.fromhex(content["model"][t.name]), t.dtype).reshape(t.shape)
        for segment in plan.segments
        for t in segment.tensors
    }
    private = [bytes.fromhex(key) for key in content["private_keys"]]
    keys: list[Any] = [SealKey.from_raw(key) for key in private] or [None, None]
    chosen = {"source": settings["source"], "reduce": settings["reduce"]}
    return [
        KeyedServer(b, plan=plan, model=ServerModel(state, ServerSGD(settings["rate"]), **chosen),
               key=key)
        for b, key in enumerate(keys)
    ]  # fmt: skip


def play(server: KeyedServer, step: Json, taken: list[bytes]) -> bytes | Opened | None:
    """One step of a server: the message that it sends, or the sums that it opens."""
    do, draws = step["do"], dict(drawn([step]))
    if do == "open_round":
        return server.open_round(step["round"])
    if do in ("receive", "receive_fetch"):
        due = server.receive(taken[0])
        return None if due is None else server.relay(*due)
    if do in ("reply", "reply_fetch"):
        round_number = server.last_round if do == "reply" else (1 << 64) - 1
        return server.reply(Kind[step["kind"]], round_number, step["client"])
    if do == "close_round":
        return server.close_round(coin=draws["coin"])
    if do == "commit":
        server.keyed.begin(draws.get("noise key", b""))
        return server.commit(salt=draws["salt"])
    said = getattr(server, do)(*taken)
    return None if do in ("start", "verify") else said


def after(server: Server) -> Json:
    """What a step notes of a server after it."""
    state, opening = server.state.value, server._opening
    found: Json = {"state": state}
    if state in ("open", "closed"):
        found["complete"] = list(server.reports.complete())
    if state in ("agreed", "verified", "committed", "counted", "revealed"):
        found["accepted"] = list(opening.accepted)
    if state in ("agreed", "verified"):
        found["set"] = opening.set_digest.hex()
    if state == "idle":
        found["rounds_opened"] = server.rounds_opened
        sessions = {str(client): trees.epochs for client, trees in server.reports.sessions.items()}
        found |= {"sessions": sessions} if server.plan.max_epochs > 1 else {}
    return found


class Script:
    """A transport for one client: what it sends must be what the transcript says."""

    def __init__(self, steps: list[Json], messages: dict[int, bytes]) -> None:
        self.sends = [one for step in steps for one in step.get("sends", ())]
        self.takes = [n for step in steps for n in step.get("takes", ())]
        self.messages, self.compared = messages, 0

    def send(self, party: int, message: bytes) -> None:
        """As `Transport.send`."""
        wanted = self.sends.pop(0)
        assert (f"server {party}", Kind(message[6]).name) == (wanted["to"], wanted["kind"])
        assert message == self.messages[wanted["message"]], wanted["kind"]
        self.compared += 1

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        """As `Transport.fetch`; the client itself refuses a reply of another kind or server."""
        return self.messages[self.takes.pop(0)]


@contextlib.contextmanager
def on_draws(draws: list[tuple[str, bytes]], *, every: bool = True) -> Iterator[None]:
    """The library draws these, of the given sizes; all must be drawn if `every` is set."""
    left = list(draws)

    def urandom(size: int) -> bytes:
        name, data = left.pop(0)
        assert len(data) == size, name
        return data

    def seal(*said: bytes) -> bytes:
        return reference.seal(urandom(32), *said)

    with (
        mock.patch.object(entropy, "os", SimpleNamespace(urandom=urandom)),
        mock.patch.object(client_round, "random_bytes", bytes),  # of a nonce that never travels
        mock.patch.object(hpke, "seal", seal),
    ):
        yield
    assert not (every and left), left[0][0]


def update_of(plan: Plan, given: Json) -> Update:
    """An update as a step has it."""
    update: Update = {}
    for segment in plan.segments:
        part = given[segment.name]
        where = None if segment.is_dense else np.array([int(x) for x in part], dtype=np.int64)
        values = np.array(part if where is None else list(part.values()), dtype=np.int64)
        update[segment.name] = SegmentUpdate(where, values.reshape(-1, segment.tau))
    return update


def same_tensors(plan: Plan, found: Json, wanted: Json) -> None:
    """Clear tensors that a client reads, against those of a step."""
    assert set(found) == set(wanted)
    for segment in plan.segments:
        for t in segment.tensors:
            if t.name in wanted:
                data = heard(bytes.fromhex(wanted[t.name]), segment.download, t.dtype)
                assert found[t.name].tobytes() == data.tobytes(), t.name


def same_rows(plan: Plan, found: Json, wanted: Json) -> None:
    """Rows that a client reads, against those of a step."""
    assert set(found) == set(wanted)
    for segment in plan.retrieving:
        indices, values = found[segment.name]
        rows = sorted((int(x), data) for x, data in wanted[segment.name].items())
        assert indices.tolist() == [x for x, _ in rows]
        data = b"".join(bytes.fromhex(row) for _, row in rows)
        numbers = heard(data, segment.download, segment.tensors[0].dtype)
        assert values.tobytes() == numbers.tobytes()

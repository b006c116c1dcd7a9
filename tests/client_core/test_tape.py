"""Python's client and the core, driven from one tape of random bytes: every message is equal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_core.plans import KEYS, plans
from tests.support.client_core import REPORT, Core, CoreClient
from tests.support.federation import Wire, make_state, random_update, wanted_rows
from tests.support.reference import hpke as reference
from torchfsl.crypto import entropy, hpke
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

VECTORS = Path(__file__).resolve().parents[1] / "vectors"


class Tape:
    """Bytes that follow from a seed, in place of the system's."""

    def __init__(self, seed: int, size: int = 1 << 16) -> None:
        self.data = np.random.default_rng(seed).bytes(size)
        self.at = 0

    def urandom(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]


def on_tape(monkeypatch: pytest.MonkeyPatch, seed: int) -> Tape:
    """Let Python's client draw from a tape; the nonce that a round never sends is not on it."""
    tape = Tape(seed)
    monkeypatch.setattr(entropy, "os", SimpleNamespace(urandom=tape.urandom))
    monkeypatch.setattr(client_round, "random_bytes", lambda size: bytes(size))
    monkeypatch.setattr(hpke, "seal", lambda *given: reference.seal(tape.urandom(32), *given))
    return tape


def small_update(plan: Plan, rng: np.random.Generator) -> Update:
    """A random update within the plan's bounds."""
    update = random_update(plan, rng)
    if plan.l2_bound:
        update = {
            name: SegmentUpdate(part.indices, part.values % 9 - 4) for name, part in update.items()
        }
    return update


def open_wire(plan: Plan) -> Wire:
    """Servers with an open round 1, whose keys are those of the plan."""
    state = make_state(plan)
    keys = KEYS if plan.server_keys else (None, None)
    one, two = (Server(p, plan=plan, model=ServerModel(state), key=keys[p]) for p in (0, 1))
    begin_round((one, two), 1)
    return Wire((one, two))


def compare(
    core: Core, plan: Plan, update: Update, client: int, weight: int = 1, seed: int = 0
) -> None:
    """A whole round of both, message by message, and what each reads of the model."""
    wanted, seen = wanted_rows(plan, update), []
    wires = [open_wire(plan) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        tape = on_tape(patch, seed)
        theirs = Client(plan, wires[0], client_id=client).start_round(1, indices=wanted)
        seen.append((theirs.download(), theirs.retrieve() if plan.retrieving else {}))
        theirs.submit(update, weight=weight)
    ours = CoreClient(core, plan, wires[1], client, tape.data).start_round(1, indices=wanted)
    seen.append((ours.download(), ours.retrieve()))
    assert ours.submit(update, weight=weight) == REPORT
    for one, two in zip(wires[0].events, wires[1].events, strict=True):
        assert (one.party, one.kind, one.is_reply) == (two.party, two.kind, two.is_reply)
        assert one.data == two.data, one.kind.name
    (clear, rows), (clear_two, rows_two) = seen
    assert clear.keys() == clear_two.keys()
    assert rows.keys() == rows_two.keys()
    for name, values in clear.items():
        assert np.array_equal(values, clear_two[name])
    for name, (ids, values) in rows.items():
        assert np.array_equal(ids, rows_two[name][0])
        assert np.array_equal(values, rows_two[name][1])


def cases() -> list[str]:
    """The plans of the vectors that a core without sessions and audits takes."""
    found = json.loads((VECTORS / "plans.json").read_text())["cases"]
    texts = [case["text"] for case in found if '"max_epochs":1,' in case["text"]]
    return [text for text in texts if '"audit' not in text]


@pytest.mark.parametrize("text", cases(), ids=range(len(cases())))
@pytest.mark.parametrize("client", [4, 7])
def test_every_message_of_the_vectors_plans_is_equal(core: Core, text: str, client: int) -> None:
    plan = Plan.from_json(text)
    for seed in range(3):
        update = small_update(plan, np.random.default_rng(seed))
        compare(core, plan, update, client, weight=min(plan.max_weight, 1 + seed), seed=seed)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), seed=st.integers(0, 2**32 - 1), client=st.integers(0, 2**64 - 1))
def test_every_message_of_drawn_plans_is_equal(
    core: Core, plan: Plan, seed: int, client: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = int(rng.integers(1, plan.max_weight, endpoint=True))
    compare(core, plan, small_update(plan, rng), client, weight, seed)

"""Python's client and the core, driven from one tape of random bytes: every message is equal."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.client_core import REPORT, Core, CoreClient
from tests.support.federation import (
    CLIENT_KINDS,
    Wire,
    make_servers,
    mixed_plan,
    random_update,
    wanted_rows,
)
from torchfsl.crypto import entropy
from torchfsl.fsl.client import round as client_round
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.submodel.update import Update


class Tape:
    """Bytes that follow from a seed, in place of the system's."""

    def __init__(self, seed: int) -> None:
        self.data = np.random.default_rng(seed).bytes(1 << 16)
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
    return tape


def compare(
    core: Core, plan: Plan, update: Update, client: int, weight: int = 1, seed: int = 0
) -> None:
    """A whole round of both, message by message."""
    with pytest.MonkeyPatch.context() as patch:
        wires = []
        tape = on_tape(patch, seed)
        for own in (None, tape.data):
            servers = make_servers(plan)
            begin_round(servers, 1)
            wires.append(wire := Wire(servers))
            wanted = wanted_rows(plan, update)
            if own is None:
                theirs = Client(plan, wire, client_id=client).start_round(1, indices=wanted)
            else:
                ours = CoreClient(core, plan, wire, client, own).start_round(1, indices=wanted)
        del theirs
        assert ours.submit(update) == REPORT
        assert wires


def test_it(core: Core) -> None:
    plan = mixed_plan()
    update = random_update(plan, np.random.default_rng(1))
    compare(core, plan, update, 4)

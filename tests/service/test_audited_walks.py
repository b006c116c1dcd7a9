"""Honest audited rounds that stop anywhere, at one server or at both: the next ones still open."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded
from tests.service.test_audited_node import BAND, KEY, AuditedDuo, authorities
from torchfsl.fsl.messages import Kind
from torchfsl.service.auditor import judged
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state.audits import pack_rounds
from torchfsl.service.state.steps import steps_of

__all__ = ["authorities"]
LONG = dataclasses.replace(BAND, max_rounds=60)


class Walk(AuditedDuo):
    """Crashes, lost noise, and passes that one server gets and the other does not, by chance."""

    def __init__(self, folder: Path, authorities: Authorities, seed: int) -> None:
        super().__init__(folder, authorities, LONG)
        self.rng, self.after_event = np.random.default_rng(seed), self.perhaps_crash

    def chance(self, percent: int) -> bool:
        return bool(self.rng.integers(100) < percent)

    def perhaps_crash(self) -> None:
        if self.chance(1):
            self.crash(int(self.rng.integers(2)))

    def walk(self, number: int) -> None:
        """A round that opens or stops anywhere before."""
        opens, kinds = self.chance(50), tuple(steps_of(self.plan))
        at = kinds.index(Kind.AUDIT_PASS)
        stop = at if opens or self.chance(60) else int(self.rng.integers(1, at))
        clients = range(4 * number, 4 * number + 3)
        self.play(number, {c: bounded(self.plan, self.rng) for c in clients}, kinds[:stop])
        if stop == at:
            self.take_passes(number, 100 if opens else 50)
        if opens:
            self.step(number, Kind.SHARE)
            return
        for party in (0, 1):
            self.nodes[party].abandon(number, "it stops", forced=True)
            self.perhaps_crash()

    def take_passes(self, number: int, percent: int) -> None:
        passes = []
        for judge, node in zip(self.judges, self.nodes, strict=True):
            key = KEY.raw + pack_rounds(node.storage.audits.offered)
            data = node.storage.audits.path(number).read_bytes()
            passes.append(judge.sign(judged(judge, number, key, data)))  # names nobody
        for party in (0, 1):
            if self.chance(percent):
                self.nodes[party].take_pass(number, passes[1 - party])
                self.perhaps_crash()
                if self.chance(90):  # else that auditor dies, and the noise is lost
                    self.judges[1 - party].keep(number)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_that_stop_anywhere_refuse_and_name_no_honest_server(
    seed: int, authorities: Authorities, tmp_path: Path
) -> None:
    duo = Walk(tmp_path, authorities, seed)
    for number in range(1, 21):
        duo.walk(number)
        assert len(set(duo.digests())) == 1
        assert not any(node.storage.halted for node in duo.nodes)
    assert duo.nodes[0].storage.model_version["version"] > 4

"""A write of a server in the steps of an audit fails once: the sum is the same, told once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_proofs import bounded
from tests.service.test_audited_node import BAND, FEW, AuditedDuo, authorities
from tests.service.test_noise_faults import Disk
from tests.support.points import points_of
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state.steps import steps_of

__all__ = ["authorities"]  # a fixture
LAST = 2
KINDS = {"fsync", "rename", "INSERT", "UPDATE", "COMMIT"}


def finish(duo: AuditedDuo, disk: Disk) -> bool:
    """The steps of an audit in the last round; whether a write failed."""
    kinds, failed = tuple(steps_of(duo.plan)), False
    for kind in kinds[kinds.index(Kind.SHARE_COMMIT) :]:
        while True:
            try:
                duo.step(LAST, kind)
                break
            except OSError:
                failed = True
                disk.heal()
                duo.crash(0)
                duo.crash(1)
    return failed


def assert_recorded(duo: AuditedDuo, what: str) -> None:
    """Each server's record is that of the other; nothing secret and no transcript is left."""
    mine, theirs = (node.storage.audits.record(duo.plan, LAST) for node in duo.nodes)
    for own, other in ((mine, theirs), (theirs, mine)):
        assert set(own) == {"record", "said", "share_commit", "audit_pass"}, what
        assert (own["record"], own["said"]) == (other["record"], other["share_commit"]), what
    for node in duo.nodes:
        assert not node.storage.audits.secrets, what
        assert not node.storage.audits.key, what
        assert not (node.storage.folder / "audit").exists(), what


@pytest.mark.parametrize(
    ("plan", "is_done"), [(FEW, False), (BAND, True)], ids=["counts first", "correlated"]
)
def test_a_write_that_fails_in_the_steps_of_an_audit_changes_no_sum_and_no_record(
    plan: Plan, is_done: bool, authorities: Authorities, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    duo = AuditedDuo(tmp_path / "servers", authorities, plan)
    duo.go(1)
    kinds, rng = tuple(steps_of(duo.plan)), np.random.default_rng(2)
    reports: dict[int, Any] = {client: bounded(duo.plan, rng) for client in (20, 21, 22)}
    duo.play(LAST, reports, kinds[: kinds.index(Kind.SHARE_COMMIT)])
    for node in duo.nodes:
        node.storage.ledger.close()
    shutil.copytree(duo.folder, tmp_path / "before")
    disk, found = Disk(monkeypatch), set[str]()

    def play(fatal: int) -> list[str]:
        shutil.rmtree(duo.folder)
        shutil.copytree(tmp_path / "before", duo.folder)
        duo.nodes = [duo._node(party) for party in (0, 1)]
        disk.arm(duo, fatal, is_done=is_done)  # type: ignore[arg-type]
        assert finish(duo, disk) == (fatal >= 0)
        found.update(duo.digests(), [json.dumps([n.storage.rounds_opened for n in duo.nodes])])
        assert_recorded(duo, f"write {fatal}")
        return disk.writes

    writes = play(-1)
    assert {*writes} >= KINDS
    for fatal in points_of(writes):
        play(fatal)
    assert len(found) == 2, "one model and one count, whichever write fails"

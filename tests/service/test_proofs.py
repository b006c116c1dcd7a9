"""A server that is started again, at whatever step, asks a proof at the point at which it asked."""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.test_node import Duo, authorities
from tests.support.federation import make_plan, make_segment, mixed_plan, random_update
from torchfsl.crypto import flp
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.flp import SumsOfSquares, ZeroOrSame
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.bodies import ReportSet
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.server import proofs
from torchfsl.fsl.server.proofs import Questions
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server import recovery
from torchfsl.service.state.steps import STEPS
from torchfsl.submodel.update import SegmentUpdate, Update

__all__ = ["authorities"]  # a fixture

PLAN = dataclasses.replace(mixed_plan(lane="weight"), proofs="lanes")
"""Of a report two proofs are asked."""


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, bytes, type], set[int]]:
    """By server, report and kind, where its proof was asked."""
    asked: dict[tuple[int, bytes, type], set[int]] = defaultdict(set)
    real_ask, real_point = Questions.ask, flp.draw_point
    at_work = threading.local()  # reports are asked side by side

    def ask(self: Questions, loaded: Any, threads: int = 0) -> Any:
        at_work.on = self._party, loaded.report.hint_nonce
        return real_ask(self, loaded, threads)

    def point(self: SumsOfSquares | ZeroOrSame, key: bytes) -> int:
        found = real_point(self.order, key)
        asked[*at_work.on, type(self)].add(found)
        return found

    monkeypatch.setattr(proofs.Questions, "ask", ask)
    for kind in (SumsOfSquares, ZeroOrSame):
        monkeypatch.setattr(kind, "point", point)
    return asked


def some_updates(seed: int) -> dict[int, Update]:
    rng = np.random.default_rng(seed)
    return {client: random_update(PLAN, rng) for client in range(3)}


@pytest.mark.parametrize("party", [0, 1])
def test_a_crash_after_every_event_asks_every_proof_at_one_point(
    party: int,
    authorities: Authorities,
    tmp_path: Path,
    points: dict[tuple[int, bytes, type], set[int]],
) -> None:
    duo = Duo(tmp_path, authorities, PLAN)
    duo.after_event = lambda: duo.crash(party)
    for number in (1, 2):
        duo.play(number, dict(some_updates(number)))
    assert len(points) == 2 * 2 * 2 * 3
    assert all(len(asked) == 1 for asked in points.values())
    assert len(set(duo.digests())) == 1


def test_a_peer_that_changes_set_or_coin_gets_no_second_answer(
    authorities: Authorities, tmp_path: Path, points: dict[tuple[int, bytes, type], set[int]]
) -> None:
    """Before and after a crash; its first set fixes the point."""
    duo = Duo(tmp_path, authorities, PLAN)
    duo.play(1, dict(some_updates(3)), STEPS[: STEPS.index(Kind.ROUND_STATE) + 1])
    said = [node.exchange(1, Kind.REPORT_SET) for node in duo.nodes]
    theirs = ReportSet.read(duo.plan, said[1])
    others = [
        said[1][:HEADER_BYTES] + bytes(32) + said[1][HEADER_BYTES + 32 :],
        ReportSet(theirs.coin, theirs.entries[:2]).message(duo.plan, 0, 1),
    ]
    duo.nodes[0].exchange(1, Kind.REPORT_SET, said[1])
    duo.nodes[0].count(1, Kind.REPORT_SET)
    verdict = duo.nodes[0].exchange(1, Kind.VERDICTS)
    for _ in range(2):
        for other in others:
            with pytest.raises(ProtocolError, match="two different REPORT_SET"):
                duo.nodes[0].exchange(1, Kind.REPORT_SET, other)
        assert duo.nodes[0].exchange(1, Kind.VERDICTS) == verdict
        duo.crash(0)
    assert all(len(asked) == 1 for asked in points.values())


def test_a_task_of_before_without_room_runs_on_and_a_new_one_is_refused(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums within the norms could leave the ring; servers took such plans once."""
    table = make_segment("table", "rows", (40, 2), k_max=2, tau=2, theta=16, stash=1, retrieve=True)
    narrow = make_plan(table, encoding=FixedPoint.filling(16, 0, max_clients=8), max_clients=8)
    plan = dataclasses.replace(narrow, proofs="norm", l2_bound=5900)
    with pytest.raises(ParameterError, match="at most 2047 "):
        Duo(tmp_path / "new", authorities, plan)
    with monkeypatch.context() as before:
        before.setattr(recovery, "with_headroom", lambda plan: plan)
        duo = Duo(tmp_path / "old", authorities, plan)
    rng = np.random.default_rng(0)
    for number in (1, 2):
        for party in (0, 1):
            duo.crash(party)
        updates: dict[int, Any] = {
            client: {"table": SegmentUpdate(np.array([1, 7]), rng.integers(-9, 10, (2, 2)))}
            for client in (0, 1)
        }
        duo.play(number, updates)
    assert len(set(duo.digests())) == 1

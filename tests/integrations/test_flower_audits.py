"""Audited rounds under Flower: they open by the passes of both auditors, and a liar is named."""

from __future__ import annotations

import dataclasses
import logging
import random
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_flower_rounds import Run
from tests.service.test_audits import Audited, verdicts
from tests.support.audited import KEYS, audited
from tests.support.errors import raises
from tests.support.flower_grid import HereGrid
from tests.support.flower_task import Recorder, build_planned
from tests.support.odd_servers import ODD
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.integrations.flower import SubmodelAveraging

PROVEN: dict[str, Any] = {"min_clients": 2, "l2_bound": 1 << 20, "proofs": "norm"}


def run_of(pair: Audited, *, pinned: bool = True, **options: Any) -> Run:
    """Two nodes with policies of their own, which want an audit and may name its auditors."""
    policy, (first, second) = pair.folder / "policy.toml", pair.keys
    named = f'auditors = ["{first}", "{second}"]\n' if pinned else ""
    policy.write_text(f"audited = {str(pinned).lower()}\n{named}")
    nodes = [
        {"torchfsl-tls": str(pair.tls), "torchfsl-name": f"client-{number}",
         "torchfsl-require": str(policy)} for number in (0, 1)
    ]  # fmt: skip
    recorder = Recorder()
    grid = HereGrid(recorder.app, nodes, run_id=random.getrandbits(60))
    return Run(recorder, grid, servers=pair.urls, tls=pair.tls, plan=PROVEN, fraction_evaluate=0.0,
               **{"auditors": pair.keys, **options})  # fmt: skip


def test_audited_rounds_open_by_the_passes_of_both_auditors(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        run = run_of(pair)
        with pair.audited_by(0, 1):
            run.start(2)
        assert run.grid.told == []
        assert run.opened == {1: (0, 1), 2: (0, 1)}
        assert run.strategy.plan.auditors == pair.keys
        assert [len(verdicts(pair, party)) for party in (0, 1)] == [2, 2]
        run.assert_exact()


def test_without_auditors_the_nodes_that_want_an_audit_take_no_part(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        run = run_of(pair, auditors=())
        run.start(1)
        assert run.opened == {}
        assert len(run.grid.told) == 2
        assert all("floor 'audited' wants" in words for words in run.grid.told)


def test_a_node_that_pins_no_auditors_takes_no_part(tmp_path: Path) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        run = run_of(pair, pinned=False)
        with pair.audited_by(0, 1):
            run.start(1)
        assert run.opened == {}
        assert len(run.grid.told) == 2
        assert all("floor 'auditors' pins none" in words for words in run.grid.told)


def test_a_run_stops_once_an_auditor_has_named_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ODD, "add")
    with Audited(tmp_path, odd=1) as pair, caplog.at_level(logging.WARNING):
        pair.start()
        run = run_of(pair)
        before = run.strategy._fed.server_state()
        halted = pytest.raises(ProtocolError, match="halted: audit_liar_named")
        with pair.audited_by(0, 1), halted:
            run.start(2)
        assert "the model did not change in this round" in caplog.text
        assert "the auditor of server 1 found that it lied (share:" in caplog.text
        assert run.opened == {}
        assert run.strategy.model is not None
        assert all((run.strategy.model.state[name] == before[name]).all() for name in before)


def test_servers_of_a_simulation_take_no_auditors() -> None:
    fed = build_planned(**PROVEN)
    with raises(ParameterError, code="audit-conditions"):
        SubmodelAveraging(fed, servers="local", auditors=KEYS[2:])
    SubmodelAveraging(fed, servers="local")
    fed.plan = audited(fed.plan)  # type: ignore[arg-type]
    with raises(ParameterError, code="audit-conditions"):
        SubmodelAveraging(fed, servers="local")


def test_an_audit_of_a_plan_without_norm_proofs_is_refused_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    with Audited(tmp_path) as pair:
        pair.start()
        run = run_of(pair)
        run.strategy.plan = dataclasses.replace(run.strategy.plan, proofs="none")
        with raises(ParameterError, code="audit-conditions"):
            run.start(1)
        assert run.grid.bytes == 0

"""Proofs are asked side by side, as many as memory that was announced allows."""

from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    random_update,
    submit,
)
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.costs import memory
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server import proofs, sizes
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.reports import Report

CLIENTS, KEY = 4, bytes(32)


def reported(ring_bits: int, kind: str = "norm") -> tuple[Plan, dict[int, Report]]:
    """Reports of some clients, as server 0 has them."""
    plan = make_plan(
        make_segment("table", "rows", (500, 16), k_max=40, tau=16, theta=40),
        make_segment("rest", "dense", (60_000,)),
        encoding=FixedPoint(ring_bits, 4, 4.0), lane="count", max_clients=CLIENTS,
    )  # fmt: skip
    bound = (1 << 16) * (kind == "norm")
    plan = dataclasses.replace(plan, proofs=kind, l2_bound=bound)
    servers = make_servers(plan)
    begin_round(servers, 0)
    for client in range(CLIENTS):
        submit(Wire(servers), client, 0, random_update(plan, np.random.default_rng(client), rows=3))
    return plan, dict(servers[0].reports.complete())


def evaluator_of(plan: Plan) -> LocalEvaluator:
    return LocalEvaluator(plan, 0, lambda _, count: np.zeros(count, np.int64), lambda: None)


@pytest.mark.parametrize(("kind", "ring_bits"), [("norm", 32), ("norm", 48), ("lanes", 32)])
def test_what_asking_proofs_takes_is_announced(
    kind: str, ring_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, reports = reported(ring_bits, kind)
    each = sizes.proof_bytes(plan)
    for threads in (1, CLIENTS):
        monkeypatch.setenv("TORCHFSL_THREADS", str(threads))
        evaluator = evaluator_of(plan)
        evaluator.folds(reports, KEY)  # what the plan keeps is made once
        evaluator.end()
        for report in reports.values():
            evaluator.take(report)
        evaluator.sums.add_waiting()
        tracemalloc.start()
        evaluator.folds(reports, KEY)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1.15 * threads * each
        assert threads > 1 or most > 0.7 * each
    assert memory(plan).proofs == CLIENTS * each


def test_no_more_are_asked_at_once_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, reports = reported(32)
    monkeypatch.setenv("TORCHFSL_THREADS", str(CLIENTS))
    real, lock = proofs.Questions.ask, threading.Lock()
    together, inside = [0], [0]
    all_here = threading.Barrier(CLIENTS)

    def counted(self: Any, *arguments: Any) -> tuple[int, bytes]:
        with lock:
            inside[0] += 1
            together[0] = max(together[0], inside[0])
        if sizes.proofs_together(plan) >= CLIENTS:
            all_here.wait(60)
        found = real(self, *arguments)
        with lock:
            inside[0] -= 1
        return found

    monkeypatch.setattr(proofs.Questions, "ask", counted)
    whole = evaluator_of(plan).folds(reports, KEY)
    assert together == [CLIENTS]
    for allowed in (2, 1):
        monkeypatch.setattr(sizes, "ASKED_BYTES", allowed * sizes.proof_bytes(plan))
        together[0] = 0
        assert evaluator_of(plan).folds(reports, KEY) == whole
        assert together[0] <= allowed
        assert memory(plan).proofs == allowed * sizes.proof_bytes(plan)

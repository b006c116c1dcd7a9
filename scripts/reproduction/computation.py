"""Table 5 and figures 6 and 7: seconds of a client and of a server."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final

from scripts.bench import measure as bench_measure
from scripts.reproduction import paper
from scripts.reproduction.one_round import Costs, measure, one_segment_plan

ROUNDS: Final = {10: 300, 15: 40, 20: 8}
"""Rounds of which the best counts, by log2 m; one for 2^25."""


def table5(*, large: bool) -> dict[str, Any]:
    """Every cell of the paper, both figures, and 2^25 weights with --large.

    Key generation is the whole client path, from indices and float values to bytes; evaluation and
    aggregation are the whole path of one server for one client, from bytes to its share of the sum.
    The largest models come first: later ones find memory that the process has touched before.
    """
    permutations = _permutations() if large else None
    biggest = [_large(bits) for bits in (32, 128)] if large else []
    measured: dict[tuple[int, int], tuple[Costs, Costs]] = {}
    for log, percent in sorted(paper.COMPUTATION, reverse=True):
        costs, beyond = (
            _run(log, percent, 128, check=False),
            _run(log, percent, 32, check=True),
        )
        measured[log, percent] = costs, beyond
        print(
            f"2^{log} {percent} %: client {costs.client_seconds:.4f} s, "
            f"server {costs.server_seconds:.4f} s"
        )
    cells = []
    for (log, percent), printed in paper.COMPUTATION.items():
        costs, beyond = measured[log, percent]
        cells.append(
            {
                "log2_m": log,
                "percent": percent,
                "paper_seconds": dict(zip(("gen", "eval", "aggregation"), printed, strict=True)),
                "not_compared": paper.SWAPPED.get((log, percent)),
                "l128": dataclasses.asdict(costs),
                "l32_check": dataclasses.asdict(beyond),
            }
        )
    figure7 = [
        {
            "percent": percent,
            **dataclasses.asdict(
                measured[15, percent][0]
                if (15, percent) in measured
                else _run(15, percent, 128, check=False)
            ),
        }
        for percent in range(10, 101, 10)
    ]
    return {
        "environment": bench_measure.environment(),
        "rounds": ROUNDS,
        "cells": cells,
        "figure7_2_15": figure7,
        "2_25_10_percent": biggest,
        "permutations_2_25_seconds": permutations,
        "peak_memory_bytes": bench_measure.peak_memory_bytes(),
    }


def _permutations() -> float:
    """Seconds of one party for the permutations of 2^25 positions."""
    plan = one_segment_plan(1 << 25, (1 << 25) // 10, ring_bits=32, check=False)
    start = time.perf_counter()
    plan.permutations(plan.segments[0])
    return time.perf_counter() - start


def _large(bits: int) -> dict[str, Any]:
    costs = _run(25, 10, bits, check=False, repeat=1)
    print(
        f"2^25 10 % l={bits}: client {costs.client_seconds:.2f}, server {costs.server_seconds:.2f}"
    )
    return {"ring_bits": bits, **dataclasses.asdict(costs)}


def _run(log: int, percent: int, bits: int, *, check: bool, repeat: int | None = None) -> Costs:
    m = 1 << log
    plan = one_segment_plan(m, max(1, m * percent // 100), ring_bits=bits, check=check)
    return measure(plan, repeat=repeat or ROUNDS[log])

"""Tables 3 and 4: how many bins an item needs, and how large bins become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.reproduction import paper
from torchfsl.fsl.cuckoo.bounds import choose_layout, stash_for
from torchfsl.kernels import backends

LOGS = (10, 15, 20, 25)
SMALL = ((10, 1), (10, 5), (10, 10), (15, 1))
"""Cells (log2 m, percent) whose failures are frequent enough to count."""


def table3(trials: int = 100_000) -> dict[str, Any]:
    """Bins an item: the paper's, ours, and how often the paper's fail where k is small."""
    factors = []
    for log in LOGS:
        row: dict[str, Any] = {"log2_m": log, "paper": paper.SCALE_FACTOR[log], "ours": {}}
        for percent in (1, 10, 30):
            k = (1 << log) * percent // 100
            layout = choose_layout(1 << log, k)
            row["ours"][percent] = {
                "k": k,
                "bins_an_item": None if layout is None else 3 * layout[0] / k,
                "stash": k if layout is None else stash_for(k),
            }
        factors.append(row)
    failures = []
    for log, percent in SMALL:
        k = (1 << log) * percent // 100
        bins = math.ceil(paper.SCALE_FACTOR[log] * k)
        count = min(trials, 20_000_000 // k)
        failed = _failures(k, bins, count)
        failures.append(
            {
                "log2_m": log,
                "percent": percent,
                "k": k,
                "bins": bins,
                "trials": count,
                "failures": failed,
                "log2_rate": math.log2(failed / count) if failed else None,
            }
        )
    return {"target_log2": -40, "factors": factors, "paper_failures": failures}


def _failures(k: int, bins: int, trials: int) -> int:
    """How often k items with three independent hashes into one table do not all find a bin.

    Placement is exact matching, the best that any insertion rule can do.
    """
    rng = np.random.default_rng(1)
    match = backends.kernels().match
    failed = 0
    for _ in range(trials):
        candidates = rng.integers(0, bins, (3, k), dtype=np.uint32)
        failed += bool((match(candidates, bins) < 0).any())
    return failed


def table4() -> dict[str, Any]:
    """Largest bin: the paper's, simple hashing run again, and our equal bins."""
    cells = []
    for percent, row in paper.MAX_BIN.items():
        for log, printed in row.items():
            m = 1 << log
            k = m * percent // 100
            layout = choose_layout(m, k)
            cells.append(
                {
                    "log2_m": log,
                    "percent": percent,
                    "paper": printed,
                    "simple_hashing": _largest_bin(m, math.ceil(paper.SCALE_FACTOR[log] * k)),
                    "ours": m if layout is None else layout[1],
                    "mechanism": "full-domain" if layout is None else "cuckoo",
                }
            )
    return {"cells": cells}


def _largest_bin(m: int, bins: int) -> int:
    """Largest bin of m items, each put into three random bins of one table."""
    rng = np.random.default_rng(2)
    sizes: npt.NDArray[np.int64] = np.zeros(bins, dtype=np.int64)
    for _ in range(3):
        sizes += np.bincount(rng.integers(0, bins, m), minlength=bins)
    return int(sizes.max())

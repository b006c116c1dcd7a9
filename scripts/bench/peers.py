"""Private retrieval beside a plain read of the table, and beside figures that others published.

    python -m scripts.bench.peers [--log-m 14 16 18 20] [--batch 32] [--repeat 9] [--json FILE]

Answers a second of one server and one thread, over tables of 2**m rows of 64 bytes: `leaf` by trees
with a leaf a row, as they later carry a report; `bits` by trees with one bit a row; `together` by
`--batch` such trees that pass over the table at once. `read` is how often the table is read and
nothing else done (NumPy's maximum of its bytes). What stands in one line is called in turns, in CPU
time, and medians count. The published figures are those of the README of GPU-DPF
(facebookresearch/GPU-DPF, commit ce23a06, "Results"): tables of 16 values of 32 bits, AES-128, on a
V100, and what it gives for google/distributed_point_functions on one thread of a CPU that it does
not name. They are of other machines, and their answers are sums of rows modulo 2**32, in shares,
where ours are XORs; no peer was built here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from scripts.bench import measure
from scripts.bench.kernels import KEY, OTHER_KEY, Keys, Shape
from scripts.program import Found, Options, option
from torchfsl.fsl.dpf.ssa import aligned_zeros
from torchfsl.kernels.backends import kernels

ROW_BYTES: Final = 64
PUBLISHED: Final = {14: (52_536, 220), 16: (15_392, 50), 18: (3_967, 13), 20: (923, 3)}
"""By log2 of the rows: answers a second of GPU-DPF on a V100, and of one CPU thread beside it."""

Calls = dict[str, tuple[Callable[[], object], int]]
"""By name a call, and the answers that it gives."""


def calls(log_m: int, batch: int) -> Calls:
    """What stands in one line."""
    m = 1 << log_m
    table = aligned_zeros(1, m, ROW_BYTES)
    table[:] = np.random.default_rng(5).integers(0, 256, table.shape, dtype=np.uint8)
    leaf = Keys(Shape("a leaf a row", 1, m, 0, ROW_BYTES // 4, 4))

    def by_bits(trees: int) -> Callable[[], object]:
        keys = Keys(Shape("128 rows a leaf", trees, m // 128, 0, ROW_BYTES // 4, 4))
        arrays = (*keys.trees[:3], keys.leaf0, table)
        return lambda: kernels().answer_bits(KEY, OTHER_KEY, *arrays, 1)

    return {
        "leaf": (lambda: kernels().answer(KEY, *leaf.trees, table, 1), 1),
        "bits": (by_bits(1), 1),
        "together": (by_bits(batch), batch),
        "read": (lambda: table.max(), 1),
    }


def seconds_of(call: Callable[[], object], least: float) -> float:
    """CPU seconds of a call, the mean of as many as take `least`."""
    start, count = time.thread_time(), 0
    while (spent := time.thread_time() - start) < least or not count:
        call()
        count += 1
    return spent / count


def line(log_m: int, options: Options) -> dict[str, Any]:
    """Answers a second, by name."""
    turns: dict[str, list[float]] = {}
    line_of = calls(log_m, options.batch)
    for turn in range(options.repeat + 1):
        for name, (call, answers) in line_of.items():
            seconds = seconds_of(call, options.least)
            if turn:
                turns.setdefault(name, []).append(answers / seconds)
    rates = {name: statistics.median(each) for name, each in turns.items()}
    published = dict(zip(("gpu_dpf_v100", "cpu_published"), PUBLISHED.get(log_m, ()), strict=False))
    return {"log_m": log_m, "answers_per_second": rates, "turns": turns, "published": published}


@measure.benchmark(
    option("--log-m", list(PUBLISHED), "rows, log2"),
    option("--batch", 32, "trees that pass together"),
    option("--repeat", 9, "turns that count"),
    option("--least", 0.05, "CPU seconds of a turn"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    names = ("leaf", "bits", "together", "read", "V100", "1 CPU thread")
    print("answers/s, one thread" + "".join(f"{name:>14}" for name in names))
    figures["lines"] = []
    for log_m in options.log_m:
        row = line(log_m, options)
        numbers = [*row["answers_per_second"].values(), *row["published"].values()]
        print(f"2**{log_m:<18}" + "".join(f"{number:14,.0f}" for number in numbers), flush=True)
        figures["lines"].append(row)

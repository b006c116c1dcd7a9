"""Products modulo 2**32 - 5, the kernel of one server's protocol: multiplications a CPU second.

    python -m scripts.bench.field [--shape 100 54 20000] [--repeat 20] [--json FILE]

The shape is rows, terms and columns: by default what a client's shares take for 100 members, of
whom 50 may collude, and four submodels, in pieces of 20,000 values. Time is that of the processor,
all threads together, so that neighbours on the machine count little. `TORCHFSL_CPU_PATH` forces
another path.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.crypto.field import MODULUS
from torchfsl.kernels import backends, portable


def rates(kernels: Any, shape: tuple[int, int, int], repeat: int) -> dict[str, float]:
    """Multiplications a CPU second: the best call's, and the median over all."""
    rows, terms, columns = shape
    draw = np.random.default_rng(0)
    left = draw.integers(0, MODULUS, (rows, terms), dtype=np.uint32)
    right = draw.integers(0, MODULUS, (terms, columns), dtype=np.uint32)
    kernels.field_multiply(left, right)
    seconds = measure.cpu_seconds(lambda: kernels.field_multiply(left, right), repeat)
    work = float(rows) * terms * columns
    return {"best": work / min(seconds), "median": work / statistics.median(seconds)}


@measure.benchmark(
    option("--shape", [100, 54, 20_000], nargs=3, metavar=("ROWS", "TERMS", "COLUMNS")),
    option("--repeat", 20, "calls of each kernel"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    for name, module in {backends.backend(): backends.kernels(), "portable": portable}.items():
        figures[name] = rates(module, tuple(options.shape), options.repeat)
        for kind, rate in figures[name].items():
            measure.print_figure(f"{name}, {kind}, G/CPU s", rate / 1e9)

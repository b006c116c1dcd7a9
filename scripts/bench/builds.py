"""Two builds of the native kernels side by side, to see whether the new one is slower.

    python -m scripts.bench.builds OLD.so NEW.so [--kernel accumulate] [--repeat 15] [--json FILE]

Each is a file `_native*.so`, as CMake or pip makes it. Every case of `scripts.bench.kernels` is
called by both in turns, on one thread, and the first to go changes from turn to turn; what counts
is CPU time, since the machine may have other work. `new to old` is the median over the turns of
the new build's time through the old one's: 1.02 is 2 % slower. `share` is that of the ceiling: the
new build's AES blocks through those that its hash alone makes in the same turn. The environment's
`TORCHFSL_CPU_PATH` names the path.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from scripts.bench import kernels, measure
from scripts.bench.kernels import all_cases
from scripts.program import Found, Options, option

_CEILING_BLOCKS: Final = 1 << 22


def load(file: Path, name: str) -> ModuleType:
    """The extension in `file`; one process holds both builds under different names."""
    spec = importlib.util.spec_from_file_location(f"{name}._native", file.resolve())
    if spec is None or spec.loader is None:
        sys.exit(f"{file} is not an extension module: pass the path of a file _native*.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(
    builds: list[ModuleType], repeat: int, wanted: str, small: bool = False
) -> Iterator[dict[str, Any]]:
    """Seconds of both builds for every case whose name has `wanted` in it."""
    active = builds[0]
    kernels.kernels = lambda: active  # type: ignore[attr-defined]
    for case in all_cases(small):
        if wanted not in case.name:
            continue
        turns: list[list[float]] = []
        for turn in range(repeat + 1):
            seconds = [0.0, 0.0]
            for which in (0, 1) if turn % 2 else (1, 0):
                active = builds[which]
                start = time.thread_time()
                case.call(1)
                seconds[which] = time.thread_time() - start
            start = time.thread_time()
            builds[1].aes_ceiling(_CEILING_BLOCKS, 1)
            turns.append([*seconds, time.thread_time() - start])
        old, new = (statistics.median(t[which] for t in turns[1:]) for which in (0, 1))
        share = statistics.median(case.blocks / t[1] * t[2] / _CEILING_BLOCKS for t in turns[1:])
        shape = case.shape
        row = {"kernel": case.name, "rows_a_leaf": 1 << shape.nu}
        row |= {"row_bytes": shape.row * shape.width, "old_seconds": old, "new_seconds": new}
        row["turns"] = turns[1:]
        row["new_to_old"] = statistics.median(b / a for a, b, _ in turns[1:])
        row |= {"share": share, "per_second": case.count / new}
        yield row | {"bytes_per_second": case.moved / new}


@measure.benchmark(
    option("old", Path, "extension to compare with"),
    option("new", Path, "extension that may be slower"),
    option("--kernel", "", "only kernels with this in their name"),
    option("--repeat", 15, "turns that count"),
    option("--small", False, "few trees"),
)
def main(options: Options, figures: Found) -> None:
    """Compare and print."""
    builds = [load(options.old, "old"), load(options.new, "new")]
    print(
        f"{'kernel':24}{'a leaf':>7}{'row':>5}{'old ms':>10}{'new ms':>10}"
        f"{'M/s':>9}{'share':>7}{'GB/s':>7}{'new to old':>12}"
    )
    figures["kernels"] = []
    for row in compare(builds, options.repeat, options.kernel, options.small):
        print(
            f"{row['kernel']:24}{row['rows_a_leaf']:>7}{row['row_bytes']:>5}"
            f"{1e3 * row['old_seconds']:>10.2f}{1e3 * row['new_seconds']:>10.2f}"
            f"{row['per_second'] / 1e6:>9.1f}{row['share']:>7.0%}"
            f"{row['bytes_per_second'] / 1e9:>7.1f}{row['new_to_old']:>12.3f}",
            flush=True,
        )
        figures["kernels"].append(row)

"""Kernels one by one: throughput, and AES blocks a second against the ceiling of the same run.

    python -m scripts.bench.kernels [--small] [--threads 1 2] [--json FILE]

Shapes: 13,008 bins of 240 rows with 64-bit values (leaf blocks of 1, 2, 4 and 8 rows), DIN's table
of 197,372 rows of 18 values in bins, and one tree over 2**20 rows of 64 bytes, for answers alone. A
kernel counts what it computes: keys, rows of the index space, or bytes, and AES blocks. Reports
that are added together differ and are read from memory, but for one line that adds a single report
again and again from the cache. The ceiling is the rate of the fixed-key hash on data in the
first-level cache, with as many threads, measured after every call for as long as the call took.
Rates are those of the best call; a share is the best call's blocks a second through the best
ceiling, and beside it stands the median over the calls, each against the ceiling right after it.
Row digests, a gather and the order of keys have no AES and no share.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torchfsl
from scripts.bench import measure
from scripts.bench.kernel_cases import (
    Case,
    Keys,
    client_cases,
    gather_case,
    one_tree_cases,
    order_case,
    retrieval_cases,
    server_cases,
    shapes,
)


def ceiling_seconds(blocks: int, threads: int) -> float:
    """How long the fixed-key hash alone takes for `blocks` blocks, on this many threads."""
    from torchfsl.kernels import _native

    return _native.aes_ceiling(max(1, blocks // threads), threads)


def time_in_pairs(case: Case, threads: int, small: bool) -> tuple[list[float], list[float]]:
    """Seconds of calls, and the ceiling's blocks a second right after each of them.

    A ceiling is measured for about as long as the call took: the clock changes, neighbours come
    and go, and a shorter ceiling would find better moments than a longer kernel.
    """
    pairs, least = (1, 0.0) if small else (9, 1.2)
    few = 1 << (14 if small else 20)  # of which starting threads is no part worth mentioning
    native = torchfsl.backend() == "native"
    rate = few / ceiling_seconds(few, threads) if native else 0.0
    timed(case, threads)
    seconds: list[float] = []
    ceilings: list[float] = []
    until = time.perf_counter() + least
    while len(seconds) < pairs or time.perf_counter() < until:
        seconds.append(timed(case, threads))
        if native:
            hashes = max(few, int(rate * seconds[-1]))
            ceilings.append(hashes / ceiling_seconds(hashes, threads))
    return seconds, ceilings


def timed(case: Case, threads: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    case.call(threads)
    return time.perf_counter() - start


def figures_of(case: Case, threads: int, small: bool) -> dict[str, Any]:
    """Figures of one kernel: the rates of its best call, and its share of the ceiling."""
    all_seconds, ceilings = time_in_pairs(case, threads, small)
    seconds, shape = min(all_seconds), case.shape
    share = median_share = None
    if case.blocks and ceilings:
        share = case.blocks / seconds / max(ceilings)
        pairs = zip(all_seconds, ceilings, strict=True)
        median_share = statistics.median(case.blocks / own / top for own, top in pairs)
    return {
        "kernel": case.name,
        "trees": shape.trees,
        "rows": shape.rows,
        "rows_a_leaf": 1 << shape.nu,
        "row_bytes": shape.row * shape.width,
        "threads": threads,
        "seconds": seconds,
        "unit": case.unit,
        "per_second": case.count / seconds,
        "aes_blocks": case.blocks,
        "blocks_per_second": case.blocks / seconds,
        "share_of_ceiling": share,
        "median_share_of_ceiling": median_share,
        "bytes_moved": case.moved,
        "bytes_per_second": case.moved / seconds,
    }


def all_cases(small: bool) -> Iterator[Case]:
    """Of all shapes; the arrays of one shape at a time."""
    for shape in shapes(small):
        keys = Keys(shape)
        yield from client_cases(keys)
        yield from server_cases(keys)
        if shape.row > 1:
            yield from retrieval_cases(keys)
        if shape.nu == 0:
            yield gather_case(shape)
            yield order_case(shape)
    yield from one_tree_cases(14 if small else 20, 64)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All figures, printed as they come."""
    figures: list[dict[str, Any]] = []
    print(f"{'kernel':24}{'a leaf':>7}{'row':>5}{'threads':>9}{'ms':>10}{'M/s':>10} {'':5}"
          f"{'M blocks/s':>11}{'ceiling':>9}{'median':>8}{'GB/s':>7}{'times one':>11}")  # fmt: skip
    for case in all_cases(options.small):
        first = None
        for threads in options.threads:
            row = figures_of(case, threads, options.small)
            first = first or row["seconds"]
            row["times_first"] = first / row["seconds"]
            figures.append(row)
            show(row)
    return figures


def show(row: dict[str, Any]) -> None:
    """One line."""
    shares = (row["share_of_ceiling"], row["median_share_of_ceiling"])
    percent, median = (f"{share:.0%}" if share else "-" for share in shares)
    print(
        f"{row['kernel']:24}{row['rows_a_leaf']:>7}{row['row_bytes']:>5}{row['threads']:>9}"
        f"{1e3 * row['seconds']:>10.3f}{row['per_second'] / 1e6:>10.1f} {row['unit']:5}"
        f"{row['blocks_per_second'] / 1e6:>11.0f}{percent:>9}{median:>8}"
        f"{row['bytes_per_second'] / 1e9:>7.1f}{row['times_first']:>11.2f}",
        flush=True,
    )


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("--small", action="store_true", help="few trees, one repetition")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="threads to try")
    options = parser.parse_args()
    figures = measure.begin(options)
    for threads in options.threads:
        name = f"memory_bytes_per_second_{threads}"
        figures["environment"][name] = measure.memory_bytes_per_second(threads)
        measure.print_figure(name, figures["environment"][name])
    print()
    figures["kernels"] = run(options)
    measure.finish(options, figures)


if __name__ == "__main__":
    main()

"""Kernels side by side: what is compared is called in turns, and its CPU time is taken.

    python -m scripts.bench.turns [answers] [order] [gather] [--log-m 20] [--repeat 9] [--json FILE]

`answers`: over DIN's table of 197,372 rows of 72 bytes in bins, without tags, with tags, with tags
to eight clients together, and the digests that a server makes once a model; each is a row of the
table for one client. `order`: that of 2**m random 64-bit keys, by NumPy and by
the kernel that puts permutations in order. `gather`: three scattered rows of 4 bytes into each of
2**m rows, beside the same sums where the slots are in order, which is what memory gives to reads
one after the other. Plain memory stands beside both: a copy of the keys, and all of them written to
their places where these are known; and NumPy's `take` of one scattered number a row, three times.
One thread; a median counts, since calls of CPU time have no best moment of a neighbour's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.bench.kernel_cases import Keys, retrieval_cases, shapes
from torchfsl.fsl.cuckoo.placement import Slots
from torchfsl.fsl.dpf.ssa import aligned_zeros
from torchfsl.kernels import portable
from torchfsl.kernels.backends import kernels

Turns = dict[str, tuple[Callable[[], object], int, int]]
"""By name a call, the bytes of the arrays that it reads, and its rows or keys."""


def answers(log_m: int) -> Turns:
    """Retrieval of DIN's shape, whatever `log_m`."""
    keys = Keys(next(shape for shape in shapes(False) if shape.row > 1))
    return {
        case.name: (lambda case=case: case.call(1), case.moved, case.count)  # type: ignore[misc]
        for case in retrieval_cases(keys)
    }


def order(log_m: int) -> Turns:
    """Permutations."""
    keys = np.random.default_rng(4).integers(0, 2**64, 1 << log_m, dtype=np.uint64)
    copy, places = np.zeros_like(keys), kernels().stable_order(keys, 2).astype(np.intp)

    def write() -> None:
        copy[places] = keys

    size, count = keys.nbytes, len(keys)
    return {
        "copy of the keys": (lambda: np.copyto(copy, keys), 2 * size, count),
        "written to known places": (write, 2 * size, count),
        "order by NumPy": (lambda: portable.stable_order(keys), size, count),
        "order by the kernel": (lambda: kernels().stable_order(keys, 1), size, count),
    }


def gather(log_m: int) -> Turns:
    """Sums of three rows, at places of a permutation and at places in order."""
    m = 1 << log_m
    bins, out = aligned_zeros(3 * m, 4), aligned_zeros(m, 4)
    bins += 1  # memory that was never written is one page of zeros, which a cache holds
    in_order = np.arange(3 * m, dtype=np.uint32).reshape(3, m)
    rng = np.random.default_rng(3)
    keys = (rng.integers(0, 2**64, m, dtype=np.uint64) for _ in range(3))
    scattered = np.stack([kernels().stable_order(k, 2) for k in keys])
    scattered += in_order[:, :1]
    numbers, places = bins.view("<u4")[:, 0], [part.astype(np.intp) for part in scattered]
    taken = np.empty(m, dtype="<u4")

    def take() -> None:
        for part in places:
            np.take(numbers, part, out=taken, mode="clip")

    size = bins.nbytes + in_order.nbytes + 2 * out.nbytes

    def gathered(slots: Slots) -> Callable[[], None]:
        return lambda: kernels().gather(bins, slots, out, 4, 1)

    found: Turns = {"three takes": (take, size, m)}
    return found | {
        name: (gathered(slots), size, m)
        for name, slots in (("gather", scattered), ("the same in order", in_order))
    }


SUBJECTS: dict[str, Callable[[int], Turns]] = {
    "answers": answers, "order": order, "gather": gather,
}  # fmt: skip


def in_turns(turns: Turns, repeat: int) -> Iterator[dict[str, Any]]:
    """Medians, after one call of each that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(repeat + 1):
        for name, (call, *_) in turns.items():
            start = time.thread_time()
            call()
            if number:
                seconds[name].append(time.thread_time() - start)
    first = statistics.median(seconds[next(iter(turns))])
    for name, (_, size, count) in turns.items():
        median = statistics.median(seconds[name])
        yield {
            "name": name, "cpu_seconds": median, "all_cpu_seconds": seconds[name],
            "bytes_per_second": size / median, "ns_each": 1e9 * median / count,
            "of_the_first": median / first,
        }  # fmt: skip


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("subjects", nargs="*", default=[], help=", ".join(SUBJECTS))
    parser.add_argument("--log-m", type=int, default=20, help="rows of `order` and `gather`")
    parser.add_argument("--repeat", type=int, default=9, help="calls of each that count")
    options = parser.parse_args()
    figures = measure.begin(options)
    rows: list[dict[str, Any]] = []
    for subject in options.subjects or SUBJECTS:
        for row in in_turns(SUBJECTS[subject](options.log_m), options.repeat):
            print(f"{row['name']:24}{1e3 * row['cpu_seconds']:>10.2f} ms"
                  f"{row['ns_each']:>9.2f} ns each{row['bytes_per_second'] / 1e9:>8.1f} GB/s"
                  f"{row['of_the_first']:>8.2f}",
                  flush=True)  # fmt: skip
            rows.append(row)
    figures["turns"] = rows
    measure.finish(options, figures)


if __name__ == "__main__":
    main()

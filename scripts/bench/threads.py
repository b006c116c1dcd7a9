"""What threads kept between the calls of kernels could save at most in a round of DIN's shape.

    python -m scripts.bench.threads [--clients 100] [--repeat 401] [--json FILE]

A kernel that may use several threads starts them in each call. What that costs is measured on one
that does the least for which two are started: its seconds by two threads, less half of those by
one (digests of 2**12 rows of 72 bytes; medians, calls of both by turns). What a round has of such
calls is counted in one with eight clients ahead: every call that is given more than one thread,
whether or not its work is enough for a second. Both together bound the saving. Wants a quiet
machine of two cores or more.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from scripts.bench import measure
from scripts.bench.round import Rounds
from torchfsl.kernels.backends import KERNELS, kernels, num_threads

AHEAD = 8
ROWS = 1 << 12


def start_seconds(repeat: int) -> float:
    """What a second thread costs a call, by the clock."""
    rows = np.zeros((ROWS, 72), dtype=np.uint8)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(repeat):
        for threads, found in seconds.items():
            start = time.perf_counter()
            kernels().row_digests(bytes(16), rows, threads)
            found.append(time.perf_counter() - start)
    return statistics.median(seconds[2]) - statistics.median(seconds[1]) / 2


@contextmanager
def counted(threads: int) -> Iterator[Counter[str]]:
    """Calls of kernels that are given that many threads, meanwhile."""
    module, calls = kernels(), Counter[str]()
    kept: dict[str, Any] = {name: getattr(module, name) for name in KERNELS}

    def counting(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            last = named.get("num_threads", given[-1] if given else None)
            calls[name] += type(last) is int and last == threads
            return kernel(*given, **named)

        return call

    try:
        for name, kernel in kept.items():
            setattr(module, name, counting(name, kernel))
        yield calls
    finally:
        for name, kernel in kept.items():
            setattr(module, name, kernel)


def main() -> None:
    """Parse the command line, run, print, write."""
    parser = measure.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=100, help="clients in the round")
    parser.add_argument("--repeat", type=int, default=401, help="calls by one and by two threads")
    options = parser.parse_args()
    figures = measure.begin(options)
    if num_threads() < 2:
        parser.error("this process may use one thread: nothing is started")
    each = start_seconds(options.repeat)
    rounds = Rounds(options.clients, AHEAD, time.perf_counter)
    rounds.run(0)
    with counted(num_threads()) as calls:
        start = time.perf_counter()
        both = rounds.run(1)["both_servers_seconds"]
        whole = time.perf_counter() - start
    starts = calls.total() * (num_threads() - 1)
    figures |= {
        "start_seconds": each, "calls": dict(calls), "starts": starts,
        "round_seconds": whole, "both_servers_seconds": both,
        "saved_at_most": starts * each / whole,
    }  # fmt: skip
    for name in ("start_seconds", "calls", "starts", "round_seconds", "both_servers_seconds",
                 "saved_at_most"):  # fmt: skip
        measure.print_figure(name, figures[name])
    measure.finish(options, figures)


if __name__ == "__main__":
    main()

"""Kernels one by one: throughput, and AES blocks per second against the run's ceiling.

    python -m scripts.bench.kernels [--small] [--threads 1 2] [--json FILE]

The first shapes are 13,008 bins of 240 rows with 64-bit values (leaf blocks of 1, 2, 4 and 8 rows).
The others are DIN's table of 197,372 rows of 18 values in bins, and one tree over 2**20 rows of 64
bytes, for answers alone. A kernel counts what it computes: keys, rows of the index space, or bytes,
and AES blocks. Reports that are added together differ and are read from memory. One line is an
exception: it adds a single report again and again from the cache.

The ceiling is the rate of the fixed-key hash on data in the first-level cache, with as many
threads. The program measures it after every call for as long as the call took. Rates are those of
the best call. A share is the best call's blocks per second divided by the best ceiling. The column
next to it has the median over the calls, each divided by the ceiling right after it. Row digests, a
gather and the order of keys have no AES and no share.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import torchfsl
from scripts.bench import measure
from scripts.program import Found, Options, option
from torchfsl.fsl.dpf.ssa import aligned_zeros
from torchfsl.kernels.backends import kernels
from torchfsl.types import Bytes

KEY, OTHER_KEY = bytes(range(16)), bytes(range(16, 32))

LEAF_HASH_BLOCKS, CHECK_BLOCKS = 3, 5

REPORTS = 32
"""Reports that a server adds together."""

REQUESTS = 8
"""Requests of different clients that a server answers together."""


@dataclass(frozen=True)
class Shape:
    """Trees of one kind: `nu` rows of `row` ring values of `width` bytes share a leaf."""

    name: str
    trees: int
    rows: int
    nu: int
    row: int
    width: int

    @property
    def leaves(self) -> int:
        """Leaf blocks of a tree."""
        return -(-self.rows >> self.nu)

    @property
    def depth(self) -> int:
        """Levels of a tree."""
        return (self.leaves - 1).bit_length()

    @property
    def payload(self) -> int:
        """Bytes of a leaf block."""
        return (self.row * self.width) << self.nu

    @property
    def tree_blocks(self) -> int:
        """AES blocks of expanding all trees."""
        nodes = sum(-(-self.leaves >> (self.depth - level)) for level in range(self.depth))
        return 2 * self.trees * nodes

    @property
    def convert_blocks(self) -> int:
        """AES blocks of the output of all leaves."""
        return self.trees * self.leaves * -(-self.payload // 16)


@dataclass(frozen=True)
class Case:
    """A kernel's call and what it computes; `call` takes the number of threads."""

    name: str
    shape: Shape
    call: Callable[[int], Any]
    count: int
    unit: str
    blocks: int
    moved: int = 0


def called(name: str, *arguments: Any) -> Callable[[int], Any]:
    """A call of a kernel; takes the number of threads."""
    return lambda threads: getattr(kernels(), name)(*arguments, threads)


class Keys:
    """Trees, hints and everything else that the kernels take."""

    def __init__(self, shape: Shape) -> None:
        rng = np.random.default_rng(0)
        self.shape, trees = shape, shape.trees
        self.roots = [rng.integers(0, 256, (trees, 16), dtype=np.uint8) for _ in (0, 1)]
        for party in (0, 1):
            self.roots[party][:, 0] = self.roots[party][:, 0] & 0xFE | party
        rows = rng.integers(0, shape.rows, trees, dtype=np.uint64)
        self.alpha = rows >> np.uint64(shape.nu)
        self.slots = rows & np.uint64((1 << shape.nu) - 1)
        self.values = rng.integers(0, 256, (trees, shape.row * shape.width), dtype=np.uint8)
        self.cw, self.right, self.leaf0, self.leaf1 = self.generate()
        self.hints = self.hint()

    def generate(self, threads: int = 1) -> Any:
        """All trees."""
        return kernels().tree_gen(KEY, *self.roots, self.alpha, self.shape.depth, threads)

    def hint(self, threads: int = 1) -> Bytes:
        """All hints."""
        leaves, width = (self.leaf0, self.leaf1), self.shape.width
        hints: Bytes = kernels().hint_gen(
            OTHER_KEY, *leaves, self.values, self.slots, self.shape.nu, width, threads
        )
        return hints

    @property
    def trees(self) -> tuple[Bytes, Bytes, Bytes, int]:
        """Arguments of every kernel over all leaves."""
        return self.roots[0], self.cw, self.right, self.shape.leaves


def client_cases(keys: Keys) -> Iterator[Case]:
    """Trees, check words and hints."""
    shape, depth = keys.shape, keys.shape.depth
    made = sum(array.nbytes for array in (keys.cw, keys.right, keys.leaf0, keys.leaf1))
    blocks = 4 * depth * shape.trees
    yield Case("key generation", shape, keys.generate, shape.trees, "keys", blocks, made)
    words = called("check_gen", KEY, keys.leaf0, keys.leaf1, keys.alpha, 0)
    blocks = 2 * LEAF_HASH_BLOCKS * shape.trees
    yield Case("check words", shape, words, shape.trees, "keys", blocks, 32 * shape.trees)
    blocks = 2 * shape.trees * -(-shape.payload // 16)
    yield Case("hints", shape, keys.hint, shape.trees, "keys", blocks, keys.hints.nbytes)


def server_cases(keys: Keys) -> Iterator[Case]:
    """Evaluation with accumulation, the check, and both."""
    shape = keys.shape
    rows = shape.trees * shape.rows
    total = aligned_zeros(shape.trees, shape.leaves, shape.payload)
    words = kernels().check_gen(KEY, keys.leaf0, keys.leaf1, keys.alpha, 0)
    rng = np.random.default_rng(1)
    masks = [
        rng.integers(0, 256, size, dtype=np.uint8)
        for size in ((shape.trees, 16), (1024, 2, 16), (-(-shape.leaves // 1024), 16))
    ]

    arrays = (*keys.trees[:3], keys.hints)
    reports = [(KEY, OTHER_KEY, *(a.copy() for a in arrays)) for _ in range(REPORTS)]

    def accumulate(threads: int, jobs: list[Any]) -> None:
        kernels().accumulate_batch(jobs, shape.leaves, 0, shape.width, total, threads)

    def verify(threads: int) -> None:
        for _, _, roots, cw, right, _ in reports:
            trees = (roots, cw, right, shape.leaves)
            kernels().verify(KEY, OTHER_KEY, *trees, words, 0, KEY, *masks, threads)

    def both(threads: int) -> None:
        verify(threads)
        accumulate(threads, reports)

    summing = shape.tree_blocks + shape.convert_blocks
    checking = shape.tree_blocks + CHECK_BLOCKS * shape.trees * shape.leaves
    if shape.trees * shape.leaves * 16 < 1 << 27:
        call, size = called("tree_eval", KEY, *keys.trees), 16 * shape.trees * shape.leaves
        yield Case("evaluate alone", shape, call, rows, "rows", shape.tree_blocks, size)
    one = 2 * total.nbytes
    for name, jobs in (
        ("accumulate, 1 report", reports[:1]),
        (f"accumulate, {REPORTS} reports", reports),
        ("the same, keys in cache", [(KEY, OTHER_KEY, *arrays)] * REPORTS),
    ):
        call = functools.partial(accumulate, jobs=jobs)
        count = len(jobs)
        yield Case(name, shape, call, count * rows, "rows", count * summing, count * one)
    many = REPORTS * rows
    yield Case(f"verify, {REPORTS} reports", shape, verify, many, "rows", REPORTS * checking)
    blocks = REPORTS * (summing + checking)
    yield Case("verify, accumulate", shape, both, many, "rows", blocks, REPORTS * one)


def retrieval_cases(keys: Keys) -> Iterator[Case]:
    """Answers over a table of the same shape, without tags and with them."""
    shape = keys.shape
    rng = np.random.default_rng(2)
    table = aligned_zeros(shape.trees, shape.leaves, shape.payload)
    table[:] = rng.integers(0, 256, table.shape, dtype=np.uint8)
    rows = shape.trees * shape.rows

    def digest(threads: int) -> Bytes:
        made: Bytes = kernels().row_digests(KEY, table.reshape(-1, shape.payload), threads)
        return made

    digests = digest(1).reshape(*table.shape[:2], 16)
    yield Case("row digests", shape, digest, rows, "rows", 0, table.nbytes)
    answer = called("answer", KEY, *keys.trees, table)
    yield Case("answer", shape, answer, rows, "rows", shape.tree_blocks, table.nbytes)
    tagged, blocks = (table, digests), shape.tree_blocks + shape.trees * shape.leaves
    call = called("authenticate", KEY, OTHER_KEY, *keys.trees, *tagged)
    yield Case("answer with tags", shape, call, rows, "rows", blocks, table.nbytes)
    requests = [
        (KEY, OTHER_KEY, *(array.copy() for array in keys.trees[:3])) for _ in range(REQUESTS)
    ]
    call = called("authenticate_batch", requests, shape.leaves, *tagged)
    count, blocks, size = REQUESTS * rows, REQUESTS * blocks, REQUESTS * table.nbytes
    yield Case(f"{REQUESTS} of these together", shape, call, count, "rows", blocks, size)


def one_tree_cases(log_rows: int, row_bytes: int) -> Iterator[Case]:
    """Answers to one tree over a whole table: a leaf a row, and one bit a row."""
    shape = Shape(f"{row_bytes} bytes a row, one tree", 1, 1 << log_rows, 0, row_bytes // 4, 4)
    rng = np.random.default_rng(5)
    table = aligned_zeros(1, shape.rows, row_bytes)
    table[:] = rng.integers(0, 256, table.shape, dtype=np.uint8)
    keys = Keys(shape)
    call = called("answer", KEY, *keys.trees, table)
    yield Case("answer", shape, call, shape.rows, "rows", shape.tree_blocks, table.nbytes)
    by_bits = dataclasses.replace(shape, rows=shape.rows // 128)
    bit_keys, blocks = Keys(by_bits), by_bits.tree_blocks + by_bits.rows
    call = called("answer_bits", KEY, OTHER_KEY, *bit_keys.trees[:3], bit_keys.leaf0, table)
    yield Case("answer by bits", shape, call, shape.rows, "rows", blocks, table.nbytes)


def gather_case(shape: Shape) -> Case:
    """Three scattered rows of the bins into every row of the index space."""
    m, row = shape.trees * shape.rows // 3, shape.row * shape.width
    slots = 3 * m
    rng = np.random.default_rng(3)
    places = np.stack([rng.permutation(slots)[:m] for _ in range(3)]).astype(np.uint32)
    bins = np.ones((slots, row), dtype=np.uint8)  # zeros may be one page that a cache holds
    out = np.zeros((m, row), dtype=np.uint8)
    moved = 5 * m * row + places.nbytes
    return Case(
        "gather", shape, called("gather", bins, places, out, shape.width), m, "rows", 0, moved
    )


def order_case(shape: Shape) -> Case:
    """The order of as many keys as the index space has rows: a permutation of a session."""
    m = shape.trees * shape.rows // 3
    keys = np.random.default_rng(4).integers(0, 2**64, m, dtype=np.uint64)
    return Case("order of keys", shape, called("stable_order", keys), m, "keys", 0, 12 * m)


def shapes(small: bool) -> list[Shape]:
    """Full shapes, or ones that take a moment."""
    trees, table = (96, 96) if small else (13_008, 1_752)
    narrow = [Shape("8 bytes a row", trees, 240, nu, 1, 8) for nu in range(4)]
    return [*narrow, Shape("72 bytes a row", table, 338, 0, 18, 4)]


def ceiling_seconds(blocks: int, threads: int) -> float:
    """How long the fixed-key hash alone takes for `blocks` blocks, on this many threads."""
    from torchfsl.kernels import _native

    return _native.aes_ceiling(max(1, blocks // threads), threads)


def time_in_pairs(case: Case, threads: int, small: bool) -> tuple[list[float], list[float]]:
    """Seconds of calls, and the ceiling's blocks per second right after each call.

    The program measures a ceiling for about as long as the call took. The clock changes and other
    programs come and go, so that a shorter ceiling would find better moments than a longer kernel.
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


def run(options: Options) -> list[dict[str, Any]]:
    """All figures, printed as they come."""
    figures: list[dict[str, Any]] = []
    print(
        f"{'kernel':24}{'a leaf':>7}{'row':>5}{'threads':>9}{'ms':>10}{'M/s':>10} {'':5}"
        f"{'M blocks/s':>11}{'ceiling':>9}{'median':>8}{'GB/s':>7}{'times one':>11}"
    )
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


@measure.benchmark(
    option("--small", False, "few trees, one repetition"),
    option("--threads", [1, 2], "threads to try"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    for threads in options.threads:
        name = f"memory_bytes_per_second_{threads}"
        figures["environment"][name] = measure.memory_bytes_per_second(threads)
        measure.print_figure(name, figures["environment"][name])
    print()
    figures["kernels"] = run(options)

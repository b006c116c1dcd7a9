"""What `kernels.py` times: shapes of trees, and a call of every kernel on them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.dpf.ssa import aligned_zeros
from torchfsl.kernels.backends import kernels

Bytes = npt.NDArray[np.uint8]


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
        return kernels().hint_gen(  # type: ignore[no-any-return]
            OTHER_KEY, self.leaf0, self.leaf1, self.values, self.slots, self.shape.nu,
            self.shape.width, threads,
        )  # fmt: skip

    @property
    def trees(self) -> tuple[Bytes, Bytes, Bytes, int]:
        """Arguments of every kernel over all leaves."""
        return self.roots[0], self.cw, self.right, self.shape.leaves


def client_cases(keys: Keys) -> Iterator[Case]:
    """Trees, check words and hints."""
    shape, depth = keys.shape, keys.shape.depth
    made = sum(array.nbytes for array in (keys.cw, keys.right, keys.leaf0, keys.leaf1))
    yield Case("key generation", shape, keys.generate, shape.trees, "keys",
               4 * depth * shape.trees, made)  # fmt: skip
    yield Case(
        "check words", shape,
        lambda threads: kernels().check_gen(KEY, keys.leaf0, keys.leaf1, keys.alpha, 0, threads),
        shape.trees, "keys", 2 * LEAF_HASH_BLOCKS * shape.trees, 32 * shape.trees,
    )  # fmt: skip
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
        yield Case(
            "evaluate alone", shape,
            lambda threads: kernels().tree_eval(KEY, *keys.trees, threads),
            rows, "rows", shape.tree_blocks, 16 * shape.trees * shape.leaves,
        )  # fmt: skip
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
    yield Case("verify, accumulate", shape, both, many, "rows", REPORTS * (summing + checking),
               REPORTS * one)  # fmt: skip


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
    yield Case(
        "answer", shape, lambda threads: kernels().answer(KEY, *keys.trees, table, threads),
        rows, "rows", shape.tree_blocks, table.nbytes,
    )  # fmt: skip
    yield Case(
        "answer with tags", shape,
        lambda threads: kernels().authenticate(
            KEY, OTHER_KEY, *keys.trees, table, digests, threads
        ),
        rows, "rows", shape.tree_blocks + shape.trees * shape.leaves, table.nbytes,
    )  # fmt: skip
    requests = [
        (KEY, OTHER_KEY, *(array.copy() for array in keys.trees[:3])) for _ in range(REQUESTS)
    ]
    yield Case(
        f"{REQUESTS} of these together", shape,
        lambda threads: kernels().authenticate_batch(
            requests, shape.leaves, table, digests, threads
        ),
        REQUESTS * rows, "rows", REQUESTS * (shape.tree_blocks + shape.trees * shape.leaves),
        REQUESTS * table.nbytes,
    )  # fmt: skip


def one_tree_cases(log_rows: int, row_bytes: int) -> Iterator[Case]:
    """Answers to one tree over a whole table: a leaf a row, and one bit a row."""
    shape = Shape(f"{row_bytes} bytes a row, one tree", 1, 1 << log_rows, 0, row_bytes // 4, 4)
    rng = np.random.default_rng(5)
    table = aligned_zeros(1, shape.rows, row_bytes)
    table[:] = rng.integers(0, 256, table.shape, dtype=np.uint8)
    keys = Keys(shape)
    yield Case(
        "answer", shape, lambda threads: kernels().answer(KEY, *keys.trees, table, threads),
        shape.rows, "rows", shape.tree_blocks, table.nbytes,
    )  # fmt: skip
    blocks = dataclasses.replace(shape, rows=shape.rows // 128)
    bit_keys = Keys(blocks)
    yield Case(
        "answer by bits", shape,
        lambda threads: kernels().answer_bits(
            KEY, OTHER_KEY, *bit_keys.trees[:3], bit_keys.leaf0, table, threads
        ),
        shape.rows, "rows", blocks.tree_blocks + blocks.rows, table.nbytes,
    )  # fmt: skip


def gather_case(shape: Shape) -> Case:
    """Three scattered rows of the bins into every row of the index space."""
    m, row = shape.trees * shape.rows // 3, shape.row * shape.width
    slots = 3 * m
    rng = np.random.default_rng(3)
    places = np.stack([rng.permutation(slots)[:m] for _ in range(3)]).astype(np.uint32)
    bins = np.ones((slots, row), dtype=np.uint8)  # zeros may be one page that a cache holds
    out = np.zeros((m, row), dtype=np.uint8)
    return Case(
        "gather", shape,
        lambda threads: kernels().gather(bins, places, out, shape.width, threads),
        m, "rows", 0, 3 * m * row + 2 * m * row + places.nbytes,
    )  # fmt: skip


def order_case(shape: Shape) -> Case:
    """The order of as many keys as the index space has rows: a permutation of a session."""
    m = shape.trees * shape.rows // 3
    keys = np.random.default_rng(4).integers(0, 2**64, m, dtype=np.uint64)
    return Case(
        "order of keys", shape, lambda threads: kernels().stable_order(keys, threads),
        m, "keys", 0, 8 * m + 4 * m,
    )  # fmt: skip


def shapes(small: bool) -> list[Shape]:
    """Full shapes, or ones that take a moment."""
    trees, table = (96, 96) if small else (13_008, 1_752)
    narrow = [Shape("8 bytes a row", trees, 240, nu, 1, 8) for nu in range(4)]
    return [*narrow, Shape("72 bytes a row", table, 338, 0, 18, 4)]

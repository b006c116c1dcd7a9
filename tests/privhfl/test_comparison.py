"""Both ways to compare: opened bit xor the dealer's s is [public < secret]."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from torchfsl.errors import ParameterError
from torchfsl.kernels.backends import kernels
from torchfsl.kernels.portable import trees as portable
from torchfsl.kernels.portable.trees import tree_path
from torchfsl.privhfl.comparison_tables import Tables
from torchfsl.privhfl.comparison_trees import Trees
from torchfsl.privhfl.draws import Pair
from torchfsl.privhfl.lane import Lane
from torchfsl.privhfl.ring_tensors import Ring


def pairs(batch: int) -> list[Any]:
    """Draws of QA and SQ, as dealer and as the other party."""
    return [Pair(seed, 0, 1).batch(1, 0, batch) for seed in (b"q" * 16, b"s" * 16) for _ in "ab"]


def talk(first: Generator[Any, Any, Any], second: Generator[Any, Any, Any]) -> tuple[Any, Any]:
    """Pass messages between both programs until they end; their values."""
    programs = [first, second]
    waiting = [[next(second)], [next(first)]]  # by listener
    values: list[Any] = [None, None]
    while any(value is None for value in values):
        for me in (0, 1):
            if values[me] is None and waiting[me]:
                try:
                    waiting[1 - me].append(programs[me].send(memoryview(waiting[me].pop(0))))
                except StopIteration as end:
                    values[me] = end.value
    return values[0], values[1]


def lower(how: Tables | Trees, public: np.ndarray, secret: np.ndarray, batch: int) -> np.ndarray:
    """The result as dealer, P_A and S together see it."""
    qa_dealer, qa, sq_dealer, sq = pairs(batch)
    dealt, s = how.deal(secret, qa_dealer, sq_dealer, 0, "0")
    sent = memoryview(b"".join(dealt))
    count = len(public)
    assert len(sent) == how.dealt_bytes(count)
    shares = (
        how.answering(qa, 0, "0", count, sent if how.relayed else memoryview(b"")),
        how.serving(sq, 0, "0", count, sent),
    )
    programs = [how.run(share, public, Lane()) for share in shares]
    opened = talk(*programs)
    assert np.array_equal(*opened)
    return opened[0] ^ s


@pytest.mark.parametrize("make", [Tables, Trees])
def test_all_pairs_of_eight_bits(make: type[Tables | Trees]) -> None:
    everything = np.arange(1 << 16, dtype=np.uint32)
    public, secret = everything & 255, everything >> 8
    assert np.array_equal(lower(make(8), public, secret, 0), public < secret)


@pytest.mark.parametrize("bits", [15, 19, 31, 43, 55, 63])
@pytest.mark.parametrize("make", [Tables, Trees])
def test_boundaries_and_random_numbers(make: type[Tables | Trees], bits: int) -> None:
    word = np.uint32 if bits < 32 else np.uint64
    drawn = np.random.default_rng(bits).integers(0, 1 << bits, 200_000, dtype=np.uint64)
    last = (1 << bits) - 1
    edges = np.array([0, 1, last - 1, last, last // 2, last // 2 + 1], dtype=np.uint64)
    beside = np.concatenate([drawn[:500] | 1, drawn[:500] | 1, drawn[:500] | 1])
    near = np.concatenate([beside[:500], beside[:500] - np.uint64(1), beside[:500] ^ np.uint64(1)])
    left, right = np.meshgrid(edges, edges)
    public = np.concatenate([drawn[:100_000], near, left.reshape(-1)]).astype(word)
    secret = np.concatenate([drawn[100_000:], beside, right.reshape(-1)]).astype(word)
    assert np.array_equal(lower(make(bits), public, secret, 1), public < secret)


@pytest.mark.parametrize("bits", [8, 19, 43, 63])
def test_trees_open_the_same_bits_under_both_backends(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.random.default_rng(bits).integers(0, 1 << bits, 2000, dtype=np.uint64)
    found = []
    for backend in ("auto", "portable"):
        monkeypatch.setenv("TORCHFSL_BACKEND", backend)
        found.append(lower(Trees(bits), drawn[:1000], drawn[1000:], 2))
        assert np.array_equal(found[-1], drawn[:1000] < drawn[1000:])


def test_both_ways_compare_all_that_a_ring_can_ask_for() -> None:
    """A plan compares 62 bits at most; the kernels grow 56 levels, above which hang 7 bits."""
    assert Ring(64, 20, 1).compare_bits == 62
    for bits in range(8, 64):
        assert Tables(bits).bits == Trees(bits).bits == bits
    assert Trees(63).depth == 56


@pytest.mark.parametrize(("bits", "size"), [(19, 42), (15, 24), (43, 102)])
def test_tables_take_few_bytes(bits: int, size: int) -> None:
    assert Tables(bits).dealt_bytes(1000) == 1000 * size


def test_trees_take_the_bytes_of_their_words() -> None:
    """16.125 a level and 16 for the last word, and one public key."""
    assert Trees(19).dealt_bytes(8000) == 16 + 8000 * 16 * 13 + 8000 * 12 // 8


@pytest.mark.parametrize("make", [Tables, Trees])
def test_lengths_without_a_meaning_are_refused(make: type[Tables | Trees]) -> None:
    for bits in (0, 7, 64):
        with pytest.raises(ParameterError, match="bits"):
            make(bits)


def test_paths_end_in_the_leaves_of_the_whole_tree() -> None:
    """The kernel against the expansion of all leaves, and its bits against the comparison."""
    random = np.random.default_rng(5)
    key, depth, count = b"k" * 16, 6, 50
    roots = [random.integers(0, 256, (count, 16), dtype=np.uint8) for _ in range(2)]
    for party, root in enumerate(roots):
        root[:, 0] = (root[:, 0] & 0xFE) | party
    alpha = random.integers(0, 1 << depth, count, dtype=np.uint64)
    cw, right, *_ = portable.tree_gen(key, *roots, alpha, depth)
    every = [portable.tree_eval(key, root, cw, right, 1 << depth) for root in roots]
    for leaf in range(1 << depth):
        x = np.full(count, leaf, dtype=np.uint64)
        paths = [tree_path(key, root, cw, right, x) for root in roots]
        native = [kernels().tree_path(key, root, cw, right, x) for root in roots]
        for mine, others in zip(paths, native, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(mine, others, strict=True))
        for party in (0, 1):
            assert np.array_equal(paths[party][0], every[party][:, leaf])
        assert np.array_equal(paths[0][1] ^ paths[1][1], x < alpha)

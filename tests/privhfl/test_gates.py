"""One gate at a time: what both shares add up to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.privhfl.small import RINGS
from torchfsl.privhfl.gates import deal_max, deal_relu, max_share, relu_share, split
from torchfsl.privhfl.ring_tensors import Ring

BITS = pytest.mark.parametrize("bits", [32, 64])


def whole(ring: Ring, words: np.ndarray) -> list[int]:
    """Ring elements as signed integers."""
    return [int(w) for w in words.view(np.int32 if ring.bits == 32 else np.int64)]


def uniform(ring: Ring, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, 1 << ring.bits, count, dtype=np.uint64).astype(ring.word)


def opened(ring: Ring, masked: np.ndarray, mask: np.ndarray, s: np.ndarray) -> np.ndarray:
    """What a comparison opens: `test_comparison` shows that it does."""
    return (split(ring, masked)[2] < split(ring, mask)[2]).astype(np.uint8) ^ s


def shared(elements: list[np.ndarray], ring: Ring) -> tuple[list[np.ndarray], list[np.ndarray]]:
    own = [uniform(ring, len(element), 100 + i) for i, element in enumerate(elements)]
    return own, [element - pad for element, pad in zip(elements, own, strict=True)]


def relu(ring: Ring, y: np.ndarray, mask: np.ndarray) -> np.ndarray:
    s = np.random.default_rng(7).integers(0, 2, len(y), dtype=np.uint8)
    bit = opened(ring, y + mask, mask, s)
    sides = zip(shared(deal_relu(ring, mask, s), ring), (True, False), strict=True)
    return sum(relu_share(ring, y + mask, bit, part, leading) for part, leading in sides)


def maximum(ring: Ring, u: np.ndarray, v: np.ndarray, masks: Any) -> np.ndarray:
    s = np.random.default_rng(8).integers(0, 2, len(u), dtype=np.uint8)
    masked_u, masked_v = u + masks[0], v + masks[1]
    bit = opened(ring, masked_u - masked_v, masks[0] - masks[1], s)
    sides = zip(shared(deal_max(ring, *masks, s), ring), (True, False), strict=True)
    return sum(max_share(ring, masked_u, masked_v, bit, part, lead) for part, lead in sides)


@BITS
def test_relu_at_the_ends_of_its_range_and_around_zero(bits: int) -> None:
    ring = RINGS[bits]
    unit, end = 1 << ring.weight_frac_bits, 1 << (bits - 1)
    values = [0, 1, -1, unit, -unit, unit - 1, 1 - unit, end - 1 - unit, unit - end, unit + 1]
    masks = uniform(ring, 2000, 1)
    for value in values:
        y = np.full(len(masks), value % (1 << bits), dtype=ring.word)
        floor = value // unit
        allowed = {max(0, floor), max(0, floor + (value % unit > 0))}
        assert set(whole(ring, relu(ring, y, masks))) <= allowed


def test_relu_of_a_million_rounds_by_less_than_a_unit_and_without_bias() -> None:
    ring, count = RINGS[32], 10**6
    random = np.random.default_rng(3)
    plain = random.integers(-(1 << 31) + (1 << 12), (1 << 31) - (1 << 12), count)
    got = relu(ring, plain.astype(np.int32).view(np.uint32), uniform(ring, count, 4))
    exact = np.maximum(plain, 0) / 4096
    error = got.view(np.int32) - exact
    assert np.all(np.abs(error) < 1)
    assert np.all(got[plain < -4096] == 0)
    assert abs(error[plain > 4096].mean()) < 1e-3


@BITS
def test_the_maximum_is_one_of_both_and_within_a_unit_of_the_larger(bits: int) -> None:
    ring = RINGS[bits]
    random, room = np.random.default_rng(5), 1 << (bits - 3)
    u = random.integers(-room, room, 100_000)
    v = np.where(random.integers(0, 2, len(u)) > 0, random.integers(-room, room, len(u)),
                 u + random.integers(-5000, 5000, len(u)))  # fmt: skip
    masks = [uniform(ring, len(u), 6 + i) for i in (0, 1)]
    signed = np.int32 if bits == 32 else np.int64
    words = [x.astype(signed).view(ring.word) for x in (u, v)]
    got = maximum(ring, *words, masks).view(signed).astype(np.int64)
    assert np.all((got == u) | (got == v))
    assert np.all(np.maximum(u, v) - got < 1 << ring.weight_frac_bits)

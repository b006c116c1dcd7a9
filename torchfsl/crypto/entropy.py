"""Randomness for secrets, from the operating system only."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt


def random_bytes(size: int) -> bytes:
    """`size` bytes from the operating system's generator."""
    return os.urandom(size)


def random_below(bound: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` secret integers uniform in [0, bound), from the operating system.

    Takes 128 random bits a value modulo `bound`: the bias is below bound / 2**128. Used for the
    selected positions of dummy bins, which no one can tell from real ones.
    """
    words = np.frombuffer(os.urandom(16 * count), dtype="<u8").reshape(count, 2)
    big = np.uint64(bound)
    # (high * 2**64 + low) mod bound, with bound <= 2**32 so that nothing overflows.
    radix = np.uint64((1 << 64) % bound)
    folded = np.multiply(np.mod(words[:, 1], big), radix) + np.mod(words[:, 0], big)
    return np.asarray(np.mod(folded, big), dtype=np.uint64)

"""A secret draw: one block of each of k equal stretches of blocks."""

from __future__ import annotations

import numpy as np

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.types import Indices


def draw(m: int, k: int, seed: bytes | None) -> tuple[Indices, Indices]:
    """A uniform block of each of k contiguous stretches of m blocks, m / k rounded down or up.

    Args:
        m: at least k.
        k: at least 1.
        seed: of the draws, 16 bytes, secret and used once; None takes the system's generator.

    Returns:
        The blocks, `int64[k]`, increasing, and the number of blocks of each one's stretch, which
        is one over its probability, `int64[k]`.
    """
    if seed is None:
        secret = random_bytes(16 * k)
    else:
        secret = kdf.stream(kdf.derive(seed, kdf.LABEL_CHOICE, b""), 16 * k).tobytes()
    starts = [stretch * m // k for stretch in range(k + 1)]
    sizes = np.diff(starts)
    places = [
        starts[stretch] + int.from_bytes(secret[16 * stretch : 16 * (stretch + 1)], "little") % size
        for stretch, size in enumerate(sizes.tolist())  # biased by less than m / 2**128
    ]
    return np.array(places, dtype=np.int64), sizes.astype(np.int64)

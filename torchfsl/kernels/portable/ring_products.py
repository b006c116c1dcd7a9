"""Portable kernel of the rings modulo 2**32 and 2**64: the matrix product."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Word = TypeVar("Word", np.uint32, np.uint64)


def ring_multiply(
    left: npt.NDArray[Word], right: npt.NDArray[Word], num_threads: int = 1
) -> npt.NDArray[Word]:
    """`left [R, C]` times `right [C, D]`, modulo 2**32 or 2**64: `[R, D]`; an empty sum is 0.

    Raises:
        ValueError: no two-dimensional arrays, both `uint32` or both `uint64`, that fit each other.
    """
    kind = "uint64" if left.dtype == np.uint64 else "uint32"
    for name, words in (("left", left), ("right", right)):
        if words.ndim != 2 or words.dtype != kind:
            raise ValueError(f"{name} must have dtype {kind} and 2 dimensions")
    if len(right) != left.shape[1]:
        raise ValueError("right must have as many rows as left has columns")
    return left @ right  # NumPy's integers wrap

"""Model values in 16 bits for clients: `float16` or `bfloat16`, rounded to the nearest.

A servers' model stays as it is. From a segment with such a `download` clients receive each value
rounded, ties to even, and given back in the tensor's own dtype. `bfloat16` has the range of float32
and 8 bits of precision. `float16` has 11 bits and ends at 65504. Larger values become infinite, and
clients refuse infinite values. float64 goes through float32.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from torchfsl.errors import ProtocolError
from torchfsl.submodel.segments import Download
from torchfsl.types import Array

Halves = npt.NDArray[np.uint16]

_QUIET = np.uint16(0x0040)


def narrow(values: Array, kind: Download) -> Halves:
    """The bits of `float[...]` in 16-bit floats, `uint16[...]`."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32)
    if kind == "float16":
        with np.errstate(over="ignore"):
            return single.astype(np.float16).view(np.uint16)
    bits = single.view(np.uint32)
    high = (bits >> 16).astype(np.uint16)
    # Half a unit of the last place kept, less one where that place is even.
    rounded = ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), high | _QUIET, rounded)


def widen(halves: Halves, kind: Download, dtype: str) -> Array:
    """Their values in a float dtype, exact; inverse of `narrow` up to its rounding."""
    if kind == "float16":
        return np.ascontiguousarray(halves).view(np.float16).astype(dtype)
    single = (halves.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # NaN that signals becomes one that is quiet
        return single.astype(dtype)


def as_heard(values: Array, kind: Download) -> Array:
    """A tensor's values as clients receive them: a copy in its own dtype."""
    if kind == "full":
        return values.copy()
    return widen(narrow(values, kind), kind, values.dtype.name)


def heard(data: bytes | memoryview, kind: Download, dtype: str) -> Array:
    """Numbers as a server sends them, little-endian, as a flat array of their tensor's dtype."""
    if kind != "full":
        return widen(np.frombuffer(data, "<u2"), kind, dtype)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype)


def check_finite(tensors: Mapping[str, Array], what: str, kind: Download) -> None:
    """Refuse a model, as clients receive it, on which no client can train.

    Raises:
        ProtocolError: a value is not finite; names the tensor, after `what`.
    """
    for name, values in tensors.items():
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            why = ": load an earlier model at the servers"
            if kind == "float16" and not np.isnan(values).any():
                why = (
                    " in float16, whose largest value is 65504: make a plan with "
                    "download='bfloat16' or 'full'"
                )
            raise ProtocolError(
                f"the model's {what}{name!r} has NaN or infinite values{why}",
                code="model-not-finite",
            )

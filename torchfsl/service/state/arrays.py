"""Named arrays and a few settings as one byte string, without pickle.

0  magic "TFSA"     4  version 1, 2 bytes     6  zero, 2 bytes     8  length J of the JSON
16 JSON {"arrays": [[name, dtype, shape], ...], "meta": {...}}
16 + J  the arrays' little-endian bytes, in order           then SHA-256 of all before: 32 bytes
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from torchfsl.errors import DecodeError
from torchfsl.types import Array

_HEADER: Final = struct.Struct("<4sHHQ")
_MAGIC: Final = b"TFSA"
_VERSION: Final = 1
_DIGEST_BYTES: Final = 32
_MAX_JSON: Final = 1 << 25
_DTYPES: Final = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
     "float16", "float32", "float64")
)  # fmt: skip


def encode(arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> bytes:
    """The arrays and the settings as bytes; inverse of `decode`."""
    described: list[list[Any]] = []
    parts: list[bytes] = []
    for name, value in arrays.items():
        array = np.ascontiguousarray(value)
        assert array.dtype.name in _DTYPES, array.dtype
        described.append([name, array.dtype.name, list(value.shape)])
        parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    text = json.dumps({"arrays": described, "meta": dict(meta)}).encode()
    body = b"".join((_HEADER.pack(_MAGIC, _VERSION, 0, len(text)), text, *parts))
    return body + hashlib.sha256(body).digest()


def decode(data: bytes | memoryview) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays (copies) and the settings.

    Raises:
        DecodeError: not what `encode` writes, or a byte was changed.
    """
    view = memoryview(data)
    if len(view) < _HEADER.size + _DIGEST_BYTES:
        raise DecodeError("damaged data: too short")
    magic, version, zero, size = _HEADER.unpack_from(view)
    if (magic, version, zero) != (_MAGIC, _VERSION, 0):
        raise DecodeError(
            f"expected the format {_MAGIC!r} in version {_VERSION}, got {magic!r} "
            f"in version {version}"
        )
    end = len(view) - _DIGEST_BYTES
    if size > min(_MAX_JSON, end - _HEADER.size):
        raise DecodeError("damaged data: the header is longer than the data")
    if hashlib.sha256(view[:end]).digest() != view[end:]:
        raise DecodeError("damaged data: its digest does not fit")
    start = _HEADER.size + size
    described, meta = _description(bytes(view[_HEADER.size : start]))
    arrays: dict[str, Array] = {}
    for name, dtype, shape in described:
        kind = np.dtype(dtype)
        stop = start + math.prod(shape) * kind.itemsize
        if stop > end or name in arrays:
            raise DecodeError("damaged data: too short, or two arrays share a name")
        flat = np.frombuffer(view[start:stop], dtype=kind.newbyteorder("<"))
        arrays[name] = flat.astype(kind).reshape(shape)
        start = stop
    if start != end:
        raise DecodeError("damaged data: too long")
    return arrays, meta


def _description(text: bytes) -> tuple[list[tuple[str, str, tuple[int, ...]]], dict[str, Any]]:
    try:
        fields = json.loads(text)
        if b"\\ud" in text.lower():  # perhaps half a surrogate pair, which has no UTF-8
            json.dumps(fields, ensure_ascii=False).encode()
        described, meta = fields["arrays"], fields["meta"]
        found = [(name, dtype, tuple(shape)) for name, dtype, shape in described]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DecodeError(f"damaged data: the header is invalid ({error})") from error
    for name, dtype, shape in found:
        sizes_fit = len(shape) <= 32 and all(type(n) is int and n >= 0 for n in shape)
        sizes_fit = sizes_fit and math.prod(max(n, 1) for n in shape) < 1 << 40
        is_named = isinstance(name, str) and isinstance(dtype, str) and dtype in _DTYPES
        if not is_named or not sizes_fit:
            raise DecodeError("damaged data: the name, dtype or shape of an array is invalid")
    if not isinstance(meta, dict):
        raise DecodeError("damaged data: the header lacks the JSON object meta")
    return found, meta

"""Key derivation: every key has a label of its own and is bound to its whole context.

`derive` is HKDF-SHA256 (RFC 5869); the info string is the label and the context, each with its
length in front, so that no two (label, context) pairs ever meet. Labels are frozen by vectors.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LABEL_TREE: Final = b"torchfsl tree"
LABEL_CONVERT: Final = b"torchfsl convert"
LABEL_CHECK: Final = b"torchfsl check"
LABEL_AUTHENTICATE: Final = b"torchfsl authenticate"
LABEL_FOLD: Final = b"torchfsl fold"
LABEL_ROOTS: Final = b"torchfsl roots"
LABEL_DENSE: Final = b"torchfsl dense"
LABEL_PERMUTATION: Final = b"torchfsl permutation"
LABEL_ROUNDING: Final = b"torchfsl rounding"
LABEL_COMMITMENT: Final = b"torchfsl commitment"
LABEL_REPORT_SET: Final = b"torchfsl report set"
LABEL_SHARE: Final = b"torchfsl share"
LABEL_MODEL: Final = b"torchfsl model"
LABEL_UNION: Final = b"torchfsl union"


def frame(*parts: bytes | memoryview) -> bytes:
    """Concatenation of the parts, each behind its length as eight little-endian bytes."""
    return b"".join([piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)])


def digest(
    label: bytes, *parts: bytes | memoryview, pieces: Sequence[bytes | memoryview] | None = None
) -> bytes:
    """SHA-256 over the framed label and parts: 32 bytes. Long parts are not copied.

    `pieces`, if given, are one more part, cut anywhere.
    """
    total = hashlib.sha256()
    for part in (label, *parts):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    if pieces is not None:
        total.update(sum(map(len, pieces)).to_bytes(8, "little"))
        for piece in pieces:
            total.update(piece)
    return total.digest()


def digests_equal(a: bytes, b: bytes) -> bool:
    """Comparison in time that does not depend on the contents."""
    return hmac.compare_digest(a, b)


def derive(secret: bytes, label: bytes, context: bytes, size: int = 16) -> bytes:
    """A key of `size` bytes from `secret`, for the use `label` in `context`."""
    return HKDF(hashes.SHA256(), size, salt=None, info=frame(label, context)).derive(secret)


def stream(key: bytes, size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes of AES-128 in counter mode from counter 0: block j is AES_key(j), big-endian."""
    encryptor = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor()
    out = np.empty(size + 15, dtype=np.uint8)  # update_into wants a block of slack
    written = encryptor.update_into(memoryview(bytes(size)), out)  # type: ignore[arg-type]
    assert written == size
    return out[:size]

"""Key derivation: every key has a separate label and is bound to its whole context.

`derive` is HKDF-SHA256 (RFC 5869). The info string is the label and the context, each behind its
length, so that no two (label, context) pairs have the same string. Test vectors fix the labels.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from torchfsl.kernels.backends import num_threads

SEED_BYTES: Final = 16
"""Seeds, master seeds and nonces are 128-bit."""

DIGEST_BYTES: Final = 32
"""SHA-256."""

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
LABEL_CHUNK: Final = b"torchfsl chunk"
LABEL_REPORT_SET: Final = b"torchfsl report set"
LABEL_SHARE: Final = b"torchfsl share"
LABEL_ROW: Final = b"torchfsl row"
LABEL_ROW_ROOT: Final = b"torchfsl row root"
LABEL_MODEL: Final = b"torchfsl model"
LABEL_BITS: Final = b"torchfsl bits"
LABEL_ROW_DIGEST: Final = b"torchfsl row digest"
LABEL_UNION: Final = b"torchfsl union"  # reserved
LABEL_COIN: Final = b"torchfsl coin"
LABEL_SEED: Final = b"torchfsl seed"
LABEL_ANSWER: Final = b"torchfsl answer"
LABEL_UPLOAD: Final = b"torchfsl upload"
LABEL_PROOF: Final = b"torchfsl proof"
LABEL_CHOICE: Final = b"torchfsl choice"
LABEL_BINS: Final = b"torchfsl bins"
LABEL_PRIVATE: Final = b"torchfsl private"
LABEL_PROMISE: Final = b"torchfsl promise"
LABEL_NOISE: Final = b"torchfsl noise"
LABEL_RECORD: Final = b"torchfsl record"
LABEL_PASS: Final = b"torchfsl pass"
LABEL_NAMED: Final = b"torchfsl named"
LABEL_AUDIT_KEY: Final = b"torchfsl audit key"
LABEL_TRANSCRIPT: Final = b"torchfsl transcript"
LABEL_PIECE: Final = b"torchfsl piece"

CHUNK_BYTES: Final = 1 << 20
"""Longer pieces are hashed chunk by chunk."""
_CHUNKS_WORTH_THREADS: Final = 4

_ZEROS: Final = memoryview(bytes(1 << 16))
"""Plaintext of streams, in pieces of whole blocks that stay in the cache."""


def frame(*parts: bytes | memoryview) -> bytes:
    """Concatenation of the parts, each behind its length as eight little-endian bytes."""
    pieces: list[bytes | memoryview] = []
    for part in parts:
        pieces += (len(part).to_bytes(8, "little"), part)
    return b"".join(pieces)


def digest(
    label: bytes, *parts: bytes | memoryview, pieces: Sequence[bytes | memoryview] | None = None
) -> bytes:
    """SHA-256 over the framed label and parts: 32 bytes. Long parts are not copied.

    `pieces`, if given, are one more part, cut anywhere. If they have more than `CHUNK_BYTES`
    together, the digests of their chunks stand behind their length in place of the pieces. The
    length tells the two forms apart, so a collision is still a collision of SHA-256.
    """
    total = hashlib.sha256()
    for part in (label, *parts):
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    if pieces is not None:
        size = sum(map(len, pieces))
        total.update(size.to_bytes(8, "little"))
        for piece in pieces if size <= CHUNK_BYTES else _chunk_digests(pieces):
            total.update(piece)
    return total.digest()


def _chunk_digests(pieces: Sequence[bytes | memoryview]) -> list[bytes]:
    """Digests of the pieces' chunks; hashlib lets other threads run meanwhile."""
    chunks = list(_chunks(pieces))
    if len(chunks) >= _CHUNKS_WORTH_THREADS and num_threads() > 1:
        with contextlib.suppress(RuntimeError), ThreadPoolExecutor(num_threads()) as threads:
            return list(threads.map(_chunk_digest, chunks))
        # The system gives no more threads, or the interpreter is ending.
    return [_chunk_digest(chunk) for chunk in chunks]


def _chunk_digest(chunk: Sequence[memoryview]) -> bytes:
    """SHA-256 over the framed label of chunks and the chunk, which is in pieces."""
    size = sum(map(len, chunk))
    total = hashlib.sha256(frame(LABEL_CHUNK) + size.to_bytes(8, "little"))
    for piece in chunk:
        total.update(piece)
    return total.digest()


def _chunks(pieces: Sequence[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """Views of the pieces, cut into chunks of `CHUNK_BYTES`; the last one may be shorter."""
    chunk: list[memoryview] = []
    room = CHUNK_BYTES
    for piece in pieces:
        left = memoryview(piece)
        while left:
            chunk.append(left[:room])
            left, room = left[room:], room - len(chunk[-1])
            if not room:
                yield chunk
                chunk, room = [], CHUNK_BYTES
    if chunk:
        yield chunk


def digests_equal(a: bytes, b: bytes) -> bool:
    """Comparison in time that does not depend on the contents."""
    return hmac.compare_digest(a, b)


def derive(secret: bytes, label: bytes, context: bytes, size: int = 16) -> bytes:
    """A key of `size` bytes from `secret`, for the use `label` in `context`."""
    return HKDF(hashes.SHA256(), size, salt=None, info=frame(label, context)).derive(secret)


def stream(key: bytes, size: int, *, first: int = 0) -> npt.NDArray[np.uint8]:
    """`size` bytes of AES-128 in counter mode from counter `first` on.

    Block j of a stream from counter 0 is AES_key(j), big-endian.
    """
    counter = modes.CTR(first.to_bytes(16, "big"))
    encryptor = Cipher(algorithms.AES128(key), counter).encryptor()
    out = np.empty(size + 15, dtype=np.uint8)  # update_into wants a block of slack
    into = memoryview(out)  # type: ignore[arg-type]
    for start in range(0, size, len(_ZEROS)):
        plain = _ZEROS[: size - start]
        encryptor.update_into(plain, into[start:])
    return out[:size]

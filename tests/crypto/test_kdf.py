"""Digests of long parts: chunk by chunk, however they are cut and on any number of threads."""

from __future__ import annotations

import hashlib
import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfsl.crypto import kdf

CHUNK = 64
DATA = np.random.default_rng(0).bytes(4 * CHUNK + 1)


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def plain_digest(label: bytes, part: bytes, data: bytes, chunk: int) -> bytes:
    """What `kdf.digest` documents, said once more."""
    inside = data
    if len(data) > chunk:
        cut = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        inside = b"".join(hashlib.sha256(framed(kdf.LABEL_CHUNK, c)).digest() for c in cut)
    head = framed(label, part) + len(data).to_bytes(8, "little")
    return hashlib.sha256(head + inside).digest()


SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5, 4 * CHUNK, 4 * CHUNK + 1]


@pytest.mark.parametrize("size", SIZES)
@given(cuts=st.lists(st.integers(0, 4 * CHUNK), max_size=6))
def test_a_digest_of_pieces_does_not_depend_on_where_they_are_cut(
    size: int, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, size) for cut in cuts), size]
    view = memoryview(DATA)
    pieces = [view[a:b] for a, b in itertools.pairwise(edges)]
    with mock.patch.object(kdf, "CHUNK_BYTES", CHUNK):
        found = kdf.digest(b"label", b"part", pieces=pieces)
    assert found == plain_digest(b"label", b"part", DATA[:size], CHUNK)


def test_a_digest_needs_no_threads() -> None:
    """Where the system gives none, or no more since the interpreter ends."""
    data = bytes(5 * kdf.CHUNK_BYTES)
    with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
        found = kdf.digest(b"label", b"part", pieces=[data])
    assert found == plain_digest(b"label", b"part", data, 1 << 20)


def test_a_digest_counts_below_a_chunk_as_any_part() -> None:
    data = bytes(kdf.CHUNK_BYTES)
    assert kdf.digest(b"label", pieces=[data]) == kdf.digest(b"label", data)
    longer = data + b"x"
    assert kdf.digest(b"label", pieces=[longer]) != kdf.digest(b"label", longer)


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_a_digest_does_not_depend_on_threads(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFSL_THREADS", threads)
    data = np.random.default_rng(1).bytes(5 * kdf.CHUNK_BYTES + 17)
    assert kdf.CHUNK_BYTES == 1 << 20
    found = kdf.digest(b"label", b"part", pieces=[data])
    assert found == plain_digest(b"label", b"part", data, 1 << 20)


def test_a_digest_sees_every_chunk_and_their_order() -> None:
    whole = bytearray(DATA[: 4 * CHUNK])
    swapped = whole[CHUNK : 2 * CHUNK] + whole[:CHUNK] + whole[2 * CHUNK :]
    with mock.patch.object(kdf, "CHUNK_BYTES", CHUNK):
        digests = {kdf.digest(b"label", pieces=[whole]), kdf.digest(b"label", pieces=[swapped])}
        for i in range(0, 4 * CHUNK, CHUNK // 2):
            whole[i] ^= 1
            digests.add(kdf.digest(b"label", pieces=[whole]))
            whole[i] ^= 1
    assert len(digests) == 10

"""Tags of answers forged on a small variant whose chances can be counted.

As docs/specification/tags.md has it, but over GF(2**8) and with digests of one byte. A forgery
passes with chance 2/256 at most. Server 0 knows its own secrets and bits, all rows and the key of
their digests; it does not know the selected leaf or the other server's secret there. With digests
that are sums of a row's bytes it alters two bytes alike, and always passes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scripts.attacks.result import AttackResult
from torchfsl.types import Bytes

Digest = Callable[[Bytes], Bytes]
LEAVES, ROW_BYTES, FORGERIES = 6, 2, 100_000
CHANCE = 2 / 256
"""Of a forgery: to meet the digest of the row, or the other server's secret."""


def _products() -> Bytes:
    """All products in GF(2**8) modulo x**8 + x**4 + x**3 + x + 1, `[256, 256]`."""
    a, b = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    total = np.zeros((256, 256), dtype=np.int64)
    for bit in range(8):
        total ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        total ^= (total >> bit & 1) * (0x11B << (bit - 8))
    return total.astype(np.uint8)


PRODUCTS = _products()


@functools.cache
def _digests() -> Bytes:
    """Those of all rows, in their order as little-endian numbers."""
    rows = (number.to_bytes(ROW_BYTES, "little") for number in range(1 << 8 * ROW_BYTES))
    found = (hashlib.blake2s(row, digest_size=1, key=b"key").digest() for row in rows)
    return np.frombuffer(b"".join(found), np.uint8)


def keyed_digest(rows: Bytes) -> Bytes:
    """BLAKE2s of one byte under a key, `[..., ROW_BYTES]` to `[...]`."""
    found: Bytes = _digests()[np.ascontiguousarray(rows).view("<u2")[..., 0]]
    return found


def sum_digest(rows: Bytes) -> Bytes:
    """The sum of a row's bytes: what a digest must not be."""
    total: Bytes = np.bitwise_xor.reduce(rows, axis=-1)
    return total


@dataclass(frozen=True)
class Retrievals:
    """Many draws of a table, one selected leaf, and the secrets of both servers.

    Attributes:
        rows: `[M, LEAVES, ROW_BYTES]`, a separate table for each draw.
        own: `[M, LEAVES]` secrets of server 0.
        bits: `[M, LEAVES]` control bits of server 0, 0 or 1.
        alpha: `[M]` selected leaves. Not known to server 0.
        other: `[M]` secrets of the other server at the selected leaves. Not known to server 0.
    """

    rows: Bytes
    own: Bytes
    bits: Bytes
    alpha: npt.NDArray[np.int64]
    other: Bytes

    @classmethod
    def draw(cls, count: int, seed: int) -> Retrievals:
        """At random."""
        rng = np.random.default_rng(seed)
        return cls(
            rng.integers(256, size=(count, LEAVES, ROW_BYTES), dtype=np.uint8),
            rng.integers(256, size=(count, LEAVES), dtype=np.uint8),
            rng.integers(2, size=(count, LEAVES), dtype=np.uint8),
            rng.integers(LEAVES, size=count),
            rng.integers(256, size=count, dtype=np.uint8),
        )

    def answer(self, party: int, digest: Digest, rows: Bytes) -> tuple[Bytes, Bytes]:
        """Answers `[M, ROW_BYTES]` and tags `[M]` of one server from the given rows."""
        secrets, bits, every = self.own.copy(), self.bits.copy(), np.arange(len(self.own))
        if party:
            secrets[every, self.alpha] = self.other
            bits[every, self.alpha] ^= 1
        answers = np.bitwise_xor.reduce(rows * bits[..., None], axis=1)
        return answers, np.bitwise_xor.reduce(PRODUCTS[secrets, digest(rows)], axis=1)

    def accepts(self, digest: Digest, answers: Bytes, tags: Bytes) -> npt.NDArray[np.bool_]:
        """Whether the client goes on, `[M]`, given what server 0 said."""
        others, other_tags = self.answer(1, digest, self.rows)
        own = self.own[np.arange(len(self.own)), self.alpha]
        wanted = PRODUCTS[own ^ self.other, digest(answers ^ others)]
        return np.asarray(tags ^ other_tags == wanted)


Forger = Callable[[Retrievals, Digest, np.random.Generator], tuple[Bytes, Bytes]]


def at_random(seen: Retrievals, digest: Digest, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Any other answer with any tag."""
    answers, tags = seen.answer(0, digest, seen.rows)
    first = rng.integers(1, 256, size=len(tags), dtype=np.uint8)
    answers[:, 0] ^= first
    return answers, tags ^ rng.integers(256, size=len(tags), dtype=np.uint8)


def mended(seen: Retrievals, digest: Digest, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Mended with its own half of the secret, for leaf 0 as the selected one."""
    answers, tags = seen.answer(0, digest, seen.rows)
    altered = rng.integers(1, 256, size=len(tags), dtype=np.uint8)
    answers[:, 0] ^= altered
    row = seen.rows[:, 0].copy()
    before = digest(row)
    row[:, 0] ^= altered
    return answers, tags ^ PRODUCTS[seen.own[:, 0], before ^ digest(row)]


def other_row(seen: Retrievals, digest: Digest, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Answers of a table in which row 0 is another one."""
    rows = seen.rows.copy()
    rows[:, 0, 0] ^= rng.integers(1, 256, size=len(rows), dtype=np.uint8)
    return seen.answer(0, digest, rows)


def tag_alone(seen: Retrievals, digest: Digest, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """The honest answer with another tag."""
    answers, tags = seen.answer(0, digest, seen.rows)
    return answers, tags ^ rng.integers(1, 256, size=len(tags), dtype=np.uint8)


def same_sum(seen: Retrievals, digest: Digest, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Two bytes altered alike, with the honest tag."""
    answers, tags = seen.answer(0, digest, seen.rows)
    altered = rng.integers(1, 256, size=(len(tags), 1), dtype=np.uint8)
    answers[:, :2] ^= altered
    return answers, tags


FORGERS: tuple[Forger, ...] = (at_random, mended, other_row, tag_alone, same_sum)


def passed(forger: Forger, digest: Digest, count: int, seed: int) -> tuple[int, int, int]:
    """Numbers of forgeries, of `count`, that the client accepts.

    Returns:
        Accepted forgeries with leaf 0 selected, all forgeries with leaf 0 selected, and accepted
        forgeries with another leaf selected. A forgery that alters neither answer nor tag does not
        count as accepted.
    """
    seen = Retrievals.draw(count, seed)
    answers, tags = forger(seen, digest, np.random.default_rng(seed + 1))
    honest, honest_tags = seen.answer(0, digest, seen.rows)
    altered = np.any(answers != honest, axis=1) | (tags != honest_tags)
    taken = seen.accepts(digest, answers, tags) & altered
    first = seen.alpha == 0
    return int(np.sum(taken & first)), int(np.sum(first)), int(np.sum(taken & ~first))


def forged_tags() -> AttackResult:
    """All ways of forging with the digest as it is, and the last one with sums for digests."""
    each = FORGERIES // len(FORGERS)
    counts = [passed(forger, keyed_digest, each, 10 * i) for i, forger in enumerate(FORGERS)]
    taken = sum(first + elsewhere for first, _, elsewhere in counts)
    bound = CHANCE * FORGERIES
    weak = passed(same_sum, sum_digest, each, 7)
    return AttackResult(
        name="answers with forged tags, on a field of 256 elements",
        off=f"{weak[0] + weak[2]:,} of {each:,} pass where digests are sums",
        on=f"{taken:,} of {FORGERIES:,} pass, {bound:,.0f} by the bound",
        worked_off=weak[0] + weak[2] == each,
        worked_on=taken > bound + 6 * bound**0.5,
        cost="a digest of 16 bytes a row in the servers' tables",
    )

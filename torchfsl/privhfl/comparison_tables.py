"""Comparison of a public number with a dealer's secret one, by one-time truth tables.

Two parties know c, and the dealer knows v. The two parties learn the bit [c < v] ^ s, where the
dealer drew s. Both numbers are cut into chunks of at most 5 bits. For a chunk the words `lt` (bit j
is [j < v]) and `eq` (bit j is [j = v]) answer every question about the chunk. Tables over the bits
of a group of chunks answer for the group, until one bit is left. This bit is
`lt_0 | eq_0 (lt_1 | eq_1 (...))`, highest chunk first.

The dealer XORs a table with all-ones if its mask bit is 1. It permutes the table by the masks of
the bits that choose the entry. Then it shares the table: one party derives its share, and the
dealer sends the other share. Both parties read one entry and open it. A fresh uniform bit masks
each opened bit, and no table is read twice.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.privhfl.draws import Draws
from torchfsl.privhfl.lane import Lane
from torchfsl.types import Bytes

_CHUNK_BITS: Final = 5
_MEMBERS: Final = 4
_S_BIT: Final = 7


@dataclass(frozen=True, slots=True)
class _Table:
    """One chunk or group.

    Attributes:
        index_bits: bits that choose the entry.
        equal: whether there is a second table, of equality.
        group: which group of the next level takes the results.
        place: at which bit of that group's index.
        shift: of a chunk, its lowest bit.
    """

    index_bits: int
    equal: bool
    group: int
    place: int
    shift: int = 0

    @property
    def word_bytes(self) -> int:
        return max(1, (1 << self.index_bits) // 8)


class Tables:
    """Comparison of numbers of `bits` bits. Public.

    Raises:
        ParameterError: fewer than 8 or more than 63 bits.
    """

    relayed = False

    def __init__(self, bits: int) -> None:
        if not 8 <= bits <= 63:
            raise ParameterError(
                f"the ring leaves {bits} bits for comparisons, expected 8 to 63: choose a "
                f"{'smaller' if bits < 8 else 'larger'} weight_frac_bits"
            )
        self.bits = bits
        self.levels = _levels(bits)
        self._value_bytes = sum(t.word_bytes * (1 + t.equal) for lv in self.levels for t in lv)

    def dealt_bytes(self, count: int) -> int:
        """Number of bytes that the dealer sends for `count` comparisons."""
        return self._value_bytes * count

    def traffic(self, count: int) -> list[int]:
        """Bytes that each of both parties sends, by level."""
        groups = [len(level) for level in self.levels[1:]]
        return [*(number * count for number in groups), -(-count // 8)]

    def deal(
        self, secret: npt.NDArray[Any], qa: Draws, sq: Draws, node: int, step: str
    ) -> tuple[list[Any], Bytes]:
        """Tables for the numbers `secret [N]`.

        Returns:
            the server's share, in parts, and the bits s `[N]`.
        """
        count = len(secret)
        share = self._pad(qa, node, step, count)
        views = self._views(share, count)
        num_masks = sum(len(level) for level in self.levels[1:])
        drawn = kdf.stream(random_bytes(kdf.SEED_BYTES), num_masks * count).reshape(-1, count)
        masks = iter(drawn)
        now = [next(masks) for _ in self.levels[1]]
        for table in self.levels[0]:
            _deal_chunk(table, secret, now[table.group], views)
        final = now[0]
        for number, level in enumerate(self.levels[1:], 1):
            behind = (
                [] if level is self.levels[-1] else [next(masks) for _ in self.levels[number + 1]]
            )
            for place, table in enumerate(level):
                index = now[place] & np.uint8((1 << table.index_bits) - 1)
                if not behind:
                    final = now[place]
                for output in range(1 + table.equal):
                    source, bit = (
                        (behind[table.group], table.place + output) if behind else (final, _S_BIT)
                    )
                    mask = (source >> np.uint8(bit)) & np.uint8(1)
                    rows = _permuted(table.index_bits, bool(output))
                    chosen = index.astype(np.intp) + (mask.astype(np.intp) << table.index_bits)
                    view = next(views)
                    view ^= np.take(rows, chosen, axis=0)
            now = behind or now
        return [share], final >> np.uint8(_S_BIT)

    def answering(self, qa: Draws, node: int, step: str, count: int, relayed: memoryview) -> Bytes:
        """The answering party's share."""
        return self._pad(qa, node, step, count)

    def serving(self, sq: Draws, node: int, step: str, count: int, dealt: memoryview) -> Bytes:
        """The server's share."""
        return np.frombuffer(dealt, np.uint8)

    def run(
        self, share: Bytes, public: npt.NDArray[Any], lane: Lane
    ) -> Generator[bytes, memoryview, Bytes]:
        """One party's side: the opened bits [public < secret] ^ s, `uint8 [N]`."""
        count = len(public)
        views = self._views(share, count)
        bits: list[tuple[_Table, int, Bytes]] = []
        for table in self.levels[0]:
            at = public >> public.dtype.type(table.shift)
            at &= public.dtype.type((1 << table.index_bits) - 1)
            for output in range(1 + table.equal):
                word = next(views)[:, 0]
                bit = word >> at.astype(word.dtype, copy=False)
                bit &= word.dtype.type(1)
                bits.append((table, output, bit.astype(np.uint8)))
        for level in self.levels[1:]:
            own = np.zeros((len(level), count), dtype=np.uint8)
            for table, output, bit in bits:
                bit <<= np.uint8(table.place + output)
                own[table.group] |= bit
            lane.send(own)
            other = np.frombuffer((yield from lane.receive(own.size)), np.uint8)
            opened = own ^ other.reshape(own.shape)
            bits = []
            for place, table in enumerate(level):
                index = opened[place]
                if int(index.max(initial=0)) >> table.index_bits:
                    raise DecodeError(
                        "the message is malformed: a masked value is too large for its table"
                    )
                for output in range(1 + table.equal):
                    bits.append((table, output, _read(next(views), index)))
        packed = np.packbits(bits[0][2])
        lane.send(packed.tobytes())
        packed = packed ^ np.frombuffer((yield from lane.receive(packed.size)), np.uint8)
        return np.unpackbits(packed, count=count)

    def _pad(self, qa: Draws, node: int, step: str, count: int) -> Bytes:
        return kdf.stream(qa.key(node, f"tables {step}"), self.dealt_bytes(count))

    def _views(self, share: Bytes, count: int) -> Any:
        """By table its words: `[N, 1]` of a chunk in one integer, `[N, bytes]` of a group."""
        start = 0
        for number, level in enumerate(self.levels):
            for table in level:
                for _ in range(1 + table.equal):
                    size = table.word_bytes * count
                    words = share[start : start + size].reshape(count, -1)
                    yield words if number else words.view(f"<u{table.word_bytes}")
                    start += size


def _levels(bits: int) -> list[list[_Table]]:
    """Chunks, then groups, highest first; the lowest of each level needs no equality."""
    sizes = _even(bits, -(-bits // _CHUNK_BITS))
    sizes.reverse()  # short chunks last
    index_bits = sizes
    levels: list[list[_Table]] = []
    while True:
        number = len(index_bits)
        groups = [number] if number <= _MEMBERS else _even(number, -(-(number - 1) // 3))
        level, position = [], 0
        for group, members in enumerate(groups):
            for member in range(members):
                shift = 0 if levels else sum(sizes[position + 1 :])
                last = position == number - 1
                level.append(_Table(index_bits[position], not last, group, 2 * member, shift))
                position += 1
        if number == 1:
            return [*levels, level]
        levels.append(level)
        index_bits = [2 * m - (g == len(groups) - 1) for g, m in enumerate(groups)]


def _even(total: int, parts: int) -> list[int]:
    """Sizes that differ by one at most, the larger ones last."""
    base, extra = divmod(total, parts)
    return [base] * (parts - extra) + [base + 1] * extra


def _deal_chunk(table: _Table, secret: npt.NDArray[Any], masks: Bytes, views: Any) -> None:
    """XOR the masked words of one chunk into the share."""
    view = next(views)[:, 0]
    word = view.dtype.type
    digit = secret >> secret.dtype.type(table.shift)
    digit &= secret.dtype.type((1 << table.index_bits) - 1)
    equal = word(1) << digit.astype(view.dtype, copy=False)
    for output in range(1 + table.equal):
        plain = equal if output else equal - word(1)
        mask = (masks >> np.uint8(table.place + output)) & np.uint8(1)
        view ^= plain
        view ^= np.negative(mask.astype(view.dtype))
        if output < table.equal:
            view = next(views)[:, 0]


def _read(words: Bytes, index: Bytes) -> Bytes:
    """Bit `index` of every row."""
    flat = words.reshape(-1)
    at = np.arange(0, flat.size, words.shape[1], dtype=np.intp)
    at += index >> np.uint8(3)
    return (flat[at] >> (index & np.uint8(7))) & np.uint8(1)


@functools.cache
def _permuted(index_bits: int, equal: bool) -> Bytes:
    """Tables of a group for every mask of its index, then the same inverted.

    Bit 2i of an index says that member i (highest first) is smaller, bit 2i + 1 that it is equal;
    an odd number of bits means that the last member is the lowest one.
    """
    size = 1 << index_bits
    index = np.arange(size)
    smaller, equals = np.zeros(size, dtype=bool), np.ones(size, dtype=bool)
    for place in reversed(range(0, index_bits, 2)):
        lt = (index >> place & 1).astype(bool)
        eq = (
            (index >> (place + 1) & 1).astype(bool) if place + 1 < index_bits else np.zeros_like(lt)
        )
        smaller = lt | (eq & smaller)
        equals &= eq
    values = equals if equal else smaller
    rows = values[index[:, None] ^ index[None, :]]
    both = np.concatenate([rows, ~rows])
    if size < 8:  # a word has a byte at least
        both = np.pad(both, ((0, 0), (0, 8 - size)))
    return np.packbits(both, axis=1, bitorder="little")

"""Public bins: positions parted anew each round, of which a client sends one a bin.

The parts follow from a public seed and the round's number, so they cost no byte.
Position x has the place (a x + b) mod m, a and b of the round, a without a factor in common with m.
Bin i of B has the places from i m / B up to (i + 1) m / B, both rounded down, hence m / B of them,
rounded down or up. Two positions share a bin about as often as under a random parting, over rounds,
and no table is kept: places and positions follow from each other by one multiplication.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf

Wide = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.uint32]

_AT_ONCE: Final = 1 << 15
"""Positions whose slots are computed together, in a cache."""


@dataclass(frozen=True, slots=True)
class PublicBins:
    """One round's bins of a segment.

    Attributes:
        m: positions, below 2**32 + 1.
        count: bins B, 1 to m.
        scale: a, in [0, m), without a factor in common with m.
        shift: b, in [0, m).
    """

    m: int
    count: int
    scale: int
    shift: int

    @classmethod
    def of(cls, seed: bytes, label: str, m: int, count: int, round_number: int) -> PublicBins:
        """The round's, of a segment's name, the same for every party.

        b, and where the search for a begins, are 16 bytes each of a key derivation, modulo m.
        """
        numbers = (n.to_bytes(8, "little") for n in (m, count, round_number))
        drawn = kdf.derive(seed, kdf.LABEL_BINS, kdf.frame(label.encode(), *numbers), 32)
        scale, shift = (int.from_bytes(half, "little") % m for half in (drawn[:16], drawn[16:]))
        while math.gcd(scale, m) > 1:  # m - 1 has none, so this ends below m
            scale += 1
        return cls(m, count, scale, shift)

    @property
    def size(self) -> int:
        """Positions of the largest bin: m / B, rounded up."""
        return -(-self.m // self.count)

    def start(self, number: int) -> int:
        """The first place of a bin; of bin B the first behind them all."""
        return number * self.m // self.count

    def places(self, positions: npt.NDArray[np.integer]) -> Wide:
        """Their places, `uint64` of the shape of `positions`."""
        return self._affine(positions, self.scale, self.shift)

    def positions(self, places: npt.NDArray[np.integer]) -> Wide:
        """The positions at these places, `uint64` of their shape."""
        back = pow(self.scale, -1, self.m)
        return self._affine(places, back, -back * self.shift % self.m)

    def part(self, places: npt.NDArray[np.integer]) -> tuple[Wide, Wide]:
        """The bin of each place, and where in it the place lies: both `uint64`, of its shape."""
        m, count, one = np.uint64(self.m), np.uint64(self.count), np.uint64(1)
        wide = places.astype(np.uint64)
        bins = ((wide + one) * count - one) // m  # in [0, 2**64) even at the largest m
        return bins, wide - bins * m // count

    def slots(self, positions: range, padded: int) -> Slots:
        """Where positions in a row lie among all bins, each of `padded` slots: `uint32[len]`."""
        slots = np.empty(len(positions), dtype=np.uint32)
        for first in range(0, len(positions), _AT_ONCE):
            some = positions[first : first + _AT_ONCE]
            bins, within = self.part(self.places(np.arange(some.start, some.stop)))
            bins *= np.uint64(padded)
            bins += within
            slots[first : first + len(some)] = bins
        return slots

    def members(self) -> npt.NDArray[np.int64]:
        """The positions of each bin by place, `int64[B, size]`.

        A bin with one less has its first once more at the end.
        """
        members = np.empty((self.count, self.size), dtype=np.int64)
        starts = np.array([self.start(number) for number in range(self.count + 1)])
        step = max(1, _AT_ONCE // self.size)
        for first in range(0, self.count, step):
            own = starts[first : first + step + 1]
            places = own[:-1, None] + np.arange(self.size)
            members[first : first + step] = self.positions(
                np.where(places < own[1:, None], places, own[:-1, None])
            )
        return members

    def _affine(self, numbers: npt.NDArray[np.integer], scale: int, shift: int) -> Wide:
        """(scale n + shift) mod m: below (m - 1) m, which 64 bits hold."""
        wide = numbers.astype(np.uint64) * np.uint64(scale) + np.uint64(shift)
        wide -= wide // np.uint64(self.m) * np.uint64(self.m)
        return wide

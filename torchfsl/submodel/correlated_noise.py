"""The noise of one server that is correlated over rounds, in integers throughout.

With z_t a fresh draw of N_Z(0, S^2), S = 2^q sigma, a server adds in round t to every value
N_t = (z_t - a_1 N_(t-1) - a_2 N_(t-2) - ... + 2^(q-1)) >> q. The recursion uses what was added, N,
and not past draws: `docs/specification/privacy-proofs.md` proves why that is exact. Forgotten
values count as 0, which costs usefulness and no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from torchfsl.errors import ProtocolError
from torchfsl.submodel.taps import bits_of
from torchfsl.types import Whole

Draw = Callable[[int, int], Whole]
"""Takes a standard deviation and a count, gives so many draws."""

NO_ROUND: Final = (1 << 64) - 1
"""A number that no round has."""
_CHUNK: Final = 1 << 16
_LIMIT: Final = (1 << 31) - 1


class CorrelatedNoise:
    """Noise of a server's share, round by round; a `Draw` of values in the share's order.

    Attributes:
        slots: `int32[taps, size]`, a ring of what was added. Secret.
        held: by slot the index of what it holds, or -1: another slot counts as 0.
        rounds: by slot the number of the round in which that was added.
        index: of the noise that was begun last, or -1.

    Args:
        taps: see `taps`.
        size: values of a share, lanes included.
        draw: fresh independent noise, in an array that becomes what is added.
        slots: memory for the ring, such as a mapped file; in this process unless given.
    """

    def __init__(
        self, taps: tuple[int, ...], size: int, draw: Draw, slots: np.ndarray | None = None
    ) -> None:
        """Nothing was added yet."""
        self._taps, self._bits, self._draw = taps, bits_of(taps), draw
        self.slots = np.zeros((len(taps), size), dtype=np.int32) if slots is None else slots
        self.held, self.rounds = [-1] * len(taps), [NO_ROUND] * len(taps)
        self.index, self._place = -1, 0
        self._lags: list[int] = []

    def begin(self, index: int, number: int = NO_ROUND, past: Sequence[int] | None = None) -> None:
        """Make the noise of an index, of which no share has left; again after a failure.

        Args:
            index: how many shares may have left before.
            number: of the round.
            past: as `past` gives it, with more of `NO_ROUND` perhaps; all that is held by default.
                What it leaves out never counts again, so that no party chooses in each round.

        Raises:
            ProtocolError: noise of a round in `past` is not held.
        """
        band, held = len(self._taps), self.past(index)
        self._lags = self._held_lags(index)
        if past is not None:
            lacking = [r for r, own in zip(past, held, strict=True) if r not in (own, NO_ROUND)]
            if lacking:
                raise ProtocolError(
                    f"the share needs the noise of rounds {lacking}, which is missing here: the "
                    "round ends unopened. Open another round, in which this noise counts as 0"
                )
            for lag in self._lags:
                if past[lag - 1] == NO_ROUND:
                    self.forget(index - lag)
            self._lags = self._held_lags(index)
        self.index, self._place = index, 0
        self.held[index % band], self.rounds[index % band] = index, number

    def past(self, index: int) -> tuple[int, ...]:
        """By lag, from 1 on, the round whose noise counts at an index; `NO_ROUND` where 0 does."""
        lags, band = self._held_lags(index), len(self._taps)
        return tuple(
            self.rounds[(index - lag) % band] if lag in lags else NO_ROUND for lag in range(1, band)
        )

    def forget(self, index: int) -> None:
        """Let the noise of an index count as 0."""
        self.held[index % len(self._taps)] = -1

    def _held_lags(self, index: int) -> list[int]:
        band = len(self._taps)
        slots = ((lag, (index - lag) % band) for lag in range(1, band) if self._taps[lag])
        return [lag for lag, slot in slots if self.held[slot] == index - lag >= 0]

    def __call__(self, sigma: int, count: int) -> Whole:
        """What to add to the next `count` values: `int64[count]`.

        Raises:
            ProtocolError: a value leaves 32 bits, which no honest plan sees.
        """
        values = self._draw(sigma << self._bits, count)
        for start in range(0, count, _CHUNK):
            stop = min(start + _CHUNK, count)
            self._correlate(values[start:stop], slice(self._place + start, self._place + stop))
        self._place += count
        return values

    def _correlate(self, values: Whole, where: slice) -> None:
        """Make draws what is added, in place, and keep it."""
        band = len(self._taps)
        for lag in self._lags:
            slot = (self.index - lag) % band
            values -= self._taps[lag] * self.slots[slot, where].astype(np.int64)
        values += 1 << (self._bits - 1)
        values >>= self._bits
        if values.size and max(int(values.max()), -int(values.min())) > _LIMIT:
            raise ProtocolError(
                "the correlated noise is beyond 32 bits, so the round ends unopened: open another "
                "round. If this repeats, make a plan with fewer frac_bits"
            )
        self.slots[self.index % band, where] = values

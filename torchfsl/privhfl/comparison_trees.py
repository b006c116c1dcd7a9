"""The same comparison by trees of the distributed point function, in one round trip.

A tree whose selected leaf is v is a comparison key as it stands: the XOR, over the levels at which
the path to c goes left, of the control bit before and the control bit after is a share of [c < v].
(Both parties' control bits differ exactly while c and v agree; they part to the left when c is the
smaller.) The lowest 7 bits are read from one word of 128 bits that hangs at the selected leaf:
Conv(s_0) xor Conv(s_1) xor `lt`, as hints of `fsl` hang their values there.

The dealer sends correction words to the server, which passes them on; both need them and they are
pseudorandom to either. Roots come from the pairs' seeds. Each party masks its bit by one from its
own seed with the dealer, and s is the XOR of both masks.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import ParameterError
from torchfsl.kernels.backends import kernels, num_threads
from torchfsl.privhfl.draws import Draws
from torchfsl.privhfl.lane import Lane
from torchfsl.types import Bytes

_LOW_BITS: Final = 7
_MAX_DEPTH: Final = 56
_WORD: Final = 16


@dataclass(frozen=True, slots=True)
class TreeShare:
    """One party's trees: roots and masks are its secret, correction words are both parties'."""

    party: int
    key: bytes = field(repr=False)
    roots: Bytes = field(repr=False)
    mask: Bytes = field(repr=False)
    dealt: memoryview = field(repr=False)


class Trees:
    """Comparison of numbers of `bits` bits. Public.

    Raises:
        ParameterError: fewer than 8 bits, or trees deeper than the kernels grow.
    """

    relayed = True

    def __init__(self, bits: int) -> None:
        if not 8 <= bits <= _LOW_BITS + _MAX_DEPTH:
            raise ParameterError(
                f"comparisons have {bits} bits, expected 8 to {_LOW_BITS + _MAX_DEPTH} bits with "
                "comparison='trees': use comparison='tables'"
            )
        self.bits = bits
        self.depth = bits - _LOW_BITS

    def dealt_bytes(self, count: int) -> int:
        """Bytes from the dealer for `count` comparisons: key, words, right bits, last words."""
        return _WORD * (1 + (self.depth + 1) * count) + -(-self.depth * count // 8)

    def traffic(self, count: int) -> list[int]:
        """Bytes that each of both parties sends, by level: there is one."""
        return [-(-count // 8)]

    def deal(
        self, secret: npt.NDArray[Any], qa: Draws, sq: Draws, node: int, step: str
    ) -> tuple[list[Any], Bytes]:
        """Trees for the numbers `secret [N]`.

        Returns:
            what both parties need, in parts, and the bits s `[N]`.
        """
        count = len(secret)
        roots = [self._roots(draws, node, step, count, b) for b, draws in enumerate((qa, sq))]
        masks = [self._mask(draws, node, step, count) for draws in (qa, sq)]
        key = kdf.derive(qa.key(node, f"tree key {step}"), kdf.LABEL_TREE, b"")
        alpha = secret.astype(np.uint64)
        high = alpha >> np.uint64(_LOW_BITS)
        cw, right, *leaves = kernels().tree_gen(key, *roots, high, self.depth, num_threads())
        word = kernels().convert(key, leaves[0], _WORD) ^ kernels().convert(key, leaves[1], _WORD)
        word ^= _below(alpha & np.uint64((1 << _LOW_BITS) - 1))
        bits = np.packbits(right.reshape(-1))
        return [key, cw, bits, word], masks[0] ^ masks[1]

    def answering(
        self, qa: Draws, node: int, step: str, count: int, relayed: memoryview
    ) -> TreeShare:
        """The answering party's trees."""
        return self._share(0, qa, node, step, count, relayed)

    def serving(self, sq: Draws, node: int, step: str, count: int, dealt: memoryview) -> TreeShare:
        """The server's trees."""
        return self._share(1, sq, node, step, count, dealt)

    def run(
        self, share: TreeShare, public: npt.NDArray[Any], lane: Lane
    ) -> Generator[bytes, memoryview, Bytes]:
        """One party's side: the opened bits [public < secret] ^ s, `uint8 [N]`."""
        own = np.packbits(self._bits(share, public) ^ share.mask)
        lane.send(own.tobytes())
        other = np.frombuffer((yield from lane.receive(own.size)), np.uint8)
        return np.unpackbits(own ^ other, count=len(public))

    def _bits(self, share: TreeShare, public: npt.NDArray[Any]) -> Bytes:
        """Shares of [public < secret]."""
        count, start = len(public), _WORD
        words = np.frombuffer(share.dealt, np.uint8)
        cw = words[start : start + _WORD * self.depth * count].reshape(self.depth, count, _WORD)
        start += cw.size
        packed = words[start : start + -(-self.depth * count // 8)]
        right = np.unpackbits(packed, count=self.depth * count).reshape(self.depth, count)
        last = words[start + packed.size :].reshape(count, _WORD)
        x = public.astype(np.uint64)
        states, below = kernels().tree_path(
            share.key, share.roots, np.ascontiguousarray(cw), right, x >> np.uint64(_LOW_BITS),
            num_threads(),
        )  # fmt: skip
        word = kernels().convert(share.key, states, _WORD)
        word ^= last & np.negative(states[:, :1] & np.uint8(1))
        low = (x & np.uint64((1 << _LOW_BITS) - 1)).astype(np.uint8)
        at = np.arange(0, word.size, _WORD, dtype=np.intp) + (low >> np.uint8(3))
        low_bits = (word.reshape(-1)[at] >> (low & np.uint8(7))) & np.uint8(1)
        return np.asarray(below ^ low_bits, dtype=np.uint8)

    def _share(
        self, party: int, draws: Draws, node: int, step: str, count: int, dealt: memoryview
    ) -> TreeShare:
        roots = self._roots(draws, node, step, count, party)
        mask = self._mask(draws, node, step, count)
        return TreeShare(party, bytes(dealt[:_WORD]), roots, mask, dealt)

    def _roots(self, draws: Draws, node: int, step: str, count: int, party: int) -> Bytes:
        roots = kdf.stream(draws.key(node, f"roots {step}"), _WORD * count).reshape(count, _WORD)
        roots[:, 0] = (roots[:, 0] & np.uint8(0xFE)) | np.uint8(party)
        return roots

    def _mask(self, draws: Draws, node: int, step: str, count: int) -> Bytes:
        drawn = kdf.stream(draws.key(node, f"mask {step}"), -(-count // 8))
        return np.unpackbits(drawn, count=count)


def _below(low: npt.NDArray[np.uint64]) -> Bytes:
    """By number the word of 128 bits whose bit j says j < low, `[N, 16]`, without a branch."""
    position = np.arange(128, dtype=np.uint64)
    return np.packbits(position < low[:, None], axis=1, bitorder="little")

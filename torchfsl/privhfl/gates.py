"""Computations on one node's values: the dealer's half, and the halves of P_A and S.

The parties are the querying party P_Q, which is the dealer, the answering party P_A and the server
S. They hold a value as follows:

    wire x      P_A has x - b. S and P_Q have b, which comes from their seed.
    product y   P_A and S both have c = y + r. P_Q has r, which P_A and S do not know.

A ReLU truncates a product and takes its sign in one step. P_A and S know c_t = c >> f_w, and the
dealer knows r_t = r >> f_w. Modulo 2**(n+1), c_t - r_t is floor((y + r mod 2**f_w) / 2**f_w). This
is y rounded down or up at random, without bias. Let m_c, m_r be the top bits and c', r' the n bits
below. Then c_t - r_t is not negative iff d = 1 ^ m_c ^ m_r ^ [c' < r'] is 1. The comparison opens E
with d = E ^ sigma, where sigma is the dealer's. If d = 1, the value of the ReLU is c_t - V[m_c],
with V[0] = r_t - m_r 2**(n+1) and V[1] = r_t.

The paper instead opens r y to P_Q, with r > 0 random. This gives y away.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torchfsl.privhfl.draws import Draws
from torchfsl.privhfl.lane import Lane
from torchfsl.privhfl.ring_tensors import Ring, Words
from torchfsl.types import Bytes

RELU_SHARES = 5
MAX_SHARES = 3
"""Ring elements that the dealer shares for each ReLU and each maximum of two."""


class Comparison(Protocol):
    """A way to compare a public number with a dealer's; `comparison_tables` describes the calls."""

    relayed: bool

    def dealt_bytes(self, count: int) -> int:
        """Number of bytes that the dealer sends for `count` comparisons."""

    def traffic(self, count: int) -> list[int]:
        """Bytes that each of both parties sends, by level."""

    def deal(
        self, secret: npt.NDArray[Any], qa: Draws, sq: Draws, node: int, step: str
    ) -> tuple[list[Any], Bytes]:
        """Data that the dealer sends for the numbers `secret [N]`, in parts, and bits s `[N]`."""

    def answering(self, qa: Draws, node: int, step: str, count: int, relayed: memoryview) -> Any:
        """The answering party's share."""

    def serving(self, sq: Draws, node: int, step: str, count: int, dealt: memoryview) -> Any:
        """The server's share."""

    def run(
        self, share: Any, public: npt.NDArray[Any], lane: Lane
    ) -> Generator[bytes, memoryview, Bytes]:
        """One party's side: the opened bits [public < secret] ^ s, `uint8 [N]`."""
        ...


def split(ring: Ring, words: Words) -> tuple[Words, Bytes, Words]:
    """A masked product without its f_w lowest bits: the whole, its top bit, the n bits below it."""
    kind = ring.word.type
    whole = words >> kind(ring.weight_frac_bits)
    top = (words >> kind(ring.bits - 1)).astype(np.uint8)
    return whole, top, whole & kind((1 << ring.compare_bits) - 1)


def deal_relu(ring: Ring, mask: Words, bits: Bytes) -> list[Words]:
    """Elements to share for ReLUs of products with `mask [N]`; the comparison's s is `bits`.

    Returns:
        sigma, sigma V[0], sigma V[1], (1 - sigma) V[0], (1 - sigma) V[1].
    """
    kind = ring.word.type
    whole, top, _ = split(ring, mask)
    sigma = (top ^ bits).astype(ring.word)
    chosen = np.negative(sigma)
    low = whole - (top.astype(ring.word) << kind(ring.compare_bits + 1))
    return [sigma, low & chosen, whole & chosen, low & ~chosen, whole & ~chosen]


def relu_share(
    ring: Ring, masked: Words, opened: Bytes, shares: list[Words], leading: bool
) -> Words:
    """One party's share of the ReLUs; `leading` is P_A's side."""
    whole, top, _ = split(ring, masked)
    sign = (opened ^ top ^ np.uint8(1)).astype(ring.word)  # E
    upper = np.negative(top.astype(ring.word))
    sigma, at_0, at_1, else_0, else_1 = shares
    minus = np.negative(sign)
    taken = _select(minus, _select(upper, else_1, else_0), _select(upper, at_1, at_0))
    value: Words = (whole * sigma ^ minus) + sign - taken  # -v is ~v + 1
    if leading:
        value += whole & minus
    return value


def _select(mask: Words, there: Words, elsewhere: Words) -> Words:
    """`there` where the mask is all ones, `elsewhere` where it is 0."""
    chosen = there ^ elsewhere
    chosen &= mask
    chosen ^= elsewhere
    return chosen


def deal_max(ring: Ring, mask_u: Words, mask_v: Words, bits: Bytes) -> list[Words]:
    """Elements to share for maxima of products masked by `mask_u` and `mask_v`.

    Returns:
        sigma, sigma r_D + r_v, (1 - sigma) r_D + r_v, with r_D the difference of the masks.
    """
    difference = mask_u - mask_v
    _, top, _ = split(ring, difference)
    sigma = (top ^ bits).astype(ring.word)
    chosen = np.negative(sigma)
    return [sigma, (difference & chosen) + mask_v, (difference & ~chosen) + mask_v]


def max_share(
    ring: Ring, masked_u: Words, masked_v: Words, opened: Bytes, shares: list[Words], leading: bool
) -> Words:
    """One party's share of the maxima. The larger one, or either within 2**f_w of each other."""
    difference = masked_u - masked_v
    _, top, _ = split(ring, difference)
    sign = (opened ^ top ^ np.uint8(1)).astype(ring.word)  # E
    minus = np.negative(sign)
    sigma, at_0, at_1 = shares
    value: Words = (difference * sigma ^ minus) + sign - _select(minus, at_1, at_0)
    if leading:
        value += masked_v + (difference & minus)
    return value

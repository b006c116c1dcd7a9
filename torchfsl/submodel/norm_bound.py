"""A client's L2 norm bound, kept by the rounded values themselves.

Differential privacy needs the sensitivity of what is summed, the integers after rounding, and
stochastic rounding can push a norm above that of the real values. So the real vector is scaled
down to a norm that leaves room for rounding, and rounding is repeated with fresh coins, on values a
little smaller each time, until the integers keep the bound (after the conditional rounding of
Kairouz, Liu, Steinke, The distributed discrete Gaussian mechanism, 2021, section 4.1). Whether they
keep it is decided on integers, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, expect_a, is_real
from torchfsl.faces import public
from torchfsl.types import Float64, Whole

TRIES: Final = 32
"""Roundings before values are cut towards zero instead; one mostly succeeds."""

_SECONDS: Final = 64
"""Tries of a second square before the first goes on; the tests try small numbers exhaustively."""

_LIMB: Final = 21
_CHUNK: Final = 1 << 20

MAX_BOUND: Final = 1 << 62
"""Of `Plan.l2_bound`."""


class _Bound(int):
    """A bound in units of 2**-frac_bits, which a plan of another unit refuses."""

    frac_bits: int


@public
def l2_bound(encoding: FixedPoint, norm: float) -> int:
    """`Plan.l2_bound` for an L2 norm of real values in the plan's `encoding`; 0 for 0, no bound.

    A plan of an encoding with other fraction bits refuses it.

    Raises:
        ParameterError: if the norm is below 0, above 2**62 units, or positive and below one unit.
    """
    expect_a(FixedPoint, encoding, "encoding", "pass the FixedPoint of Federated(encoding=)")
    if not is_real(norm) or not 0 <= norm < math.inf:
        raise ParameterError(
            f"the norm is {norm!r}: choose a finite number of 0 or more (0 sets no bound)"
        )
    try:
        bound = math.floor(math.ldexp(norm, encoding.frac_bits))
    except OverflowError:
        bound = MAX_BOUND + 1
    if bound > MAX_BOUND:
        raise ParameterError(
            f"the norm {norm} is above 2**62 units of an encoding with "
            f"frac_bits={encoding.frac_bits}: choose a smaller norm",
            code="out-of-range",
        )
    if norm and not bound:
        raise ParameterError(
            f"the norm {norm} is below {math.ldexp(1, -encoding.frac_bits):g}, one unit of an "
            f"encoding with frac_bits={encoding.frac_bits}: choose a larger norm, or more "
            "frac_bits",
            code="bound-too-small",
        )
    found = _Bound(bound)
    found.frac_bits = encoding.frac_bits
    return found


def check_bound(bound: int, encoding: FixedPoint) -> None:
    """Refuse a `bound` that `l2_bound` has computed for another unit than the plan's `encoding`.

    Raises:
        ParameterError: with both numbers of fraction bits.
    """
    if isinstance(bound, _Bound) and bound.frac_bits != encoding.frac_bits:
        raise ParameterError(
            f"l2_bound was made for frac_bits={bound.frac_bits}, and the plan's encoding has "
            f"frac_bits={encoding.frac_bits}: pass one FixedPoint to Federated(encoding=) and to "
            "privacy.l2_bound",
            code="encodings-differ",
        )


def norm_squared(parts: Mapping[str, Whole]) -> int:
    """Sum of the squares of all values of all parts, exact for any `int64`."""
    total = 0
    for values in parts.values():
        most = max(int(values.max()), -int(values.min())) if values.size else 0
        if most * most * values.size < 1 << 63:  # as of nearly all updates
            total += int(np.vdot(values, values))
            continue
        flat = np.abs(values.reshape(-1)).astype(np.uint64)  # |-2**63| wraps to the right word
        for start in range(0, len(flat), _CHUNK):
            part = flat[start : start + _CHUNK]
            # Three limbs of 21 bits and a last bit: products below 2**42, sums below 2**62.
            limbs = np.stack(
                [(part >> np.uint64(_LIMB * i)) & np.uint64((1 << _LIMB) - 1) for i in range(4)]
            ).astype(np.int64)
            products = limbs @ limbs.T
            total += sum(
                int(products[i, j]) << (_LIMB * (i + j)) for i in range(4) for j in range(4)
            )
    return total


def target_norm(bound: int, num_values: int) -> float:
    """Norm of real values, in ring units, whose stochastic rounding mostly stays within `bound`.

    The largest c with c**2 + d/4 + c + sqrt(d)/2 <= bound**2: rounding d values of norm c exceeds
    that with probability at most exp(-1/2), and far less often in practice.

    Args:
        bound: at least sqrt(d).
        num_values: d.
    """
    room = bound * bound - num_values / 4 - math.sqrt(num_values) / 2
    return (math.sqrt(1 + 4 * max(room, 0.0)) - 1) / 2


def part_norm(bound: int, parts: int, width: int) -> float:
    """Norm of real values, in ring units, of one of equal parts that never meet a bound together.

    Each of `parts` vectors of `width` values within it, rounded to neighbouring integers, has at
    most norm bound / sqrt(parts), and all of them together pass `round_within` as they are: what
    is sent of one part does not depend on the others.

    Args:
        bound: `plan.l2_bound`.
        parts: at least 1.
        width: at least 1.

    Raises:
        ParameterError: there is no room for rounding.
    """
    room = bound / math.sqrt(parts) - math.sqrt(width)
    if room <= 0:
        raise ParameterError(
            f"l2_bound is {bound} units of the encoding, and the rounding of {parts} blocks of "
            f"{width} values can need more than {math.sqrt(width * parts):.3g} units: use more "
            "frac_bits, a larger l2_bound, or fewer blocks",
            code="bound-too-small",
        )
    return room


def round_within(
    bound: int,
    num_values: int,
    scaled: Mapping[str, Float64],
    round_once: Callable[[Mapping[str, Float64], int], dict[str, Whole]],
    own: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> dict[str, Whole]:
    """Integers near the values, scaled down if need be to an exact norm of at most `bound`.

    Args:
        bound: `plan.l2_bound`, above 0.
        num_values: `values_per_client` of the plan; public, so the room left for rounding also is.
        scaled: by segment, finite values in ring units, each within the encoding's clip.
        round_once: rounds every value to a neighbouring integer; a new second argument gives fresh
            coins (or the same result, with rounding to the nearest).
        own: bound and number of values, by name, of segments with a separate bound. Such a segment
            is scaled down to its bound before all segments are scaled down to `bound`.
    """

    def within(whole: Mapping[str, Whole]) -> bool:
        return norm_squared(whole) <= bound * bound and all(
            norm_squared({name: whole[name]}) <= most * most for name, (most, _) in own.items()
        )

    for name, (most, count) in own.items():
        scaled = {**scaled, **_scaled({name: scaled[name]}, target_norm(most, count))}
    scaled = _scaled(scaled, target_norm(bound, num_values))
    for attempt in range(TRIES):
        shrunk = 1 - attempt / (2 * TRIES)  # so that rounding to the nearest succeeds, too
        whole = round_once({name: values * shrunk for name, values in scaled.items()}, attempt)
        if within(whole):
            return whole
    whole = {name: np.trunc(values).astype(np.int64) for name, values in scaled.items()}
    while not within(whole):  # only by the last bits of the float norm, if ever
        whole = {name: values - np.sign(values) for name, values in whole.items()}
    return whole


def norm_kept(
    bound: int,
    num_values: int,
    scaled: Mapping[str, Float64],
    own: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> float:
    """The share of the norm that `round_within` leaves before it rounds; its arguments."""
    norms = {name: float(np.linalg.norm(values)) for name, values in scaled.items()}
    left = {
        name: min(norm, target_norm(*own[name])) if name in own else norm
        for name, norm in norms.items()
    }
    before, after = math.hypot(*norms.values()), math.hypot(*left.values())
    after = min(after, target_norm(bound, num_values))
    return after / before if after < before else 1.0


def _scaled(parts: Mapping[str, Float64], target: float) -> dict[str, Float64]:
    """The parts, scaled down where their norm together is above the target."""
    norm = math.sqrt(sum(float(np.vdot(values, values)) for values in parts.values()))
    if norm <= target:
        return dict(parts)
    return {name: values * (target / norm) for name, values in parts.items()}


def four_squares(total: int) -> tuple[int, int, int, int]:
    """Whole numbers, not negative and falling, whose squares add up to `total` (Lagrange).

    Powers of 4 are set aside. The largest number goes down from the root of what is left. It stops
    if the rest is a sum of three squares (Legendre: not 4**a (8 b + 7)). The second number goes
    down until the rest is a sum of two squares, as about one small number in four is. After some
    tries the largest number goes down further. The time depends on the total.
    """
    assert total >= 0
    scale, odd = 1, total
    while odd and odd % 4 == 0:
        scale, odd = 2 * scale, odd // 4
    for first in range(math.isqrt(odd), -1, -1):
        rest = odd - first * first
        second = math.isqrt(rest)
        for _ in range(_SECONDS if _is_three_squares(rest) else 0):
            pair = _two_squares(rest - second * second)
            if pair is not None:
                roots = sorted((first, second, *pair), reverse=True)
                return scale * roots[0], scale * roots[1], scale * roots[2], scale * roots[3]
            second -= 1
            if second < 0:
                break
    raise AssertionError("found no sum of four squares: this is a bug of torchfsl")


def _is_three_squares(total: int) -> bool:
    while total and total % 4 == 0:
        total //= 4
    return total % 8 != 7


def _two_squares(total: int) -> tuple[int, int] | None:
    if total % 4 == 3:
        return None
    for larger in range(math.isqrt(total), -1, -1):
        rest = total - larger * larger
        if rest > larger * larger:
            return None
        smaller = math.isqrt(rest)
        if smaller * smaller == rest:
            return larger, smaller
    return None

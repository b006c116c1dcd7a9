"""From a client's update to numbers modulo t, and from numbers modulo t back to sums.

The order is that of the plan: segment by segment, position by position, then the weight. A number x
stands as x mod t; sums are read as the one in [-t/2, t/2] that is congruent, which the plan's bound
makes the right one. Slots behind the last value are zero in an update and random in a mask.
"""

from __future__ import annotations

import numpy as np

from torchfsl.crypto.discrete_gaussian import os_words
from torchfsl.crypto.homomorphic import Slots
from torchfsl.errors import DecodeError
from torchfsl.sefl.sefl_plan import SeflPlan
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import noise_tail
from torchfsl.submodel.update import Update, check_update, check_weight
from torchfsl.types import Whole


def to_slots(plan: SeflPlan, update: Update, weight: int) -> Slots:
    """A client's update times its weight, and the weight, as whole ciphertexts want them.

    Args:
        plan: gives order and limits.
        update: quantised, every segment dense: `int64[m, 1]`.
        weight: in 1..`plan.max_weight`.

    Returns:
        `uint64[ciphertexts * slots]`, values below t.

    Raises:
        ParameterError: an update or a weight that does not fit the plan.
    """
    check_update(plan, update)
    weight = check_weight(plan, weight)
    whole = np.zeros(plan.ciphertexts * plan.slots, dtype=np.int64)
    start = 0
    for segment in plan.segments:
        whole[start : start + segment.m] = weight * update[segment.name].values[:, 0]
        start += segment.m
    if plan.lane_values:
        whole[start] = weight
    return np.mod(whole, plan.scheme.modulus).astype(np.uint64)


def random_slots(plan: SeflPlan) -> Slots:
    """A mask from the operating system: uniform in [0, t) in every slot, also in the padding."""
    modulus = plan.scheme.modulus
    words = os_words(plan.ciphertexts * plan.slots)
    limit = np.uint64((1 << 64) - (1 << 64) % modulus)  # t is odd, so that there is a remainder
    bad = np.flatnonzero(words >= limit)
    while bad.size:
        words[bad] = os_words(len(bad))
        bad = bad[words[bad] >= limit]
    return np.mod(words, np.uint64(modulus))


def centred(plan: SeflPlan, slots: Slots) -> Whole:
    """Numbers modulo t as signed ones of least magnitude: `int64`, same shape."""
    modulus = plan.scheme.modulus
    signed = slots.astype(np.int64)
    return np.where(signed > modulus // 2, signed - modulus, signed)


def pack(plan: SeflPlan, slots: Slots) -> bytes:
    """Numbers below t in whole bytes each, little-endian."""
    size = plan.scheme.slot_bytes
    return slots.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size].tobytes()


def unpack(plan: SeflPlan, data: bytes | memoryview) -> Slots:
    """What `pack` wrote; the length has been checked.

    Raises:
        DecodeError: a number is not below t.
    """
    size = plan.scheme.slot_bytes
    wide = np.zeros((len(data) // size, 8), dtype=np.uint8)
    wide[:, :size] = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)
    slots = wide.view("<u8").reshape(-1).astype(np.uint64)
    if slots.size and int(slots.max()) >= plan.scheme.modulus:
        raise DecodeError("expected numbers below the modulus, got a larger number")
    return slots


def to_opened(plan: SeflPlan, totals: Whole, clients: tuple[int, ...]) -> Opened:
    """The sums by segment.

    Positions that no honest updates add up to are zeroed, and the weight is kept within what so
    many clients may claim, as under `torchfsl.fsl`: a client that lies can do no more than
    lie within the range.

    Args:
        plan: gives order and limits.
        totals: `int64[num_values]`.
        clients: whose sums these are, sorted.
    """
    cohort = len(clients) * plan.max_weight
    limit = cohort * plan.encoding.q_max + noise_tail(plan.noise_sigma)
    sums, zeroed, start = {}, {}, 0
    for segment in plan.segments:
        values = totals[start : start + segment.m, None].copy()
        wrong = np.abs(values) > limit
        if wrong.any():
            values[wrong], zeroed[segment.name] = 0, int(wrong.sum())
        sums[segment.name] = values
        start += segment.m
    weight = int(totals[-1]) if plan.lane_values else len(clients)
    tail = noise_tail(plan.lane_sigma)
    kept = min(max(weight, len(clients) - tail), cohort + tail)
    return Opened(
        sums, {}, len(clients), kept, clients, zeroed=zeroed, weight_clamped=kept != weight
    )

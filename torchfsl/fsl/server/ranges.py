"""What no honest sum can be is zeroed: public post-processing, the same bits at both servers.

A sum of n honest reports lies in +-n * max_weight * q_max, a lane in 0 .. n * max_weight, each with
the noise's tail, and without noise no value exceeds its lane times q_max. One client, or a server
that alters what it relays, can push positions out of that. What is opened then would tell who holds
the position, or freeze it, or move it by more than the clip; so the whole position becomes zero.
Within the range a lying client still adds what it likes, as in any sum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.submodel.plan import noise_tail
from torchfsl.types import Bytes, Whole


def signed(total: Bytes) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Ring values `[..., l/8]` as signed numbers, and whether each fits; 0 where it does not."""
    fits = ring.fits_int64(total)
    if not fits.all():
        total = np.where(fits[..., None], total, np.uint8(0))
    return ring.to_int64(total), fits


def most_lane(plan: Plan, num_clients: int) -> int:
    """The largest count or weight of a position, the noise's tail included."""
    return num_clients * plan.max_weight + noise_tail(plan.lane_sigma)


def clamp_weight(plan: Plan, num_clients: int, weight: int) -> int:
    """The total weight within what the clients may claim together, the noise's tail included."""
    return min(max(weight, -noise_tail(plan.lane_sigma)), most_lane(plan, num_clients))


def zero_out_of_range(
    plan: Plan,
    segment: TreeSegment,
    num_clients: int,
    values: Whole,
    fits: npt.NDArray[np.bool_],
    lane: Whole | None = None,
) -> npt.NDArray[np.bool_]:
    """Zero every position that no honest reports add up to.

    Args:
        plan: gives the limits.
        segment: whose values they are.
        num_clients: reports in the sum.
        values: `int64[positions, tau]`, changed in place.
        fits: `bool[positions]`, False where a value did not fit 64 bits.
        lane: `int64[positions]`, or `int64[1]` for one that counts for all; not changed.

    Returns:
        `bool[positions]`: which were zeroed.
    """
    cohort, noisy = num_clients * plan.max_weight, plan.noise_sigma > 0
    most = plan.encoding_of(segment).q_max
    limit: int | Whole = cohort * most + noise_tail(plan.noise_sigma)
    wrong = ~fits
    if lane is not None:
        wrong |= (lane < -noise_tail(plan.lane_sigma)) | (lane > most_lane(plan, num_clients))
        if not noisy:
            limit = lane.clip(0, cohort)[:, None] * most
    wrong = wrong | ((values > limit) | (values < -limit)).any(axis=1)
    values[wrong] = 0
    return wrong

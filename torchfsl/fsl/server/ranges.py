"""Zeroes positions that no honest sum can have: public, and bit-identical at both servers.

A sum of n honest reports lies in +-n * max_weight * q_max, a lane in 0 .. n * max_weight, each with
the noise's tail. Without noise no value exceeds its lane times q_max. One client, or a server that
alters what it relays, can push positions out of this range. The opened value would tell who holds
the position, or freeze the position, or move it by more than the clip. So the whole position
becomes zero. Within the range a lying client can still add any value, as in any sum.

If clients have proven a bound, values beyond the range are cut to its end instead (`cut`). A proven
count exceeds the number of clients only by a row that a liar has put into several trees. Proven
values exceed the range only by this liar's norm. If such rows became zero, the liar could erase
what all others sent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import row_trees
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
    return num_clients * plan.max_weight + noise_tail(plan.lane_sigma, plan.noise_growth)


def most_opened_lane(plan: Plan, segment: TreeSegment, num_clients: int) -> int:
    """Largest lane of accepted reports: if it is proven, one weight per tree of a row."""
    proven = plan.statement is not None and plan.statement.has_lanes
    rows = num_clients * plan.max_weight * (row_trees(segment) if proven else 1)
    return rows + noise_tail(plan.lane_sigma, plan.noise_growth)


def clamp_weight(plan: Plan, num_clients: int, weight: int) -> int:
    """The total weight within what the clients may claim together, the noise's tail included."""
    return min(
        max(weight, -noise_tail(plan.lane_sigma, plan.noise_growth)), most_lane(plan, num_clients)
    )


def cut_lane(
    plan: Plan, segment: TreeSegment, num_clients: int, lane: Whole
) -> npt.NDArray[np.bool_]:
    """Cut counts or weights that are proven, and that a row in several trees has put too high.

    Args:
        plan: gives the limits.
        segment: whose lane it is.
        num_clients: reports in the sum.
        lane: `int64[positions]`, changed in place.

    Returns:
        `bool[positions]`: which were cut.
    """
    if plan.statement is None or not plan.statement.has_lanes:
        return np.zeros(len(lane), dtype=np.bool_)
    most = most_lane(plan, num_clients)
    far = (lane > most) & (lane <= most_opened_lane(plan, segment, num_clients))
    lane[far] = most
    return far


def cut(
    plan: Plan, segment: TreeSegment, num_clients: int, values: Whole, lane: Whole | None = None
) -> npt.NDArray[np.bool_]:
    """Cut values whose norm is proven, and that exceed the range, to its ends.

    Only under `proofs = "norm"`: where a client may send any value, huge ones would put a row at
    the end of the range, which is worse than to lose it.

    Args:
        plan: gives the limits.
        segment: whose values they are.
        num_clients: reports in the sum.
        values: `int64[positions, tau]`, changed in place.
        lane: as of `zero_out_of_range`.

    Returns:
        `bool[positions]`: which were cut.
    """
    if plan.statement is None or not plan.statement.norm:
        return np.zeros(len(values), dtype=np.bool_)
    limit = _limit(plan, segment, num_clients, lane)
    beyond = _beyond(values, limit)
    if beyond.any():
        np.clip(values, -limit, limit, out=values)
    return beyond


def _limit(plan: Plan, segment: TreeSegment, num_clients: int, lane: Whole | None) -> int | Whole:
    """The largest magnitude of an honest sum: one for all, or `int64[positions, 1]`."""
    cohort, most = num_clients * plan.max_weight, plan.encoding_of(segment).q_max
    if lane is None or plan.noise_sigma:
        return cohort * most + noise_tail(plan.noise_sigma, plan.noise_growth)
    each: Whole = lane.clip(0, cohort)[:, None] * most
    return each


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
    wrong = ~fits
    if lane is not None:
        wrong |= (lane < -noise_tail(plan.lane_sigma, plan.noise_growth)) | (
            lane > most_lane(plan, num_clients)
        )
    wrong = wrong | _beyond(values, _limit(plan, segment, num_clients, lane))
    if wrong.any():
        values[wrong] = 0
    return wrong


def _beyond(values: Whole, limit: int | Whole) -> npt.NDArray[np.bool_]:
    """Which positions hold a value of larger magnitude: one pass where none does, as mostly."""
    magnitudes = np.abs(values).view(np.uint64)  # |-2**63| wraps to the right word
    most = np.uint64(min(limit, 1 << 63)) if isinstance(limit, int) else limit.view(np.uint64)
    beyond = magnitudes > most
    if not beyond.any():
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(beyond.any(axis=1))

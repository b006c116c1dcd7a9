"""The noise of one server, on its share of a round's sums, before it commits to it.

Every value of the share, zeros and lanes included, gets a draw of its own of the discrete Gaussian
N_Z(0, s**2); `privacy` says what that guarantees.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import discrete_gaussian
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.types import Bytes

Draw = Callable[[int, int], npt.NDArray[np.int64]]
"""Takes a standard deviation and a count, gives so many draws."""


def add_noise(
    plan: Plan, segment: TreeSegment, share: Bytes, draw: Draw = discrete_gaussian.sample
) -> Bytes:
    """One server's share of a segment's sums with its noise; the share itself without noise.

    Args:
        plan: gives both standard deviations.
        segment: the segment of the share.
        share: its ring values in order, lanes where the plan has them: `[m, W/8]`, or
            `[values, l/8]` for a dense segment.
        draw: tests inject a known one.

    Returns:
        Shape of `share`. Law: the opened sums are the plain sums plus both servers' draws, exactly.
    """
    if not plan.noise_sigma:
        return share
    ring_bits = plan.encoding_of(segment).ring_bits
    values = share.reshape(-1, ring_bits // 8)
    is_lane = lanes(plan, segment, len(values))
    noise = np.empty(len(values), dtype=np.int64)
    num_lanes = int(np.count_nonzero(is_lane))
    noise[~is_lane] = draw(plan.noise_sigma, len(values) - num_lanes)
    noise[is_lane] = draw(plan.lane_sigma, num_lanes)
    noisy = ring.add(values, ring.from_int64(noise, ring_bits))
    return noisy.reshape(share.shape)


def lanes(plan: Plan, segment: TreeSegment, count: int) -> npt.NDArray[np.bool_]:
    """Which of a share's values belong to the lane."""
    is_lane = np.zeros(count, dtype=np.bool_)
    if segment.is_dense:
        is_lane[: plan.dense_values(segment) - segment.m] = True
    elif plan.lane_values:
        is_lane[:: segment.tau + plan.lane_values] = True
    return is_lane

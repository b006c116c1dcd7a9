"""From two shares to the sums of a round."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.bodies import share_by_segment
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import subset_array


def decode_shares(plan: Plan, first: Buffer, second: Buffer, clients: tuple[int, ...]) -> Opened:
    """Add two servers' shares and cut the sums into segments."""
    width = plan.encoding.ring_bits // 8
    ours, theirs = (share_by_segment(plan, share) for share in (first, second))
    sums: dict[str, npt.NDArray[np.int64]] = {}
    lanes: dict[str, npt.NDArray[np.int64]] = {}
    weight = len(clients)
    for segment in plan.with_trees:
        total = _opened(ours[segment.name], theirs[segment.name], width)
        values = _in_index_space(segment, total.reshape(segment.m, -1))
        if plan.payload == "masks":
            values = (values != 0).any(axis=1, keepdims=True) & np.ones_like(values)
        if plan.lane_values:
            lanes[segment.name] = values[:, 0]
        sums[segment.name] = values[:, plan.lane_values :]
    for segment in plan.dense:
        values = _opened(ours[segment.name], theirs[segment.name], width)
        if plan.lane == "weight":
            weight, values = int(values[0]), values[1:]
        sums[segment.name] = values[:, None]
    return Opened(sums, lanes, len(clients), weight, clients)


def _opened(first: Buffer, second: Buffer, width: int) -> npt.NDArray[np.int64]:
    """The sums, as signed numbers, of two shares of values of `width` bytes."""
    shares = [np.frombuffer(share, np.uint8).reshape(-1, width) for share in (first, second)]
    return ring.to_int64(ring.add(*shares))


def _in_index_space(segment: TreeSegment, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Values `[m, n]` of a segment's trees at their positions, zeros outside its subset."""
    if not segment.subset:
        return values
    full = np.zeros((segment.index_space, values.shape[1]), dtype=np.int64)
    full[subset_array(segment.subset)] = values
    return full

"""From two shares to the sums of a round."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels import ring
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import subset_array


def decode_shares(
    plan: Plan, first: bytes, second: bytes | memoryview, clients: tuple[int, ...]
) -> Opened:
    """Add two servers' shares and cut the sums into segments."""
    width = plan.encoding.ring_bits // 8
    shares = [np.frombuffer(share, np.uint8).reshape(-1, width) for share in (first, second)]
    total = ring.to_int64(ring.add(shares[0], shares[1]))
    sums: dict[str, npt.NDArray[np.int64]] = {}
    lanes: dict[str, npt.NDArray[np.int64]] = {}
    weight, start = len(clients), 0
    for segment in plan.with_trees:
        count = segment.m * (segment.tau + plan.lane_values)
        values = _in_index_space(segment, total[start : start + count].reshape(segment.m, -1))
        if plan.payload == "masks":
            values = (values != 0).any(axis=1, keepdims=True) & np.ones_like(values)
        if plan.lane_values:
            lanes[segment.name] = values[:, 0]
        sums[segment.name] = values[:, plan.lane_values :]
        start += count
    for segment in plan.dense:
        count = plan.dense_values(segment)
        values = total[start : start + count]
        if plan.lane == "weight":
            weight, values = int(values[0]), values[1:]
        sums[segment.name] = values[:, None]
        start += count
    return Opened(sums, lanes, len(clients), weight, clients)


def _in_index_space(segment: TreeSegment, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Values `[m, n]` of a segment's trees at their positions, zeros outside its subset."""
    if not segment.subset:
        return values
    full = np.zeros((segment.index_space, values.shape[1]), dtype=np.int64)
    full[subset_array(segment.subset)] = values
    return full

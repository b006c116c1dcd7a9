"""The bound on the opened sum in Python's integers, value by value; see `submodel.sum_bound`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import SubmodelPlan, noise_tail


def root_up(square: int) -> int:
    root = math.isqrt(square)
    return root + (root * root < square)


def deviation(plan: SubmodelPlan) -> int:
    if not plan.noise_taps:
        return plan.noise_sigma
    lost = math.sqrt(sum(tap * tap for tap in plan.noise_taps)) / plan.noise_taps[0]
    return math.ceil(plan.noise_sigma * max(plan.noise_growth, lost)) + 1


def kept(plan: SubmodelPlan, opened: Opened) -> Opened:
    """The same sums within the bound."""
    sums = {name: value.tolist() for name, value in opened.sums.items()}
    lanes = {name: lane.tolist() for name, lane in opened.lanes.items()}
    scaled: dict[str, float] = {}
    n, s, t = opened.num_clients, deviation(plan), 28
    total = n * plan.max_weight
    lane_tail = noise_tail(plan.lane_sigma, plan.noise_growth)
    if plan.lane == "weight" and any(segment.is_dense for segment in plan.segments):
        total = min(max(opened.total_weight + lane_tail, 0), total)

    def limit(names: list[str], reach: int) -> int:
        count = sum(x.m * x.tau for x in plan.segments if x.name in names)
        tail = 2 * s * s * (count + 2 * root_up(t * count) + 2 * t)
        return reach * reach + root_up(16 * t * (reach * s) ** 2) + tail if s else reach * reach

    def shrink(names: list[str], norm: int, most: int) -> None:
        if norm <= most:
            return
        factor = math.isqrt((most << 64) // norm)
        for name in names:
            scaled[name] = scaled.get(name, 1.0) * (factor / 2**32)
            for row in sums[name]:
                row[:] = [(abs(v) * factor >> 32) * (1 if v > 0 else -1) for v in row]

    groups = [([x.name], x.l2_bound) for x in plan.segments if x.l2_bound]
    groups += [([x.name for x in plan.segments], plan.l2_bound)]
    for names, bound in groups:
        norm = sum(v * v for name in names for row in sums[name] for v in row)
        shrink(names, norm, limit(names, total * bound))
        counted = [name for name in names if name in lanes]
        quotients = 0
        for name in counted:
            for row, lane in zip(sums[name], lanes[name], strict=True):
                quotients += sum(v * v for v in row) // max(lane + lane_tail, 1) ** 2
        count = sum(x.m * x.tau for x in plan.segments if x.name in counted)
        tail = 2 * s * s * (count + 2 * root_up(t * count) + 2 * t) if s else 0
        reach = n * bound * bound
        shrink(counted, quotients, reach + root_up(16 * t * reach * s * s) + tail)
    arrays = {
        name: np.array(value, np.int64).reshape(opened.sums[name].shape)
        for name, value in sums.items()
    }
    return dataclasses.replace(opened, sums=arrays, scaled=scaled)

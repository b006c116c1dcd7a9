"""What a round must open: plain sums of the quantised updates, one value at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Contribution:
    """One client's update as submitted: its weight, and positions that found no bin."""

    update: Mapping[str, Any]
    weight: int = 1
    unmatched: Mapping[str, Sequence[int]] = field(default_factory=dict)


def sums(plan: Any, contributions: Sequence[Contribution]) -> dict[str, Any]:
    """By segment, the exact sums `int64[positions, tau]`, summed as Python integers."""
    totals = {}
    for segment in plan.segments:
        table = [[0] * segment.tau for _ in range(segment.index_space)]
        for position, values, weight in _entries(segment, contributions):
            table[position] = [
                total + weight * int(value)
                for total, value in zip(table[position], values, strict=True)
            ]
        totals[segment.name] = np.array(table, dtype=np.int64).reshape(-1, segment.tau)
    return totals


def lanes(plan: Any, contributions: Sequence[Contribution]) -> dict[str, Any]:
    """By tree segment, how many clients (or which weight) changed each position."""
    totals = {}
    for segment in plan.segments:
        if plan.lane == "none" or segment.policy == "dense":
            continue
        counts = [0] * segment.index_space
        for position, _, weight in _entries(segment, contributions):
            counts[position] += weight
        totals[segment.name] = np.array(counts, dtype=np.int64)
    return totals


def _entries(segment: Any, contributions: Sequence[Contribution]) -> Any:
    for contribution in contributions:
        part = contribution.update[segment.name]
        left_out = set(contribution.unmatched.get(segment.name, ()))
        positions = range(segment.m) if part.indices is None else part.indices.tolist()
        for position, values in zip(positions, part.values.tolist(), strict=True):
            if position not in left_out:
                yield position, values, contribution.weight

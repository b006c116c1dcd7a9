"""Scaling of an update by group, so that no part takes the whole norm bound.

Groups are the dense part, and each table; of other chosen positions each segment is one. Each has
an equal share of the bound: its square is the bound's square over the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from torchfsl.submodel.norm_bound import target_norm
from torchfsl.submodel.plan import SubmodelPlan, values_per_client
from torchfsl.submodel.segments import Segment, tensor_spans
from torchfsl.types import Float64, Indices


def num_groups(plan: SubmodelPlan) -> int:
    """Groups of an update under the plan."""
    chosen = [s for s in plan.segments if not s.is_dense]
    tables = sum(len(s.tensors) if s.policy == "rows" else 1 for s in chosen)
    return tables + (len(chosen) < len(plan.segments))


def by_group(
    plan: SubmodelPlan,
    values: Mapping[str, Float64],
    indices: Mapping[str, Indices | None],
) -> tuple[dict[str, Float64], float]:
    """Values by segment, each group scaled to its share of the bound, and the share of norm left.

    A group that is zero, infinite or not a number becomes zero. Under `normalise`, which
    also scales up, the share is 1.
    """
    bound = target_norm(plan.l2_bound, values_per_client(plan)) / math.sqrt(num_groups(plan))
    most = math.ldexp(bound, -plan.encoding.frac_bits)
    scaled = {name: part.copy() for name, part in values.items()}
    before = after = 0.0
    for group in _groups(plan, scaled, indices):
        with np.errstate(over="ignore", invalid="ignore"):
            length = math.sqrt(sum(float(np.vdot(part, part)) for part in group))
        fits = math.isfinite(length) and length > 0
        factor = most / length if fits else 0.0
        factor = factor if plan.clip == "normalise" else min(factor, 1.0)
        for part in group:
            part[...] = part * factor if fits else 0.0
        if fits:
            before, after = math.hypot(before, length), math.hypot(after, length * factor)
    return scaled, after / before if before and plan.clip == "clip" else 1.0


def _groups(
    plan: SubmodelPlan, values: Mapping[str, Float64], indices: Mapping[str, Indices | None]
) -> Iterator[list[Float64]]:
    """Views of the groups' values."""
    yield [values[s.name] for s in plan.segments if s.is_dense]
    for segment in plan.segments:
        if not segment.is_dense:
            rows = indices[segment.name]
            assert rows is not None
            yield from ([part] for part in _tables(segment, values[segment.name], rows))


def _tables(segment: Segment, values: Float64, rows: Indices) -> Iterator[Float64]:
    if segment.policy != "rows":
        yield values
        return
    for _, span in tensor_spans(segment):
        start, stop = np.searchsorted(rows, [span.start, span.stop])
        yield values[start:stop]

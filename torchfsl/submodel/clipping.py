"""Scaling of an update by group, so that no part takes the whole norm bound.

Groups are the dense part, and each table; of other chosen positions each segment is one. Each has
an equal share of the bound: its square is the bound's square over the number of groups.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.submodel.norm_bound import target_norm
from torchfsl.submodel.plan import Clip, SubmodelPlan, values_per_client
from torchfsl.submodel.segments import Segment, ceil_div, tensor_spans
from torchfsl.types import Float64, Indices

AnySegment = TypeVar("AnySegment", bound=Segment)

_ROOM: Final = 3
"""Units above a share: at least four deviations of what rounding adds."""


def num_groups(segments: Sequence[Segment]) -> int:
    """Groups of an update of these segments."""
    chosen = [s for s in segments if not s.is_dense]
    return sum(map(_num_tables, chosen)) + (len(chosen) < len(segments))


def with_shares(segments: Sequence[AnySegment], bound: int, clip: Clip) -> tuple[AnySegment, ...]:
    """Segments with their share of the bound for an `l2_bound`, where they have none.

    Tables of one segment have their shares together. Of several dense segments each has the share
    of the dense part. Rounding has room above a share, so that it mostly keeps what `by_group`
    leaves.

    Raises:
        ParameterError: a share is less than rounding can need.
    """
    count, shares = num_groups(segments), []
    for segment in segments:
        parts, least = _num_tables(segment), segment.k_max * segment.tau
        share = segment.l2_bound or share_of(segment, bound, count)
        if share * share < least:
            enough = ceil_div(count * (math.isqrt(least - 1) + 1) ** 2, parts)
            raise ParameterError(
                f"clip={clip!r} limits the norm of segment {segment.name!r} to {share} (l2_bound "
                f"is {bound}), and rounding alone can exceed {share}: use an l2_bound of at least "
                f"{math.isqrt(enough - 1) + 1}, more frac_bits, or clip='whole'",
                code="bound-too-small",
            )
        own = segment.l2_bound if parts == count else share
        shares.append(dataclasses.replace(segment, l2_bound=own))
    return tuple(shares)


def share_of(segment: Segment, bound: int, count: int) -> int:
    """The share of `count` groups that a segment's groups have, and room for rounding.

    At most `bound`. Rounding d values of a norm c moves it by d / 8c, and by half a unit of
    deviation.
    """
    square = bound * bound * _num_tables(segment) // count + segment.k_max * segment.tau // 4
    return min(math.isqrt(square) + _ROOM, bound)


def _num_tables(segment: Segment) -> int:
    return len(segment.tensors) if segment.policy == "rows" else 1


def by_group(
    plan: SubmodelPlan,
    values: Mapping[str, Float64],
    indices: Mapping[str, Indices | None],
) -> tuple[dict[str, Float64], float]:
    """Values by segment, each group scaled to its share of the bound, and the share of norm left.

    A group that is zero, infinite or not a number becomes zero. Under `normalise`, which
    also scales up, the share is 1.
    """
    bound = target_norm(plan.l2_bound, values_per_client(plan)) / math.sqrt(
        num_groups(plan.segments)
    )
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

"""A client's sparse update: per segment the selected positions and their quantised values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torchfsl import kdf
from torchfsl.errors import ParameterError
from torchfsl.fixed_point import ClipReport
from torchfsl.plan import Plan, Segment

Indices = npt.NDArray[np.int64]
Whole = npt.NDArray[np.int64]
Reals = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class RawSegment:
    """Selected positions and real values, before quantisation.

    `indices`: `int64[k]`, strictly increasing; None for `dense`. `values`: `float[k, tau]`
    (`[m, 1]` or `[m]` for `dense`).
    """

    indices: Indices | None = field(repr=False)
    values: Reals = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """Selected positions and quantised values, `int64[k, tau]`; `indices` is None for `dense`."""

    indices: Indices | None = field(repr=False)
    values: Whole = field(repr=False)


Update = dict[str, SegmentUpdate]


def check_indices(segment: Segment, indices: npt.ArrayLike) -> Indices:
    """The indices as `int64[k]`, strictly increasing, in [0, m), at most k_max of them.

    Raises:
        ParameterError: they are not.
    """
    given = np.asarray(indices)
    where = f"segment {segment.name!r}"
    if given.ndim != 1 or not (given.size == 0 or np.issubdtype(given.dtype, np.integer)):
        raise ParameterError(f"{where}: indices must be a one-dimensional integer array")
    if len(given) > segment.k_max:
        raise ParameterError(
            f"{where}: {len(given)} positions selected, the plan allows k_max = {segment.k_max}: "
            "keep the most important ones or plan a larger k_max"
        )
    if given.size and (int(given.min()) < 0 or int(given.max()) >= segment.m):
        raise ParameterError(f"{where}: an index lies outside [0, {segment.m})")
    rows = given.astype(np.int64)
    if np.any(np.diff(rows) <= 0):
        raise ParameterError(f"{where}: indices must be distinct and increasing (np.unique)")
    return rows


def quantise(
    plan: Plan, raw: Mapping[str, RawSegment], *, rounding_seed: bytes | None = None
) -> tuple[Update, dict[str, npt.NDArray[np.float64]], ClipReport]:
    """Quantise every segment of an update.

    Args:
        plan: gives segments and encoding.
        raw: one entry for every segment of the plan.
        rounding_seed: secret of at least 16 bytes, for stochastic rounding only; each use of a
            seed rounds the same way.

    Returns:
        The update, the quantisation errors (raw - decoded, `float64[k, tau]`, for the residual),
        and the clip report over all segments.

    Raises:
        ParameterError: unknown or missing segment, wrong shape, NaN or infinity, bad indices.
    """
    if set(raw) != {segment.name for segment in plan.segments}:
        raise ParameterError(
            f"the update has segments {sorted(raw)}, the plan {[s.name for s in plan.segments]}"
        )
    update: Update = {}
    errors: dict[str, npt.NDArray[np.float64]] = {}
    report = ClipReport(0, 0, 0.0)
    for segment in plan.segments:
        part = raw[segment.name]
        indices = None if segment.policy == "dense" else check_indices(segment, _given(part))
        count = segment.m if indices is None else len(indices)
        reals = np.asarray(part.values, dtype=np.float64)
        if reals.size != count * segment.tau:
            raise ParameterError(
                f"segment {segment.name!r}: values of shape {reals.shape}, expected "
                f"({count}, {segment.tau})"
            )
        key = rounding_seed and kdf.derive(rounding_seed, kdf.LABEL_ROUNDING, segment.name.encode())
        whole, clipped = plan.encoding.quantise(reals.reshape(count, segment.tau), rounding_key=key)
        update[segment.name] = SegmentUpdate(indices, whole)
        errors[segment.name] = reals.reshape(whole.shape) - plan.encoding.dequantise(whole)
        report = report.merge(clipped)
    return update, errors, report


def _given(part: RawSegment) -> Indices:
    if part.indices is None:
        raise ParameterError("only a dense segment may leave out its indices")
    return part.indices


def check_update(plan: Plan, update: Mapping[str, SegmentUpdate]) -> None:
    """Check that an update fits the plan: segments, shapes, indices, magnitudes.

    Raises:
        ParameterError: it does not.
    """
    if set(update) != {segment.name for segment in plan.segments}:
        raise ParameterError(
            f"the update has segments {sorted(update)}, the plan {[s.name for s in plan.segments]}"
        )
    for segment in plan.segments:
        part = update[segment.name]
        if (part.indices is None) != (segment.policy == "dense"):
            raise ParameterError(f"segment {segment.name!r}: indices are for tree segments only")
        count = segment.m if part.indices is None else len(check_indices(segment, part.indices))
        if part.values.shape != (count, segment.tau) or part.values.dtype != np.int64:
            raise ParameterError(
                f"segment {segment.name!r}: values {part.values.dtype}{part.values.shape}, "
                f"expected int64({count}, {segment.tau})"
            )
        limit = plan.encoding.q_max
        if part.values.size and max(int(part.values.max()), -int(part.values.min())) > limit:
            raise ParameterError(
                f"segment {segment.name!r}: a value exceeds q_max = {limit}; quantise with the "
                "plan's encoding"
            )

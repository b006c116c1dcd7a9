"""A client's sparse update: per segment the selected positions and their quantised values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import ClipReport
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.errors import ParameterError
from torchfsl.submodel import clipping, norm_bound
from torchfsl.submodel.plan import SubmodelPlan, values_per_client
from torchfsl.submodel.segments import Segment
from torchfsl.types import Float64, Indices, Whole

Reals = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class _Part:
    """One segment's part: `indices` strictly increases, `int64[k]`, or is None for `dense`."""

    indices: Indices | None = field(repr=False)

    @property
    def positions(self) -> Indices:
        """`indices` of a segment with selected positions.

        Raises:
            ParameterError: there are none, as for a dense segment.
        """
        if self.indices is None:
            raise ParameterError(
                "only a dense segment may leave out its indices: pass the indices",
                code="rows-missing",
            )
        return self.indices


@dataclass(frozen=True, slots=True)
class RawSegment(_Part):
    """Selected positions and real values, before quantisation.

    `values`: `float[k, tau]` (`[m, 1]` or `[m]` for `dense`).
    """

    values: Reals = field(repr=False)


@dataclass(frozen=True, slots=True)
class SegmentUpdate(_Part):
    """Selected positions and quantised values, `int64[k, tau]`; `indices` is None for `dense`."""

    values: Whole = field(repr=False)


Update = dict[str, SegmentUpdate]


def check_indices(segment: Segment, indices: npt.ArrayLike) -> Indices:
    """The indices as `int64[k]`, strictly increasing, at most k_max of them.

    They count in the segment's whole index space and lie in its subset, if it has one.

    Raises:
        ParameterError: they are not.
    """
    given = np.asarray(indices)
    where = f"segment {segment.name!r}"
    if given.ndim != 1 or not (given.size == 0 or given.dtype.kind in "iu"):
        raise ParameterError(
            f"{where}: indices must be a one-dimensional integer array: "
            "pass np.int64 positions of shape [k]",
            code="invalid-rows",
        )
    if len(given) > segment.k_max:
        raise ParameterError(
            f"{where}: {len(given)} positions selected, and the plan allows k_max = "
            f"{segment.k_max}: select fewer positions, or make a plan with a larger k_max",
            code="too-many-rows",
        )
    if given.size:
        increasing = bool((given[1:] > given[:-1]).all())
        least, most = (given[0], given[-1]) if increasing else (given.min(), given.max())
        space = segment.index_space if segment.subset else segment.m
        if least < 0 or most >= space:
            raise ParameterError(
                f"{where}: an index is outside 0 to {space - 1}", code="row-out-of-range"
            )
        if not increasing:
            raise ParameterError(
                f"{where}: indices must be distinct and increasing (np.unique)", code="invalid-rows"
            )
    rows = given.astype(np.int64)
    if segment.subset and np.any(segment.tree_positions(rows) < 0):
        raise ParameterError(
            f"{where}: a position is outside the plan's union, the positions that any client may "
            "send: leave it out now, and send it under a plan whose union has it",
            code="row-outside-union",
        )
    return rows


def check_named(
    segments: Sequence[Segment], indices: Mapping[str, npt.ArrayLike]
) -> dict[str, Indices]:
    """The indices of each of these segments, by name; see `check_indices`.

    Raises:
        ParameterError: they are of other segments, or not valid.
    """
    names = [segment.name for segment in segments]
    if set(indices) != set(names):
        raise ParameterError(
            f"expected positions for the segments {sorted(names)}, got {sorted(indices)}",
            code="segments-differ",
        )
    return {segment.name: check_indices(segment, indices[segment.name]) for segment in segments}


def is_whole(weight: object) -> TypeGuard[int | np.integer]:
    """Whether it is a whole number, of Python or NumPy."""
    return isinstance(weight, int | np.integer) and not isinstance(weight, bool)


def check_weight(plan: SubmodelPlan, weight: object) -> int:
    """A client's weight as an int.

    Raises:
        ParameterError: no whole number in 1..max_weight.
    """
    whole = int(weight) if is_whole(weight) else 0
    if 1 <= whole <= plan.max_weight:
        return whole
    if plan.lane == "weight":
        raise ParameterError(
            f"weight is {weight!r}, expected a whole number from 1 to "
            f"max_weight={plan.max_weight}: pass max(1, min(weight, {plan.max_weight})), or make a "
            "plan with a larger max_weight",
            code="wrong-weight",
        )
    raise ParameterError(
        f"weight is {weight!r}, and under this plan (lane={plan.lane!r}) every client counts once: "
        "leave out weight, or make a plan with average='weight' and max_weight=",
        code="wrong-weight",
    )


def quantise(
    plan: SubmodelPlan, raw: Mapping[str, RawSegment], *, rounding_seed: bytes | None = None
) -> tuple[Update, dict[str, Float64], ClipReport]:
    """Quantise every segment of an update.

    Args:
        plan: gives segments and encoding.
        raw: one entry for every segment of the plan.
        rounding_seed: secret of at least 16 bytes, for stochastic rounding only; each use of a
            seed rounds the same way.

    Returns:
        The update, the quantisation errors (raw - decoded, `float64[k, tau]`, for the residual),
        and the clip report over all segments. Under `plan.l2_bound` the update is scaled down to
        it, and what that takes away is part of the errors. Under `plan.clip` by group it is not.

    Raises:
        ParameterError: unknown or missing segment, wrong shape, NaN or infinity, bad indices.
    """
    if set(raw) != {segment.name for segment in plan.segments}:
        raise ParameterError(
            f"expected an update of the segments {[s.name for s in plan.segments]}, got "
            f"{sorted(raw)}",
            code="segments-differ",
        )
    if rounding_seed is not None and len(rounding_seed) < SEED_BYTES:
        raise ParameterError(
            f"rounding_seed has {len(rounding_seed)} bytes, expected at least 16: "
            "pass 16 random bytes or more",
            code="seed-too-short",
        )
    indices: dict[str, Indices | None] = {}
    reals: dict[str, Float64] = {}
    for segment in plan.segments:
        part = raw[segment.name]
        chosen = None if segment.is_dense else check_indices(segment, part.positions)
        indices[segment.name] = chosen
        reals[segment.name] = _reals(segment, part, segment.m if chosen is None else len(chosen))
    share = 1.0
    if plan.clip != "whole":
        reals, share = clipping.by_group(plan, reals, indices)
    whole, report = _round(plan, reals, rounding_seed, 0)
    if plan.l2_bound:
        whole, kept = _round_within_norm(plan, reals, rounding_seed)
        report = dataclasses.replace(report, norm_kept=kept * share)
    update = {name: SegmentUpdate(indices[name], values) for name, values in whole.items()}
    errors = {
        s.name: reals[s.name] - plan.encoding_of(s).dequantise(whole[s.name]) for s in plan.segments
    }
    return update, errors, report


def _reals(segment: Segment, part: RawSegment, count: int) -> Float64:
    reals = np.asarray(part.values, dtype=np.float64)
    if reals.shape != (count, segment.tau) and (segment.tau, reals.shape) != (1, (count,)):
        raise ParameterError(
            f"segment {segment.name!r}: values of shape {reals.shape}, expected "
            f"({count}, {segment.tau})",
            code="wrong-shape",
        )
    return reals.reshape(count, segment.tau)


def _round(
    plan: SubmodelPlan, reals: Mapping[str, Float64], seed: bytes | None, attempt: int
) -> tuple[dict[str, Whole], ClipReport]:
    """Quantise every segment, with separate coins for every segment and attempt."""
    whole: dict[str, Whole] = {}
    report = ClipReport(0, 0, 0.0)
    for segment in plan.segments:
        name, key = segment.name, None
        if seed is not None:
            context = kdf.frame(name.encode(), attempt.to_bytes(4, "little"))
            key = kdf.derive(seed, kdf.LABEL_ROUNDING, context)
        encoding = plan.encoding_of(segment)
        whole[name], clipped = encoding.quantise(reals[name], rounding_key=key)
        report = report.merge(clipped)
    return whole, report


def _round_within_norm(
    plan: SubmodelPlan, reals: Mapping[str, Float64], seed: bytes | None
) -> tuple[dict[str, Whole], float]:
    """Quantise every segment so that the norm of all integers together is within the bound.

    The second result is the share of the norm that the bound leaves. Under a bound all segments
    have the plan's `frac_bits`.
    """
    bits, scaled = plan.encoding.frac_bits, {}
    for segment in plan.segments:
        clip = plan.encoding_of(segment).clip
        scaled[segment.name] = np.ldexp(np.clip(reals[segment.name], -clip, clip), bits)

    def round_once(ring_units: Mapping[str, Float64], attempt: int) -> dict[str, Whole]:
        values = {name: np.ldexp(part, -bits) for name, part in ring_units.items()}
        return _round(plan, values, seed, attempt)[0]

    own = {s.name: (s.l2_bound, s.k_max * s.tau) for s in plan.segments if s.l2_bound}
    count = values_per_client(plan)
    whole = norm_bound.round_within(plan.l2_bound, count, scaled, round_once, own)
    return whole, norm_bound.norm_kept(plan.l2_bound, count, scaled, own)


def check_update(plan: SubmodelPlan, update: Mapping[str, SegmentUpdate]) -> None:
    """Check that an update fits the plan: segments, shapes, indices, magnitudes, norm.

    Raises:
        ParameterError: it does not.
    """
    if set(update) != {segment.name for segment in plan.segments}:
        raise ParameterError(
            f"expected an update of the segments {[s.name for s in plan.segments]}, got "
            f"{sorted(update)}",
            code="segments-differ",
        )
    for segment in plan.segments:
        part = update[segment.name]
        _check_part(segment, part)
        limit = plan.encoding_of(segment).q_max
        if not plan.values_are_bounded:
            continue
        if part.values.size and max(int(part.values.max()), -int(part.values.min())) > limit:
            raise ParameterError(
                f"segment {segment.name!r}: a value exceeds q_max = {limit}: call "
                "torchfsl.submodel.quantise(plan, raw)",
                code="value-too-large",
            )
    whole = {name: part.values for name, part in update.items()}
    if plan.l2_bound and norm_bound.norm_squared(whole) > plan.l2_bound * plan.l2_bound:
        raise ParameterError(
            f"the update's L2 norm exceeds l2_bound = {plan.l2_bound}: call "
            "torchfsl.submodel.quantise(plan, raw), which scales the update",
            code="norm-too-large",
        )
    for segment in plan.segments:
        own = norm_bound.norm_squared({"": whole[segment.name]}) if segment.l2_bound else 0
        if own > segment.l2_bound**2:
            raise ParameterError(
                f"segment {segment.name!r}: the L2 norm exceeds the segment's l2_bound = "
                f"{segment.l2_bound}: call torchfsl.submodel.quantise(plan, raw), which scales the "
                "update",
                code="norm-too-large",
            )


def _check_part(segment: Segment, part: object) -> None:
    """Check one segment's part: types, positions and shape."""
    where, given = f"segment {segment.name!r}", getattr(part, "values", part)
    if not isinstance(part, SegmentUpdate) or not _is_int64(given):
        raise ParameterError(
            f"{where}: expected a SegmentUpdate with a plain int64 array, got "
            f"{getattr(given, 'dtype', '')} {type(given).__name__}. Use "
            "torchfsl.submodel.quantise(plan, raw)[0], with a RawSegment of real values for each "
            "segment",
            code="wrong-type",
        )
    if (part.indices is None) != segment.is_dense:
        raise ParameterError(
            f"{where} is dense, so all positions are sent: leave out indices"
            if segment.is_dense
            else f"{where} is not dense: pass the indices of the values",
            code="invalid-rows",
        )
    if part.indices is not None and not _is_int64(part.indices):
        raise ParameterError(f"{where}: indices must be plain int64 arrays", code="invalid-rows")
    count = segment.m if part.indices is None else len(check_indices(segment, part.indices))
    if part.values.shape != (count, segment.tau):
        raise ParameterError(
            f"{where}: values of shape {part.values.shape}, expected ({count}, {segment.tau})",
            code="wrong-shape",
        )


def _is_int64(array: object) -> bool:
    """A plain array: subclasses, masked arrays for one, have a different arithmetic."""
    return type(array) is np.ndarray and array.dtype == np.int64

"""From public numbers to a plan: bins, early termination and stash, and the byte counts.

The planner advises and changes nothing unasked: where dense shares would be cheaper than trees it
raises (or keeps, or switches, as told), naming the policy to choose.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack, get_args

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, whole_numbers
from torchfsl.fsl.cuckoo.bounds import choose_layout, min_bins, stash_for
from torchfsl.fsl.plan.headroom import with_headroom
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import MAX_RING_BITS, Proofs, make_statement, one_ring
from torchfsl.fsl.suite import CHECK_BYTES, NUM_HASHES, TAG_BYTES
from torchfsl.submodel.clipping import with_shares
from torchfsl.submodel.norm_bound import check_bound
from torchfsl.submodel.plan import Clip, Lane, check_unit
from torchfsl.submodel.segments import Download, SegmentSpec, ceil_div, positions, vars_of

log = logging.getLogger("torchfsl.planner")

AboveBreakEven = Literal["error", "dense", "keep"]


class ModelPlanOptions(TypedDict, total=False):
    """Options of a plan that `torchfsl.Federated` passes on to `build_plan`.

    Attributes:
        max_weight: largest weight of a client under `lane="weight"`; clients give 1 to it.
        max_epochs: rounds that a client's trees serve, for a fixed submodel: they go up once and
            later rounds upload hints only. Above 1 there is no early termination, to keep hints
            small.
        max_rounds: see `Plan`.
        min_contributors: see `Plan`.
        malicious_security: check words on every tree and tags on every answer, the default; False
            is the semi-honest option.
        l2_bound: see `Plan`; `privacy.l2_bound` gives it for a norm of real values. With it,
            noise from the servers hides single clients also in sparse tables, where client-side
            noise would fill every row.
        l2_bounds: by name those of segments that have a separate one, within `l2_bound`. Under
            norm proofs and a `clip` by group the others have their share (`clipping.with_shares`).
        noise_sigma: see `Plan`; `privacy.calibrate` gives it for an epsilon.
        lane_sigma: see `Plan`.
        clip: see `Plan`; how clients keep `l2_bound`.
        sum_bound: see `Plan`; None for one wherever `l2_bound` is given.
        proofs: see `Plan`; what clients prove of their counts or weights, or of their whole update.
            None takes what `default_proofs` says: `norm` with `l2_bound`, `lanes` with a lane.
        session: 16 bytes; from the operating system when None.
        hash_seed: 32 bytes of the servers' joint coin; from the operating system when None.
        above_break_even: what to do with a segment whose trees cost more upload than dense
            shares: `error` raises, `dense` switches to dense shares (clients download such tables
            whole instead of retrieving rows), `keep` keeps the trees.
        download: as what clients get the model, rows that they fetch included: `full`, or rounded
            to `float16` or `bfloat16` for half the bytes of float32. The servers' model stays
            as it is.
    """

    max_weight: int
    max_epochs: int
    max_rounds: int
    min_contributors: int
    malicious_security: bool
    l2_bound: int
    l2_bounds: Mapping[str, int]
    noise_sigma: int
    lane_sigma: int
    clip: Clip
    sum_bound: bool | None
    proofs: Proofs | None
    session: bytes | None
    hash_seed: bytes | None
    above_break_even: AboveBreakEven
    download: Download


class PlanOptions(ModelPlanOptions, total=False):
    """Options of `build_plan` next to segments, encoding and `max_clients`.

    Attributes:
        min_clients: fewest reports that a round may open, at most `max_clients`; 1 opens a single
            client's update.
        lane: `count` or `weight` opens, for every position, how many clients (which weight) sent
            it, so that rows are averaged by who sent them: it discloses these numbers.
        server_keys: see `Plan`.

    The others are those of `ModelPlanOptions`.
    """

    min_clients: int
    lane: Lane
    server_keys: tuple[str, ...]


def build_plan(
    specs: list[SegmentSpec],
    *,
    encoding: FixedPoint,
    max_clients: int,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Choose layouts and put the plan together.

    Args:
        specs: the segments wanted.
        encoding: fixed-point parameters of all segments whose spec has none.
        max_clients: most reports that a round may open.
        **options: see `PlanOptions`.

    Returns:
        The plan.

    Raises:
        ParameterError: if a limit is exceeded, or a segment is above break-even under `error`.
    """
    fields: dict[str, Any] = dict(options)  # those of `Plan`, once the others are taken out
    above_break_even = fields.pop("above_break_even", "error")
    download = fields.pop("download", "full")
    checked, l2_bounds = fields.pop("malicious_security", True), fields.pop("l2_bounds", {})
    drawn = {
        name: _given_or_drawn(name, fields.pop(name, None), size)
        for name, size in (("session", 16), ("hash_seed", 32))
    }
    if above_break_even not in get_args(AboveBreakEven):
        raise ParameterError(
            f"above_break_even is {above_break_even!r}: choose 'error', 'dense' or 'keep'",
            code="unknown-option",
        )
    _check_bounds(l2_bounds, [spec.name for spec in specs], fields.get("l2_bound", 0), encoding)
    max_clients, max_weight, max_epochs, l2_bound = whole_numbers(
        max_clients=max_clients,
        max_weight=fields.get("max_weight", 1),
        max_epochs=fields.get("max_epochs", 1),
        l2_bound=fields.get("l2_bound", 0),
    )
    lane: Lane = fields.get("lane", "none")
    lanes = 0 if lane == "none" else 1
    segments = []
    for spec in specs:
        own = spec.encoding or encoding
        sent = spec.download if download == "full" else download
        spec = dataclasses.replace(spec, encoding=None if own == encoding else own, download=sent)
        checks = (CHECK_BYTES, TAG_BYTES if spec.retrieve else 0) if checked else (0, 0)
        segment = plan_segment(spec, (spec.tau + lanes) * own.ring_bits, max_epochs, checks)
        segment = _compare_with_dense(segment, own.ring_bits, lanes, above_break_even)
        segments.append(dataclasses.replace(segment, l2_bound=l2_bounds.get(spec.name, 0)))
        check_unit(segment, encoding, l2_bound)
    fields |= drawn | {"max_epochs": max_epochs, "l2_bound": l2_bound}
    if fields.get("sum_bound") is None:
        fields["sum_bound"] = l2_bound > 0
    fields["proofs"], fields["segments"] = _proofs(
        fields.get("proofs"), fields.get("clip", "whole"), encoding, lane, l2_bound,
        tuple(segments), max_weight,
    )  # fmt: skip
    return with_headroom(Plan(encoding=encoding, max_clients=max_clients, **fields))


def _check_bounds(l2_bounds: object, names: list[str], l2_bound: int, encoding: FixedPoint) -> None:
    """Refuse bounds that are not a mapping from `names`, are real norms or have other units.

    Raises:
        ParameterError: with the valid names, or with both units.
    """
    if not isinstance(l2_bounds, Mapping):
        raise ParameterError(f"l2_bounds is {l2_bounds!r}: pass a mapping, as {{'rest': 100}}")
    if odd := [name for name in l2_bounds if name not in names]:
        raise ParameterError(
            f"l2_bounds has the unknown names {odd}: choose from the segments {names}",
            code="unknown-segment",
        )
    made = f"FixedPoint({encoding.ring_bits}, {encoding.frac_bits}, {encoding.clip})"
    for bound in (l2_bound, *l2_bounds.values()):
        if isinstance(bound, float):
            raise ParameterError(
                f"l2_bound is {bound}, not an integer: for a norm of real values pass "
                f"torchfsl.privacy.l2_bound(torchfsl.{made}, {bound})",
                code="not-whole",
            )
        check_bound(bound, encoding)


def _rings(encoding: FixedPoint, segments: Iterable[TreeSegment]) -> frozenset[int]:
    return frozenset((segment.encoding or encoding).ring_bits for segment in segments)


def default_proofs(
    rings: frozenset[int], lane: Lane, l2_bound: int, segments: tuple[TreeSegment, ...]
) -> Proofs:
    """The clients' proofs if the caller has chosen none: the most that a plan can have.

    `norm` where values have a bound, else `lanes` where counts or weights are opened. `none` in
    rings above 48 bits, without trees or their check words, and where nothing is bounded.
    """
    checked = any(segment.check_bytes for segment in segments)
    if max(rings) > MAX_RING_BITS or not checked:
        return "none"
    if l2_bound:
        return "norm"
    return "none" if lane == "none" else "lanes"


def _proofs(
    chosen: Proofs | None,
    clip: Clip,
    encoding: FixedPoint,
    lane: Lane,
    l2_bound: int,
    segments: tuple[TreeSegment, ...],
    max_weight: int,
) -> tuple[Proofs, tuple[TreeSegment, ...]]:
    """The choice, or the default, and the segments with the bounds that are proven under a clip.

    Raises:
        ParameterError: the default cannot be proven, or the clip leaves a segment too little.
    """
    rings = _rings(encoding, segments)
    proofs = default_proofs(rings, lane, l2_bound, segments) if chosen is None else chosen
    if proofs == "norm" and l2_bound and clip != "whole":
        segments = with_shares(segments, l2_bound, clip)
    if chosen is None and proofs != "none":
        try:
            make_statement(segments, one_ring(rings), proofs, lane, l2_bound, max_weight)
        except ParameterError as error:
            raise ParameterError(f"{error}; or pass proofs='none'") from error
    return proofs, segments


def _given_or_drawn(name: str, given: bytes | None, size: int) -> str:
    """`size` bytes in hex, from the operating system where none are given.

    Raises:
        ParameterError: not as many bytes.
    """
    drawn = random_bytes(size) if given is None else given
    if not isinstance(drawn, bytes) or len(drawn) != size:
        raise ParameterError(f"{name} is {given!r}: pass {size} bytes, or None for random bytes")
    return drawn.hex()


def plan_segment(
    spec: SegmentSpec, width_bits: int, max_epochs: int, checks: tuple[int, int]
) -> TreeSegment:
    """The cheapest layout of one segment.

    Args:
        spec: what is wanted.
        width_bits: ring bits of one position, lane included.
        max_epochs: above 1 there is no early termination.
        checks: bytes of a tree's check word and of an answer's tag.

    Raises:
        ParameterError: `k_max` is missing.
    """
    m = len(spec.subset) or positions(spec.policy, spec.tensors, spec.tau)
    if spec.is_dense:
        return _dense(spec, m)
    if type(spec.k_max) is not int:
        raise ParameterError(
            f"segment {spec.name!r}: expected an int k_max, the most rows of a client, "
            f"got {spec.k_max!r}",
            code="not-whole",
        )
    if spec.k_max < 1:
        raise ParameterError(
            f"segment {spec.name!r}: rows_per_client (k_max) is {spec.k_max}: give at least 1",
            code="row-limit",
        )
    spec = dataclasses.replace(spec, k_max=min(spec.k_max, m))
    bins, stash = (spec.k_max, 0) if spec.binned else (0, spec.k_max)
    base = TreeSegment(
        m=m, num_bins=bins, theta=ceil_div(m, bins) if bins else 0, stash=stash,
        check_bytes=checks[0], tag_bytes=checks[1], **vars_of(spec),
    )  # fmt: skip
    layouts = [s for s in _layouts(base) if s.nu == 0 or max_epochs == 1]
    return min(layouts, key=lambda s: (tree_and_hint_bits(s, width_bits), s.num_bins, -s.nu))


def _dense(spec: SegmentSpec | TreeSegment, m: int) -> TreeSegment:
    """A segment whose m values every client sends."""
    return TreeSegment(
        spec.name, "dense", spec.tensors, m, 1, m, encoding=spec.encoding, download=spec.download
    )


def _layouts(base: TreeSegment) -> list[TreeSegment]:
    """Every layout worth pricing, each with every early termination.

    Public bins as they are. Full-domain trees below the cuckoo rule's range; else bins of the
    largest safe size, and of the powers of two below it, which save a whole tree level.
    """
    shapes: list[tuple[int, int, int]] = []
    layout = None if base.binned else choose_layout(base.m, base.k_max)
    if base.binned:
        shapes.append((base.num_bins, base.theta, 0))
    elif layout is None:
        shapes.append((0, 0, base.k_max))
    else:
        stash = stash_for(base.k_max)
        theta = layout[1]
        thetas = {theta} | {1 << i for i in range(theta.bit_length())}
        least = min_bins(base.k_max, stash)
        for size in thetas:
            bins = ceil_div(base.m, size)
            if size == theta or (least is not None and least <= bins <= 2 * least):
                shapes.append((NUM_HASHES * bins, size, stash))
    return [
        dataclasses.replace(base, num_bins=bins, theta=theta, stash=stash, nu=nu)
        for bins, theta, stash in shapes
        for nu in range(8)
        if nu == 0 or 1 << nu <= max(theta, 1) or (bins == 0 and 1 << nu <= base.m)
    ]


def tree_and_hint_bits(segment: TreeSegment, width_bits: int) -> int:
    """Upload of one segment's trees, check words and hints."""
    return sum(
        g.num_trees * (g.depth * 129 + (width_bits << g.nu) + 8 * g.check_bytes)
        for g in segment.groups
    )


def _compare_with_dense(
    segment: TreeSegment, ring_bits: int, lanes: int, above_break_even: AboveBreakEven
) -> TreeSegment:
    if segment.is_dense:
        return segment
    bits = tree_and_hint_bits(segment, (segment.tau + lanes) * ring_bits)
    dense_bits = sum(t.numel for t in segment.tensors) * ring_bits
    if bits <= dense_bits or above_break_even == "keep":
        return segment
    names = ", ".join(t.name for t in segment.tensors[:3]) + ", ..." * (len(segment.tensors) > 3)
    text = (
        f"segment {segment.name!r} ({names}): trees for {segment.k_max} of {segment.m} positions "
        f"cost {bits // 8} bytes, dense shares {dense_bits // 8}"
    )
    if above_break_even == "dense":
        log.warning("%s: using dense shares", text)
        return _dense(segment, sum(t.numel for t in segment.tensors))
    raise ParameterError(
        f"{text}: pass above_break_even='dense' to send such segments whole"
        + (" (clients then also download them whole)" if segment.retrieve else "")
        + ", above_break_even='keep' to keep the trees, or choose fewer positions or larger blocks",
        code="above-break-even",
    )

"""Random plans that the pages specify, and random updates under them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.specification.audited import audited
from tests.support.federation import make_plan, make_segment
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.segments import positions
from torchfsl.submodel.update import RawSegment, SegmentUpdate, Update

KEYS = tuple(SealKey.from_raw(bytes([9 + party]) * 32) for party in (0, 1))
Rng = np.random.Generator


def random_segment(rng: Rng, name: str, fresh: bool, secure: bool) -> TreeSegment:
    """A small segment of any policy and layout."""
    policy = str(rng.choice(["rows", "rows", "blocks", "scalars", "dense"]))
    dtype = str(rng.choice(["float32", "float32", "float64", "float16"]))
    count, tau = int(rng.integers(3, 16)), int(rng.integers(1, 4))
    tau = 1 if policy in ("scalars", "dense") else tau
    shapes = [(count, tau), (2, tau)] if policy == "rows" else [(count,), (2, tau)]
    if policy == "dense":
        segment = make_segment(name, "dense", *shapes, dtype=dtype)
    else:
        space = positions(policy, tuple(make_segment(  # type: ignore[arg-type]
            name, "dense", *shapes).tensors), tau)  # fmt: skip
        keeps: Any = np.flatnonzero(rng.random(space) < 0.7) if rng.random() < 0.2 else []
        subset = tuple(int(x) for x in keeps)
        segment = make_segment(
            name, policy, *shapes, tau=tau, dtype=dtype, subset=subset,  # type: ignore[arg-type]
            k_max=int(rng.integers(1, min(len(subset) or space, 4) + 1)),
            theta=int(rng.choice([0, 1, 2, 3, 5])), nu=int(rng.integers(0, 3)) * fresh,
            stash=int(rng.integers(0, 2)), secure=secure,
            retrieve=policy == "rows" and bool(rng.random() < 0.7),
            binned=fresh and policy in ("blocks", "scalars") and bool(rng.random() < 0.4),
        )  # fmt: skip
    if dtype != "float16":
        download = rng.choice(["full", "float16", "bfloat16"])
        segment = dataclasses.replace(segment, download=download)
    return segment


def random_plan(rng: Rng) -> Plan:
    """A valid plan of what the pages specify."""
    while True:
        try:
            return _drawn_plan(rng)
        except ParameterError:
            continue


def _drawn_plan(rng: Rng) -> Plan:
    if rng.random() < 0.1:
        return _union_plan(rng)
    fresh, secure, noisy = rng.random() < 0.7, rng.random() < 0.7, rng.random() < 0.3
    proves = secure and rng.random() < 0.7
    rings = [int(rng.choice([16, 24, 32, 48]))] if proves else [16, 24, 32, 48, 64, 128]
    bounded = noisy or rng.random() < (0.6 if proves else 0.3)
    rounding: Any = str(rng.choice(["nearest", "stochastic"])) if bounded else "nearest"
    clip: Any = str(rng.choice(["whole", "clip", "normalise"])) if bounded else "whole"
    lane = str(rng.choice(["none", "count", "weight"]))
    segments = []
    for i in range(int(rng.integers(1, 4))):
        segment = random_segment(rng, f"part {i}é" if i else "buffers", fresh, secure)
        if rng.random() < 0.4:
            bits = int(rng.choice(rings))
            frac = 4 if bounded else int(rng.integers(2, 6))
            segment = dataclasses.replace(segment, encoding=FixedPoint(bits, frac, 8.25, rounding))
        segments.append(segment)
    if rng.random() < 0.4:
        segments.insert(0, make_segment("bias", "dense", (3,), (1, 2)))
    limited = noisy and rng.random() < 0.6
    taps: tuple[int, ...] = ()
    if limited and fresh and rng.random() < 0.8:
        taps = ((16, -7), (32, 9, 0, -3), (16, 0, 5))[int(rng.integers(3))]
    bound = int(rng.choice([24, 5000])) if bounded else 0
    if bounded and rng.random() < 0.5:
        segments[-1] = dataclasses.replace(segments[-1], l2_bound=int(rng.choice([9, bound])))
    plan = Plan(
        session=rng.bytes(16).hex(), hash_seed=rng.bytes(32).hex(), segments=tuple(segments),
        encoding=FixedPoint(int(rng.choice(rings)), 4, 4.1, rounding),
        max_clients=int(rng.integers(3, 5)), min_clients=1, lane=lane,  # type: ignore[arg-type]
        max_weight=int(rng.integers(1, 4)) if lane == "weight" else 1,
        max_epochs=1 if fresh else int(rng.integers(2, 4)),
        max_rounds=7 if limited or rng.random() < 0.3 else 0,
        server_keys=tuple(k.public.hex() for k in KEYS) if rng.random() < 0.5 else (),
        l2_bound=bound, sum_bound=bounded and bool(rng.random() < 0.5),
        clip=clip,
        noise_sigma=7 if noisy else 0,
        lane_sigma=2 if noisy and lane != "none" else 0,
        max_participations=2 if limited else 0, noise_taps=taps,
        min_separation=max(2, len(taps)) if limited else 1,
        min_contributors=2 if lane == "count" and not taps and rng.random() < 0.5 else 1,
        proofs="norm" if proves and bounded else "lanes" if proves and lane != "none" else "none",
    )  # fmt: skip
    return audited(plan) if plan.proofs == "norm" and rng.random() < 0.7 else plan


def _union_plan(rng: Rng) -> Plan:
    secure = bool(rng.random() < 0.7)
    drawn = [random_segment(rng, f"part {i}", fresh=True, secure=secure) for i in range(6)]
    segments = [s for s in drawn if not s.is_dense and not s.binned][: int(rng.integers(1, 3))]
    plan = make_plan(
        *(dataclasses.replace(s, retrieve=False, tag_bytes=0) for s in segments),
        encoding=FixedPoint(64, 0, 1.0),
    )
    session, hash_seed = rng.bytes(16).hex(), rng.bytes(32).hex()
    return dataclasses.replace(plan, payload="masks", session=session, hash_seed=hash_seed)


def random_part(rng: Rng, plan: Plan, segment: TreeSegment, wanted: Any) -> SegmentUpdate:
    """Values at some of the wanted positions, at any where None are wanted."""
    most = min(plan.encoding_of(segment).q_max, int(rng.choice([1, 40])))
    if segment.is_dense:
        return SegmentUpdate(None, rng.integers(-most, most, (segment.m, 1), endpoint=True))
    if wanted is None:
        wanted = random_rows(rng, segment)
    rows = wanted[rng.random(len(wanted)) < 0.8]
    values = rng.integers(-most, most, (len(rows), segment.tau), endpoint=True)
    return SegmentUpdate(rows, values)


def nothing(plan: Plan) -> Update:
    """No positions, and zeros for all dense values."""
    none = np.empty(0, dtype=np.int64)
    return {
        s.name: SegmentUpdate(None, np.zeros((s.m, 1), dtype=np.int64))
        if s.is_dense
        else SegmentUpdate(none, np.empty((0, s.tau), dtype=np.int64))
        for s in plan.segments
    }


def random_rows(rng: Rng, segment: TreeSegment) -> Any:
    count = rng.integers(segment.k_max, endpoint=True)
    chosen = rng.choice(segment.subset or segment.m, count, replace=False)
    return np.sort(chosen).astype(np.int64)


def random_reals(rng: Rng, update: Update) -> dict[str, RawSegment]:
    """Real values at the positions of an update: of size 1 or so, some beyond every clip."""
    size = float(rng.choice([0.05, 1, 30]))
    return {
        name: RawSegment(part.indices, rng.normal(size=part.values.shape) * size)
        for name, part in update.items()
    }

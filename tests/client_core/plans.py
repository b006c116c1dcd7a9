"""Plans of all kinds that the core takes, drawn by Hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from tests.support.federation import make_segment
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import default_proofs

KEYS = (SealKey.generate(), SealKey.generate())
"""Of both servers, where a plan has keys."""


@st.composite
def segments(draw: st.DrawFn, name: str, secure: bool) -> TreeSegment:
    """One segment of any policy and layout."""
    policy = draw(st.sampled_from(["rows", "rows", "blocks", "scalars", "dense"]))
    count, tau = draw(st.integers(3, 40)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "float16"]))
    if policy == "dense":
        segment = make_segment(name, "dense", (count,), (2, tau), dtype=dtype)
    else:
        tau = 1 if policy == "scalars" else tau
        shapes = [(count, tau), (3, tau)] if policy == "rows" else [(count,), (tau, 2)]
        theta = draw(st.sampled_from([0, 0, 1, 2, 3]))
        m = count + 3 if policy == "rows" else -(-count // tau) + -(-2 * tau // tau)
        segment = make_segment(
            name, policy, *shapes, tau=tau, k_max=draw(st.integers(1, min(m, 6))), theta=theta,
            nu=draw(st.integers(0, 3)), stash=draw(st.integers(0, 1)), secure=secure, dtype=dtype,
            retrieve=policy == "rows" and draw(st.booleans()),
        )  # fmt: skip
    if dtype != "float16":
        kind = draw(st.sampled_from(["full", "float16", "bfloat16"]))
        segment = dataclasses.replace(segment, download=kind)
    return segment


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A plan with fresh trees every round."""
    secure, lane = draw(st.booleans()), draw(st.sampled_from(["none", "count", "weight"]))
    bits = draw(st.sampled_from([16, 24, 32, 32, 48, 64, 128]))
    options: dict[str, Any] = {
        "lane": lane,
        "max_weight": draw(st.integers(1, 3)) if lane == "weight" else 1,
        "server_keys": draw(st.sampled_from([(), tuple(key.public.hex() for key in KEYS)])),
    }
    count = draw(st.integers(1, 3))
    try:
        parts = tuple(draw(segments(f"part {i}", secure)) for i in range(count))
        encoding = FixedPoint(bits, draw(st.integers(2, 6)), draw(st.sampled_from([4.0, 8.25])))
        own = FixedPoint(draw(st.sampled_from([16, 24])), encoding.frac_bits, 2.5)
        if draw(st.booleans()):
            parts = (dataclasses.replace(parts[0], encoding=own), *parts[1:])
        if draw(st.booleans()):
            options["l2_bound"] = draw(st.integers(60, 4000))
            limits = draw(st.sampled_from([{}, {"max_participations": 3, "min_separation": 2}]))
            if limits:
                sigma = 5 if lane != "none" else 0
                options |= {**limits, "max_rounds": 9, "noise_sigma": 7, "lane_sigma": sigma}
            options["sum_bound"] = draw(st.booleans())
            options["clip"] = draw(st.sampled_from(["whole", "clip", "normalise"]))
        plan = Plan(
            session=bytes(range(16)).hex(), hash_seed=bytes(range(32)).hex(), encoding=encoding,
            max_clients=4, min_clients=1, segments=parts, **options,
        )  # fmt: skip
        proofs = default_proofs(plan.rings, plan.lane, plan.l2_bound, parts)
        if proofs != "none" and draw(st.sampled_from([True, True, False])):
            plan = dataclasses.replace(plan, proofs=proofs)
    except ParameterError:
        reject()
    return plan

"""Room in the ring for what clients can send, beside what honest ones do.

Every plan has room for honest sums, up to the clip. One client's row, in R trees, can reach sqrt(R)
times its proven bound, and a lane R weights: where so many clients could take a sum out of its
ring, it would come back at the other end and look like an honest one.
"""

from __future__ import annotations

import math

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.fsl.plan.statement import MAX_RING_BITS
from torchfsl.submodel.plan import noise_tail, values_per_client


def with_headroom(plan: Plan) -> Plan:
    """The plan, if no sum of accepted reports can leave its ring.

    For new plans: those of before this check may run to their end.

    Raises:
        ParameterError: naming the segment, what it could reach, and remedies that are enough.
    """
    statement = plan.statement
    if statement is None:
        return plan
    weight = plan.max_clients * plan.max_weight
    for segment in plan.segments:
        assert isinstance(segment, TreeSegment)
        rows = 1 if segment.is_dense else row_trees(segment)
        capacity = plan.encoding_of(segment).capacity
        room, bound = (
            capacity - noise_tail(plan.noise_sigma, plan.noise_growth),
            segment.l2_bound or plan.l2_bound,
        )
        if statement.norm and rows * (weight * bound) ** 2 > room**2:
            least = segment.k_max * segment.tau if segment.l2_bound else values_per_client(plan)
            raise ParameterError(
                f"segment {segment.name!r}: {plan.max_clients} clients that each prove a norm "
                f"could reach {math.isqrt(rows * (weight * bound) ** 2)}, above {room}, what the "
                f"ring holds beside the noise: {_remedies(plan, segment, rows, room, least)}",
                code="ring-overflow",
            )
        if statement.has_lanes and rows * weight > capacity - noise_tail(
            plan.lane_sigma, plan.noise_growth
        ):
            raise ParameterError(
                f"segment {segment.name!r}: proven lanes of {plan.max_clients} clients could reach "
                f"{rows * weight}, above the ring's limit {capacity} less the noise: "
                f"{_remedies(plan, segment, rows, 0, 1)}",
                code="ring-overflow",
            )
    return plan


def _remedies(plan: Plan, segment: TreeSegment, rows: int, room: int, least: int) -> str:
    """What helps; a smaller bound where one remains that rounding keeps (`least` values)."""
    weight = plan.max_clients * plan.max_weight
    ways = ["fewer clients"]
    if plan.encoding_of(segment).ring_bits < MAX_RING_BITS:
        ways.insert(0, f"more ring_bits ({MAX_RING_BITS} at most)")
    if plan.max_weight > 1:
        ways.append("a smaller max_weight")
    most = math.isqrt(room**2 // (rows * weight**2))
    if most * most >= least:
        name = f"an l2_bounds[{segment.name!r}]" if segment.l2_bound else "an l2_bound"
        noise = "" if plan.noise_sigma else f" ({most * 7 // 8} where noise is to follow)"
        ways.append(f"{name} of at most {most}{noise}")
    if room:
        ways.append("fewer frac_bits, which make the bound smaller")
    less = "'lanes' or 'none'" if room and plan.lane != "none" else "'none'"
    return f"use {', '.join(ways)}, or proofs={less}"

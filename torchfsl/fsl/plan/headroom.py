"""Room in the ring for what clients can send, in addition to what honest ones do.

Every plan has room for honest sums, up to the clip. One client's row, in R trees, can reach sqrt(R)
times its proven bound, and a lane R weights: where so many clients could take a sum out of its
ring, it would come back at the other end and look like an honest one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.kernels.ring import RING_BITS
from torchfsl.submodel.plan import noise_tail, values_per_client


def with_headroom(plan: Plan, *, advises: bool = True) -> Plan:
    """The plan, if no sum of accepted reports can leave its ring.

    For new plans: a plan that is older than this check may run to its end. Under `advises` errors
    have remedies.

    Raises:
        ParameterError: a sum can leave the ring. The error names the segment, the sum's largest
            value and, under `advises`, remedies that are enough.
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
                f"segment {segment.name!r}: the sum of {plan.max_clients} reports can reach "
                f"{math.isqrt(rows * (weight * bound) ** 2)}, but the ring holds at most {room}"
                + f"{' with the noise' if plan.noise_sigma else ''}: "
                + (_remedies(plan, segment, rows, room, least) if advises else ""),
                code="ring-overflow",
            )
        if statement.has_lanes and rows * weight > capacity - noise_tail(
            plan.lane_sigma, plan.noise_growth
        ):
            raise ParameterError(
                f"segment {segment.name!r}: the sum of proven counts or weights of "
                f"{plan.max_clients} clients could reach {rows * weight}, above the ring's limit "
                f"{capacity} minus the noise: "
                + (_remedies(plan, segment, rows, 0, 1) if advises else ""),
                code="ring-overflow",
            )
    return plan


def _remedies(plan: Plan, segment: TreeSegment, rows: int, room: int, least: int) -> str:
    """Remedies; a smaller bound if one remains that rounding keeps (`least` values)."""
    weight = plan.max_clients * plan.max_weight
    check = functools.partial(with_headroom, advises=False)
    ways = [*encodings_that_pass(plan, check), "fewer clients"]
    if plan.max_weight > 1:
        ways.append("a smaller max_weight")
    most = math.isqrt(room**2 // (rows * weight**2))
    if most * most >= least:
        name = f"an l2_bounds[{segment.name!r}]" if segment.l2_bound else "an l2_bound"
        noise = "" if plan.noise_sigma else f" ({most * 7 // 8} if you add noise later)"
        ways.append(f"{name} of at most {most}{noise}")
    less = "'lanes' or 'none'" if room and plan.lane != "none" else "'none'"
    return f"choose one of {', '.join(ways)}, or proofs={less}"


def encodings_that_pass(plan: Plan, check: Callable[[Plan], object]) -> list[str]:
    """The narrowest wider ring and the most fewer frac_bits under which the plan passes all checks.

    The bounds are those of the same real norms.
    """
    now, found = plan.encoding, []
    wider = [bits for bits in RING_BITS if bits > now.ring_bits]
    tried = {"ring_bits": wider, "frac_bits": range(now.frac_bits - 1, -1, -1)}
    for name, values in tried.items():
        for value in values:
            try:
                check(_encoded(plan, name, value))
            except ParameterError:
                continue
            found.append(f"{name}={value}")
            break
    return found


def _encoded(plan: Plan, name: str, value: int) -> Plan:
    """The plan with other `ring_bits` or `frac_bits`."""
    fewer = plan.encoding.frac_bits - value if name == "frac_bits" else 0
    changes: dict[str, Any] = {name: value}

    def change(segment: TreeSegment) -> TreeSegment:
        own = segment.encoding and dataclasses.replace(segment.encoding, **changes)
        return dataclasses.replace(segment, encoding=own, l2_bound=segment.l2_bound >> fewer)

    return dataclasses.replace(
        plan,
        encoding=dataclasses.replace(plan.encoding, **changes),
        segments=tuple(map(change, plan.segments)),
        l2_bound=plan.l2_bound >> fewer,
        noise_sigma=-(-plan.noise_sigma >> fewer),
    )

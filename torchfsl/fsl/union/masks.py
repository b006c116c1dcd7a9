"""Private set union: which positions any client selects, to run later rounds on those alone.

Construction A, by masks: an ordinary round in which every client sends a fresh uniform ring value
at each of its positions. The servers sum over clients and over the three sub-tables before they
open anything, and a position is in the union exactly if its sum is not zero (a union position sums
to zero with probability 2**-64). Trees, check words, commitments, agreement and single opening are
those of any round. Uniform masks and no others: the parity of a sum of odd masks, for example,
would tell the parity of the number of clients behind it.

    plan_a = plan_union(plan, ["items"])
    opened = run_round(servers_a, {c: mask_update(plan_a, {"items": rows[c]}) ...}, round_number=0)
    smaller = restrict(plan, union_of(opened))

Construction B, by shuffling, is in `shuffle`. Both tell the union itself, and that may be much:
a position that one client alone selects stands in it. Off unless asked for; `advise_union` says
when it pays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan, plan_segment
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update, check_indices
from torchfsl.types import Indices

_MANY_POSITIONS: Final = 1 << 24
"""Above this many positions a mask has 128 bits instead of 64."""


def plan_union(
    plan: Plan,
    names: Sequence[str],
    *,
    session: bytes | None = None,
    hash_seed: bytes | None = None,
) -> Plan:
    """The plan of the round that unites the positions of these segments (construction A).

    Args:
        plan: whose segments are meant.
        names: segments with trees.
        session: 16 bytes; from the operating system when None.
        hash_seed: 32 bytes of the servers' joint coin; from the operating system when None.

    Raises:
        ParameterError: unknown or dense segments.
    """
    specs = []
    for name in names:
        segment = segment_with_trees(plan, name)
        lanes = 1 if segment.index_space <= _MANY_POSITIONS else 2
        tensor = TensorSpec(f"union of {name}", (segment.index_space, lanes))
        specs.append(SegmentSpec(name, "rows", (tensor,), k_max=segment.k_max, tau=lanes))
    union = build_plan(
        specs,
        encoding=FixedPoint(ring_bits=64, frac_bits=0, clip=1.0),
        max_clients=plan.max_clients,
        min_clients=plan.min_clients,
        malicious_security=plan.verified,
        session=session,
        hash_seed=hash_seed,
        above_break_even="keep",
    )
    return dataclasses.replace(union, payload="masks")


def mask_update(union_plan: Plan, indices: Mapping[str, npt.ArrayLike]) -> Update:
    """A client's update in a union's round: a fresh uniform mask at each of its positions.

    Args:
        union_plan: from `plan_union`.
        indices: by segment, distinct increasing positions, at most k_max.

    Raises:
        ParameterError: not a union's plan, or bad indices.
    """
    names = [segment.name for segment in union_plan.segments]
    if union_plan.payload != "masks" or set(indices) != set(names):
        raise ParameterError(
            f"masks are for a union's plan; give positions for segments {names}",
            code="segments-differ",
        )
    update: Update = {}
    for segment in union_plan.segments:
        rows = check_indices(segment, indices[segment.name])
        masks = np.frombuffer(random_bytes(8 * len(rows) * segment.tau), dtype="<i8")
        update[segment.name] = SegmentUpdate(
            rows, masks.astype(np.int64).reshape(len(rows), segment.tau)
        )
    return update


def union_model(union_plan: Plan) -> ServerModel:
    """What each server of a union's round has for a model: how many rounds found each position."""
    tensors = [tensor for segment in union_plan.segments for tensor in segment.tensors]
    state: dict[str, npt.NDArray[Any]] = {
        tensor.name: np.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors
    }
    return ServerModel(state, reduce="sum")


def union_of(opened: Opened) -> dict[str, Indices]:
    """By segment the union that a round opened, `int64`, increasing."""
    return {name: np.flatnonzero(sums[:, 0]).astype(np.int64) for name, sums in opened.sums.items()}


def restrict(
    plan: Plan,
    unions: Mapping[str, npt.ArrayLike],
    *,
    session: bytes | None = None,
    hash_seed: bytes | None = None,
) -> Plan:
    """The plan with some segments restricted to a union of positions, and laid out anew for it.

    Both servers take the same one: it is a plan like any other, compared by its digest.

    Args:
        plan: to be restricted; everything else about it stays.
        unions: by segment with trees, strictly increasing positions of its index space.
        session: 16 bytes; from the operating system when None.
        hash_seed: 32 bytes of the servers' joint coin, tossed after the unions are known (else a
            client could choose rows that crowd others' bins); from the operating system when None.

    Raises:
        ParameterError: unknown or dense segments, an empty union, or bad positions.
    """
    replaced: dict[str, TreeSegment] = {}
    for name, union in unions.items():
        segment = segment_with_trees(plan, name)
        subset = tuple(int(position) for position in np.asarray(union))
        if not subset:
            raise ParameterError(f"segment {name!r}: the union is empty, there is nothing to do")
        spec = SegmentSpec(
            name, segment.policy, segment.tensors, segment.k_max, segment.tau, segment.retrieve,
            subset,
        )  # fmt: skip
        checks = segment.check_bytes, segment.tag_bytes
        width = 8 * plan.value_bytes(segment)
        replaced[name] = plan_segment(spec, width, plan.max_epochs, checks)
    return dataclasses.replace(
        plan,
        session=(session or random_bytes(16)).hex(),
        hash_seed=(hash_seed or random_bytes(32)).hex(),
        segments=tuple(replaced.get(s.name, s) for s in plan.segments),
    )


def segment_with_trees(plan: Plan, name: str) -> TreeSegment:
    """The segment called `name`.

    Raises:
        ParameterError: there is none, or it is dense.
    """
    segment = plan.segment(name)
    if segment.is_dense:
        raise ParameterError(f"segment {name!r} is dense: every client selects everything")
    return segment

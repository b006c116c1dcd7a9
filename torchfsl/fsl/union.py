"""Private set union: which positions any client selects, to run later rounds on those alone.

An ordinary round in which every client sends a fresh uniform ring value at each of its positions.
The servers sum over clients and over the three sub-tables before they open anything, and a position
is in the union exactly if its sum is not zero (a union position sums to zero with probability
2**-64). Trees, check words, commitments, agreement and single opening are those of any round.
Uniform masks and no others: the parity of a sum of odd masks, for example, would tell the parity of
the number of clients behind it.

    union_plan = plan_union(plan, ["items"])
    masks = {client: mask_update(union_plan, {"items": rows[client]}) for client in rows}
    opened = run_round(union_servers, masks, round_number=0)
    smaller = restrict(plan, union_of(opened))

Beyond the union itself the servers learn the number of clients alone. The union may be much: a
position that one client alone selects stands in it. Off unless asked for; `advise_union` says when
it pays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.costs import predict
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan, plan_segment
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import SegmentSpec, TensorSpec, ceil_div, vars_of
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
    """The plan of the round that unites the positions of these segments.

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
    if union_plan.payload != "masks":
        raise ParameterError(
            "expected a plan from plan_union(), got another plan: "
            "pass the plan that plan_union() returned",
            code="segments-differ",
        )
    if set(indices) != set(names):
        raise ParameterError(
            f"expected positions for the segments {names}, got {sorted(indices)}",
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
            raise ParameterError(
                f"segment {name!r}: the union is empty, so there is nothing to send"
            )
        spec = SegmentSpec(**vars_of(segment) | {"subset": subset})
        checks = segment.check_bytes, segment.tag_bytes
        width = 8 * plan.value_bytes(segment)
        laid_out = plan_segment(spec, width, plan.max_epochs, checks)
        replaced[name] = dataclasses.replace(laid_out, l2_bound=segment.l2_bound)
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


@dataclass(frozen=True, slots=True)
class UnionAdvice:
    """Costs and savings of a union, per client or server, over `rounds` rounds on it.

    Attributes:
        rounds: rounds with one union.
        union_upload_bytes: of a client, for the union itself.
        union_download_bytes: of a client, at most: the restricted plan, which names the union.
        upload_bytes: of a client in all rounds, without a union.
        restricted_upload_bytes: the same on the union, without the union itself.
        download_bytes: of a client in all rounds, without a union.
        restricted_download_bytes: the same on the union, without the restricted plan.
        union_server_blocks: AES blocks of one server for one client, for the union itself.
        server_blocks: of one server for one client in all rounds, without a union.
        restricted_server_blocks: the same on the union, without the union itself.
        pays_in_bytes: whether a client sends and receives less with the union.
        pays_in_blocks: whether a server computes less with it.
        break_even_rounds: least number of rounds after which a client's bytes are fewer; None if
            restricted rounds are not cheaper.
    """

    rounds: int
    union_upload_bytes: int
    union_download_bytes: int
    upload_bytes: int
    restricted_upload_bytes: int
    download_bytes: int
    restricted_download_bytes: int
    union_server_blocks: int
    server_blocks: int
    restricted_server_blocks: int
    pays_in_bytes: bool
    pays_in_blocks: bool
    break_even_rounds: int | None


def advise_union(
    plan: Plan, name: str, *, num_clients: int, rounds: int, union_bound: int | None = None
) -> UnionAdvice:
    """Whether to unite a segment's positions first; from public numbers alone, changes nothing.

    Args:
        plan: as it is without a union.
        name: a segment with trees.
        num_clients: clients in the union, at most `max_clients`.
        rounds: rounds for which the union stays as it is.
        union_bound: most positions the union may have; `num_clients * k_max` when None.

    Raises:
        ParameterError: unknown or dense segment, or a number out of range.
    """
    segment = segment_with_trees(plan, name)
    if not 1 <= num_clients <= plan.max_clients or rounds < 1:
        raise ParameterError(
            f"expected num_clients from 1 to {plan.max_clients}, and rounds of 1 or more"
        )
    bound = min(union_bound or num_clients * segment.k_max, segment.index_space)
    if bound < 1:
        raise ParameterError("expected a union_bound of 1 or more: pass union_bound=1 or more")
    # The last positions have the most digits, so no union of that size makes a longer plan.
    last = range(segment.index_space - bound, segment.index_space)
    smaller = restrict(plan, {name: list(last)})
    union = predict(plan_union(plan, [name]))
    union_bytes, union_blocks = union.upload_bytes, union.server_aes_blocks
    before, after = _totals(plan, rounds), _totals(smaller, rounds)
    download = len(smaller.to_json().encode())
    return UnionAdvice(
        rounds=rounds,
        union_upload_bytes=union_bytes,
        union_download_bytes=download,
        upload_bytes=before[0],
        restricted_upload_bytes=after[0],
        download_bytes=before[1],
        restricted_download_bytes=after[1],
        union_server_blocks=union_blocks,
        server_blocks=before[2],
        restricted_server_blocks=after[2],
        pays_in_bytes=union_bytes + download + sum(after[:2]) < sum(before[:2]),
        pays_in_blocks=union_blocks + after[2] < before[2],
        break_even_rounds=_break_even(plan, smaller, union_bytes + download),
    )


def _totals(plan: Plan, rounds: int) -> tuple[int, int, int]:
    """Upload, download and server blocks of one client in so many rounds."""
    cost = predict(plan)
    first = ceil_div(rounds, plan.max_epochs)
    later = rounds - first
    return (
        first * cost.upload_bytes + later * cost.later_upload_bytes,
        rounds * cost.download_bytes,
        first * cost.server_aes_blocks + later * cost.later_server_aes_blocks,
    )


def _break_even(plan: Plan, smaller: Plan, cost: int) -> int | None:
    """Least number of rounds that save more than `cost` bytes."""

    def saved(rounds: int) -> int:
        return sum(_totals(plan, rounds)[:2]) - sum(_totals(smaller, rounds)[:2])

    if saved(plan.max_epochs) <= 0:
        return None
    high = 1
    while saved(high) <= cost:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if saved(middle) > cost else (middle, high)
    return high

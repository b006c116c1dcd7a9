"""When a private set union pays, and which construction costs less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchfsl.errors import ParameterError
from torchfsl.fsl.costs import predict
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.union import shuffle
from torchfsl.fsl.union.masks import plan_union, restrict, segment_with_trees
from torchfsl.submodel.segments import ceil_div

Construction = Literal["masks", "shuffle"]


@dataclass(frozen=True, slots=True)
class UnionAdvice:
    """What a union costs and saves, a client or a server, over `rounds` rounds on it.

    Attributes:
        construction: `masks` or `shuffle`.
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
        decryptions: HPKE decryptions of server 1 for all clients; 0 with masks.
        pays_in_bytes: whether a client sends and receives less with the union.
        pays_in_blocks: whether a server computes less with it (decryptions not counted).
        break_even_rounds: least number of rounds after which a client's bytes are fewer; None if
            restricted rounds are no cheaper.
    """

    construction: Construction
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
    decryptions: int
    pays_in_bytes: bool
    pays_in_blocks: bool
    break_even_rounds: int | None


def advise_union(
    plan: Plan,
    name: str,
    *,
    num_clients: int,
    rounds: int,
    union_bound: int | None = None,
    construction: Construction = "masks",
) -> UnionAdvice:
    """Whether to unite a segment's positions first; from public numbers alone, changes nothing.

    Args:
        plan: as it is without a union.
        name: a segment with trees.
        num_clients: clients in the union, at most `max_clients`.
        rounds: rounds for which the union stays as it is.
        union_bound: most positions the union may have; `num_clients * k_max` when None.
        construction: `masks` (A) or `shuffle` (B).

    Raises:
        ParameterError: unknown or dense segment, or a number out of range.
    """
    segment = segment_with_trees(plan, name)
    if not 1 <= num_clients <= plan.max_clients or rounds < 1:
        raise ParameterError(f"needs 1 <= num_clients <= {plan.max_clients} and rounds >= 1")
    bound = min(union_bound or num_clients * segment.k_max, segment.index_space)
    if bound < 1:
        raise ParameterError("union_bound is at least 1")
    # The last positions have the most digits, so no union of that size makes a longer plan.
    last = range(segment.index_space - bound, segment.index_space)
    smaller = restrict(plan, {name: list(last)})
    if construction == "masks":
        union = predict(plan_union(plan, [name]))
        cost = union.upload_bytes, union.server_aes_blocks, 0
    elif construction == "shuffle":
        cost = shuffle.client_bytes(segment), 0, num_clients * segment.k_max
    else:
        raise ParameterError(f"construction is {construction!r}; choose 'masks' or 'shuffle'")
    before, after = _totals(plan, rounds), _totals(smaller, rounds)
    download = len(smaller.to_json().encode())
    return UnionAdvice(
        construction=construction,
        rounds=rounds,
        union_upload_bytes=cost[0],
        union_download_bytes=download,
        upload_bytes=before[0],
        restricted_upload_bytes=after[0],
        download_bytes=before[1],
        restricted_download_bytes=after[1],
        union_server_blocks=cost[1],
        server_blocks=before[2],
        restricted_server_blocks=after[2],
        decryptions=cost[2],
        pays_in_bytes=cost[0] + download + sum(after[:2]) < sum(before[:2]),
        pays_in_blocks=cost[1] + after[2] < before[2],
        break_even_rounds=_break_even(plan, smaller, cost[0] + download),
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

"""Cost of a round for a front and its shards: bytes and memory counted, seconds by rates.

The estimate splits the rates of one process (`torchfsl.fsl.estimates.measuring.Rates`). Shards do
the work that grows with AES blocks. The front does a server's other work for each report and tree,
the opening and the update. Shards gather sums, at the rate at which bytes are copied. The estimate
adds calls and the bytes between processes, both at rates of the framework. Each of the two
processes takes half of these costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.fsl.costs import predict
from torchfsl.fsl.estimates.measuring import Rates, measured_rates
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.integrations.ray.cuts import Cut, cuts_of
from torchfsl.integrations.ray.front import PIECE_BYTES, ROWS_BYTES
from torchfsl.integrations.ray.packing import Packing
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.segments import ceil_div

_PLACE_BYTES: Final = 8
_PIECES_HELD: Final = 2
"""Pieces of sums that a shard holds at once: its own with other shards' parts, and its result."""
_PROCESS_BYTES: Final = 4 << 20
"""Other memory of a process, measured by `scripts.checks.prediction`."""


@dataclass(frozen=True, slots=True)
class EngineRates:
    """The costs of a framework; `scripts.checks.prediction` measures them.

    Attributes:
        call_seconds: core-seconds of a call to a shard, at the front and the shard together.
        copied_bytes: bytes per core-second that one process leaves and another reads.
    """

    call_seconds: float = 0.001
    copied_bytes: float = 1.5e9


@dataclass(frozen=True, slots=True)
class ShardsEstimate:
    """A round of one server over shards, without the framework's own processes.

    Attributes:
        shards: number of shards.
        front_core_seconds: of the server's own process.
        shard_core_seconds: of one shard, the mean.
        shard_memory_bytes: of the largest shard, in addition to its process when idle.
        fixed_memory_bytes: the part of `shard_memory_bytes` that calls work with, at most two
            pieces of 32 MiB and a constant, whatever the number of shards.
        store_bytes: that the largest shard reads in the framework's store: a window of reports, a
            window of questions, and rows. All processes of its machine share the store's pages.
        sent_bytes: from the front to all shards.
        exchanged_bytes: between shards.
        returned_bytes: from all shards to the front.
    """

    shards: int
    front_core_seconds: float
    shard_core_seconds: float
    shard_memory_bytes: int
    fixed_memory_bytes: int
    store_bytes: int
    sent_bytes: int
    exchanged_bytes: int
    returned_bytes: int

    def __str__(self) -> str:
        mega = 1e6
        return (
            f"over {self.shards} shards: the front computes {self.front_core_seconds:,.3g} "
            f"core-seconds, each shard {self.shard_core_seconds:,.3g} and holds "
            f"{self.shard_memory_bytes / mega:,.4g} MB, of which "
            f"{self.fixed_memory_bytes / mega:,.3g} MB are what calls work with, and reads "
            f"{self.store_bytes / mega:,.3g} MB at once in the store of its machine\n"
            f"the front sends {self.sent_bytes / mega:,.4g} MB to shards and receives "
            f"{self.returned_bytes / mega:,.4g} MB, shards exchange "
            f"{self.exchanged_bytes / mega:,.4g} MB"
        )


def estimate_shards(
    plan: Plan,
    shards: int,
    *,
    clients: int | None = None,
    rates: Rates | None = None,
    engine: EngineRates = EngineRates(),
) -> ShardsEstimate:
    """The cost of a round of a plan over shards; the front asks for answers by windows.

    Args:
        plan: public plan.
        shards: number of shards that share the work, at least 1.
        clients: number of clients that report; the plan's `max_clients` when None.
        rates: of a core; measured on this machine when None.
        engine: of the framework.

    Raises:
        ParameterError: a number is out of range.
    """
    count = plan.max_clients if clients is None else check_number("clients", clients)
    if not 1 <= count <= plan.max_clients or check_number("shards", shards) < 1:
        raise ParameterError(
            f"clients is {count} and shards is {shards}: choose 1 to {plan.max_clients} clients "
            "and 1 shard or more"
        )
    rates = measured_rates() if rates is None else rates
    cuts = [cuts_of(plan, number, shards) for number in range(shards)]
    sent, rows = _sent(plan, cuts, count), sum(s.m * s.row_bytes for s in plan.retrieving)
    sums = sum(s.m * plan.value_bytes(s) for s in plan.with_trees)
    folds = shards * FOLD_BYTES if plan.verified else 0
    returned = count * (_answers(plan, cuts) + folds) + sums
    calls = _calls(plan, shards, count, sums)
    trees = count * predict(plan).server_aes_blocks / rates.server_blocks
    own = rates.server(plan, count) - trees  # of proofs, too, but for their blocks
    exchanged = (shards - 1) * sums
    largest = max(cuts, key=lambda own: sum(_held(plan, cut) for cut in own.values()))
    working = _PIECES_HELD * min(PIECE_BYTES, ceil_div(sums, shards)) + _PROCESS_BYTES
    by_shards = sent + shards * rows + 2 * exchanged + returned  # exchanged by shards on both sides
    gathering = sums / engine.copied_bytes
    return ShardsEstimate(
        shards=shards,
        front_core_seconds=own - min(own, gathering)
        + (sent + rows + returned) / engine.copied_bytes / 2
        + calls * engine.call_seconds / 2,
        shard_core_seconds=(
            trees + min(own, gathering) + by_shards / engine.copied_bytes / 2
            + calls * engine.call_seconds / 2
        ) / shards,
        shard_memory_bytes=sum(_held(plan, cut) for cut in largest.values()) + working,
        fixed_memory_bytes=working,
        store_bytes=_read(plan, largest, count),
        sent_bytes=sent + shards * rows,
        exchanged_bytes=exchanged,
        returned_bytes=returned,
    )  # fmt: skip


def _sent(plan: Plan, cuts: list[dict[str, Cut]], clients: int) -> int:
    """Windows of reports and of questions, to all shards."""
    each = 0
    for own in cuts:
        each += Packing(plan, own).row_bytes
        each += Packing(plan, own, questions=True).row_bytes
    return clients * each


def _answers(plan: Plan, cuts: list[dict[str, Cut]]) -> int:
    """All shards' parts of one client's answer."""
    total = 0
    for segment in plan.retrieving:
        a_tree = (segment.row_bytes << segment.nu) + segment.tag_bytes
        with_stash = sum(bool(own[segment.name].nodes) for own in cuts)
        total += a_tree * (segment.num_bins + segment.stash * with_stash)
    return total


def _calls(plan: Plan, shards: int, clients: int, sums: int) -> int:
    """Calls of shards in a round."""
    windows = ceil_div(clients, sizes.window_reports(plan))
    by_window = 1 + int(plan.verified) + int(bool(plan.retrieving))
    laid_out = sum(ceil_div(s.m * s.row_bytes, ROWS_BYTES) for s in plan.retrieving)
    pieces = max(1, ceil_div(sums, PIECE_BYTES))
    return shards * (windows * by_window + laid_out + pieces * shards + 3)


def _held(plan: Plan, cut: Cut) -> int:
    """Of one segment at a shard: sums, tables while answers are given, places."""
    segment = cut.segment
    bins, leaves = cut.bin_group, len(cut.nodes) * cut.node_leaves
    if bins is not None:
        leaves += len(cut.bins) * bins.num_leaves
    a_leaf = plan.value_bytes(segment) << segment.nu
    if segment.retrieve:
        a_leaf += (segment.row_bytes << segment.nu) + segment.tag_bytes
    places = sum(len(cut.places(i)) for i in range(segment.hashes)) if bins is not None else 0
    return leaves * a_leaf + places * _PLACE_BYTES


def _read(plan: Plan, cuts: Mapping[str, Cut], clients: int) -> int:
    """Windows of reports and of questions, and rows to lay out."""
    each = Packing(plan, cuts).row_bytes + Packing(plan, cuts, questions=True).row_bytes
    rows = max((min(ROWS_BYTES, s.m * s.row_bytes) for s in plan.retrieving), default=0)
    return min(clients, sizes.window_reports(plan)) * each + rows

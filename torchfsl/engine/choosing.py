"""From the change of a segment to the positions and values that are sent.

The total of a position is its change plus the residual. The policy chooses positions
among the totals; the chosen totals are sent, the others are staged into the residual.
"""

from __future__ import annotations

import math

import torch

from torchfsl.engine.policies import BinTop, ByValue, Fixed, RandomK, Rows, top
from torchfsl.engine.residual import Residual, SparseRows
from torchfsl.engine.watch.table import TableChange
from torchfsl.errors import ParameterError
from torchfsl.submodel import norm_bound, stretches
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment, subset_array, tensor_spans
from torchfsl.submodel.update import RawSegment


def flatten(changes: list[torch.Tensor], tau: int) -> torch.Tensor:
    """Tensors one after the other, each padded with zeros to a multiple of tau: [m, tau]."""
    parts = []
    for change in changes:
        flat = change.reshape(-1)
        missing = -flat.numel() % tau
        parts.append(torch.nn.functional.pad(flat, (0, missing)) if missing else flat)
    return torch.cat([part.to(parts[0].device) for part in parts]).reshape(-1, tau)


def choose_blocks(
    segment: Segment,
    change: torch.Tensor,
    policy: ByValue | BinTop | None,
    residual: Residual | None,
    round_number: int,
    bins: PublicBins | None = None,
) -> RawSegment:
    """Choose from a segment whose every position may have changed.

    Args:
        segment: of the plan.
        change: float64 [m, tau].
        policy: None sends everything.
        residual: the client's, or None.
        round_number: for `RandomK`.
        bins: the plan's in this round, for `BinTop`.

    Raises:
        ParameterError: a value is NaN or infinite.
    """
    _check_finite(segment, change)
    if policy is None or segment.is_dense:
        return RawSegment(None, change.cpu().numpy())
    keeper = residual if policy.error_feedback else None
    shape = (segment.index_space, segment.tau)
    owed = None if keeper is None else keeper.dense(segment.name, shape, change.device)
    total = change if owed is None else change + owed
    chosen = _positions(segment, policy, total, round_number, bins)
    values = total.index_select(0, chosen)
    if keeper is not None:
        total = total.clone() if total is change else total
        keeper.stage(segment.name, total.index_fill_(0, chosen, 0.0))
    return RawSegment(chosen.cpu().numpy(), values.cpu().numpy())


def block_bound(plan: SubmodelPlan, segment: Segment) -> float:
    """The norm that each block of `BlockSample` keeps under the plan's `l2_bound`; 0 for none.

    Raises:
        ParameterError: the bound also covers other segments, or has no room for so many blocks.
    """
    if not plan.l2_bound or segment.is_dense:
        return 0.0
    if len(plan.segments) > 1:
        raise ParameterError(
            f"l2_bound covers {len(plan.segments)} segments, and BlockSample with l2_bound needs "
            'one segment: use rows=None and buffers="local", or a plan without l2_bound'
        )
    whole = norm_bound.part_norm(segment.l2_bound or plan.l2_bound, segment.k_max, segment.tau)
    return math.ldexp(whole, -plan.encoding_of(segment).frac_bits)


def sample_blocks(
    plan: SubmodelPlan, segment: Segment, change: torch.Tensor, seed: bytes | None
) -> RawSegment:
    """Draw from a segment whose every position may have changed.

    Args:
        plan: whose `l2_bound`, if there is one, limits each sent block separately.
        segment: of the plan.
        change: float64 [m, tau].
        seed: of the draws; None takes the system's generator.

    Raises:
        ParameterError: a value is NaN or infinite, or the bound has no room for blocks.
    """
    _check_finite(segment, change)
    most = block_bound(plan, segment)
    drawn, sizes = (
        torch.from_numpy(part).to(change.device)
        for part in stretches.draw(segment.m, segment.k_max, seed)
    )
    allowed = _subset(segment, change.device)
    places = drawn if allowed is None else allowed[drawn]
    sent = change.index_select(0, places) * sizes[:, None].to(change)
    if most:
        norms = sent.norm(dim=1, keepdim=True)
        sent = torch.where(norms > most, sent * (most / norms), sent)
    return RawSegment(places.cpu().numpy(), sent.cpu().numpy())


def choose_rows(
    segment: Segment,
    changes: list[tuple[int, TableChange]],
    rows: Rows,
    residual: Residual | None,
    round_number: int,
    *,
    present: torch.Tensor | None = None,
) -> RawSegment:
    """Choose from the rows that changed, and those with a residual.

    Args:
        segment: of the plan.
        changes: offset in the index space and change of each table, in the segment's order.
        rows: the policy.
        residual: the client's, or None.
        round_number: for `RandomK`.
        present: the only rows that can be sent, those retrieved; None for all.

    Raises:
        ParameterError: a value is NaN or infinite, or rows changed that the budget or the plan's
            subset does not hold and there is no residual to keep them.
    """
    device = changes[0][1].ids.device  # a model's tables may lie on several
    ids = torch.cat([change.ids.to(device) + offset for offset, change in changes])
    values = torch.cat([change.values.to(device) for _, change in changes])
    _check_finite(segment, values, ids)
    total = SparseRows(ids, values, torch.zeros_like(ids, dtype=torch.bool))
    keeper = residual if rows.error_feedback else None
    aside = SparseRows.empty(segment.tau, ids.device)
    if keeper is not None:
        owed = keeper.rows(segment.name, segment.tau, ids.device)
        join = owed.pending | torch.isin(owed.ids, ids)
        if present is not None:
            join &= torch.isin(owed.ids, present.to(owed.ids.device))
        aside = owed.take(~join)
        total = SparseRows.gather([total, owed.take(join)])
    chosen = _choose(segment, total, rows, round_number)
    if keeper is None and rows.choice is None and not bool(chosen.all()):
        raise ParameterError(
            f"segment {segment.name!r}: {total.ids.numel()} rows changed, and a client may send "
            f"{segment.k_max}{' of the public rows' if segment.subset else ''}: train on fewer "
            "batches, keep the other rows in a residual, or make a plan with a larger "
            "rows_per_client"
        )
    sent = total.take(chosen)
    if keeper is not None:
        left = total.take(~chosen)
        left.pending = torch.ones_like(left.pending)
        keeper.stage(segment.name, SparseRows.gather([aside, left]))
    return RawSegment(sent.ids.cpu().numpy(), sent.values.cpu().numpy())


def dense_rows(
    segment: Segment, changes: list[tuple[int, TableChange]], num_rows: list[int]
) -> RawSegment:
    """Whole tables, for a rows segment that the plan sends dense.

    Args:
        segment: of the plan, `dense`.
        changes: offset and change of each table, in the segment's order.
        num_rows: of each table.

    Raises:
        ParameterError: a value is NaN or infinite.
    """
    parts = []
    for (offset, change), rows in zip(changes, num_rows, strict=True):
        width = change.values.shape[1]
        _check_finite(segment, change.values, (change.ids + offset) * width)
        full = change.values.new_zeros(rows, width)
        parts.append(full.index_copy_(0, change.ids, change.values))
    return RawSegment(None, flatten(parts, 1).cpu().numpy())


def _choose(segment: Segment, total: SparseRows, rows: Rows, round_number: int) -> torch.Tensor:
    """Which of the changed rows are sent: bool [c], at most k_max set."""
    choice, device = rows.choice, total.ids.device
    allowed = _subset(segment, device)
    if isinstance(choice, RandomK):
        public = choice.positions(segment.m, segment.k_max, round_number).to(device)
        return torch.isin(total.ids, public if allowed is None else allowed[public])
    scores = total.values.abs().sum(dim=1)
    if allowed is None:
        can = torch.arange(total.ids.numel(), device=device)
    else:
        can = torch.nonzero(torch.isin(total.ids, allowed)).flatten()
    chosen = torch.zeros(total.ids.numel(), dtype=torch.bool, device=device)
    chosen[can[top(scores[can], min(segment.k_max, can.numel()))]] = True
    return chosen


def _positions(
    segment: Segment,
    policy: ByValue | BinTop,
    total: torch.Tensor,
    round_number: int,
    bins: PublicBins | None,
) -> torch.Tensor:
    """The policy's choice of `total` [index space, tau]: int64, increasing, in the subset."""
    allowed = _subset(segment, total.device)
    if isinstance(policy, BinTop):
        own = total if allowed is None else total.index_select(0, allowed)
        assert bins is not None, "its bins are those of a plan and a round"
        chosen = policy.choose(own, torch.from_numpy(bins.members()).to(total.device))
        return chosen if allowed is None else allowed[chosen]
    if allowed is None:
        return policy.choose(total, segment.k_max, round_number)
    if isinstance(policy, Fixed):
        fixed = policy.choose(total, segment.k_max, round_number)
        return fixed[torch.isin(fixed, allowed)]
    return allowed[policy.choose(total.index_select(0, allowed), segment.k_max, round_number)]


def _subset(segment: Segment, device: torch.device) -> torch.Tensor | None:
    """The positions that a restricted plan allows, int64; None for all."""
    if not segment.subset:
        return None
    return torch.from_numpy(subset_array(segment.subset).copy()).to(device)


def _check_finite(
    segment: Segment, values: torch.Tensor, positions: torch.Tensor | None = None
) -> None:
    """`values` [k, tau] are those of `positions` of the segment; None for all of them."""
    odd = torch.nonzero(~torch.isfinite(values).all(dim=1)).flatten()
    if not odd.numel():
        return
    first = int(odd[0] if positions is None else positions[odd[0]])
    name = next(t.name for t, span in tensor_spans(segment) if first < span.stop)
    raise ParameterError(
        f"{name} (segment {segment.name!r}): the update has NaN or infinite values: check data "
        "and loss for NaN, lower the learning rate, load an earlier optimizer state, or retrieve "
        "every row that the batches use"
    )

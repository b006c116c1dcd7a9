"""The memory of a server for a plan, and ways to need less.

Working memory is kept between rounds up to `KEPT_BYTES`, since memory that is new to a process
comes page by page. Beyond that tables are given back when a round takes no more messages and
sums when they are gathered, and sums are gathered after every window of reports if a window has
enough of them to make up for it.
"""

from __future__ import annotations

from typing import Final

from torchfsl.fsl import messages
from torchfsl.fsl.plan.layout import TreeGroup, TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels.portable.proofs import HALF

KEPT_BYTES: Final = 1 << 28
"""Tables, and likewise sums, up to this size are kept between rounds."""

WINDOW_REPORTS: Final = 32
WINDOW_BYTES: Final = 1 << 26
"""Complete reports that wait to be added together, and their bytes, at most."""

ASKED_BYTES: Final = 1 << 28
"""What asking proofs side by side may take; one alone takes what it needs."""

_OF_ANY_PROOF: Final = 3 << 15
"""Asking one takes about this, in addition to what grows with the plan."""

_LEAN_WINDOW: Final = 16
"""Reports in a window from which on it pays to gather after each: a few hundredths of its work."""


def window_reports(plan: Plan) -> int:
    """Reports that are added together."""
    early = sum(s.tree_bytes for s in plan.early)
    size = early + messages.public_report_bytes(plan) + sum(map(plan.dense_bytes, plan.dense))
    return max(1, min(WINDOW_REPORTS, WINDOW_BYTES // max(1, size)))


def proof_bytes(plan: Plan) -> int:
    """What asking one proof takes: what carry trees carry, and their leaves, or all vectors.

    Vectors are this server's values, low parts and of wide rings high ones, and both these and the
    carries once more, laid into calls.
    """
    statement = plan.statement
    if statement is None:
        return 0
    (group,) = statement.carries.groups
    vectors = 1 + (statement.ring_bits > HALF)
    carried = group.num_leaves * (8 << group.nu)
    leaves = 16 * group.num_leaves * group.num_trees
    return _OF_ANY_PROOF + carried + max(leaves, 8 * (2 * vectors + 1) * statement.num_values)


def proofs_together(plan: Plan) -> int:
    """How many proofs may be asked side by side."""
    return max(1, ASKED_BYTES // max(1, proof_bytes(plan)))


def keeps_sums(plan: Plan) -> bool:
    """Whether sums are kept in bin layout and from round to round."""
    return sum(bin_sums_bytes(plan, s) for s in plan.with_trees) <= KEPT_BYTES


def gathers_windows(plan: Plan) -> bool:
    """Whether sums are gathered after every window of reports, `ssa.IndexSums`."""
    return not keeps_sums(plan) and window_reports(plan) >= _LEAN_WINDOW


def keeps_tables(plan: Plan) -> bool:
    """Whether tables for retrieval are kept from round to round."""
    return sum(table_bytes(s) for s in plan.retrieving) <= KEPT_BYTES


def table_bytes(segment: TreeSegment) -> int:
    """A segment's rows in the layout of its bins, a padded copy for the stash, and digests."""
    row = segment.row_bytes
    total = sum((_positions(g) >> g.nu) * segment.tag_bytes for g in segment.groups)
    total += sum(_positions(group) * row for group in segment.groups if not group.is_stash)
    stash = [_positions(group) for group in segment.groups if group.is_stash]
    return total + sum(row * positions for positions in stash if positions != segment.m)


def bin_sums_bytes(plan: Plan, segment: TreeSegment) -> int:
    """A running sum in bin layout."""
    return sum(_positions(group) for group in segment.groups) * plan.value_bytes(segment)


def sums_bytes(plan: Plan) -> int:
    """The running sums of all segments with trees, as this plan has them."""
    if not gathers_windows(plan):
        return sum(bin_sums_bytes(plan, s) for s in plan.with_trees)
    # In index order, and one sub-table of one segment at a time.
    whole = [_whole(s) * plan.value_bytes(s) for s in plan.with_trees]
    part = [
        _positions(g) // s.hashes * plan.value_bytes(s)
        for s in plan.with_trees
        for g in s.groups
        if not g.is_stash
    ]
    return sum(whole) + max(part, default=0)


def _positions(group: TreeGroup) -> int:
    """Places of a group, padding included; a stash's trees share theirs."""
    return (1 if group.is_stash else group.num_trees) * (group.num_leaves << group.nu)


def _whole(segment: TreeSegment) -> int:
    return _positions(TreeGroup(1, segment.m, segment.nu, True, 0))

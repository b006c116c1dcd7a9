"""The memory that rounds take at a client, in addition to the model."""

from __future__ import annotations

from collections.abc import Sequence

from torchfsl.engine.inventory import Inventory
from torchfsl.engine.policies import Dense, RestPolicy, Rows
from torchfsl.engine.watch.table import TableWatch
from torchfsl.errors import expect_a
from torchfsl.submodel.plan import SubmodelPlan

_RESIDUAL_BYTES = 8
"""Residuals are float64, ids int64."""


def explain_memory(
    plan: SubmodelPlan,
    inventory: Inventory,
    watches: Sequence[TableWatch],
    rows: Rows | None,
    rest: RestPolicy,
) -> list[str]:
    """One line for every part of the model that costs memory, copies of tables first.

    Args:
        plan: of this model.
        inventory: its tensors.
        watches: of its tables.
        rows: policy of the tables.
        rest: policy of the rest.

    Raises:
        ParameterError: no plan.
    """
    expect_a(SubmodelPlan, plan, "plan", "pass fed.plan, of torchfsl.Federated(...)")
    private = {t.name for s in plan.segments if s.retrieve for t in s.tensors}
    lines = []
    for watch in watches:
        table, size = watch.table, watch.table.weight.nbytes
        if watch.copies_table and table.name not in private:
            lines.append(
                f"{table.name}: the optimizer moves every row, so a round keeps a copy of the "
                f"whole table: {size} bytes"
            )
        if table.name not in private:
            lines.append(
                f"{table.name}: downloaded whole; a round keeps what it replaces until the "
                f"block ends: {size} bytes"
            )
    for segment in plan.segments:
        if segment.name not in inventory.tables:
            continue
        # A row may be held as retrieved and as touched; marks or sorted ids find it again.
        own = segment.tau * segment.tensors[0].item_bytes
        row = 2 * (own + _RESIDUAL_BYTES) + max(8, own // 2)
        owes = rows is not None and rows.error_feedback
        lines.append(
            f"{segment.name}: at most {row} bytes a touched row"
            + (f", {segment.tau * _RESIDUAL_BYTES + 9} a row in the residual" if owes else "")
        )
    values = sum(p.numel() for p in inventory.rest.values())
    size = sum(p.nbytes for p in inventory.rest.values())
    owes = not isinstance(rest, Dense) and rest.error_feedback
    if values:
        lines.append(
            f"rest: a copy at the start of a round, {size} bytes"
            + (f", and a residual of {values * _RESIDUAL_BYTES}" if owes else "")
        )
    return lines

"""The reports of hooks: status, memory, and warnings about models that are rarely meant so."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from torchfsl.engine.inventory import Inventory
from torchfsl.engine.policies import Dense, RestPolicy, Rows
from torchfsl.engine.watch.table import TableWatch
from torchfsl.errors import expect_a
from torchfsl.faces import outside
from torchfsl.submodel.plan import SubmodelPlan


@dataclass(frozen=True, slots=True)
class Status:
    """What `Hooks.status` reports.

    Attributes:
        attached: hooks are in place.
        open: a round is being recorded.
        rounds: rounds begun.
        steps: optimizer steps in this round.
        saved_rows: rows saved in this round, by table; counts, never ids.
        saved_bytes: memory held for this round's tables, by table.
        copied_tables: tables kept whole during a round, because the optimizer moves every row.
        frozen: parameters that are not part of the update.
        residual_bytes: memory of the residuals of all clients that trained this model.
    """

    attached: bool
    open: bool
    rounds: int
    steps: int
    saved_rows: dict[str, int]
    saved_bytes: dict[str, int]
    copied_tables: list[str]
    frozen: list[str]
    residual_bytes: int


def warn_at_attach(model: nn.Module, inventory: Inventory, *, hooked: bool) -> None:
    """Warn of second hooks on one model, and of tables that nothing trains.

    Args:
        model: unwrapped.
        inventory: of it.
        hooked: whether the model has hooks.
    """
    if hooked:
        warnings.warn(
            f"this {type(model).__name__} is already in another Federated, and both send its "
            "updates: call detach() on the Federated that you do not use",
            stacklevel=outside(),
        )
    for name in inventory.hidden_lookups:
        tables = [t.name.removesuffix(".weight") for t in inventory.all_tables]
        named = [*tables, name.removesuffix(".weight")]
        warnings.warn(
            f"{name} is sent dense, because its class has its own forward(), which may read other "
            "rows than the given ids. If forward() reads only these rows, pass "
            f"rows=torchfsl.Rows(tables={named})",
            stacklevel=outside(),
        )
    for name in inventory.untrained_tables:
        warnings.warn(
            f"{name} requires gradients, but no optimizer of Federated has this parameter, so "
            "torchfsl does not send its updates: pass all optimizers, torchfsl.Federated(model, "
            "[a, b]), or set requires_grad=False",
            stacklevel=outside(),
        )


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
            f"{segment.name}: at most {row} bytes per touched row"
            + (f", {segment.tau * _RESIDUAL_BYTES + 9} per row in the residual" if owes else "")
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

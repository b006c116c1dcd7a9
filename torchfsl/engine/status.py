"""The status that hooks report, and warnings about models that are rarely meant so."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import nn

from torchfsl.engine.inventory import Inventory


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
            f"this {type(model).__name__} is in another Federated, and each takes its updates: "
            "call detach() on the other one if only one is meant",
            stacklevel=4,
        )
    for name in inventory.hidden_lookups:
        tables = [t.name.removesuffix(".weight") for t in inventory.all_tables]
        named = [*tables, name.removesuffix(".weight")]
        warnings.warn(
            f"{name} is sent dense: its class has a separate forward, which does not read exactly "
            f"the rows that it is given. If it does, name it: rows=torchfsl.Rows(tables={named})",
            stacklevel=4,
        )
    for name in inventory.untrained_tables:
        warnings.warn(
            f"{name} requires gradients, but no optimizer of Federated has it: it is not trained "
            "or sent: pass all optimizers, torchfsl.Federated(model, [a, b]), or set "
            "requires_grad=False",
            stacklevel=4,
        )

"""Hooks, plans and servers of the engine's tests, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchfsl.engine.hooks import Hooks
from torchfsl.federation.planning import make_plan
from torchfsl.fsl.plan.plan import Plan

AVERAGES = {"none": "clients", "count": "rows", "weight": "weight"}


def plan_of(
    hooks: Hooks,
    *,
    max_clients: int,
    min_clients: int = 2,
    rows_per_client: int | Mapping[str, int] | None = None,
    retrieve: bool | None = None,
    lane: str = "none",
    **options: Any,
) -> Plan:
    """A plan for the model under these hooks; segments above break-even are refused by default."""
    if lane == "weight":
        options.setdefault("max_weight", 1)
    return make_plan(
        hooks, max_clients=max_clients, min_clients=min_clients, rows_per_client=rows_per_client,
        retrieve=retrieve, average=AVERAGES[lane],  # type: ignore[arg-type]
        options={"above_break_even": "error", **options},
    )  # fmt: skip

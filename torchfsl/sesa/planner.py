"""Makes the plan of one server from what is wanted of each segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, expect_a
from torchfsl.sesa.sesa_plan import SesaPlan, Width
from torchfsl.submodel.plan_fields import drawn_session
from torchfsl.submodel.segments import SegmentSpec, SpecSource, default_encoding, plain_segments


class PlanOptions(TypedDict, total=False):
    """Options of `build_plan` next to segments, encoding, widths and collusion.

    Attributes:
        dropouts: see `SesaPlan`.
        max_isolation: see `SesaPlan`.
        min_clients: fewest survivors a round may open, if K + T is below.
        l2_bound: see `SubmodelPlan`.
        session: 16 bytes; from the operating system when None.
    """

    dropouts: int
    max_isolation: float
    min_clients: int
    l2_bound: int
    session: bytes | None


def build_plan(
    specs: Sequence[SegmentSpec],
    *,
    encoding: FixedPoint,
    widths: Sequence[Width],
    collusion: int,
    **options: Unpack[PlanOptions],
) -> SesaPlan:
    """Put the plan of one server together.

    Args:
        specs: the segments wanted.
        encoding: fixed-point parameters.
        widths: classes of clients; their clients together are a full round.
        collusion: see `SesaPlan`.
        **options: see `PlanOptions`.

    Returns:
        The plan.

    Raises:
        ParameterError: if a limit is exceeded; the message names it.
    """
    for width in widths:
        expect_a(Width, width, "an entry of widths", "pass Width(owned, clients)")
    fields: dict[str, Any] = {**options, "session": drawn_session(options.get("session"))}
    return SesaPlan(
        encoding=encoding,
        max_clients=sum(width.clients for width in widths),
        segments=plain_segments(specs),
        widths=tuple(widths),
        collusion=collusion,
        **fields,
    )


def plan(
    fed: SpecSource,
    *,
    widths: Sequence[tuple[int | Mapping[str, int], int]],
    collusion: int,
    **options: Unpack[PlanOptions],
) -> SesaPlan:
    """A plan for one server and clients of different widths.

    Write `fed.plan = torchfsl.sesa.plan(fed, widths=..., collusion=...)`. Rows of tables are the
    submodels: a client names those that it will train before it trains.

    Args:
        fed: a `torchfsl.Federated` with `rest=Dense()` and rows found by hooks.
        widths: for each class of clients, how many rows one of them trains (of every rows
            segment, or by segment name), and how many such clients a full round has.
        collusion: see `SesaPlan`.
        **options: see `PlanOptions`.

    Raises:
        ParameterError: other policies, a budget is missing, or a limit exceeded.
    """
    if not widths:
        raise ParameterError(
            "widths is empty: pass a pair (rows of each client, number of clients) per class, for "
            "example widths=[(64, 20)]"
        )
    named = [set(rows) for rows, _ in widths if isinstance(rows, Mapping)]
    if any(budget != named[0] for budget in named):
        raise ParameterError(
            f"the entries of widths have different segments, {[sorted(n) for n in named]}: give "
            "each entry a number of rows for every segment"
        )
    names = sorted(named[0]) if named else []
    budgets = [dict(r) if isinstance(r, Mapping) else dict.fromkeys(names, r) for r, _ in widths]
    widest: int | dict[str, int] = (
        {name: max(budget[name] for budget in budgets) for name in names}
        if names
        else max(rows for rows, _ in widths if isinstance(rows, int))
    )
    specs = fed.segment_specs(rows_per_client=widest, retrieve=True)
    for spec in specs:
        if spec.policy not in ("rows", "dense"):
            raise ParameterError(
                f"segment {spec.name!r} has the policy {spec.policy}, which selects positions "
                "after training, but sesa needs the selection before training: use "
                "rest=torchfsl.Dense()"
            )
    classes = [
        Width(tuple(1 if s.is_dense else budget.get(s.name, rows) for s in specs), clients)  # type: ignore[arg-type]
        for budget, (rows, clients) in zip(budgets, widths, strict=True)
    ]
    encoding = fed.encoding or default_encoding(sum(clients for _, clients in widths))
    return build_plan(specs, encoding=encoding, widths=classes, collusion=collusion, **options)

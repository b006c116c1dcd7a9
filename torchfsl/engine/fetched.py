"""Fetched rows in a client's tables, in a round or, for evaluation, without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.engine.hooks import Hooks
from torchfsl.engine.lookups import (
    RowIds,
    by_table,
    check_budget,
    num_named,
    segment_indices,
    zeros_for_missing,
)
from torchfsl.engine.residual import Residual
from torchfsl.engine.watch.absent import Asked
from torchfsl.engine.watch.snapshot import Snapshot, keep_only
from torchfsl.errors import ParameterError, expect_able
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment

Found = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
"""By segment: indices and `[k, tau]` values."""


class Fetcher(Protocol):
    """A client that reads the applied model, as `torchfsl.fsl.Client` is one."""

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan."""

    @property
    def client_id(self) -> int:
        """The client's number."""

    def fetch(self, rows: Mapping[str, npt.ArrayLike]) -> tuple[Mapping[str, Any], Found]:
        """The clear tensors, and the rows named."""


def asked_rows(
    hooks: Hooks,
    segments: list[Segment],
    rows: RowIds | None,
    residual: Residual,
    *,
    strict: bool = True,
) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, Asked]]:
    """What to fetch: the caller's ids, then unsent rows, at most k_max.

    Args:
        hooks: on the model.
        segments: those that are retrieved.
        rows: the caller's ids.
        residual: of the client.
        strict: refuse more ids than k_max; else the first ones count.

    Returns:
        The indices by retrieving segment, and by table what the caller named and may have.

    Raises:
        ParameterError: an unknown table, invalid ids, or more than k_max of them.
    """
    tables = hooks.inventory.tables
    retrieved = [t for s in segments for t in tables[s.name]]
    whole = [t for t in hooks.inventory.all_tables if t not in retrieved]
    wanted = by_table(rows, retrieved, whole) if segments else {}
    for segment in segments if strict else ():
        check_budget(segment, tables[segment.name], wanted)
    named = {
        table.name: Asked(s.name, num_named(tables[s.name], wanted), s.k_max)
        for s in segments
        for table in tables[s.name]
    }
    return {s.name: segment_indices(s, tables[s.name], wanted, residual) for s in segments}, named


def write_rows(
    hooks: Hooks,
    segments: list[Segment],
    asked: Mapping[str, npt.NDArray[np.int64]],
    found: Found,
    absent: float,
) -> dict[str, torch.Tensor]:
    """Write fetched rows into the tables, `absent` (NaN or 0) everywhere else.

    Returns:
        By table name the ids that the tables hold now: int64, increasing.
    """
    held_rows, present = hooks.held_rows, {}
    for segment in segments:
        indices, values = zeros_for_missing(asked[segment.name], *found[segment.name])
        for table in hooks.inventory.tables[segment.name]:
            stop = table.offset + table.num_rows
            here = (indices >= table.offset) & (indices < stop)
            ids = torch.from_numpy(np.array(indices[here] - table.offset))
            rows = torch.from_numpy(np.array(values[here]))
            ids = ids.to(table.weight.device)
            held = None if absent == 0.0 else held_rows.of(table)
            keep_only(table, ids, rows, held, absent=absent)
            held_rows.lack(table, table.num_rows - len(ids), zero=absent == 0.0)
            present[table.name] = ids
    for table in hooks.inventory.all_tables:
        present.setdefault(table.name, torch.arange(table.num_rows))
    return present


@contextlib.contextmanager
def fetched_model(
    hooks: Hooks, client: Fetcher, rows: RowIds | None = None
) -> Iterator[dict[str, torch.Tensor]]:
    """The servers' model in this client's module, to evaluate it: a fetch, and no report.

    Rows that were not asked for are NaN, of which lookups on the CPU warn, or zero under
    `Rows(absent="zero")`. Leaving the block puts the module back to what it was.

    Args:
        hooks: on the module.
        client: bound to a plan for this module.
        rows: ids as `Federated.round` takes them; those beyond the plan's k_max are left out.

    Yields:
        By table name the ids at hand: int64, increasing.

    Raises:
        ParameterError: the plan does not fit, or `rows` is missing or names none. Servers have
            seen nothing then.
        RejectedSubmission: this client has fetched from this model as often as it may.
        ProtocolError: a round is open in this module, or a server altered its answer.
    """
    remedy = "pass torchfsl.connect(...), or call fed.load(servers) where both are in this process"
    expect_able(("fetch",), client, "servers", remedy)
    hooks.exchange.check_plan(client.plan)
    hooks.recorder.check_closed()
    segments = [segment for segment in client.plan.segments if segment.retrieve]
    if segments and rows is None:
        raise ParameterError(
            "the plan retrieves rows privately: call fed.evaluating(servers, rows=ids) with the "
            "row ids that the evaluation uses"
        )
    asked, _ = asked_rows(hooks, segments, rows, Residual(), strict=False)
    absent = 0.0 if hooks.rows is not None and hooks.rows.absent == "zero" else np.nan
    hooks.personal.switch_to(client.client_id)
    before = Snapshot(hooks.model, hooks.inventory, hooks.held_rows)
    try:
        clear, found = client.fetch(asked)
        hooks.exchange.load(clear)
        present = write_rows(hooks, segments, asked, found, absent)
        if absent != 0.0:  # so that lookups of other rows are warned of
            for table in (t for s in segments for t in hooks.inventory.tables[s.name]):
                hooks.held_rows.note(table, present[table.name])
        yield present
    finally:
        before.put_back()

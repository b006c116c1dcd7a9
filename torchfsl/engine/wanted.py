"""The rows that a round asks for: the caller's ids, by table, then by segment within the budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.engine.inventory import Table
from torchfsl.engine.residual import Residual
from torchfsl.errors import ParameterError, refuse
from torchfsl.submodel.segments import Segment

_Array = torch.Tensor | npt.NDArray[Any]
Ids = _Array | Iterable[int] | Sequence[_Array]
RowIds = Ids | Mapping[str, Ids]


def zeros_for_missing(
    asked: npt.NDArray[np.int64], indices: npt.NDArray[np.int64], values: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """All rows asked for and their values, zeros where a row found no bin.

    Training goes on as usual: that a row found none depends on which rows were wanted, so that a
    report of dummies in its place would show in the sums.
    """
    if len(indices) == len(asked):
        return indices, values
    whole = np.zeros((len(asked), values.shape[1]), dtype=values.dtype)
    whole[np.searchsorted(asked, indices)] = values
    return asked, whole


def by_table(
    wanted: RowIds | None, tables: list[Table], whole: list[Table]
) -> dict[str, torch.Tensor]:
    """The caller's ids by table name.

    Args:
        wanted: ids of the only table, or by table name.
        tables: those whose rows are retrieved.
        whole: others, of which the client holds every row; ids of theirs count for nothing.

    Raises:
        ParameterError: unknown table, ids of another kind, or out of range.
    """
    assert wanted is not None
    if not isinstance(wanted, Mapping):
        if len(tables) != 1:
            raise ParameterError(
                f"rows= needs a mapping from table to ids; the tables are "
                f"{[t.name for t in tables]}"
            )
        wanted = {tables[0].name: wanted}
    known = [*tables, *whole]
    names = {alias: t for t in known for alias in (t.name, t.name.removesuffix(".weight"))}
    ids: dict[str, torch.Tensor] = {}
    for name, given in wanted.items():
        if name not in names:
            raise ParameterError(_unknown(name, known))
        table = names[name]
        flat = _flat_ids(table.name, given)
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= table.num_rows):
            raise ParameterError(
                f"rows= for {table.name}: an id lies outside [0, {table.num_rows})"
            )
        ids[table.name] = flat[flat != table.padding]
    return ids


def _unknown(name: object, known: list[Table]) -> str:
    """Why no table has this name."""
    for table in known:
        if name in table.aliases or f"{name}.weight" in table.aliases:
            return (
                f"rows= names {name!r}, which shares its table with {table.name!r}: give the ids "
                "of both under that name"
            )
    return f"rows= names {name!r}; the tables are {[t.name for t in known]}"


def _flat_ids(name: str, given: Any) -> torch.Tensor:
    """The caller's ids of a table, int64 and flat; those of several arrays in their order.

    Raises:
        ParameterError: no integers. It tells types alone, as ids are private.
    """
    array = torch.Tensor | np.ndarray
    if not isinstance(given, array):
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            refuse(f"rows= for {name}", given, "pass ids, a list, an array or a tensor of integers")
        given = list(given)
        if given and all(isinstance(part, array) for part in given):
            return torch.cat([_flat_ids(name, part) for part in given])
    try:
        flat = torch.as_tensor(given).detach().cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ParameterError(
            f"rows= for {name} must be integers, in one list, array or tensor, or in a list of "
            "arrays or tensors"
        ) from error
    if flat.numel() and (flat.dtype == torch.bool or flat.is_floating_point() or flat.is_complex()):
        raise ParameterError(f"rows= for {name} must be integers, not {flat.dtype}")
    return flat.to(torch.int64)


def num_named(tables: list[Table], wanted: Mapping[str, torch.Tensor]) -> int:
    """How many distinct rows of these tables the caller named."""
    return sum(len(torch.unique(wanted[t.name])) for t in tables if t.name in wanted)


def check_budget(segment: Segment, tables: list[Table], wanted: Mapping[str, torch.Tensor]) -> None:
    """Refuse more rows than the plan lets a client fetch.

    Raises:
        ParameterError: with both numbers.
    """
    named = num_named(tables, wanted)
    if named > segment.k_max:
        names = ", ".join(t.name for t in tables)
        raise ParameterError(
            f"this client uses {named} rows of {names} (segment {segment.name!r}), the plan's "
            f"rows_per_client is {segment.k_max}: train on fewer batches in this round, or make "
            f"the plan with rows_per_client={named} or more"
        )


def segment_indices(
    segment: Segment, tables: list[Table], wanted: Mapping[str, torch.Tensor], residual: Residual
) -> npt.NDArray[np.int64]:
    """Distinct indices in order of first mention, then unsent rows, cut to k_max, sorted."""
    parts = [wanted[t.name].numpy() + t.offset for t in tables if t.name in wanted]
    unsent = residual.pending(segment.name).cpu().numpy()
    mentioned = np.concatenate([*parts, unsent]).astype(np.int64)
    mentioned = mentioned[segment.tree_positions(mentioned) >= 0]
    distinct, first = np.unique(mentioned, return_index=True)
    order = np.argsort(first, kind="stable")[: segment.k_max]
    return np.sort(distinct[order])

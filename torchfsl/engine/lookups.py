"""The rows that a round asks for, and which rows some batches use.

Ids are the caller's, by table, then by segment within the budget; or a dry pass finds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torchfsl.engine.inventory import Table
from torchfsl.engine.residual import Residual
from torchfsl.engine.watch.rest import BufferWatch
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
                "rows= expects a mapping from table names to row ids: choose from the tables "
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
        _check_ids(f"rows= for {table.name}", table, flat)
        ids[table.name] = flat[flat != table.padding]
    return ids


def _check_ids(what: str, table: Table, ids: torch.Tensor, *, looked_up: bool = False) -> None:
    """Refuse ids that no row of a table has.

    Raises:
        ParameterError: with the first of them; the client reads it, and no server does.
    """
    odd = ids[(ids < 0) | (ids >= table.num_rows)]
    if odd.numel():
        raise ParameterError(
            f"{what}: id {int(odd[0])} lies outside [0, {table.num_rows}): number the rows from "
            "0, and drop ids that the table does not have",
            code="row-out-of-range" if looked_up else "parameter",
        )


def _unknown(name: object, known: list[Table]) -> str:
    """Why no table has this name."""
    for table in known:
        if name in table.aliases or f"{name}.weight" in table.aliases:
            return (
                f"rows= has {name!r}, which shares its weight with {table.name!r}: pass the ids "
                f"of both under {table.name!r}"
            )
    return f"rows= has {name!r}, which is not a table: choose from {[t.name for t in known]}"


def _flat_ids(name: str, given: Any) -> torch.Tensor:
    """The caller's ids of a table, int64 and flat; those of several arrays in their order.

    Raises:
        ParameterError: no integers. It tells types alone, as ids are private.
    """
    array = torch.Tensor | np.ndarray
    if not isinstance(given, array):
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            refuse(f"rows= for {name}", given, "pass a list, an array or a tensor of row ids")
        given = list(given)
        if given and all(isinstance(part, array) for part in given):
            return torch.cat([_flat_ids(name, part) for part in given])
    try:
        flat = torch.as_tensor(given).detach().cpu().reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ParameterError(
            f"rows= for {name} expects integers: pass a list, an array or a tensor of row ids, or "
            "a list of arrays or tensors"
        ) from error
    if flat.numel() and (flat.dtype == torch.bool or flat.is_floating_point() or flat.is_complex()):
        raise ParameterError(
            f"rows= for {name} expects integers, got {flat.dtype}: pass row ids of dtype int64"
        )
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
            f"this client uses {named} rows of {names} (segment {segment.name!r}), and the plan's "
            f"rows_per_client is {segment.k_max}: train on fewer batches, or make a plan with "
            f"rows_per_client={named}, which fits it (fed.suggest_rows fits all)"
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


Call = Callable[[nn.Module, Any], object]
_QUANTILES = (0.5, 0.9, 0.99, 1.0)


def find_rows(
    model: nn.Module,
    tables: Sequence[Table],
    batches: Iterable[Any],
    call: Call | None,
    held: Mapping[str, torch.Tensor | None],
) -> dict[str, torch.Tensor]:
    """Run the model on batches without gradients and note which rows its tables look up.

    The pass leaves no trace: modes, buffers and random generators are as before. A lookup of a row
    that the client does not hold reads one that it holds, so that checks in the model pass.

    Args:
        model: put into evaluation mode for it.
        tables: to look at.
        batches: as the training loop gets them.
        call: how the model is called with a batch.
        held: by table name the ids of the only rows with numbers; None for all.

    Returns:
        By table name distinct ids, int64, increasing, without padding.

    Raises:
        ParameterError: the model does not take the batch.
    """
    check_batches(batches)
    seen: dict[str, list[torch.Tensor]] = {table.name: [] for table in tables}
    hooks = [
        module.register_forward_pre_hook(
            _noting(table, seen[table.name], held.get(table.name)), with_kwargs=True
        )
        for table in tables
        for module in table.modules
    ]
    modes = [(module, module.training) for module in model.modules()]
    buffers = BufferWatch(model)
    buffers.begin()
    model.eval()
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            _run_all(model, batches, call)
    finally:
        buffers.restore()
        for module, mode in modes:
            module.training = mode
        for hook in hooks:
            hook.remove()
    found = {}
    for table in tables:
        parts = seen[table.name]
        ids = torch.unique(torch.cat(parts)) if parts else torch.empty(0, dtype=torch.int64)
        found[table.name] = ids[ids != table.padding]
    return found


def check_batches(batches: object) -> None:
    """Refuse what can be read once only, and one batch in place of several.

    Raises:
        ParameterError: it is an iterator, such as a generator, or one batch: a tensor, a tuple of
            tensors or a mapping.
    """
    if isinstance(batches, Iterator):
        raise ParameterError(
            "batches is an iterator, and torchfsl reads the batches once more to find their rows: "
            "pass a list or a DataLoader, batches=list(batches)"
        )
    what = f"a {type(batches).__name__}"
    if isinstance(batches, torch.Tensor):
        what = f"a tensor of shape {list(batches.shape)}"
    elif isinstance(batches, tuple) and len(batches) > 1 and _are_tensors(batches):
        what = f"a tuple of {len(batches)} tensors"
    elif not isinstance(batches, Mapping):
        return
    raise ParameterError(
        f"expected a list of batches, got one batch, {what}: put it into a list, [batch]"
    )


def _are_tensors(batches: Any) -> bool:
    return all(isinstance(part, torch.Tensor) for part in batches)


def _noting(
    table: Table, seen: list[torch.Tensor], held: torch.Tensor | None
) -> Callable[..., Any]:
    """A hook that notes ids, and replaces those of absent rows by one that is held."""

    def note(module: nn.Module, args: Any, kwargs: Any) -> Any:
        ids = args[0] if args else kwargs["input"]
        if not isinstance(ids, torch.Tensor):
            raise ParameterError(
                f"batches: the model looks up {table.name} with a {type(ids).__name__}, expected a "
                "tensor: pass batches of tensors, for example torch.from_numpy(array)"
            )
        flat = ids.values() if ids.is_nested else ids
        found = torch.unique(flat.detach()).cpu().to(torch.int64)
        if not flat.is_floating_point():  # of labels, which torch refuses
            _check_ids(f"batches: {table.name}", table, found, looked_up=True)
        seen.append(found)
        if held is None or not held.numel() or ids.is_nested:
            return None
        padding = getattr(module, "padding_idx", None)
        known = torch.isin(flat, held.to(flat.device, flat.dtype))
        known = known if padding is None else known | (flat == padding)
        ids = torch.where(known, flat, held[0].to(flat.device, flat.dtype))
        return ((ids, *args[1:]), kwargs) if args else (args, {**kwargs, "input": ids})

    return note


def _run_all(model: nn.Module, batches: Iterable[Any], call: Call | None) -> None:
    try:
        for batch in batches:
            _run(model, batch, call)
    except ParameterError:
        raise
    except Exception as error:
        if not isinstance(batches, list) or len(batches) < 2 or not _are_tensors(batches):
            error.add_note(
                "torchfsl ran the model on the batches to find their rows. Pass a list of batches "
                "that the model takes, with row ids of dtype torch.int64."
            )
            raise
        raise ParameterError(
            f"expected a list of batches, got a list of {len(batches)} tensors, which the model "
            f"does not take one by one ({error!s:.60}): if they are one batch, pass [batch]"
        ) from error


def _run(model: nn.Module, batch: Any, call: Call | None) -> None:
    if call is not None:
        call(model, batch)
        return
    attempts = _calls(model, batch)
    for args, kwargs in attempts[:-1]:
        try:
            model(*args, **kwargs)
        except Exception:  # noqa: S112 what a model raises on labels is its own
            continue
        return
    args, kwargs = attempts[-1]
    try:
        model(*args, **kwargs)
    except TypeError as error:
        raise ParameterError(
            f"rows_of: the forward() of {type(model).__name__} failed on a batch ({error}): pass "
            "a function that calls the model, rows_of(batches, call=lambda model, batch: "
            "model(batch[0]))"
        ) from error


def _calls(model: nn.Module, batch: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Ways to call the model with a batch, the first one first: labels may be left out."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    kinds = {p.kind for p in parameters}
    if isinstance(batch, Mapping):
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return [((), dict(batch))]
        names = {p.name for p in parameters}
        return [((), {name: value for name, value in batch.items() if name in names})]
    if not isinstance(batch, tuple | list):
        return [((batch,), {})]
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = len(batch) if inspect.Parameter.VAR_POSITIONAL in kinds else len(places)
    fewest = sum(p.default is p.empty for p in places)
    whole = tuple(batch[:most])
    if fewest and fewest < len(whole):
        return [(whole, {}), (whole[:fewest], {})]
    return [(whole, {})]


@dataclass(frozen=True, slots=True)
class RowAdvice:
    """How many rows clients need, by rows segment.

    Attributes:
        counts: for each segment the number of rows of each client, increasing.
    """

    counts: dict[str, npt.NDArray[np.int64]]

    def rows_per_client(self, quantile: float = 1.0) -> dict[str, int]:
        """A plan's `rows_per_client` under which this share of clients fits.

        Below 1.0 the others cannot train on all of their rows where rows are fetched privately.
        """
        if not 0 < quantile <= 1:
            raise ParameterError(f"quantile is {quantile}: choose a number above 0 and at most 1")
        return {
            name: max(1, int(np.quantile(values, quantile, method="higher")))
            for name, values in self.counts.items()
        }

    def __str__(self) -> str:
        lines = [f"{'rows per client':<16}" + "".join(f"{q:>9.0%}" for q in _QUANTILES)]
        by_quantile = [self.rows_per_client(q) for q in _QUANTILES]
        for name in self.counts:
            lines.append(f"{name:<16}" + "".join(f"{rows[name]:>9}" for rows in by_quantile))
        return "\n".join(lines)


def advise(tables: Mapping[str, Sequence[Table]], clients: Iterable[RowIds]) -> RowAdvice:
    """Count the distinct rows of each client by segment.

    Args:
        tables: by segment.
        clients: of each what it would pass as `rows=`.

    Raises:
        ParameterError: no client, or invalid ids.
    """
    every = [table for group in tables.values() for table in group]
    asked = [by_table(rows, every, []) for rows in clients]
    if not asked:
        raise ParameterError(
            "expected the batches of one client or more, got no clients: pass a list with the "
            "batches of each client"
        )
    counts = {
        name: np.sort(
            [
                sum(len(torch.unique(rows[t.name])) for t in group if t.name in rows)
                for rows in asked
            ]
        ).astype(np.int64)
        for name, group in tables.items()
    }
    return RowAdvice(counts)

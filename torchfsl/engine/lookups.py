"""Which rows some batches use, found by a dry pass, and how many rows clients need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torchfsl.engine.inventory import Table
from torchfsl.engine.wanted import RowIds, by_table
from torchfsl.errors import ParameterError

Call = Callable[[nn.Module, Any], object]
_QUANTILES = (0.5, 0.9, 0.99, 1.0)


def find_rows(
    model: nn.Module, tables: Sequence[Table], batches: Iterable[Any], call: Call | None
) -> dict[str, torch.Tensor]:
    """Run the model on batches without gradients and note what its tables are asked for.

    Args:
        model: put into evaluation mode for it, so that no statistics move.
        tables: to look at.
        batches: as the training loop gets them.
        call: how the model is called with a batch.

    Returns:
        By table name distinct ids, int64, increasing, without padding.

    Raises:
        ParameterError: the model does not take the batch.
    """
    seen: dict[str, list[torch.Tensor]] = {table.name: [] for table in tables}

    def noting(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            ids = args[0] if args else kwargs["input"]
            ids = ids.values() if ids.is_nested else ids
            seen[name].append(torch.unique(ids.detach()).cpu().to(torch.int64))

        return note

    hooks = [
        module.register_forward_pre_hook(noting(table.name), with_kwargs=True)
        for table in tables
        for module in table.modules
    ]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                _run(model, batch, call)
    finally:
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


def _run(model: nn.Module, batch: Any, call: Call | None) -> None:
    if call is not None:
        call(model, batch)
        return
    try:
        if isinstance(batch, Mapping):
            model(**batch)
        elif isinstance(batch, tuple | list):
            model(*batch)
        else:
            model(batch)
    except TypeError as error:
        raise ParameterError(
            f"rows_of: {type(model).__name__} does not take the batch as it is ({error}): say how "
            "it is called, rows_of(batches, call=lambda model, batch: model(batch[0]))"
        ) from error


@dataclass(frozen=True, slots=True)
class RowAdvice:
    """How many rows clients need, by rows segment.

    Attributes:
        counts: for each segment the number of rows of each client, increasing.
    """

    counts: dict[str, npt.NDArray[np.int64]]

    def rows_per_client(self, quantile: float = 1.0) -> dict[str, int]:
        """What `engine.plan(rows_per_client=)` takes so that this share of clients fits.

        Below 1.0 the others cannot train on all of their rows where rows are fetched privately.
        """
        if not 0 < quantile <= 1:
            raise ParameterError(f"quantile is {quantile}: choose one in (0, 1]")
        return {
            name: max(1, int(np.quantile(values, quantile, method="higher")))
            for name, values in self.counts.items()
        }

    def __str__(self) -> str:
        lines = [f"{'rows a client':<16}" + "".join(f"{q:>9.0%}" for q in _QUANTILES)]
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
        ParameterError: no client, or ids that are none.
    """
    every = [table for group in tables.values() for table in group]
    asked = [by_table(rows, every, []) for rows in clients]
    if not asked:
        raise ParameterError("advise() needs the rows of at least one client")
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

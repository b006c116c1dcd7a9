"""A model as it was before a download, to go back to when a round fails."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn

from torchfsl.engine.inventory import Inventory, Table
from torchfsl.engine.watch.rest import BufferWatch, RestWatch


class HeldRows:
    """Which rows of each table hold numbers, after rounds that set all others to NaN.

    Known only while nothing has written to the table since, by its version counter.
    """

    def __init__(self) -> None:
        """Nothing known: tables may hold any row."""
        self._held: dict[str, tuple[tuple[int, int], torch.Tensor]] = {}
        self._zeros: dict[str, int] = {}
        self._may_lack: set[str] = set()
        self._dry = False

    def lack(self, table: Table, num_absent: int, *, zero: bool) -> None:
        """So many rows of `table` are absent now: zero in a round, else NaN."""
        self._zeros.pop(table.name, None)
        if num_absent:
            self._may_lack.add(table.name)
            if zero:
                self._zeros[table.name] = num_absent

    def num_absent(self, table: Table) -> int:
        """How many rows of `table` the client does not hold."""
        if table.name not in self._may_lack or table.name in self._zeros:
            return self._zeros.get(table.name, 0)
        num_absent = int(table.weight.detach().isnan().any(dim=1).sum())
        if not num_absent:
            self._may_lack.discard(table.name)
        return num_absent

    def note(self, table: Table, ids: torch.Tensor) -> None:
        """From now on exactly `ids` and the padding row of `table` hold numbers."""
        self._held[table.name] = (_state_of(table), ids)

    def of(self, table: Table) -> torch.Tensor | None:
        """Ids of the rows with numbers, without padding; None when it may be any row."""
        state, ids = self._held.get(table.name, (None, None))
        return ids if state == _state_of(table) else None

    @contextlib.contextmanager
    def dry(self) -> Iterator[None]:
        """Around a pass whose results are dropped, without warnings of absent rows."""
        self._dry = True
        try:
            yield
        finally:
            self._dry = False

    def warn_of_lookup(self, table: Table, ids: torch.Tensor) -> None:
        """Outside a round, on the CPU: warn where one of `ids` is known to be absent."""
        if self._dry or self.of(table) is None or ids.device.type != "cpu":
            return
        flat = ids.reshape(-1).to(torch.int64).clamp(0, table.num_rows - 1)
        if bool(table.weight.detach()[flat, 0].isnan().any()):
            warnings.warn(
                f"{table.name}: outside a round the model looked up rows that this client lacks, "
                "so these rows are NaN: call fed.load(servers, only_missing=True), or use "
                "fed.evaluating(servers, rows=ids)",
                stacklevel=3,
            )


def _state_of(table: Table) -> tuple[int, int]:
    """Differs once something has written to the table or replaced its storage."""
    return table.weight._version, table.weight.data_ptr()


class Snapshot:
    """Parameters and buffers. Of a table that holds few rows only these are copied."""

    def __init__(self, model: nn.Module, inventory: Inventory, held: HeldRows) -> None:
        self._rest = RestWatch({**inventory.rest, **inventory.local})
        self._buffers = BufferWatch(model)
        self._rest.begin()
        self._buffers.begin()
        self._tables: list[tuple[Table, torch.Tensor | None, torch.Tensor]] = []
        self._held = held
        for table in inventory.all_tables:
            ids, weight = held.of(table), table.weight.detach()
            rows = weight.clone() if ids is None else weight.index_select(0, ids)
            self._tables.append((table, ids, rows))

    @torch.no_grad()
    def put_back(self) -> None:
        """Make the model what it was."""
        self._rest.restore()
        self._buffers.restore()
        for table, ids, rows in self._tables:
            self._held.lack(table, 0, zero=False)
            if ids is None:
                table.weight.detach().copy_(rows)
            else:
                keep_only(table, ids, rows, None)


@torch.no_grad()
def keep_only(
    table: Table,
    ids: torch.Tensor,
    rows: torch.Tensor,
    held: torch.Tensor | None,
    *,
    absent: float = torch.nan,
) -> None:
    """Make `rows` the only numbers in the table; a padding row keeps its own.

    Args:
        table: changed in place.
        ids: int64 [k].
        rows: [k, tau].
        held: rows that may hold others than `absent` now; None for any.
        absent: what all other rows become.
    """
    weight = table.weight.detach()
    if held is None:
        padding = weight[table.padding].clone() if table.padding >= 0 else None
        weight.fill_(absent)
        if padding is not None:
            weight[table.padding] = padding
    else:
        weight.index_fill_(0, held, absent)
    weight.index_copy_(0, ids, rows.to(weight))

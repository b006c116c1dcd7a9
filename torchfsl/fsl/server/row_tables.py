"""The model's rows in the layout of the trees and their digests, one copy for a process's servers.

A rows table as the bins see it is three times the model's table, so it is laid out once for every
plan and model version: the two servers of a simulation, and the round and the fetches of one
server, read the same one. It is shared only if it is seen to hold exactly the rows that its reader
would lay out under the same key of digests, so a server with other rows, however it came by them,
answers with its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final, TypeAlias
from weakref import WeakSet, WeakValueDictionary

from torchfsl.fsl.dpf import psr
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Bytes

Tables: TypeAlias = tuple[list[Bytes], list[Bytes]]
"""Rows of a segment and their digests, `psr.tables` and `psr.digest_rows`."""


class RowTables:
    """One reader of the tables for retrieval."""

    def __init__(self, plan: Plan) -> None:
        """Tables are made when first needed."""
        self._plan, self._keeps = plan, sizes.keeps_tables(plan)
        self._bins: _Bins | None = None
        self._tables: dict[str, Tables] = {}

    def make_room(self) -> None:
        """Get the memory of tables that will be kept, unless this process has it.

        Called when a server is made, so that its first round does not wait for it.
        """
        with _LOCK:
            if self._keeps and self._plan.retrieving and self._plan.digest not in _BY_PLAN:
                self._bins = _BY_PLAN[self._plan.digest] = _Bins(self._plan)
                for tables in self._bins.tables.values():
                    for table in tables:
                        table.fill(0)

    def of(self, model: ServerModel, model_rows: bytes) -> dict[str, Tables]:
        """Tables by segment, one for each group of trees; those of this model until `forget`.

        `model_rows` is the digest of the model's rows, from which the key of theirs is made.
        """
        if not self._tables:
            rows = {s.name: model.rows(s) for s in self._plan.retrieving}
            with _LOCK:
                self._bins = _bins_with(self._plan, rows, model_rows, self._bins)
                self._bins.readers.add(self)
            for segment in self._plan.retrieving:
                name, bins = segment.name, self._bins
                tables = psr.tables(segment, bins.tables[name], rows[name])
                self._tables[name] = tables, bins.digests[name]
        return self._tables

    def forget(self) -> None:
        """The model may change: the next call lays it out again."""
        self._tables = {}
        with _LOCK:
            if self._bins is not None:
                self._bins.readers.discard(self)
                if not self._keeps:
                    self._bins = None


class _Bins:
    """The bins' tables and the digests of all segments, and who reads them."""

    def __init__(self, plan: Plan) -> None:
        self.tables = {s.name: psr.empty_bins(s) for s in plan.retrieving}
        self.digests: dict[str, list[Bytes]] = {}
        self.readers: WeakSet[RowTables] = WeakSet()
        self._model_rows = b""

    def lay_out(self, plan: Plan, rows: Mapping[str, Bytes], model_rows: bytes) -> None:
        self.digests, self._model_rows = {}, model_rows
        for segment in plan.retrieving:
            name = segment.name
            psr.lay_out(plan, segment, rows[name], self.tables[name])
            key = psr.row_key(plan, segment, model_rows)
            tables = psr.tables(segment, self.tables[name], rows[name])
            self.digests[name] = psr.digest_rows(plan, segment, key, rows[name], tables)

    def hold(self, plan: Plan, rows: Mapping[str, Bytes], model_rows: bytes) -> bool:
        return self._model_rows == model_rows and all(
            psr.holds(plan, segment, rows[segment.name], self.tables[segment.name])
            for segment in plan.retrieving
        )


_LOCK: Final = threading.Lock()
_BY_PLAN: Final[WeakValueDictionary[bytes, _Bins]] = WeakValueDictionary()


def _bins_with(
    plan: Plan, rows: Mapping[str, Bytes], model_rows: bytes, own: _Bins | None
) -> _Bins:
    """Bins that hold the rows: shared, or laid out in memory that no one reads, or new."""
    shared = _BY_PLAN.get(plan.digest)
    if shared is not None and shared.readers and shared.hold(plan, rows, model_rows):
        return shared
    free = [bins for bins in (own, shared) if bins is not None and not bins.readers]
    bins = free[0] if free else _Bins(plan)
    bins.lay_out(plan, rows, model_rows)
    _BY_PLAN[plan.digest] = bins
    return bins

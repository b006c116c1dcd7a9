"""A client's round around the user's own training loop.

Entering fetches the model: clear tensors by download, rows privately; rows that were not fetched
become NaN, so that reading one cannot go unnoticed. Leaving takes the update. An exception puts
the model back and sends the servers a report like any other that adds nothing; if it was the
servers that failed, nothing at all (see `torchfsl.fsl.client.round`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import ClipReport
from torchfsl.engine.handle import Handle
from torchfsl.engine.inventory import Table
from torchfsl.engine.residual import Residual
from torchfsl.engine.watch.snapshot import Snapshot, keep_only
from torchfsl.errors import FslError, ParameterError, ProtocolError
from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession
from torchfsl.submodel.plan import check_number
from torchfsl.submodel.segments import Segment
from torchfsl.submodel.update import RawSegment, Update, quantise

log = logging.getLogger("torchfsl.engine")

Ids = torch.Tensor | npt.NDArray[Any] | Iterable[int]
RowIds = Ids | Mapping[str, Ids]


class TrainingRound:
    """One client's round. Made by `SubmodelEngine.round`; use as a context manager.

    Attributes:
        rows: after entering, by table name the ids that were retrieved (int64, increasing). One
            that found no bin (probability at most 2**-40 any) is zero; its update is not sent but
            kept in the residual.
        clip_report: after `submit`, what clipping did to the update.
        receipt: after `submit`.
        update: after `submit`, the quantised update as it was sent.
    """

    def __init__(
        self,
        handle: Handle,
        client: Participant,
        *,
        rows: RowIds | None,
        number: int | None,
        rounding_seed: bytes | None,
        residual: Residual | None = None,
    ) -> None:
        """Check the arguments that are public; nothing is sent yet."""
        self.rows: dict[str, torch.Tensor] = {}
        self.clip_report: ClipReport | None = None
        self.receipt: Receipt | None = None
        self.update: Update | None = None
        self._handle, self._client = handle, client
        self._residual = handle.residual if residual is None else residual
        self._wanted, self._rounding_seed = rows, rounding_seed
        self._retrieving = [s for s in client.plan.segments if s.retrieve]
        self._ask_number: Any = getattr(client, "open_number", None)
        if number is None and self._ask_number is None:
            raise ParameterError(
                f"{type(client).__name__} cannot ask the servers for the open round: pass number="
            )
        self._given = None if number is None else check_number("number", number)
        self._number = -1
        self._session: RoundSession | None = None
        self._raw: dict[str, RawSegment] | None = None
        handle.exchange.check_plan(client.plan)
        self._fixed = handle.exchange.fixed_positions(handle.rows, handle.rest)
        if rows is not None and self._retrieving and self._fixed is not None:
            raise ParameterError("the row set is fixed by Rows(choose=Fixed(...)): leave out rows=")
        if self._retrieving and rows is None and self._fixed is None:
            raise ParameterError(
                "the plan retrieves rows privately: pass rows=, the ids that the batches will use"
            )
        if rows is not None and not self._retrieving:
            raise ParameterError(
                "the plan retrieves no rows, clients hold whole tables: leave out rows=, or make "
                "the plan with retrieve=True"
            )

    def __enter__(self) -> TrainingRound:
        handle = self._handle
        self._number = self._ask_number() if self._given is None else self._given
        try:
            indices = self._indices()
        except BaseException:
            self._abort_without_rows()
            raise
        before = Snapshot(handle.model, handle.inventory, handle.held_rows)
        self._session = self._start(indices)
        try:
            clear = self._session.download()
            handle.recorder.check_closed()
            handle.exchange.load(clear)
            present = self._fetch_rows(indices) if self._retrieving else None
            handle.begin_round(present)
        except BaseException:
            before.put_back()
            self._abort()
            raise
        self._before = before
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._raw = self._handle.update(
                    self._client.plan, residual=self._residual, round_number=self._number
                )
        except BaseException:
            self._give_up()
            raise
        if kind is not None:
            self._give_up()
        else:
            for table in self._handle.inventory.all_tables if self._retrieving else []:
                self._handle.held_rows.note(table, self.rows[table.name])
            self._handle.close_round()
        del self._before

    def submit(self, *, weight: int = 1) -> Receipt:
        """Send the update of the finished block.

        Args:
            weight: this client's weight, under a plan with a weight lane.

        Raises:
            ParameterError: the update cannot be encoded; a report that adds nothing was sent.
            ProtocolError: the block was not finished, failed, or was submitted before.
        """
        if self._raw is None or self._session is None:
            raise ProtocolError(
                "nothing to submit: leave the with block first, and submit once a round"
            )
        raw, self._raw = self._raw, None
        residual, plan = self._residual, self._client.plan
        seed = self._rounding_seed
        if plan.encoding.rounding == "stochastic" and seed is None:
            seed = random_bytes(16)
        try:
            update, errors, self.clip_report = quantise(plan, raw, rounding_seed=seed)
        except ParameterError:
            residual.discard()
            self._abort()
            raise
        if self.clip_report.num_clipped:
            # How many and how large is private: a log may be read by others.
            log.warning("values beyond clip = %g were cut: see clip_report", plan.encoding.clip)
        try:
            self.receipt = self._session.submit(update, weight=weight)
        except BaseException:
            residual.discard()
            raise
        residual.settle(raw, errors, self.receipt.unmatched)
        self.update = update
        return self.receipt

    # --- parts --------------------------------------------------------------------------------

    def _start(self, indices: dict[str, npt.NDArray[np.int64]]) -> RoundSession:
        """A round of its own, or the next one of a session with a fixed submodel."""
        if not self._client.plan.keeps_positions:
            return self._client.start_round(self._number, indices=indices)
        continue_session = getattr(self._client, "continue_session", None)
        if continue_session is None:
            raise ParameterError("plans with max_epochs above 1 need a torchfsl.Client")
        session: RoundSession = continue_session(self._number, indices=indices)
        return session

    def _give_up(self) -> None:
        """Put the model back, then send a report that adds nothing."""
        self._handle.close_round()
        self._before.put_back()
        self._residual.discard()
        self._abort()

    def _abort(self) -> None:
        if self._session is not None:
            self._session.abort()

    def _abort_without_rows(self) -> None:
        """Go through the round with dummies only, after a mistake in the caller's rows.

        Where the servers fail too, this client stays out of the round; the caller is told of the
        mistake in the rows.
        """
        nothing = {s.name: np.empty(0, dtype=np.int64) for s in self._retrieving}
        with contextlib.suppress(FslError):
            session = self._client.start_round(self._number, indices=nothing)
            session.download()
            if self._retrieving:
                session.retrieve()
            session.abort()

    def _indices(self) -> dict[str, npt.NDArray[np.int64]]:
        """Positions of the segments whose trees travel before training; beyond k_max cut."""
        early = self._client.plan.asked_early
        if self._fixed is not None:
            return {
                s.name: (fixed := self._fixed[s.name])[s.tree_positions(fixed) >= 0] for s in early
            }
        tables = self._handle.inventory.tables
        retrieved = [t for s in self._retrieving for t in tables[s.name]]
        wanted = _by_table(self._wanted, retrieved) if self._retrieving else {}
        return {
            s.name: _segment_indices(s, tables[s.name], wanted, self._residual)
            for s in self._retrieving
        }

    def _fetch_rows(self, asked: dict[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        """Write the retrieved rows into the tables, NaN everywhere else."""
        assert self._session is not None
        found = self._session.retrieve()
        tables = self._handle.inventory.tables
        for segment in self._retrieving:
            indices, values = _zeros_for_missing(asked[segment.name], *found[segment.name])
            for table in tables[segment.name]:
                stop = table.offset + table.num_rows
                here = (indices >= table.offset) & (indices < stop)
                ids = torch.from_numpy(np.array(indices[here] - table.offset))
                rows = torch.from_numpy(np.array(values[here]))
                ids = ids.to(table.weight.device)
                held = self._handle.held_rows.of(table)
                keep_only(table, ids, rows, held)
                self.rows[table.name] = ids
        for table in self._handle.inventory.all_tables:
            self.rows.setdefault(table.name, torch.arange(table.num_rows))
        return self.rows


def _zeros_for_missing(
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


def _by_table(wanted: RowIds | None, tables: list[Table]) -> dict[str, torch.Tensor]:
    """The caller's ids by table name.

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
    names = {alias: t for t in tables for alias in (t.name, t.name.removesuffix(".weight"))}
    ids: dict[str, torch.Tensor] = {}
    for name, given in wanted.items():
        if name not in names:
            raise ParameterError(f"rows= names {name!r}; the tables are {[t.name for t in tables]}")
        table = names[name]
        given = given if isinstance(given, torch.Tensor | np.ndarray) else list(given)
        flat = torch.as_tensor(given).detach().cpu().reshape(-1)
        if flat.numel() and (flat.is_floating_point() or flat.dtype == torch.bool):
            raise ParameterError(f"rows= for {table.name} must be integers, not {flat.dtype}")
        flat = flat.to(torch.int64)
        if flat.numel() and (int(flat.min()) < 0 or int(flat.max()) >= table.num_rows):
            raise ParameterError(
                f"rows= for {table.name}: an id lies outside [0, {table.num_rows})"
            )
        ids[table.name] = flat[flat != table.padding]
    return ids


def _segment_indices(
    segment: Segment, tables: list[Table], wanted: Mapping[str, torch.Tensor], residual: Residual
) -> npt.NDArray[np.int64]:
    """Distinct indices in order of first mention, then rows owed, cut to k_max, sorted."""
    parts = [wanted[t.name].numpy() + t.offset for t in tables if t.name in wanted]
    owed = residual.pending(segment.name).cpu().numpy()
    mentioned = np.concatenate([*parts, owed]).astype(np.int64)
    mentioned = mentioned[segment.tree_positions(mentioned) >= 0]
    distinct, first = np.unique(mentioned, return_index=True)
    asked = len(np.unique(np.concatenate(parts))) if parts else 0
    if asked > segment.k_max:
        log.warning(
            "segment %s: more rows wanted than the plan's k_max = %d, the first ones are fetched",
            segment.name, segment.k_max,
        )  # fmt: skip
    order = np.argsort(first, kind="stable")[: segment.k_max]
    return np.sort(distinct[order])

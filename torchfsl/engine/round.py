"""A client's round around the user's own training loop.

Entering fetches the model: clear tensors by download, rows privately; rows that were not fetched
become NaN, so that reading one cannot go unnoticed. Leaving takes the update. An exception puts
the model back and sends the servers a report like any other that adds nothing; if it was the
servers that failed, nothing at all (see `torchfsl.fsl.client.round`).
"""

from __future__ import annotations

import contextlib
import warnings
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import ClipReport
from torchfsl.engine import hints
from torchfsl.engine.fetched import asked_rows, write_rows
from torchfsl.engine.handle import Handle
from torchfsl.engine.residual import Residual
from torchfsl.engine.settings import NO_TABLE, check_source
from torchfsl.engine.wanted import RowIds
from torchfsl.engine.watch.absent import Asked
from torchfsl.engine.watch.snapshot import Snapshot, keep_only
from torchfsl.errors import Error, ParameterError, ProtocolError
from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession
from torchfsl.submodel.plan import check_number
from torchfsl.submodel.update import RawSegment, Update, check_weight, is_whole, quantise


class TrainingRound:
    """One client's round. Made by `SubmodelEngine.round`; use as a context manager.

    Attributes:
        rows: after entering, by table name the ids that were retrieved (int64, increasing). One
            that found no bin (probability at most 2**-40 any) is zero; its update is not sent but
            kept in the residual.
        clip_report: after `submit`, what clipping did to the update.
        receipt: after `submit`.
        update: after `submit`, the quantised update as it was sent, before its weight.
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
        mine = client.client_id
        self._residual = handle.residuals.of(mine) if residual is None else residual
        self._wanted, self._rounding_seed = rows, rounding_seed
        self._retrieving = [s for s in client.plan.segments if s.retrieve]
        self._ask_number: Any = getattr(client, "open_number", None)
        if number is None and self._ask_number is None:
            raise ParameterError(
                f"{type(client).__name__} cannot ask the servers for the open round: pass number="
            )
        self._asked: dict[str, Asked] = {}
        self._given = None if number is None else check_number("number", number)
        self._number, self._num_steps = -1, 0
        self._session: RoundSession | None = None
        self._indices: dict[str, npt.NDArray[np.int64]] = {}
        self._has_asked = False
        self._raw: dict[str, RawSegment] | None = None
        handle.exchange.check_plan(client.plan)
        self._absent = 0.0 if handle.rows is not None and handle.rows.absent == "zero" else np.nan
        self._fixed = handle.exchange.fixed_positions(handle.rows, handle.rest)
        if rows is not None and self._retrieving and self._fixed is not None:
            raise ParameterError("the row set is fixed by Rows(choose=Fixed(...)): leave out rows=")
        if self._retrieving and rows is None and self._fixed is None:
            raise ParameterError(
                "the plan retrieves rows privately: pass rows=, the ids that the batches will use"
            )
        tables = handle.inventory.tables
        transport = getattr(client, "servers", None)
        check_source(handle.recorder.source, getattr(transport, "source", None))
        whole = any(s.is_dense and s.name in tables for s in client.plan.segments)
        if rows is not None and not self._retrieving and not whole:
            remedy = ", or make the plan with retrieve=True" if tables else ""
            why = "clients hold whole tables" if tables else NO_TABLE
            raise ParameterError(f"the plan retrieves no rows, {why}: leave out rows={remedy}")

    def ask(self) -> None:
        """Start the round before its block is entered: what the client asks for is sent.

        Simulations do so for some clients before the first of them goes on, since servers answer
        those that wait together. The model stays as it is. A client that goes no further has
        dropped out.

        Raises:
            ProtocolError: the round was started before.
            ParameterError: as on entering.
        """
        if self._session is not None:
            raise ProtocolError("this round was started already: enter its block")
        self._prepare()
        self._session, self._has_asked = self._start(self._indices), True

    def __enter__(self) -> TrainingRound:
        claim = self._handle.claim
        if claim.is_of(self):
            raise ProtocolError("the block of this round is open already: leave it first")
        try:
            if claim.take(self):  # from a round that was dropped within its block
                self._handle.close_round()
            self._enter()
        except BaseException:
            claim.give_back(self)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._leave(error)
            self._num_steps = self._handle.recorder.num_steps
        finally:
            self._handle.claim.give_back(self)

    def __del__(self) -> None:
        if getattr(self, "_raw", None) is not None:
            warnings.warn(
                f"round {self._number} was finished and never submitted, so its update is lost: "
                "call rnd.submit() after the block",
                stacklevel=2,
            )

    def submit(self, *, weight: int = 1) -> Receipt:
        """Send the update of the finished block.

        Args:
            weight: this client's weight, under a plan with a weight lane; 1..max_weight.

        Raises:
            ParameterError: the weight is a number beyond 1..max_weight, or the update cannot be
                encoded: a report that adds nothing was sent, since both are private. Or the weight
                is no whole number, or the plan has no weight lane, which is nothing of this
                client's: nothing was sent, and `submit` with another weight works.
            ProtocolError: the block was not finished, failed, or was submitted before.
        """
        if self._raw is None or self._session is None:
            raise ProtocolError(
                "nothing to submit: leave the with block first, and submit once a round"
            )
        residual, plan = self._residual, self._client.plan
        try:
            weight = check_weight(plan, weight)
        except ParameterError:
            if plan.lane == "weight" and is_whole(weight):  # silence would tell how it is weighted
                self._raw = None
                residual.discard()
                self._abort()
            raise
        raw, self._raw = self._raw, None
        seed = None
        if plan.encoding.rounding == "stochastic":
            seed = random_bytes(16) if self._rounding_seed is None else self._rounding_seed
        try:
            update, errors, self.clip_report = quantise(plan, raw, rounding_seed=seed)
        except ParameterError:
            residual.discard()
            self._abort()
            raise
        try:
            self.receipt = self._session.submit(update, weight=weight)
        except BaseException:
            residual.discard()
            raise
        residual.settle(raw, errors, self.receipt.unmatched)
        self.update = update  # what follows may raise where warnings are errors
        hints.tell_of_clipping(plan, self.clip_report)
        hints.warn_of_nothing(self._num_steps, raw)
        return self.receipt

    # --- parts --------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Fetch the model and record from here on; on failure all is as before."""
        handle = self._handle
        if not self._has_asked:
            self._prepare()
        handle.personal.switch_to(self._client.client_id)
        before = Snapshot(handle.model, handle.inventory, handle.held_rows)
        if not self._has_asked:
            self._session = self._start(self._indices)
        assert self._session is not None
        self._has_asked = False
        try:
            clear = self._session.download()
            handle.recorder.check_closed()
            handle.exchange.load(clear)
            held = self._retrieving or self._absent == 0.0
            present = self._fetch_rows(self._indices) if held else None
            handle.begin_round(present, self._asked)
        except BaseException:
            before.put_back()
            self._abort()
            raise
        self._before = before

    def _prepare(self) -> None:
        """The round's number, and what to ask for."""
        self._number = self._ask_number() if self._given is None else self._given
        try:
            self._indices = self._wanted_indices()
        except BaseException:
            self._abort_without_rows()
            raise

    def _start(self, indices: dict[str, npt.NDArray[np.int64]]) -> RoundSession:
        """A round of its own, or the next one of a session with a fixed submodel."""
        if not self._client.plan.keeps_positions:
            return self._client.start_round(self._number, indices=indices)
        continue_session = getattr(self._client, "continue_session", None)
        if continue_session is None:
            raise ParameterError("plans with max_epochs above 1 need a torchfsl.Client")
        session: RoundSession = continue_session(self._number, indices=indices)
        return session

    def _give_up(self, error: BaseException) -> None:
        """Put the model back, send a report that adds nothing, and note on the error that it went.

        A client that has withdrawn from the round, and one without servers, sends none.
        """
        self._explain(error)
        self._handle.close_round()
        self._before.put_back()
        self._residual.discard()
        assert self._session is not None
        before = self._session.receipt().upload_bytes
        if self._session.abort().upload_bytes > before:
            error.add_note(
                f"torchfsl sent a report that adds nothing in place of this client's update, so it "
                f"has taken part in round {self._number} and can do so again in the next one."
            )

    def _leave(self, error: BaseException | None) -> None:
        """Take the update; after a failure put the model back."""
        try:
            if error is None:
                self._raw = self._handle.update(
                    self._client.plan, residual=self._residual, round_number=self._number,
                    seed=self._rounding_seed,
                )  # fmt: skip
        except BaseException as problem:
            self._give_up(problem)
            raise
        if error is not None:
            self._give_up(error)
        else:
            self._leave_rows()
            self._handle.close_round()
        del self._before

    def _leave_rows(self) -> None:
        """After the round rows that were not retrieved are NaN, whatever they were in it."""
        if not self._retrieving:
            return
        for table in self._handle.inventory.all_tables:
            ids = self.rows[table.name]
            if self._absent == 0.0 and ids.numel() < table.num_rows:
                keep_only(table, ids, table.weight.detach().index_select(0, ids), None)
                self._handle.held_rows.lack(table, table.num_rows - len(ids), zero=False)
            self._handle.held_rows.note(table, ids)

    def _explain(self, error: BaseException) -> None:
        """See `hints.note_held_rows`."""
        absent = "zero" if self._absent == 0.0 else "NaN"
        hints.note_held_rows(error, self._retrieving, self._handle.inventory, self.rows, absent)

    def _abort(self) -> None:
        if self._session is not None:
            self._session.abort()

    def _abort_without_rows(self) -> None:
        """Go through the round with dummies only, after a mistake in the caller's rows.

        Where the servers fail too, this client stays out of the round; the caller is told of the
        mistake in the rows.
        """
        nothing = {s.name: np.empty(0, dtype=np.int64) for s in self._retrieving}
        with contextlib.suppress(Error):
            session = self._client.start_round(self._number, indices=nothing)
            session.download()
            if self._retrieving:
                session.retrieve()
            session.abort()

    def _wanted_indices(self) -> dict[str, npt.NDArray[np.int64]]:
        """Positions of the segments whose trees travel before training; beyond k_max cut."""
        early = self._client.plan.asked_early
        if self._fixed is not None:
            return {
                s.name: (fixed := self._fixed[s.name])[s.tree_positions(fixed) >= 0] for s in early
            }
        indices, self._asked = asked_rows(
            self._handle, self._retrieving, self._wanted, self._residual
        )
        return indices

    def _fetch_rows(self, asked: dict[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        """Write the retrieved rows into the tables, NaN everywhere else."""
        assert self._session is not None
        found = self._session.retrieve() if self._retrieving else {}
        self.rows = write_rows(self._handle, self._retrieving, asked, found, self._absent)
        return self.rows

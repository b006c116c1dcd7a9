"""A client's round around the user's own training loop.

Entering fetches the model: clear tensors by download, rows privately. Rows that were not fetched
become NaN, so that reading one cannot go unnoticed. Leaving takes the update and sends it. An
exception puts the model back and sends the servers a report like any other that adds nothing; if
the servers failed, nothing at all (see `torchfsl.fsl.client.round`).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt
import torch

from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.fixed_point import ClipReport
from torchfsl.engine import hints
from torchfsl.engine.fetched import asked_rows, write_rows
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.lookups import RowIds
from torchfsl.engine.residual import Residual
from torchfsl.engine.settings import NO_TABLE, check_policies, check_source
from torchfsl.engine.watch.absent import Asked
from torchfsl.engine.watch.snapshot import Snapshot, keep_only
from torchfsl.errors import Error, ParameterError, ProtocolError, as_number
from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession
from torchfsl.submodel.plan_fields import check_number
from torchfsl.submodel.update import RawSegment, Update, check_weight, is_whole, quantise
from torchfsl.types import Float64


def check_unsent(rnd: Round, name: str) -> None:
    """Refuse a value that the report no longer takes.

    Raises:
        ProtocolError: the report was sent already.
    """
    if rnd.receipt is not None:
        raise ProtocolError(
            f"client {rnd.client_id} has sent its report of round {rnd.number}, so {name} would "
            f"not count: set rnd.{name} inside the block of fed.round()"
        )


class Weight:
    """The attribute `weight` of a round, which may be set until its report is sent."""

    def __get__(self, rnd: Round | None, owner: type[Round]) -> int:
        """The weight; of the class the default."""
        return 1 if rnd is None else rnd._weight

    def __set__(self, rnd: Round, value: int) -> None:
        """Set it to `value`; leaving the block checks its range."""
        check_unsent(rnd, "weight")
        rnd._weight = value


class Round:
    """One client's round, as a context manager around its training. Made by `Federated.round`.

    Leaving the block sends the update. If sending fails, the error is raised and the update is
    kept: `retry()` sends it again.

    Attributes:
        number: number of the round, known once it has begun; before that -1.
        client_id: number of the client.
        rows: in the block, by table name the ids that were fetched (int64, increasing). A row that
            found no bin (probability at most 2**-40 any) is zero; its update is not sent but kept
            in the residual.
        weight: of this client under a plan with `average="weight"`, a whole number in
            1..max_weight; may be set in the block.
        receipt: after the block, what the report has cost.
        update: after the block, the quantised update as it was sent, before its weight.
        clip_report: after the block, what clipping did to the update.
    """

    weight = Weight()

    def __init__(
        self,
        hooks: Hooks,
        client: Participant,
        *,
        rows: RowIds | Callable[[], RowIds] | None = None,
        number: int | None = None,
        weight: int = 1,
        rounding_seed: bytes | None = None,
        residual: Residual | None = None,
        submitted: Callable[[Round], object] | None = None,
    ) -> None:
        """Check the arguments that are public; nothing is sent yet.

        Args:
            hooks: on the client's model.
            client: bound to a plan for this model.
            rows: ids to fetch, if the plan retrieves rows, of the only table or by table name.
                Or a function that finds them, which is called once the round begins.
            number: of the open round; by default the client asks the servers for it.
            weight: see above.
            rounding_seed: secret of 16 bytes for rounding and `BlockSample`'s draws; None draws it.
            residual: unsent update of the client; by default the hooks keep one for each client.
            submitted: called with the round once its update has been sent.

        Raises:
            ParameterError: the plan, the rows or the weight do not fit.
        """
        self.rows: dict[str, torch.Tensor] = {}
        self.clip_report: ClipReport | None = None
        self.receipt: Receipt | None = None
        self.update: Update | None = None
        self._loss: float | None = None
        self._weight = weight
        self._hooks, self._client = hooks, client
        self.client_id = mine = client.client_id
        self._residual = hooks.residuals.of(mine) if residual is None else residual
        self._wanted, self._rounding_seed = rows, rounding_seed
        self._submitted = submitted
        self._retrieving = [s for s in client.plan.segments if s.retrieve]
        self._ask_number: Any = getattr(client, "open_number", None)
        if number is None and self._ask_number is None:
            raise ParameterError(
                f"{type(client).__name__} cannot ask the servers for the number of the open "
                "round: pass number="
            )
        self._asked: dict[str, Asked] = {}
        self._given = None if number is None else check_number("number", number)
        self.number, self._num_steps = -1, 0
        self._session: RoundSession | None = None
        self._indices: dict[str, npt.NDArray[np.int64]] = {}
        self._has_asked = self._withdrawn = False
        self._raw: dict[str, RawSegment] | None = None
        self._quantised: tuple[dict[str, RawSegment], Update, dict[str, Float64]] | None = None
        hooks.exchange.check_plan(client.plan)
        check_policies(hooks.settings, client.plan, hooks.exchange.parts)
        hooks.check_row_by_row(self._retrieving)
        if not self._weight_is_private:
            check_weight(client.plan, weight)
        self._absent = 0.0 if hooks.rows is not None and hooks.rows.absent == "zero" else np.nan
        self._fixed = hooks.exchange.fixed_positions(hooks.rows, hooks.rest)
        self._check_given(rows is not None)

    def _check_given(self, has_rows: bool) -> None:
        """Refuse rows that the plan does not fetch, their lack, and servers of another source."""
        hooks, client = self._hooks, self._client
        if has_rows and self._retrieving and self._fixed is not None:
            raise ParameterError(
                "Rows(choose=Fixed(...)) fixes the plan's row ids: leave out rows= of the round"
            )
        if self._retrieving and not has_rows and self._fixed is None:
            raise ParameterError(
                "the plan retrieves rows privately: call fed.round(servers, client_id, "
                "batches=batches) with the training batches, or pass rows= with the row ids"
            )
        tables = hooks.inventory.tables
        transport = getattr(client, "servers", None)
        check_source(hooks.recorder.source, getattr(transport, "source", None))
        whole = any(s.is_dense and s.name in tables for s in client.plan.segments)
        if has_rows and not self._retrieving and not whole:
            remedy = ", or make the plan with retrieve=True" if tables else ""
            why = "clients hold whole tables" if tables else NO_TABLE
            raise ParameterError(
                f"this plan retrieves no rows, because {why}: leave out rows= of the round{remedy}"
            )

    def __repr__(self) -> str:
        return f"Round(number={self.number}, client_id={self.client_id})"

    @property
    def loss(self) -> float | None:
        """The client's loss, for the mean of the round; None if it was not set."""
        return self._loss

    @loss.setter
    def loss(self, value: SupportsFloat | None) -> None:
        """Set it to `value`, in the block or before `retry`; None for no loss.

        Raises:
            ParameterError: if it is neither a number nor a tensor of one.
            ProtocolError: the report was sent already.
        """
        check_unsent(self, "loss")
        self._loss = None if value is None else as_number("the loss", value)

    @property
    def _weight_is_private(self) -> bool:
        """Whether `weight` is a client's own number: silence would tell that it is out of range."""
        return self._client.plan.lane == "weight" and is_whole(self.weight)

    def prefetch(self) -> None:
        """Ask for the rows before the block is entered; servers answer clients that wait together.

        The model stays as it is. A client that goes no further has dropped out.

        Raises:
            ProtocolError: the round was started before.
            ParameterError: as on entering.
        """
        if self._session is not None:
            raise ProtocolError(
                "this round has already started: call prefetch() before the block of the round"
            )
        if callable(self._wanted):  # in another block a pass over batches would be recorded
            self._hooks.recorder.check_closed()
        self._prepare()
        self._session, self._has_asked = self._start(self._indices), True

    def withdraw(self) -> None:
        """In the block: have it end with the model put back and without this client's update.

        Servers of `fsl` get a report that adds nothing, and cannot tell it from others. Servers of
        `sesa` and `sefl` get nothing more and count the client as a dropout.

        Raises:
            ProtocolError: outside the block.
        """
        if not self._hooks.claim.is_of(self):
            raise ProtocolError(
                "withdraw() works only in an open round: call withdraw() inside `with "
                "fed.round(...) as rnd:`"
            )
        self._withdrawn = True

    def retry(self) -> Receipt:
        """Send the update again, after leaving the block raised an error of sending.

        Returns:
            See `receipt`.

        Raises:
            ProtocolError: there is no unsent update.
            ParameterError: `weight` still does not fit.
        """
        if self._raw is not None:
            return self._submit()
        if self._quantised is None:
            raise ProtocolError(
                "there is no update to send again: either the update was sent, or the block "
                "failed. Call fed.round(...) for a new round"
            )
        session: Any = self._session
        return self._settle(session.send_again)

    def __enter__(self) -> Round:
        claim = self._hooks.claim
        if claim.is_of(self):
            raise ProtocolError("the block of this round is already open: leave the block first")
        try:
            claim.take(self)
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
            self._num_steps = self._hooks.recorder.num_steps
        finally:
            self._hooks.states.leave()
            self._hooks.claim.give_back(self)
        if self._raw is not None:
            self._submit()

    def __del__(self) -> None:
        unsent = getattr(self, "_raw", None) is not None or getattr(self, "_quantised", None)
        if unsent:
            warnings.warn(
                f"the update of client {self.client_id} in round {self.number} is lost, because it "
                "could not be sent: next time, keep rnd of `with ... as rnd` and call rnd.retry()",
                stacklevel=2,
            )

    # --- the update ---------------------------------------------------------------------------

    def _submit(self) -> Receipt:
        """Send the update of the finished block.

        Raises:
            ParameterError: the weight is a number beyond 1..max_weight, or the update cannot be
                encoded: a report that adds nothing was sent, since both are private. Or the weight
                is not a whole number, or the plan has no weights, which says nothing about this
                client: nothing was sent, and `retry` with another weight works.
        """
        assert self._raw is not None
        assert self._session is not None
        residual, plan = self._residual, self._client.plan
        try:
            weight = check_weight(plan, self.weight)
        except ParameterError:
            if self._weight_is_private:
                self._raw = None
                residual.discard()
                self._abort()
            raise
        raw, seed = self._raw, None
        if plan.encoding.rounding == "stochastic":
            seed = random_bytes(16) if self._rounding_seed is None else self._rounding_seed
        try:
            update, errors, self.clip_report = quantise(plan, raw, rounding_seed=seed)
        except ParameterError:
            self._raw = None
            residual.discard()
            self._abort()
            raise
        self._raw, self._quantised = None, (raw, update, errors)
        return self._settle(functools.partial(self._session.submit, update, weight=weight))

    def _settle(self, send: Callable[[], Receipt]) -> Receipt:
        """Send the quantised update, kept for `retry` unless refused for good; settle what is left.

        Args:
            send: sends it.
        """
        try:
            receipt = send()
        except BaseException:
            if not getattr(self._session, "is_unsent", False):
                self._quantised = None
                self._residual.discard()
            raise
        assert self._quantised is not None
        (raw, update, errors), self._quantised = self._quantised, None
        self._residual.settle(raw, errors, receipt.unmatched)
        self.receipt, self.update = receipt, update
        if self._submitted is not None:
            self._submitted(self)
        if self.clip_report is not None:  # what follows may raise where warnings are errors
            self._hooks.clips.note(self._client.plan, self.clip_report)
        hints.warn_without_steps(self._num_steps, raw)
        return receipt

    def _enter(self) -> None:
        """Fetch the model and record from here on; on failure all is as before."""
        hooks = self._hooks
        if not self._has_asked:
            self._prepare()
        hooks.personal.switch_to(self._client.client_id)
        hooks.states.enter(self._client.client_id)
        before = Snapshot(hooks.model, hooks.inventory, hooks.held_rows)
        if not self._has_asked:
            self._session = self._start(self._indices)
        assert self._session is not None
        self._has_asked = False
        try:
            clear = self._session.download()
            hooks.recorder.check_closed()
            hooks.exchange.load(clear)
            held = self._retrieving or self._absent == 0.0
            present = self._fetch_rows(self._indices) if held else None
            check_weight(self._client.plan, self.weight)  # refused by a report like any other
            hooks.begin_round(present, self._asked)
        except BaseException:
            before.put_back()
            self._abort()
            raise
        self._before = before

    def _prepare(self) -> None:
        """The round's number, and what to ask for."""
        self.number = self._ask_number() if self._given is None else self._given
        try:
            check_weight(self._client.plan, self.weight)
            self._hooks.check_unchanged()
            self._indices = self._wanted_indices()
        except BaseException:
            self._abort_without_rows()
            raise

    def _start(self, indices: dict[str, npt.NDArray[np.int64]]) -> RoundSession:
        """A new round, or the next one of a session with a fixed submodel."""
        if not self._client.plan.keeps_positions:
            return self._client.start_round(self.number, indices=indices)
        continue_session = getattr(self._client, "continue_session", None)
        if continue_session is None:
            raise ParameterError(
                "the plan has max_epochs above 1, but these servers do not run the protocol fsl: "
                "use servers that do, or make a plan with max_epochs=1"
            )
        session: RoundSession = continue_session(self.number, indices=indices)
        return session

    def _give_up(self, error: BaseException) -> None:
        """Put the model back, send a report that adds nothing, and note on the error that it went.

        A client that has withdrawn from the round, and one without servers, sends none.
        """
        absent = "zero" if self._absent == 0.0 else "NaN"
        hints.note_held_rows(error, self._retrieving, self._hooks.inventory, self.rows, absent)
        try:
            sent = self._put_back()
        except Error as failure:  # the caller sees its own error, an interruption for example
            error.add_note(
                f"torchfsl could not send an all-zero report of client {self.client_id}: {failure}"
            )
            return
        if sent:
            error.add_note(
                f"torchfsl sent an all-zero report for client {self.client_id}, which has "
                f"participated in round {self.number} and can participate again in the next round. "
                "A second fed.round() in this round removes the report."
            )

    def _put_back(self, *, leaving: bool = False) -> bool:
        """Put the model back and send a report that adds nothing; whether one was sent.

        Args:
            leaving: drop out instead, where the protocol has dropouts that it sees.
        """
        self._hooks.close_round()
        self._before.put_back()
        self._residual.discard()
        assert self._session is not None
        before = self._session.receipt().upload_bytes
        drop_out = getattr(self._session, "drop_out", None) if leaving else None
        self.receipt = self._session.abort() if drop_out is None else drop_out()
        return self.receipt.upload_bytes > before

    def _leave(self, error: BaseException | None) -> None:
        """Take the update; after a failure, or if this client withdraws, put the model back."""
        try:
            if error is None and not self._withdrawn:
                self._raw = self._hooks.update(
                    self._client.plan,
                    residual=self._residual,
                    round_number=self.number,
                    seed=self._rounding_seed,
                )
        except BaseException as problem:
            self._give_up(problem)
            raise
        if error is not None:
            self._give_up(error)
        elif self._withdrawn:
            self._put_back(leaving=True)
        else:
            self._leave_rows()
            self._hooks.close_round()
        del self._before

    def _leave_rows(self) -> None:
        """After the round rows that were not retrieved are NaN, whatever they were in it."""
        if not self._retrieving:
            return
        for table in self._hooks.inventory.all_tables:
            ids = self.rows[table.name]
            if self._absent == 0.0 and ids.numel() < table.num_rows:
                keep_only(table, ids, table.weight.detach().index_select(0, ids), None)
                self._hooks.held_rows.lack(table, table.num_rows - len(ids), zero=False)
            self._hooks.held_rows.note(table, ids)

    def _abort(self) -> None:
        if self._session is not None:
            self._session.abort()

    def _abort_without_rows(self) -> None:
        """Go through the round with dummies only, after a mistake in the caller's rows.

        If the servers fail also, this client stays out of the round. The caller sees the error
        about the rows.
        """
        nothing = {s.name: np.empty(0, dtype=np.int64) for s in self._retrieving}
        with contextlib.suppress(Error):
            fixed = self._client.plan.keeps_positions
            session = self._start(self._wanted_indices() if fixed else nothing)
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
        wanted = self._wanted() if callable(self._wanted) else self._wanted
        indices, self._asked = asked_rows(self._hooks, self._retrieving, wanted, self._residual)
        return indices

    def _fetch_rows(self, asked: dict[str, npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
        """Write the retrieved rows into the tables, NaN everywhere else."""
        assert self._session is not None
        found = self._session.retrieve() if self._retrieving else {}
        self.rows = write_rows(self._hooks, self._retrieving, asked, found, self._absent)
        return self.rows

"""One client in one round: trees, retrieval, the report.

The servers see the same messages of the same lengths, even if private rows or values are wrong. The
client sends a well-formed all-dummy report before it raises such a failure. If a server or the
network caused a failure, the client sends nothing instead. A dummy would count towards
`min_clients`, and a server that spoils the round for all clients except one would read the update
of this client. Silence shows what a dropout shows. No other party can be silent in a client's
place, because a report counts only when it is complete at both servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import AnswerBody, Body, ModelBody, ModelDigest
from torchfsl.fsl.client import report
from torchfsl.fsl.client.trees import ClientTrees, nothing
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.transport import Transport
from torchfsl.fsl.uploads import ReportBody, ReportCommit, TreesBody, TreesCommit
from torchfsl.submodel.aggregation import AbortsOnError, Receipt, Traffic
from torchfsl.submodel.halves import check_finite
from torchfsl.submodel.segments import in_the_clear
from torchfsl.submodel.update import SegmentUpdate, Update, check_named, check_update, check_weight
from torchfsl.types import Indices

SomeBody = TypeVar("SomeBody", bound=Body)


class ClientRound(AbortsOnError):
    """One client in one round. Use as a context manager: an exception submits dummies.

    If `download` or `retrieve` fails, the client withdraws from the round and sends nothing more in
    this round. Retrieved rows that are not finite are the exception, because the choice of rows is
    private: the client then submits dummies, see `retrieve`.

        client                    S_a = server (client mod 2)           S_b, the other one
          |-- TREES_COMMIT ---------------------------------------------------->|
          |-- TREES ---------------------->|------------ TREES_RELAY ---------->|
          |<------------------------ MODEL |                                    |
          |<------------------------------------------------------ MODEL_DIGEST |
          |<----------------------- ANSWER |                                    |
          |<------------------------------------------------------------ ANSWER |
        train
          |-- REPORT_COMMIT --------------------------------------------------->|
          |-- REPORT --------------------->|------------ REPORT_RELAY --------->|

    The client uploads early trees only if the plan has them, and once per session. It receives
    answers only if the plan retrieves. `Server` shows the messages between servers that follow.
    """

    def __init__(
        self,
        servers: Transport,
        trees: ClientTrees,
        round_number: int,
        indices: Mapping[str, npt.ArrayLike],
    ) -> None:
        """Upload early trees if these are new; see `Client.start_round`."""
        self._plan, self._servers, self._trees = trees.plan, servers, trees
        self._context = ReportContext(trees.context, round_number, random_bytes(16))
        self._traffic = Traffic()
        self._unmatched: dict[str, Indices] = {}
        self._submitted = self._withdrawn = False
        self._heard: tuple[bytes, ...] = ()
        if not trees.uploaded:
            try:
                wanted = check_named(self._plan.early, indices)
            except Exception as error:  # in a session it stays wrong
                trees.wrong, wanted = error, {s.name: nothing() for s in self._plan.early}
            self._send_trees(wanted)
        if trees.wrong is not None:
            _seem_usual(self, retrieving=bool(self._plan.retrieving))
            raise trees.wrong

    def __repr__(self) -> str:
        client = self._context.trees.client
        return f"ClientRound(client={client}, round={self._context.round_number})"

    def download(self) -> dict[str, npt.NDArray[np.generic]]:
        """The clear part of the model: every tensor outside retrieving segments.

        One server sends it, the other its digest and that of the rows.

        Raises:
            ProtocolError: the servers hold different models, or one that is not finite. The
                client has withdrawn.
        """
        first, second = self._parties()
        with _withdrawn_on_error(self):
            model, digests = self._receive(first, ModelBody), self._receive(second, ModelDigest)
            tensors = model.tensors(self._plan, digests)
            for segment in in_the_clear(self._plan.segments):
                clear = {t.name: tensors[t.name] for t in segment.tensors}
                check_finite(clear, "", segment.download)
            self._heard = (digests.clear + digests.rows,)
            return tensors

    def retrieve(self) -> dict[str, tuple[Indices, npt.NDArray[np.generic]]]:
        """The rows asked for in `start_round`, by segment: matched indices and `[k, tau]` values.

        A row that found no bin (probability at most 2**-40) is missing from the indices. The method
        returns no rows unless every tag of every segment fits.

        Raises:
            ProtocolError: a server altered an answer, and the client has withdrawn; or a row is
                not finite. The choice of rows is private, so the client has not withdrawn in the
                second case: `abort` sends a report that adds nothing.
        """
        with _withdrawn_on_error(self):
            first, second = (self._receive(party, AnswerBody) for party in (0, 1))
            rows = self._trees.rows_in((first, second), self._context.round_number)
        for segment in self._plan.retrieving:
            check_finite({segment.name: rows[segment.name][1]}, "rows of ", segment.download)
        return rows

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        """Send the update on the trees of this round.

        Args:
            update: quantised, one entry for every segment. Positions of a retrieving segment must
                be among those retrieved.
            weight: this client's weight under a weight lane; values are multiplied by it.

        Raises:
            ParameterError: the update does not fit the plan; an all-dummy report was sent.
            ProtocolError: this round was submitted before, or the client has withdrawn from it.
        """
        if self._submitted:
            raise ProtocolError(
                "this client has already submitted its report of this round: start the next round",
                code="already-submitted",
            )
        if self._withdrawn:
            raise ProtocolError(
                "a server or the network failed in this round, so this client has withdrawn from "
                "this round: start the next round",
                code="client-withdrew",
            )
        try:
            self._check_submission(update, weight)
        except Exception:  # whatever is wrong with private values, see above
            self.abort()
            raise
        self._send_report(update, int(weight))
        return self.receipt()

    @property
    def is_unsent(self) -> bool:
        """Whether the report may not be at both servers, and `send_again` may help."""
        return self._submitted and bool(getattr(self._servers, "is_unsent", False))

    def send_again(self) -> Receipt:
        """Send the report of a failed `submit` again, the same bytes.

        Raises:
            ProtocolError: there is none.
        """
        if not self.is_unsent:
            raise ProtocolError("this round has no report to send: start the next round")
        self._servers.send_again()  # type: ignore[attr-defined]
        return self.receipt()

    def abort(self) -> Receipt:
        """Send a report of the usual form that adds nothing to any sum; nothing once withdrawn."""
        if self._withdrawn:
            return self.receipt()
        if self._submitted:
            raise ProtocolError(
                "this client has already submitted its report of this round: start the next round",
                code="already-submitted",
            )
        zeros: Update = {}
        for segment in self._plan.segments:
            if segment.is_dense:
                empty = np.zeros((segment.m, 1), dtype=np.int64)
                zeros[segment.name] = SegmentUpdate(None, empty)
            else:
                empty = np.zeros((0, segment.tau), dtype=np.int64)
                zeros[segment.name] = SegmentUpdate(nothing(), empty)
        self._send_report(zeros, 0)
        return self.receipt()

    def receipt(self) -> Receipt:
        """The round's costs so far; its phases are the kinds of messages."""
        return self._traffic.receipt(self._unmatched)

    # --- what the methods above are made of ---------------------------------------------------

    def _check_submission(self, update: Update, weight: int) -> None:
        check_update(self._plan, update)
        check_weight(self._plan, weight)
        for segment in self._plan.early:
            positions = update[segment.name].positions
            if not np.all(np.isin(positions, self._trees.selection(segment).indices)):
                raise ParameterError(
                    f"segment {segment.name!r}: the update has rows outside the round's selection: "
                    "pass all rows of the update as indices= to start_round",
                    code="row-not-selected",
                )

    def _send_trees(self, wanted: dict[str, Indices]) -> None:
        segments = self._plan.early
        if not segments:
            return
        trees = [tree for s in segments for tree in self._trees.grow(s, wanted[s.name])]
        public = tuple(piece for tree in trees for piece in tree.pieces())
        (first, second), commitment = self._parties(), self._context.trees.commitment(*public)
        self._trees.uploaded = True
        self._send(second, TreesCommit(*self._trees.heads(second, commitment), commitment))
        self._send(first, TreesBody(*self._trees.heads(first, commitment), public))

    def _parties(self) -> tuple[int, int]:
        """S_a, which gets the public shares, and S_b, which gets their commitments."""
        first = self._context.trees.public_party
        return first, 1 - first

    def _send_report(self, update: Update, weight: int) -> None:
        """Late trees, hints, masked values."""
        self._submitted = True
        drawn = report.draw(self._trees, self._context, update, weight)
        self._unmatched = drawn.without_tree
        self._context = context = drawn.context
        (first, second), commitment = self._parties(), context.commitment(*drawn.public)
        hidden = context.masked_digest(*drawn.masked)
        told = dict.fromkeys((0, 1), b"")
        if self._plan.audited:
            seeds = self._trees.master_seeds
            told[second] = context.private_digest(seeds[first], first, hidden)
            told[first] = context.private_digest(seeds[second], second, context.masked_digest())
        heads = self._trees.report_heads(context, second, told[second], commitment, *self._heard)
        self._send(second, ReportCommit(*heads, commitment))
        covered = (commitment, hidden, *self._heard)
        heads = self._trees.report_heads(context, first, told[first], *covered)
        self._send(first, ReportBody(*heads, drawn.public, drawn.masked))

    def _send(self, party: int, body: Body) -> None:
        context = self._context
        message = body.message(self._plan, party, context.round_number, context.trees.client)
        self._traffic.sent[body.kind.name.lower()] += len(message)
        self._servers.send(party, message)

    def _receive(self, party: int, body: type[SomeBody]) -> SomeBody:
        round_number = self._context.round_number
        data = self._servers.fetch(party, body.kind, round_number, self._context.trees.client)
        self._traffic.received[body.kind.name.lower()] += len(data)
        message = messages.decode(self._plan, data, body.kind)
        if (message.party, message.round_number) != (party, round_number):
            raise ProtocolError(
                f"the answer of server {party} names another server or round: check the order of "
                "the servers, then participate in the next round",
                code="answer-for-another",
            )
        return body.decode(self._plan, message.body)


def _seem_usual(client_round: ClientRound, *, retrieving: bool) -> None:
    """Behave like a client that selects no rows, so that servers see no error in private rows."""
    with contextlib.suppress(Exception):  # then it has withdrawn
        client_round.download()
        if retrieving:
            client_round.retrieve()
    client_round.abort()


@contextlib.contextmanager
def _withdrawn_on_error(client_round: ClientRound) -> Iterator[None]:
    """Around all that depends on what the servers say."""
    try:
        yield
    except BaseException:
        client_round._withdrawn = True
        raise

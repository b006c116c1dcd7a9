"""Checks every round against the plaintext, from outside the protocol.

The trainer knows all clients' quantised updates, which no server does. The audit adds them up in
int64 and compares with what the servers opened, and compares every retrieved row with the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from torchfsl.fsl.in_process import TwoServers
from torchfsl.sefl import AggregatorAndKeyHolder
from torchfsl.submodel.aggregation import Aggregation, Closed, Participant, Receipt, RoundSession
from torchfsl.submodel.plain import Plain, add_to, model_rows
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Array, Indices


class Audit:
    """An aggregation that also says whether it was exact.

    Attributes:
        exact: whether the aggregate of the last closed round was bit-identical to the plaintext sum
            of the quantised updates. Rows that found no bin are in neither of the two.
        exact_retrieval: whether every row retrieved in the last round was bit-identical to the
            model's, and no row was missing; None if the plan retrieves no rows.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        """Audit `aggregation`; use this object in its place."""
        self.aggregation, self.plan = aggregation, aggregation.plan
        self.exact = True
        self.exact_retrieval: bool | None = None

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`."""
        self.begin()
        self.aggregation.open_round(round_number, cohort)

    def begin(self) -> None:
        """Expect nothing so far."""
        self._sums = {s.name: np.zeros((s.m, s.tau), dtype=np.int64) for s in self.plan.segments}
        self.exact_retrieval = True if any(s.retrieve for s in self.plan.segments) else None

    @property
    def models(self) -> tuple[ServerModel, ...]:
        """See `Aggregation`."""
        return self.aggregation.models

    @property
    def model(self) -> ServerModel:
        """See `Aggregation`."""
        return self.aggregation.model

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return self.aggregation.server_seconds

    def abandon_round(self) -> None:
        """See `Aggregation`."""
        self.aggregation.abandon_round()

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        return _AuditedClient(self, self.aggregation.participant(client))

    def close_round(self) -> Closed:
        """See `Aggregation`."""
        closed = self.aggregation.close_round()
        self.check(closed)
        return closed

    def check(self, closed: Closed) -> None:
        """Compare what was opened with the sums of the updates noted in this round.

        Where servers add noise, so does the audit, which this process alone can.
        """
        sums = closed.opened.sums
        if isinstance(self.aggregation, AggregatorAndKeyHolder | TwoServers | Plain):
            for name, added in self.aggregation.noise_sums().items():
                if name in self._sums:  # lanes are not audited
                    self._sums[name] += added
        self.exact = set(sums) == set(self._sums) and all(
            np.array_equal(sums[name], expected) for name, expected in self._sums.items()
        )

    def note_update(
        self, update: Update, unmatched: Mapping[str, Indices], weight: int = 1
    ) -> None:
        """Add a submitted update, times its weight, to the expected sums."""
        for segment in self.plan.segments:
            part = update[segment.name]
            missing = unmatched.get(segment.name)
            if part.indices is not None and missing is not None and len(missing):
                keep = ~np.isin(part.indices, missing)
                part = SegmentUpdate(part.indices[keep], part.values[keep])
            add_to(self._sums[segment.name], {segment.name: part}, segment, weight)

    def note_rows(
        self, asked: Mapping[str, npt.ArrayLike], found: Mapping[str, tuple[Indices, Array]]
    ) -> None:
        """Compare retrieved rows with the model, as bytes."""
        for name, (indices, values) in found.items():
            truth = model_rows(self.aggregation.model, self.plan.segment(name), indices)
            if not np.array_equal(indices, asked[name]) or truth.tobytes() != values.tobytes():
                self.exact_retrieval = False


class _AuditedClient:
    """A `Participant` whose sessions report to the audit."""

    def __init__(self, audit: Audit, client: Participant) -> None:
        self.plan, self.client_id = client.plan, client.client_id
        self._audit, self._client = audit, client

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        session = self._client.start_round(round_number, indices=indices)
        return _AuditedSession(self._audit, session, indices or {})


class _AuditedSession:
    """A `RoundSession` that reports rows and update to the audit."""

    def __init__(
        self, audit: Audit, session: RoundSession, asked: Mapping[str, npt.ArrayLike]
    ) -> None:
        self._audit, self._session, self._asked = audit, session, asked

    def download(self) -> Mapping[str, Array]:
        return self._session.download()

    def retrieve(self) -> Mapping[str, tuple[Indices, Array]]:
        found = self._session.retrieve()
        self._audit.note_rows(self._asked, found)
        return found

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        receipt = self._session.submit(update, weight=weight)
        self._audit.note_update(update, receipt.unmatched, weight)
        return receipt

    def abort(self) -> Receipt:
        return self._session.abort()

    def receipt(self) -> Receipt:
        return self._session.receipt()

"""Clients that start a round and then send nothing more."""

from __future__ import annotations

from collections.abc import Mapping

import numpy.typing as npt

from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession
from torchfsl.submodel.update import Update
from torchfsl.types import Array, Indices


class DroppedOut(Exception):
    """The client was cut off before its update left."""


class Dropout:
    """A `Participant` that starts a round like any other and then goes silent.

    Args:
        client: participant that receives the calls until the update is due.
    """

    def __init__(self, client: Participant) -> None:
        self.plan, self.client_id, self._client = client.plan, client.client_id, client

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        """See `Participant`."""
        return _CutOff(self._client.start_round(round_number, indices=indices))


class _CutOff:
    """A `RoundSession` that sends nothing more once the model is there."""

    def __init__(self, session: RoundSession) -> None:
        self._session = session

    def download(self) -> Mapping[str, Array]:
        return self._session.download()

    def retrieve(self) -> Mapping[str, tuple[Indices, Array]]:
        return self._session.retrieve()

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        raise DroppedOut

    def abort(self) -> Receipt:
        return self._session.receipt()

    def receipt(self) -> Receipt:
        return self._session.receipt()

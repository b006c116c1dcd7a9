"""Who has started a round, so that its end can say what it has cost each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession


class Sessions:
    """The sessions of one round, by client."""

    def __init__(self) -> None:
        """Nobody has started."""
        self._started: dict[int, RoundSession] = {}

    def watch(self, client: int, participant: Participant) -> Participant:
        """`participant`, whose session will be among these once it starts."""
        watched = _WatchedSession if hasattr(participant, "continue_session") else _Watched
        return watched(self._started, client, participant)

    def receipts(self) -> dict[int, Receipt]:
        """What the round has cost each client that started it, dropped out or not."""
        return {client: session.receipt() for client, session in self._started.items()}


class _Watched:
    """A `Participant` that notes its session."""

    def __init__(
        self, started: dict[int, RoundSession], client: int, participant: Participant
    ) -> None:
        self.plan, self.client_id = participant.plan, client
        self._started, self._client, self._participant = started, client, participant

    def __repr__(self) -> str:
        return repr(self._participant)

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        session = self._participant.start_round(round_number, indices=indices)
        self._started[self._client] = session
        return session


class _WatchedSession(_Watched):
    """The same of one that keeps its positions for several rounds."""

    def continue_session(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike]
    ) -> RoundSession:
        going_on: Any = self._participant
        session: RoundSession = going_on.continue_session(round_number, indices=indices)
        self._started[self._client] = session
        return session

"""A client's own count of its reports, by which it keeps the plan's participation limits itself.

Servers also count, but this count holds even if both of them accept everything. It knows rounds by
number and not by the servers' index, which advances at most as fast. So it enforces
`max_participations` exactly, and of `min_separation` what follows from the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

from torchfsl.errors import DecodeError
from torchfsl.service.state.vault import write_whole
from torchfsl.submodel.participation import Participation
from torchfsl.submodel.plan import SubmodelPlan


class SentReports:
    """The rounds in which this client has sent a report of a plan, by the plan's session.

    Args:
        path: of the file, which also holds the rounds of earlier tasks; None for a count in memory
            alone, which ends with the process.
        plan: has the limits; without limits nothing is counted.
        client: whose reports they are, for messages.

    Raises:
        DecodeError: the file cannot be read as a count, and the reports sent are unknown.
    """

    def __init__(self, path: Path | None, plan: SubmodelPlan, client: int) -> None:
        self._path, self._plan, self._client = path, plan, client
        self._is_limited = bool(plan.max_participations) or plan.min_separation > 1
        self._all: dict[str, list[int]] = {} if path is None else _stored(path)

    @property
    def plan_digest(self) -> str:
        """Of the plan, as servers name it in Info."""
        return self._plan.digest.hex()

    @property
    def rounds(self) -> list[int]:
        """Numbers of the rounds that count, in order."""
        return self._all.get(self._plan.session, [])

    def check(self, number: int) -> None:
        """Refuse a round in which the plan allows this client no report.

        Raises:
            RejectedSubmission: it has sent all, or comes too early.
        """
        others = [one for one in self.rounds if one != number]
        limits = Participation(self._plan.max_participations, self._plan.min_separation)
        for one in others:
            limits.charge([self._client], one)
        if self._is_limited:
            limits.check(self._client, number)

    @property
    def is_spent(self) -> bool:
        """Whether this client has sent all its reports."""
        return 0 < self._plan.max_participations <= len(self.rounds)

    def add(self, number: int) -> None:
        """Count a report before it leaves; once this returns the count survives a crash.

        Raises:
            RejectedSubmission: see `check`.
        """
        self.check(number)
        if self._is_limited and number not in self.rounds:
            self._store(sorted([*self.rounds, number]))

    def take_back(self, number: int) -> None:
        """Forget a report of a round of which both servers say that no share has left them."""
        if number in self.rounds:
            self._store([one for one in self.rounds if one != number])

    def _store(self, rounds: list[int]) -> None:
        counts = self._all | {self._plan.session: rounds}
        if self._path is not None:
            write_whole(self._path, json.dumps(counts).encode())
        self._all = counts  # not before: a second try after a failed write has to store it


def _stored(path: Path) -> dict[str, list[int]]:
    try:
        found = json.loads(path.read_bytes())
        if not all(type(n) is int for rounds in found.values() for n in rounds):
            raise ValueError("a round number is not a whole number")
    except FileNotFoundError:
        return {}
    except (AttributeError, TypeError, ValueError) as error:
        raise DecodeError(
            f"cannot read from {path} how many reports this client has sent ({error}): send no "
            "more reports in this task, and delete the file before the next task"
        ) from None
    return dict(found)

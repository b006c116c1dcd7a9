"""How often a client's reports may be in sums, and how far apart, as one server counts it."""

from __future__ import annotations

from collections.abc import Iterable

from torchfsl.errors import RejectedSubmission


class Participation:
    """Rounds are counted by the server's index: those in which its share may have left it.

    Attributes:
        counts: by client number its reports in sums.
        last: by client number the index of the last one.
    """

    def __init__(self, most: int, separation: int) -> None:
        """No client has reported; `most` is 0 for any number."""
        self._most, self._separation = most, separation
        self.counts: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def check(self, client: int, index: int) -> None:
        """Refuse a report that the plan does not allow in this round.

        Raises:
            RejectedSubmission: the client has sent all, or comes too early.
        """
        if 0 < self._most <= self.counts.get(client, 0):
            raise RejectedSubmission(
                f"client {client} has sent {self._most} of {self._most} reports: it has finished",
                code="participations-spent",
            )
        wait = self.last.get(client, index - self._separation) + self._separation - index
        if wait > 0:
            raise RejectedSubmission(
                f"client {client} comes too early: it may send again after {wait} more rounds",
                code="too-early",
            )

    def allows(self, client: int, index: int) -> bool:
        """Whether `check` passes."""
        try:
            self.check(client, index)
        except RejectedSubmission:
            return False
        return True

    def charged(self, index: int) -> list[int]:
        """Clients whose last report was in the round of this index."""
        return [client for client, place in self.last.items() if place == index]

    def charge(self, clients: Iterable[int], index: int) -> None:
        """Count the reports of a round whose share may leave now."""
        if self._most or self._separation > 1:
            for client in clients:
                self.counts[client] = self.counts.get(client, 0) + 1
                self.last[client] = index

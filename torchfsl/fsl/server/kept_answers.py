"""Which clients are answered together, and answers that were made before their client asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from torchfsl.fsl.server.reports import Report, TreeRecord

Made = TypeVar("Made")


class KeptAnswers(Generic[Made]):
    """Answers of one model to clients who wait, each kept for the trees that it was made of.

    Law: however often a client is named among those who wait, one answer is made for its trees,
    and another one each time that it asks again.
    """

    def __init__(self) -> None:
        """Nothing is made."""
        self._made: dict[int, tuple[TreeRecord, Made]] = {}
        self._given: set[int] = set()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._made)

    def give(self, report: Report) -> Made | None:
        """The answer to a client who asks, which is not kept any longer; None where none is."""
        self._given.add(report.client)
        made = self._made.pop(report.client, None)
        return made[1] if made is not None and made[0] is report.trees else None

    def keep(self, report: Report, answer: Made) -> None:
        """Keep an answer until its client asks."""
        self._made[report.client] = report.trees, answer

    def window(self, report: Report, waiting: Iterable[Report], most: int) -> list[Report]:
        """The client who asks, and others who wait: at most `most`, none whose answer is made.

        Nor those who were given theirs: they seem to wait as long as it is on its way.
        """
        found = {report.client: report}
        for other in waiting:
            if len(found) >= most:
                break
            if other.client not in self._given and not self._holds(other):
                found.setdefault(other.client, other)
        return list(found.values())

    def clear(self) -> None:
        """Another model, or no more answers."""
        self._made.clear()
        self._given.clear()

    def _holds(self, report: Report) -> bool:
        made = self._made.get(report.client)
        return made is not None and made[0] is report.trees

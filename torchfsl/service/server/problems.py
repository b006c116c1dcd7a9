"""The last warnings and errors of a server, for people who look: without any client's number."""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import Final

_MOST: Final = 20
_CLIENT: Final = re.compile(r"\bclients?[ :]+[\[(]?\d+(?:, ?\d+)*[\])]?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record of the log: seconds since the epoch, level, and what it says."""

    time: float
    level: str
    text: str


def without_clients(text: str) -> str:
    """The text without the numbers by which it names clients."""
    return _CLIENT.sub("a client", text)


class RecentProblems(logging.Handler):
    """Keeps the last records from warnings on; those who look get them newest first."""

    def __init__(self) -> None:
        """None so far."""
        super().__init__(logging.WARNING)
        self._kept: deque[Problem] = deque(maxlen=_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's message and reason; no trace and no other field."""
        said = [record.getMessage(), *(str(record.__dict__.get(n, "")) for n in ("reason", "why"))]
        text = without_clients(": ".join(part for part in said if part))
        self._kept.append(Problem(record.created, record.levelname.lower(), text))

    def newest(self) -> list[Problem]:
        """What is kept, newest first."""
        return list(self._kept)[::-1]

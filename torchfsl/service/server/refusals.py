"""The log of refused calls: one line a caller and code in ten seconds, with a count of the others.

A refused caller may ask again at once, as often as the network carries it. A line for each call
would fill the disk.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from torchfsl.errors import Error

log = logging.getLogger("torchfsl.service.router")

_SECONDS: Final = 10.0
_MOST_CALLERS: Final = 4096
_OTHERS: Final = "others"
"""Stands for callers beyond the most that are counted separately."""


@dataclass(slots=True)
class _Held:
    """Refusals of a caller since its last line: how many, and the reason of the last one."""

    timer: asyncio.TimerHandle
    count: int = 0
    level: int = 0
    text: str = ""
    fields: dict[str, Any] | None = None


class Refusals:
    """Those of one server; in its event loop.

    Args:
        seconds: between two lines of one caller and code.
    """

    def __init__(self, seconds: float = _SECONDS) -> None:
        """Start without refusals."""
        self._seconds = seconds
        self._held: dict[tuple[str, str], _Held] = {}

    def note(self, level: int, error: Error, fields: dict[str, Any]) -> None:
        """A call was refused: `fields` has its `caller` and `code`, and what else is logged."""
        key = fields["caller"], fields["code"]
        if key not in self._held and len(self._held) >= _MOST_CALLERS:
            key, fields = (_OTHERS, fields["code"]), fields | {"caller": _OTHERS}
        held = self._held.get(key)
        if held is None:
            self._tell(key, level, str(error), fields)
            return
        held.count += 1
        held.level, held.text, held.fields = level, str(error), fields

    def close(self) -> None:
        """Log what is still held."""
        for held in list(self._held.values()):
            held.timer.cancel()
            if held.fields is not None:
                log.log(held.level, "refused: %s", held.text, extra=_counted(held))
        self._held = {}

    def _tell(self, key: tuple[str, str], level: int, text: str, fields: dict[str, Any]) -> None:
        log.log(level, "refused: %s", text, extra=fields)
        later = asyncio.get_running_loop().call_later
        self._held[key] = _Held(later(self._seconds, self._go_on, key))

    def _go_on(self, key: tuple[str, str]) -> None:
        """The time of a line is over: the next one, if there is something to tell."""
        held = self._held.pop(key)
        if held.fields is not None:
            self._tell(key, held.level, held.text, _counted(held))


def _counted(held: _Held) -> dict[str, Any]:
    """The fields of the last refusal, and how many there were since the last line."""
    return (held.fields or {}) | {"count": held.count}

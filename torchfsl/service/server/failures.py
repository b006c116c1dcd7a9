"""Handles errors that no code expects: one of the disk ends the server, any other shows.

A state that cannot be written leaves memory ahead of the disk, and nothing may leave a server that
is not on its disk. So the process ends there and then: no answer, no clean-up. Started again it
goes on from what is stored, as after any crash, and callers try again meanwhile. The same holds for
any unexpected error in a step that writes. Elsewhere such an error is a bug: the call or
round ends with it, the log has the traceback, and the server says that it is not ready until
somebody has looked and started it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from torchfsl.errors import Error
from torchfsl.service.state.records import StoreDamaged

log = logging.getLogger("torchfsl.service.failures")

EXIT_STATE_FAILED: Final = 74
"""Exit status when the state cannot be read or written (`EX_IOERR`): start the server again."""

EXIT_STATE_REFUSED: Final = 65
"""When the state must not be used, see `LedgerError` (`EX_DATAERR`): a person has to look."""

STATE_ERRORS: Final = (OSError, sqlite3.Error, StoreDamaged)
"""Errors of a call to the state if the disk fails or descriptors run out."""

_WORK: Final = {"driver": "the work on a round", "handler": "a call"}
"""Names of the kinds of `Failures.counts` in messages."""


class Failures:
    """The failures of one server process.

    Args:
        end: ends the process with a status, at once.

    Attributes:
        counts: by kind: `state`, `driver` of the rounds, `handler` of a call.
        unready: why the server is to get no more work, or empty.
    """

    def __init__(self, end: Callable[[int], Any] = os._exit) -> None:
        self._end = end
        self._stopping = False
        self.counts: Counter[str] = Counter()
        self.unready = ""

    def by_kind(self) -> dict[str, float]:
        """The counts, for a metric."""
        return {kind: float(self.counts[kind]) for kind in ("state", "driver", "handler")}

    def stop(self) -> None:
        """The server stops: its state is being closed, and errors of that end nothing any more."""
        self._stopping = True

    def take(self, kind: str, error: BaseException) -> None:
        """Note an error that is not an `Error`; one of the state ends the process."""
        network = isinstance(error, TimeoutError | ConnectionError)
        if isinstance(error, STATE_ERRORS) and not network:
            self.end(error)
            return
        self.counts[kind] += 1
        what = _WORK.get(kind, kind)
        self.unready = (
            f"{what} failed with {type(error).__name__}: read the log, then restart the server"
        )
        log.error("%s failed, which is a bug", what, exc_info=error)

    def end(self, error: BaseException) -> None:
        """The state cannot be used, or a step that writes has failed: end the process."""
        if self._stopping:
            log.warning("an error while the server stops: %s", error)
            return
        self.counts["state"] += 1
        self.unready = "the state cannot be read or written"
        if not isinstance(error, STATE_ERRORS):
            kind = type(error).__name__
            self.unready = f"a step failed with {kind} while it wrote to the disk, which is a bug"
        text = (
            "%s: this process ends with status %d, and a restart continues from the stored "
            "state: %s"
        )
        log.critical(text, self.unready, EXIT_STATE_FAILED, error, exc_info=error)
        self._end(EXIT_STATE_FAILED)

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Take the error with which a task of the rounds ends; for `add_done_callback`."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, STATE_ERRORS) or not isinstance(error, Error | None):
            self.take("driver", error)

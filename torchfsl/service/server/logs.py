"""The log of a server: JSON lines on standard error, and lines that are kept or counted instead.

Lines are ours, gRPC's and Python's warnings, never a secret. A refused caller may ask again at
once, as often as the network carries it, and a line for each call would fill the disk: so refusals
are one line a caller and code in ten seconds, with a count of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.text import printable, printable_lines

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_FIELDS: Final = (
    "round", "clients", "reports", "reason", "method", "caller", "code", "plan", "why",
    "server_state", "peer", "count", "files", "connections", "needed", "path", "door",
)  # fmt: skip
_NATIVE: Final = re.compile(r"([IWEF])\d{4} .*?\] (.*)")
_LEVELS_OF_NATIVE: Final = {"I": 20, "W": 30, "E": 40, "F": 50}
_LINES, _SECONDS = 20, 10.0
"""So many lines of native code in so much time; the others are counted."""


class JsonLines(logging.Formatter):
    """One JSON object a record: time with its zone, level, logger, message, known extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fields: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        known = {name: record.__dict__[name] for name in _FIELDS if name in record.__dict__}
        fields |= {n: printable(v) if isinstance(v, str) else v for n, v in known.items()}
        if record.exc_info:
            fields["trace"] = printable_lines(self.formatException(record.exc_info))
        return json.dumps(fields)


def set_level(level: str) -> None:
    """Log from this level on; of what is not ours, warnings and errors.

    Raises:
        ParameterError: there is no such level.
    """
    if level not in LEVELS:
        raise ParameterError(f"log-level is {level!r}: choose one of {', '.join(LEVELS)}")
    logging.getLogger("torchfsl").setLevel(LEVELS[level])


@contextlib.contextmanager
def json_on_stderr(level: str) -> Iterator[None]:
    """While inside, whatever goes to standard error is a JSON line.

    What native code writes there (gRPC does) goes through a pipe and becomes records.

    Raises:
        ParameterError: there is no such level.
    """
    set_level(level)
    sys.stderr.flush()
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    with os.fdopen(own, "w") as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonLines())
        handler.addFilter(_Sparse())
        root = logging.getLogger()
        before, root.handlers = root.handlers, [handler]
        logging.captureWarnings(True)
        thread = threading.Thread(target=_read, args=(os.fdopen(reading),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)  # the pipe's last writer: the thread reads what is left, and ends
            thread.join(timeout=5)
            logging.captureWarnings(False)
            root.handlers = before


class _Sparse(logging.Filter):
    """Keeps callers from filling the disk with tracebacks of asyncio and of gRPC's Python."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._count = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is ours, or one of the first in its time."""
        if not record.name.startswith(("asyncio", "grpc.")):
            return True
        if record.created - self._began > _SECONDS:
            self._began, self._count = record.created, 0
        self._count += 1
        return self._count <= _LINES


def _read(lines: IO[str]) -> None:
    """Log what comes, as long as there is not too much of it."""
    began, count = time.monotonic(), 0
    for line in lines:
        if time.monotonic() - began > _SECONDS:
            _tell_left_out(count)
            began, count = time.monotonic(), 0
        count += 1
        if count <= _LINES:
            _log_native(line.rstrip())
    _tell_left_out(count)


def _tell_left_out(count: int) -> None:
    if count > _LINES:
        fields = {"count": count - _LINES}
        logging.getLogger("stderr").warning(
            "native code wrote more lines, which are left out", extra=fields
        )


def _log_native(line: str) -> None:
    match = _NATIVE.match(line)
    if match is not None:
        logging.getLogger("grpc").log(_LEVELS_OF_NATIVE[match[1]], "%s", match[2])
    elif line:
        logging.getLogger("stderr").warning("%s", line)


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
        super().__init__(logging.WARNING)
        self._kept: deque[Problem] = deque(maxlen=_MOST)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record's message and reason; no trace and no other field."""
        said = [record.getMessage(), *(str(record.__dict__.get(n, "")) for n in ("reason", "why"))]
        text = without_clients(": ".join(part for part in said if part))
        self._kept.append(Problem(record.created, record.levelname.lower(), text))

    def newest(self) -> list[Problem]:
        """The kept problems, newest first."""
        return list(self._kept)[::-1]


log = logging.getLogger("torchfsl.service.router")

_REFUSAL_SECONDS: Final = 10.0
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

    def __init__(self, seconds: float = _REFUSAL_SECONDS) -> None:
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

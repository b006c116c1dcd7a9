"""Logs as JSON lines on standard error: ours, gRPC's, Python's warnings. Never a secret."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, Final

from torchfsl.errors import ParameterError
from torchfsl.service.net.text import printable, printable_lines

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

_FIELDS: Final = (
    "round", "clients", "reports", "reason", "method", "caller", "code", "plan", "why",
    "server_state", "peer", "count", "files", "connections", "needed", "path",
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


def set_level(level: str) -> bool:
    """Log from this level on; of what is not ours, warnings and errors. Whether that is another.

    Raises:
        ParameterError: there is no such level.
    """
    if level not in LEVELS:
        raise ParameterError(f"log-level is {level!r}: it is one of {', '.join(LEVELS)}")
    ours = logging.getLogger("torchfsl")
    before = ours.level
    ours.setLevel(LEVELS[level])
    return ours.level != before


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
        logging.getLogger("stderr").warning("more lines were left out", extra=fields)


def _log_native(line: str) -> None:
    match = _NATIVE.match(line)
    if match is not None:
        logging.getLogger("grpc").log(_LEVELS_OF_NATIVE[match[1]], "%s", match[2])
    elif line:
        logging.getLogger("stderr").warning("%s", line)

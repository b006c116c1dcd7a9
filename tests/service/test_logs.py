"""Whatever goes to a server's standard error is a JSON line, whoever wrote it."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.service.server.logs import JsonLines, Refusals, set_level

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import logging, os, sys, warnings
from torchfsl.service.server.logs import json_on_stderr
with json_on_stderr("info"):
    {inside}
print("plain again", file=sys.stderr)
"""


def lines_of(inside: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", PROGRAM.format(inside=inside)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    lines = said.splitlines()
    assert lines.pop() == "plain again"
    return [json.loads(line) for line in lines]


def test_times_have_a_zone_and_known_fields_are_told() -> None:
    (line,) = lines_of(
        "logging.getLogger('torchfsl.x').info('a %s', 'b', extra={'peer': 'p', 'seed': 's'})"
    )
    assert datetime.datetime.fromisoformat(line.pop("time")).utcoffset() == datetime.timedelta(0)
    assert line == {"level": "info", "logger": "torchfsl.x", "message": "a b", "peer": "p"}


@pytest.mark.parametrize(
    ("inside", "logger", "level", "message"),
    [
        (r"os.write(2, b'E0000 00:00:1.2 7 a.cc:3] Handshake failed\n')", "grpc", "error",
         "Handshake failed"),
        (r"os.write(2, b'W0000 00:00:1.2 7 a.cc:3] look\n')", "grpc", "warning", "look"),
        (r"os.write(2, b'something else\n')", "stderr", "warning", "something else"),
        ("print('printed', file=sys.stderr)", "stderr", "warning", "printed"),
        ("logging.getLogger('asyncio').error('odd')", "asyncio", "error", "odd"),
    ],
)  # fmt: skip
def test_lines_of_others_are_lines_of_the_log(
    inside: str, logger: str, level: str, message: str
) -> None:
    (line,) = lines_of(inside)
    assert (line["logger"], line["level"], line["message"]) == (logger, level, message)


def test_a_warning_of_python_is_a_line() -> None:
    (line,) = lines_of("warnings.warn('look')")
    assert line["logger"] == "py.warnings"
    assert "look" in line["message"]


def test_a_flood_of_lines_is_cut_and_counted() -> None:
    lines = lines_of(r"os.write(2, b'E0000 00:00:1.2 7 a.cc:3] no\n' * 1000)")
    assert [line["message"] for line in lines[:-1]] == ["no"] * 20
    assert (lines[-1]["message"], lines[-1]["count"]) == (
        "native code wrote more lines, which are left out",
        980,
    )


def test_there_is_no_such_level() -> None:
    with pytest.raises(ParameterError, match="choose one of debug, info, warning, error"):
        set_level("loud")


class Refused:
    """Refusals of one caller in an event loop whose clock goes on when it is told to."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "torchfsl.service.router")
        self.caplog = caplog

    def lines(self) -> list[tuple[str, str, int]]:
        found = [vars(record) for record in self.caplog.records]
        return [(f["caller"], f["code"], f.get("count", 1)) for f in found]


def test_refused_calls_are_one_line_a_caller_and_code_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = Refused(caplog)

    async def play() -> None:
        refusals = Refusals(seconds=0.2)
        for number in range(1000):
            for caller in ("client 1", "client 2"):
                fields = {"caller": caller, "code": "ABORTED", "method": "Submit", "peer": "p"}
                refusals.note(logging.INFO, ProtocolError(f"no {number}"), fields)
        refusals.note(logging.INFO, DecodeError("x"), {"caller": "client 1", "code": "INVALID"})
        assert refused.lines() == [
            ("client 1", "ABORTED", 1), ("client 2", "ABORTED", 1), ("client 1", "INVALID", 1)
        ]  # fmt: skip
        await asyncio.sleep(0.3)
        assert refused.lines()[3:] == [("client 1", "ABORTED", 999), ("client 2", "ABORTED", 999)]
        await asyncio.sleep(0.3)
        assert not refusals._held  # nobody is remembered who is quiet
        refusals.note(logging.INFO, DecodeError("x"), {"caller": "client 1", "code": "INVALID"})
        refusals.note(logging.INFO, DecodeError("y"), {"caller": "client 1", "code": "INVALID"})
        refusals.close()
        assert refused.lines()[5:] == [("client 1", "INVALID", 1)] * 2

    asyncio.run(play())
    assert "no 999" in caplog.text


def test_callers_beyond_those_told_apart_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused(caplog)

    async def play() -> None:
        refusals = Refusals(seconds=60)
        for number in range(6000):
            fields = {"caller": f"client {number}", "code": "ABORTED"}
            refusals.note(logging.INFO, ProtocolError("no"), fields)
        assert len(refusals._held) == 4097
        refusals.close()

    asyncio.run(play())
    assert refused.lines()[-1] == ("others", "ABORTED", 1903)


ODD = ["\x1b[2J", "\x07", "\r", "\x9b31m", "\u202e", "\u2028", "\ud800", "\x00", "\u200b"]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_what_is_not_printable_is_escaped_in_the_log(odd: str) -> None:
    record = logging.LogRecord("x", 20, "f", 1, "round ends: %s", (f"a{odd}b",), None)
    record.reason = f"c{odd}d"
    line = json.loads(JsonLines().format(record))
    escaped = odd.encode("unicode_escape").decode()
    if len(odd) > 1 and odd[0] in "\x1b\x9b":
        escaped = odd[0].encode("unicode_escape").decode() + odd[1:]
    assert line["message"] == f"round ends: a{escaped}b"
    assert line["reason"] == f"c{escaped}d"

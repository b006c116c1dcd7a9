"""Whatever goes to a server's standard error is a JSON line, whoever wrote it."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchfsl.errors import ParameterError
from torchfsl.service.server.logs import set_level

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
    assert (lines[-1]["message"], lines[-1]["count"]) == ("more lines were left out", 980)


def test_there_is_no_such_level() -> None:
    with pytest.raises(ParameterError, match="it is one of debug, info, warning, error"):
        set_level("loud")

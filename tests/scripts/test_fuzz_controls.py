"""A taste of scripts/attacks/fuzz_controls.py, and that it finds faults that are planted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from scripts.attacks import fuzz_controls
from scripts.attacks.fuzz_controls import Results
from torchfsl.errors import DecodeError
from torchfsl.service.net import calls
from torchfsl.service.state import arrays

MESSAGES = 700


def found_by(folder: Path, seed: int = 3) -> Results:
    return asyncio.run(fuzz_controls.fuzz(folder, MESSAGES, seed))


def test_no_control_message_meets_an_error_that_nobody_expects(tmp_path: Path) -> None:
    found = found_by(tmp_path)
    assert not found.unexpected
    assert not found.unready
    assert not found.apart
    assert (found.rounds, found.failed) == (2, 0)
    assert sum(found.calls.values()) >= MESSAGES
    taken = {name for name in found.calls if name.endswith("taken")}
    assert {"owner Open taken", "owner Abandon taken", "owner SetUp taken"} <= taken
    assert {"peer Abandon taken", "client Model taken"} <= taken


def unchecked_request(data: bytes, **kinds: Any) -> dict[str, Any]:
    """As it was: types, and numbers below 2**64."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != set(kinds):
        raise DecodeError("none")
    for name, kind in kinds.items():
        wanted = int if isinstance(kind, range) else kind
        if type(fields[name]) is not wanted or (wanted is int and not 0 <= fields[name] < 1 << 64):
            raise DecodeError("none")
    return fields


def test_a_request_that_is_not_checked_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "decode_request", unchecked_request)
    found = found_by(tmp_path)
    assert found.unready
    assert any("UnicodeEncodeError" in trace for trace in found.unexpected)


def test_a_description_of_arrays_that_is_not_checked_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchecked(text: bytes) -> Any:
        fields = json.loads(text)
        return [(n, d, tuple(s)) for n, d, s in fields["arrays"]], fields["meta"]

    monkeypatch.setattr(arrays, "_description", unchecked)
    found = found_by(tmp_path)
    assert any("owner" in one for one in found.unexpected)

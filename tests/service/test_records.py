"""The report log, and the byte formats of the state folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from torchfsl.errors import DecodeError
from torchfsl.service.state import arrays
from torchfsl.service.state.records import ReportLog, StoreDamaged, StoreFull

MESSAGES = [b"a" * 5, b"b" * 3000, b"", b"c" * 9000, b"d"]


def fill(folder: Path) -> ReportLog:
    log = ReportLog(folder, segment_bytes=8192)
    for message in MESSAGES:
        log.append([message])
    return log


def test_a_log_gives_back_what_was_appended_before_and_after_a_restart(tmp_path: Path) -> None:
    log = fill(tmp_path / "log")
    assert [bytes(m) for m in log] == MESSAGES
    log.close()
    again = ReportLog(tmp_path / "log", segment_bytes=8192)
    assert [bytes(m) for m in again] == MESSAGES
    again.append([b"more"])
    assert [bytes(m) for m in ReportLog(tmp_path / "log")] == [*MESSAGES, b"more"]
    assert again.num_bytes == sum(map(len, MESSAGES)) + 4


def damage(log: ReportLog, broken: int) -> None:
    """Flip one bit in a record, and close the log."""
    segment, start, length = log._places[broken]
    path = log._segments[segment].path
    log.close()
    flip(path, start + max(length - 1, 0) if length else start - 1)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("broken", range(len(MESSAGES)))
def test_a_damaged_record_is_noticed_wherever_it_is(tmp_path: Path, broken: int) -> None:
    damage(fill(tmp_path / "log"), broken)
    again = ReportLog(tmp_path / "log", segment_bytes=8192)
    assert [bytes(m) for m in again] == MESSAGES[:broken]
    behind = len(MESSAGES) - broken - 1
    said = f"{broken} before the damaged one and {behind} after it"
    assert said in again.damage
    with pytest.raises(StoreDamaged):
        again.append([b"new"])


@pytest.mark.parametrize("broken", range(len(MESSAGES)))
def test_a_record_that_nobody_was_told_of_is_overwritten(tmp_path: Path, broken: int) -> None:
    log = ReportLog(tmp_path / "log", segment_bytes=8192)
    for message in MESSAGES[:broken]:
        log.append([message])
    log._write(MESSAGES[broken])  # and the power fails before it is whole
    damage(log, broken)
    again = ReportLog(tmp_path / "log", segment_bytes=8192)
    assert [bytes(m) for m in again] == MESSAGES[:broken]
    assert not again.damage
    again.append([b"new"])
    assert [bytes(m) for m in ReportLog(tmp_path / "log")] == [*MESSAGES[:broken], b"new"]


@pytest.mark.parametrize("name", ["acknowledged", "000000.log", "000001.log", "000002.log"])
@pytest.mark.parametrize("how", ["missing", "emptied", "flipped"])
def test_a_log_that_lost_a_file_says_so(tmp_path: Path, name: str, how: str) -> None:
    log = fill(tmp_path / "log")
    assert len(log._segments) == 3
    log.close()
    path = tmp_path / "log" / name
    if how == "missing":
        path.unlink()
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        flip(path, 9)
    assert ReportLog(tmp_path / "log", segment_bytes=8192).damage


def test_a_damaged_log_is_overwritten_as_a_whole_before_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(fill(tmp_path / "log"), 0)
    again = ReportLog(tmp_path / "log", segment_bytes=8192)
    left: list[bytes] = []
    unlink = Path.unlink

    def look(self: Path, missing_ok: bool = False) -> None:
        left.append(self.read_bytes())
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    again.wipe(iter([]))
    assert not any(left[0] + left[1])
    assert not (tmp_path / "log").exists()


def test_a_full_disk_refuses_one_message_and_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ReportLog(tmp_path / "log", segment_bytes=4096)
    log.append([b"kept"])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    results = log.append([b"small", b"x" * 5000, b"also small"])
    assert isinstance(results[1], StoreFull)
    assert [bytes(m) for m in log] == [b"kept", b"small", b"also small"]
    assert [bytes(m) for m in ReportLog(tmp_path / "log")] == [b"kept", b"small", b"also small"]


def test_a_disk_that_fails_to_sync_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(tmp_path / "log")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(StoreDamaged, match="cannot be written"):
        log.append([b"lost"])
    monkeypatch.undo()
    with pytest.raises(StoreDamaged, match="restart the server"):
        log.append([b"lost too"])
    assert len(log) == len(MESSAGES)


def test_wiping_overwrites_the_secrets_before_it_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(tmp_path / "log")
    path = log._segments[0].path
    left: list[bytes] = []
    unlink = Path.unlink

    def look(self: Path, missing_ok: bool = False) -> None:
        left.append(self.read_bytes())
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", look)
    log.wipe(iter([(1, 100, 2900)]))
    assert b"b" * 101 not in left[0]
    assert b"b" * 100 in left[0]
    assert not path.exists()
    assert not (tmp_path / "log").exists()


def test_arrays_come_back_as_they_were() -> None:
    values = {
        "a": np.arange(6, dtype=np.int64).reshape(2, 3),
        "scalar": np.array(1.5, dtype=np.float32),
        "empty": np.zeros((0, 4), dtype=np.uint8),
    }
    found, meta = arrays.decode(arrays.encode(values, {"x": [1, "y"]}))
    assert meta == {"x": [1, "y"]}
    assert list(found) == list(values)
    for name, value in values.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)
        assert found[name].shape == value.shape


def test_every_changed_byte_of_arrays_is_noticed() -> None:
    data = arrays.encode({"a": np.arange(4, dtype=np.int16)}, {})
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x40
        with pytest.raises(DecodeError):
            arrays.decode(bytes(changed))
    for length in range(len(data)):
        with pytest.raises(DecodeError):
            arrays.decode(data[:length])

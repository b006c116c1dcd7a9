"""The append-only report log of one round: a message is in it for good before its receipt.

The log is a folder of segment files, each allocated whole before it is used, so that a full disk
shows when a segment is started and never in the middle of a record. A record is

    0  magic "TFSR"    4  CRC-32 of the rest    8  sequence number    16  length    24  message

and starts on a multiple of eight. Reading stops at the first record that is not whole: after a
crash that is what had not been acknowledged. So that a damaged record is not taken for that, the
file `acknowledged` has the number of records of which somebody may have been told. Messages are
read as views of the mapped file, so a round of many reports takes page cache, not memory.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from torchfsl.errors import Error, RejectedSubmission

_HEADER: Final = struct.Struct("<4sIQQ")
_MAGIC: Final = b"TFSR"
_COUNT: Final = struct.Struct("<QI")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SEGMENT_BYTES: Final = 64 << 20
"""Default size of a segment file."""


class StoreFull(Error):
    """No room for another report. Everything acknowledged before is safe."""

    code = "store-full"


class StoreDamaged(Error):
    """The disk failed to write; the log takes nothing more."""

    code = "state-damaged"


def sync_folder(folder: Path) -> None:
    """Make names made, moved and deleted in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Segment:
    """One file, allocated and mapped whole."""

    def __init__(self, path: Path, size: int) -> None:
        """Open the file, or make it with `size` bytes."""
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(self.handle).st_size == 0:
                os.posix_fallocate(self.handle, 0, size)
                os.fsync(self.handle)
                sync_folder(path.parent)
        except OSError:
            os.close(self.handle)
            path.unlink(missing_ok=True)
            raise
        self.size = os.fstat(self.handle).st_size
        self.map = mmap.mmap(self.handle, self.size, access=mmap.ACCESS_READ)
        self.view = memoryview(self.map)

    def close(self) -> None:
        """Give the file back; views of it stay valid until they are dropped."""
        os.close(self.handle)


class ReportLog:
    """The messages of one round, in the order in which they came.

    One thread may append while another one wipes the log: it takes nothing more then.

    Args:
        folder: made when missing; a log that is there is read and continued.
        segment_bytes: size of a segment file.
        reserve_bytes: space on the disk that reports may not use, so that a round whose reports
            filled the disk can still be finished.

    Attributes:
        damage: what is wrong with a log that was read, or empty. Messages that were acknowledged
            are missing then, and the log takes no more.
    """

    def __init__(
        self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, reserve_bytes: int = 0
    ) -> None:
        self.folder = folder
        self._segment_bytes, self._reserve = segment_bytes, reserve_bytes
        self.damage = ""
        self._lock = threading.RLock()
        new = not folder.exists()
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        self._segments: list[_Segment] = []
        self._places: list[tuple[int, int, int]] = []  # segment, start, length of each message
        self._end = 0
        self._failed = False
        self._count = os.open(folder / "acknowledged", os.O_RDWR | os.O_CREAT, 0o600)
        if new:
            self._acknowledge()
            os.fsync(self._count)
            sync_folder(folder)
            sync_folder(folder.parent)
        for path in sorted(folder.glob("*.log")):
            if path.stat().st_size:
                self._segments.append(_Segment(path, 0))
        self._scan()

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, position: int) -> memoryview:
        segment, start, length = self._places[position]
        return self._segments[segment].view[start : start + length]

    def __iter__(self) -> Iterator[memoryview]:
        with self._lock:
            return iter([self[position] for position in range(len(self))])

    @property
    def num_bytes(self) -> int:
        """Bytes of all messages."""
        return sum(length for _, _, length in self._places)

    def changed(self) -> list[Path]:
        """Files in which a record is not as it was written."""
        places = ((self._segments[number], start) for number, start, _ in self._places)
        found = [part.path for part, at in places if _record_at(part, at - _HEADER.size) is None]
        return sorted(set(found))

    def append(self, messages: Sequence[bytes]) -> list[memoryview | StoreFull]:
        """Write messages; once this returns, those that came back as views survive a crash.

        Returns:
            For each message a view of it in the log, or why it was not taken.

        Raises:
            StoreDamaged: if the disk failed; no part of this call may be acknowledged.
            RejectedSubmission: the log was wiped or closed.
        """
        with self._lock:
            return self._append(messages)

    def wipe(self, spans: Iterator[tuple[int, int, int]]) -> None:
        """Overwrite secrets, then delete the log.

        Args:
            spans: (position, start, stop) of the secret bytes of messages.
        """
        with self._lock:
            for position, start, stop in spans:
                segment, offset, _ = self._places[position]
                os.pwrite(self._segments[segment].handle, bytes(stop - start), offset + start)
            for part in self._segments:
                if self.damage:  # what cannot be read may be secret
                    for start in range(0, part.size, 1 << 20):
                        os.pwrite(part.handle, bytes(min(1 << 20, part.size - start)), start)
                os.fsync(part.handle)
                part.path.unlink(missing_ok=True)
            self.close()
            (self.folder / "acknowledged").unlink(missing_ok=True)
            if self.folder.exists():
                self.folder.rmdir()
                sync_folder(self.folder.parent)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for segment in self._segments:
                segment.close()
            if self._count >= 0:
                os.close(self._count)
            self._segments, self._places, self._count = [], [], -1

    def _append(self, messages: Sequence[bytes]) -> list[memoryview | StoreFull]:
        if self._count < 0:
            raise RejectedSubmission(
                "the round has ended: the message came too late. Participate in the next round",
                code="too-late",
            )
        if self._failed or self.damage:
            raise StoreDamaged("an earlier write to the report log failed: restart the server")
        results: list[memoryview | StoreFull] = []
        touched: set[int] = set()
        first = len(self._places)
        try:
            for message in messages:
                try:
                    results.append(self._write(message))
                    touched.add(self._places[-1][0])
                except StoreFull as error:
                    results.append(error)
            for segment in touched:
                os.fdatasync(self._segments[segment].handle)
            self._acknowledge()
        except OSError as error:
            self._failed = True
            del self._places[first:]
            raise StoreDamaged(f"the report log cannot be written: {error}") from error
        return results

    def _acknowledge(self) -> None:
        """Note how many messages are on disk, before any is acknowledged.

        Not synced: it outlives the process, and after a loss of power `_scan` sees a number that
        is too low, never one that is too high.
        """
        number = struct.pack("<Q", len(self._places))
        os.pwrite(self._count, number + struct.pack("<I", zlib.crc32(number)), 0)

    def _write(self, message: bytes) -> memoryview:
        size = _HEADER.size + len(message)
        self._make_room(size)
        segment = self._segments[-1]
        rest = _HEADER.pack(_MAGIC, 0, len(self._places), len(message))[8:]
        crc = zlib.crc32(message, zlib.crc32(rest))
        os.pwritev(segment.handle, [_MAGIC + struct.pack("<I", crc) + rest, message], self._end)
        start = self._end + _HEADER.size
        self._places.append((len(self._segments) - 1, start, len(message)))
        self._end += size + -size % 8
        return segment.view[start : start + len(message)]

    def _make_room(self, size: int) -> None:
        if self._segments and self._end + size <= self._segments[-1].size:
            return
        wanted = max(self._segment_bytes, size)
        space = os.statvfs(self.folder)
        if space.f_bavail * space.f_frsize < wanted + self._reserve:
            raise StoreFull(
                f"less than {self._reserve + wanted} bytes are free on the disk of {self.folder}: "
                "the server refuses further reports of this round"
            )
        try:
            path = self.folder / f"{len(self._segments):06d}.log"
            self._segments.append(_Segment(path, wanted))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise StoreFull(f"the disk of {self.folder} is full: {error}") from error
        self._end = 0

    def _scan(self) -> None:
        """Find the whole records; the log goes on behind the last one, if none is missing."""
        rest, empty = 0, self._segments[len(self._segments) :]
        for number, segment in enumerate(self._segments):
            end = 0
            while (record := _record_at(segment, end)) and record[0] == len(self._places):
                start, length = end + _HEADER.size, record[1]
                self._places.append((number, start, length))
                end = start + length + -(length + _HEADER.size) % 8
            self._end = end
            rest += _num_records(segment, end)
            if not end:  # nothing behind an empty segment was ever written
                empty = self._segments[number + 1 :]
                rest += sum(_num_records(later, 0) for later in empty)
                break
        stored = os.pread(self._count, _COUNT.size + 1, 0)
        count, crc = _COUNT.unpack(stored) if len(stored) == _COUNT.size else (0, -1)
        num_whole = len(self._places)
        if zlib.crc32(stored[:8]) != crc:
            self.damage = "the number of acknowledged messages is not readable"
        elif rest or count > num_whole:
            self.damage = (
                f"of {count} acknowledged messages, {num_whole} before the damaged one and {rest} "
                "after it are readable"
            )
        else:
            for later in empty:
                later.close()
                later.path.unlink(missing_ok=True)
            del self._segments[len(self._segments) - len(empty) :]


def _record_at(segment: _Segment, at: int) -> tuple[int, int] | None:
    """Sequence number and length of the whole record at a place, or None."""
    if at + _HEADER.size > segment.size:
        return None
    magic, crc, sequence, length = _HEADER.unpack_from(segment.view, at)
    start = at + _HEADER.size
    if magic != _MAGIC or length > segment.size - start:
        return None
    if zlib.crc32(segment.view[at + 8 : start + length]) != crc:
        return None
    return sequence, length


def _num_records(segment: _Segment, at: int) -> int:
    """How many whole records begin in a segment at a place or behind it."""
    found = 0
    while (at := segment.map.find(_MAGIC, at)) >= 0:
        record = None if at % 8 else _record_at(segment, at)
        found += record is not None
        at += 1 if record is None else _HEADER.size + record[1]
    return found

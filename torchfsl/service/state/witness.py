"""How far a state has come, in a small file outside its folder.

A person who puts an older copy of a state folder in place, of one server or of both, makes the
servers forget their messages. A round that was opened could then be opened again over other
reports, and two such sums differ by the updates of single clients. If one server has a copy, the
other server notices. If both have copies, nothing inside the folders can notice. So each change of
the ledger is counted, and its number is kept here, where a copy of the folder does not reach. The
server refuses a ledger that is behind its rollback counter.

The file is two records of 512 bytes, written in turn, so that one is always whole:

    0  magic "TFSW"    4  identity of the ledger    20  generation    28  CRC-32 of the rest
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchfsl.service.state.records import sync_folder

IDENTITY_BYTES: Final = 16

_RECORD: Final = struct.Struct("<4s16sQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"TFSW"
_SLOT_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Progress:
    """The record of a rollback counter.

    Attributes:
        identity: of the ledger, drawn when it was made.
        generation: changes that were made to it.
    """

    identity: bytes
    generation: int


def counter_path(folder: Path, given: Path | None) -> Path:
    """Path of the rollback counter of a state folder: the given one, or `FOLDER.witness`."""
    return given or folder.with_name(folder.name + ".witness")


class Witness:
    """The rollback counter of one ledger.

    Args:
        path: outside the state folder; made with the first mark. Its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def read(self) -> Progress | None:
        """The newest whole record; None if there is no file, or none in it.

        Raises:
            OSError: the file cannot be read.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        records = [_decode(content[start:]) for start in (0, _SLOT_BYTES)]
        whole = [progress for progress in records if progress is not None]
        return max(whole, key=lambda progress: progress.generation, default=None)

    def mark(self, progress: Progress) -> None:
        """Store how far the ledger has come; on disk once this returns.

        Raises:
            OSError: it cannot be written.
        """
        if self._handle < 0:
            self._open()
        record = _RECORD.pack(_MAGIC, progress.identity, progress.generation)
        record += _CRC.pack(zlib.crc32(record))
        os.pwrite(self._handle, record, progress.generation % 2 * _SLOT_BYTES)
        os.fdatasync(self._handle)

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> None:
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(self._handle, 0o600)
        os.posix_fallocate(self._handle, 0, 2 * _SLOT_BYTES)
        os.fsync(self._handle)
        sync_folder(self.path.parent)


def _decode(content: bytes) -> Progress | None:
    """A record, or None if it is not whole."""
    size = _RECORD.size + _CRC.size
    if (
        len(content) < size
        or zlib.crc32(content[: _RECORD.size]) != _CRC.unpack_from(content, _RECORD.size)[0]
    ):
        return None
    magic, identity, generation = _RECORD.unpack_from(content)
    return Progress(identity, generation) if magic == _MAGIC else None

"""Messages, or sums over leaves, beyond a bounded window of memory, in a nameless temporary file.

A round holds every report until it ends, since the check's key is drawn only after it has closed.
Messages stay in memory until they have reached `window_bytes`, the one included that reaches them;
what comes after is written to files without a name, which vanish with the process, and read back
through views of them. Their pages leave the process's memory again whenever `release` is called.
Files lie in the system's folder for temporary files (`TMPDIR`) and hold what the messages hold,
master seeds included.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from typing import IO, Final

WINDOW_BYTES: Final = 1 << 26
"""Bytes of messages after which no more are kept in memory."""

_CHUNK_BYTES: Final = 1 << 26
_DONTNEED: Final[int | None] = getattr(mmap, "MADV_DONTNEED", None)


class Spool:
    """The messages of one round at one server."""

    def __init__(self, window_bytes: int = WINDOW_BYTES) -> None:
        """Hold nothing."""
        self._window_bytes = window_bytes
        self._file: IO[bytes] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all messages; files go once no view of them is left."""
        self.bytes_in_memory = 0
        self._chunks: list[mmap.mmap] = []
        self._used = 0
        self._close()

    def hold(self, message: bytes | memoryview) -> bytes | memoryview:
        """The same message, for as long as the round lasts; views of others' files stay as is.

        Raises:
            OSError: the folder for temporary files is full; nothing is held then.
        """
        size = len(message)
        if isinstance(message, memoryview):
            return message
        if self.bytes_in_memory < self._window_bytes:
            self.bytes_in_memory += size
            return message
        if not self._chunks or self._used + size > len(self._chunks[-1]):
            self._grow(max(size, _CHUNK_BYTES))
        assert self._file is not None
        self._file.seek(self._used)
        left = memoryview(message)
        while left:  # written, not copied into the mapping: a full disk is an error then, no signal
            left = left[self._file.write(left) :]
        start, self._used = self._used, self._used + size
        return memoryview(self._chunks[-1])[start : self._used]

    def release(self) -> None:
        """Let the system take back the pages of files; views go on to work."""
        if _DONTNEED is None:
            return
        for chunk in self._chunks:
            chunk.madvise(_DONTNEED)

    def _grow(self, size: int) -> None:
        self.release()
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(prefix="torchfsl-", buffering=0))
            file.truncate(size)
            self._chunks.append(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
            stack.pop_all()  # it stays open
        self._close()
        self._file, self._used = file, 0

    def _close(self) -> None:
        """Close the file that is written to; its mapping stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

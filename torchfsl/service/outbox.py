"""A report on its way, in a file, so that a client that is killed can send the same bytes again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from torchfsl.errors import DecodeError
from torchfsl.service import arrays
from torchfsl.service.vault import write_whole


class Outbox:
    """At most one report: its two messages, which hold master seeds. Readable by its owner only."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path

    def put(self, report: Mapping[int, bytes]) -> None:
        """Store both messages; once this returns they survive a crash."""
        parts = {str(p): np.frombuffer(message, np.uint8) for p, message in report.items()}
        write_whole(self._path, arrays.encode(parts, {}))

    def get(self) -> dict[int, bytes] | None:
        """The stored messages by server, or None."""
        try:
            parts, _ = arrays.decode(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except DecodeError:
            self.clear()
            return None
        return {int(party): message.tobytes() for party, message in parts.items()}

    def clear(self) -> None:
        """Overwrite and delete."""
        try:
            with self._path.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
                file.flush()
                os.fsync(file.fileno())
            self._path.unlink()
        except FileNotFoundError:
            return

"""A client's memory on disk: after it was killed, it sends the same bytes or nothing.

A client can send a report on its way again. It never begins the same round twice. Fresh trees in
this round would be a second, different message, for which servers drop the client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.service.state import arrays
from torchfsl.service.state.vault import write_whole


class Outbox:
    """At most one report: its two messages, which hold master seeds. Readable by its owner only.

    Args:
        path: of the file.
        plan: digest of the plan in hex. Rounds that were begun under another one do not count: a
            new task begins to number its rounds anew.
    """

    def __init__(self, path: Path, plan: str = "") -> None:
        self._path, self._plan = path, plan
        self._round_path = path.with_name(path.name + ".round")

    def put(self, report: Mapping[int, bytes]) -> None:
        """Store both messages; once this returns they survive a crash."""
        parts = {str(p): np.frombuffer(message, np.uint8) for p, message in report.items()}
        write_whole(self._path, arrays.encode(parts, {}))

    def begin(self, round_number: int) -> None:
        """Use a round up, for good, before the first message in it leaves.

        Raises:
            ProtocolError: it was begun before.
        """
        if round_number <= self.last_round():
            raise ProtocolError(
                f"this client had begun round {round_number} before an interruption: wait for the "
                "next round",
                code="interrupted-round",
            )
        write_whole(self._round_path, f"{round_number} {self._plan}".encode())

    def last_round(self) -> int:
        """The highest round that was begun under this plan, or -1."""
        try:
            number, _, plan = self._round_path.read_text().partition(" ")
        except FileNotFoundError:
            return -1
        return -1 if plan and self._plan and plan != self._plan else int(number)

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

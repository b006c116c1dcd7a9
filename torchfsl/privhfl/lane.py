"""One party's bytes in a batch: collected until it must wait, consumed as they are needed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


class Lane:
    """A party's end of the line to the other one.

    A program is a generator that yields what it has to send whenever it waits and is resumed with
    the next message. Messages are as long as the plan says, which is checked before they get here.
    """

    def __init__(self) -> None:
        self._out: list[Any] = []
        self._in = memoryview(b"")

    def send(self, data: Any) -> None:
        """Put bytes, or a contiguous array, behind those that wait."""
        self._out.append(data)

    def flush(self) -> bytes:
        """Everything that waits."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, size: int) -> Generator[bytes, memoryview, memoryview]:
        """The next `size` bytes, from the message at hand or, when that is used up, the next."""
        if not self._in:
            self._in = yield self.flush()
        assert len(self._in) >= size
        taken, self._in = self._in[:size], self._in[size:]
        return taken

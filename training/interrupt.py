"""Ctrl-C (SIGINT): a run stops after the round at hand, where it can write a checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

_STDERR: Final = 2
_TOLD: Final = (
    b"\nThe run stops after this round, with a checkpoint. Press Ctrl-C again to stop at once and "
    b"lose this round.\n"
)


class Interrupt:
    """While entered, the first Ctrl-C is noted; the second raises KeyboardInterrupt.

    Ctrl-C stays as it is where it is ignored or handled by others, and outside the main thread.

    Attributes:
        asked: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = self._handles = False

    def __enter__(self) -> Interrupt:
        """Handle Ctrl-C."""
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._handles = ours and _is_main_thread()
        if self._handles:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Let Ctrl-C raise KeyboardInterrupt again."""
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = True
        with contextlib.suppress(OSError):  # a terminal that is gone
            os.write(_STDERR, _TOLD)  # print() may be what this call interrupts


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Processes that start meanwhile ignore Ctrl-C from their first instruction on."""
    if not _is_main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

"""One round at a time on one handle, whatever threads ask."""

from __future__ import annotations

import threading
import weakref

from torchfsl.errors import ProtocolError


class Claim:
    """Which round has the model: taken in one step, so that no two threads take it together."""

    def __init__(self) -> None:
        """Free."""
        self._lock = threading.Lock()
        self._owner: weakref.ref[object] | None = None

    def take(self, owner: object) -> None:
        """Have it until `give_back`, or until the owner is gone.

        Raises:
            ProtocolError: another round has it.
        """
        with self._lock:
            if self._owner is not None and self._owner() is not None:
                raise ProtocolError(
                    "a round is open on this handle, which measures one at a time: a round of "
                    "another client on this model begins after this one's block; where clients "
                    "train in threads, give each a model and a handle of its own"
                )
            self._owner = weakref.ref(owner)

    def give_back(self) -> None:
        """Free it."""
        self._owner = None

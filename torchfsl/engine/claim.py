"""One round at a time on one model, whatever threads ask."""

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

    def take(self, owner: object) -> bool:
        """Have it until `give_back`, or until the owner is gone.

        Returns:
            Whether the owner before is gone without having given it back.

        Raises:
            ProtocolError: a round has it; nothing has changed.
        """
        with self._lock:
            if self._owner is not None and self._owner() is not None:
                raise ProtocolError(
                    "a round is open on this model, which measures one at a time: a round of "
                    "another client on this model begins after this one's block. For clients in "
                    "threads, make a model and a Federated for each"
                )
            dropped, self._owner = self._owner is not None, weakref.ref(owner)
            return dropped

    def is_of(self, owner: object) -> bool:
        """Whether this one has it."""
        return self._owner is not None and self._owner() is owner

    def give_back(self, owner: object) -> None:
        """Free it, if it is this owner's."""
        with self._lock:
            if self.is_of(owner):
                self._owner = None

"""One round at a time on one model, whatever threads and however many `Federated` ask."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final

from torch import nn

from torchfsl.errors import ProtocolError

_LOCK: Final = threading.Lock()


class Claim:
    """Which round has the model: taken in one step, so that no two threads take it together."""

    def __init__(self, model: nn.Module, drop: Callable[[], object]) -> None:
        """Free; `drop` is called for an owner that is gone without having given it back."""
        self._model, self._drop = model, drop
        self._owner: weakref.ref[object] | None = None

    def take(self, owner: object) -> None:
        """Have it until `give_back`, or until the owner is gone.

        Raises:
            ProtocolError: a round has it, or a module of it; nothing has changed.
        """
        with _LOCK:
            modules = list(self._model.modules())
            claims = {c for c in (_here(module) for module in modules) if c is not None}
            if any(claim._is_held for claim in claims):
                raise ProtocolError(
                    "a round is open on this model, which measures one at a time: a round of "
                    "another client on this model begins after this one's block. For clients in "
                    "threads, make a model and a Federated for each"
                )
            for claim in claims:
                claim._free()
                claim._drop()
            self._owner = weakref.ref(owner)
            for module in modules:
                _CLAIMS[module] = weakref.ref(self)

    def is_of(self, owner: object) -> bool:
        """Whether this one has it."""
        return self._owner is not None and self._owner() is owner

    def give_back(self, owner: object) -> None:
        """Free it, if it is this owner's."""
        with _LOCK:
            if self.is_of(owner):
                self._free()

    @property
    def _is_held(self) -> bool:
        return self._owner is not None and self._owner() is not None

    def _free(self) -> None:
        for module in [module for module in _CLAIMS if _here(module) is self]:
            del _CLAIMS[module]
        self._owner = None


_CLAIMS: Final = weakref.WeakKeyDictionary[nn.Module, weakref.ref[Claim]]()
"""By module the claim whose round has it: models that share modules share their parameters."""


def _here(module: nn.Module) -> Claim | None:
    found = _CLAIMS.get(module)
    return None if found is None else found()

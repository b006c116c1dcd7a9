"""The residuals of all clients that train one model, each apart from the others.

One client has a model in a deployment, many share one in a simulation. A client's residual
must never leave in another's report, so residuals are kept by client number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torchfsl.engine.residual import Residual
from torchfsl.errors import ParameterError

_LIMIT: Final = 1 << 30


class Residuals:
    """By client, its residual.

    Args:
        limit_bytes: beyond this the residuals that were not asked for longest wait in files of a
            private temporary folder, which goes when this object does. They are private data.
    """

    def __init__(self, limit_bytes: int = _LIMIT) -> None:
        """Start without residuals."""
        if limit_bytes < 0:
            raise ParameterError(f"limit_bytes is {limit_bytes}: give bytes, at least 0")
        self._limit = limit_bytes
        self._by_client: dict[int | None, Residual] = {}  # asked for longest ago first
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __repr__(self) -> str:
        return f"Residuals({len(self)} clients, {self.num_bytes} bytes in memory)"

    def __len__(self) -> int:
        return len(self._by_client)

    @property
    def num_bytes(self) -> int:
        """Memory they hold."""
        return sum(r.num_bytes for r in self._by_client.values())

    @property
    def only(self) -> Residual:
        """The one of the only client; before any was named, that of the client to come.

        Raises:
            ParameterError: there are several.
        """
        if len(self._by_client) > 1:
            raise ParameterError(
                f"{len(self._by_client)} clients trained this model, each with its own residual: "
                "fed.hooks.residuals.of(client_id)"
            )
        return next(iter(self._by_client.values()), None) or self.of(None)

    def of(self, client_id: int | None) -> Residual:
        """The residual of a client; None for one without a number."""
        mine = self._by_client.pop(client_id, None)
        if mine is None and list(self._by_client) == [None]:
            mine = self._by_client.pop(None)
        mine = Residual() if mine is None else mine
        self._make_room(mine)
        self._by_client[client_id] = mine
        return mine

    def state_dict(self) -> dict[int | None, dict[str, Any]]:
        """By client its state, fit for `torch.save`; without clients that have no residual."""
        states = {client: r.state_dict() for client, r in self._by_client.items()}
        return {client: state for client, state in states.items() if state["parts"]}

    def load_state_dict(self, state: Mapping[int | None, Mapping[str, Any]]) -> None:
        """Take over a `state_dict`.

        Raises:
            ParameterError: not a state of this class.
        """
        loaded: dict[int | None, Residual] = {}
        for client, one in state.items():
            loaded[client] = Residual()
            loaded[client].load_state_dict(one)
        self._by_client = loaded

    def _make_room(self, used: Residual) -> None:
        total = self.num_bytes + used.num_bytes
        for residual in self._by_client.values():
            if total <= self._limit:
                return
            total -= residual.num_bytes
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="torchfsl-residuals-")
            residual.spill(Path(self._folder.name))

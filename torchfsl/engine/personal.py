"""Tensors that stay at their client: user embeddings, personal heads, BatchNorm, local adapters.

They train like all others and are never sent. A model that one client trains has them where
they are, in the model; of several clients, in a simulation, each finds its own in its rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchfsl.engine.inventory import Inventory
from torchfsl.submodel.plan import check_number

Kept = tuple[torch.Tensor, torch.Tensor]
"""Rows that differ from the start: ids int64 [r] and values [r, ...]."""


class PersonalParts:
    """By client number the tensors of one, as far as they differ from those at attach."""

    def __init__(self, inventory: Inventory) -> None:
        """Copy what the tensors hold at the start."""
        tensors = {name: p.detach() for name, p in inventory.local.items()}
        self.tensors: dict[str, torch.Tensor] = {**tensors, **inventory.local_buffers}
        self._start = {name: tensor.clone() for name, tensor in self.tensors.items()}
        self._kept: dict[int | None, dict[str, Kept]] = {}
        self._here: int | None = None
        self._used = False

    @torch.no_grad()
    def switch_to(self, client_id: int | None) -> None:
        """Make the model hold the tensors of this client; keep those of the one before.

        A client that has taken part in no round has the tensors of attach.

        Raises:
            ParameterError: no client number.
        """
        if client_id is not None:
            client_id = check_number("client_id", client_id)
        if not self.tensors or (self._used and client_id == self._here):
            return
        if self._used:
            self._kept[self._here] = self._differences()
            self._write(self._kept.pop(client_id, {}))
        self._here, self._used = client_id, True

    def state_dict(self) -> dict[str, Any]:
        """The kept values of all clients, for `torch.save`, also of the current client.

        Law: after `load_state_dict` every client continues bit-identically.
        """
        kept = {**self._kept, self._here: self._differences()} if self._used else self._kept
        return {"here": self._here, "used": self._used, "start": self._start, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict`; the model holds the tensors of the client that was at hand."""
        self._here, self._used = state["here"], bool(state["used"])
        self._start = {name: value.clone() for name, value in state["start"].items()}
        self._kept = {client: dict(kept) for client, kept in state["kept"].items()}
        if self._used:
            self._write(self._kept.pop(self._here, {}))

    @torch.no_grad()
    def _write(self, mine: Mapping[str, Kept]) -> None:
        """Make the model hold the tensors of the start, except those of a client."""
        for name, tensor in self.tensors.items():
            tensor.copy_(self._start[name])
            if name in mine:
                ids, values = mine[name]
                _as_rows(tensor).index_copy_(0, ids.to(tensor.device), values.to(tensor))

    def _differences(self) -> dict[str, Kept]:
        kept = {}
        for name, tensor in self.tensors.items():
            now, start = _as_rows(tensor), _as_rows(self._start[name])
            moved = torch.nonzero((now != start).flatten(1).any(dim=1)).flatten()
            if moved.numel():
                kept[name] = (moved, now.index_select(0, moved).clone())
        return kept


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A view with rows: a scalar or vector has one value in each."""
    while tensor.dim() < 2:
        tensor = tensor.unsqueeze(-1)
    return tensor

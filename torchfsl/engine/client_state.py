"""What training leaves in one model and optimizer belongs to the client that trained.

Several clients may train one model in turn. Each has its own optimizer state, its own values in the
parameter groups (step counters, rates that a schedule in its block moved), its own integer buffers,
and starts without gradients. Changes that the caller makes between two blocks hold for all clients.

Tensors that stay at their client (user embeddings, personal heads, BatchNorm, local adapters) train
like all others and are never sent. A model that one client trains has them where they are, in the
model; of several clients, in a simulation, each finds its own in its rounds.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Inventory, clean_name
from torchfsl.submodel.plan_fields import check_number

Mode = Literal["own", "fresh"]
Groups = list[list[dict[str, Any]]]
"""By optimizer and group the values of a parameter group, parameters left out."""

Key = tuple[int, int, str]
"""Number of the optimizer, number of the parameter in it (-1 for none), name of the entry."""

_NO_CLIENT: Final = object()


@dataclass(slots=True)
class _Rows:
    """Rows of a tensor that differ from `base`, or from zero where the base has none."""

    ids: torch.Tensor
    values: torch.Tensor

    def onto(self, base: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """The whole tensor."""
        width = self.values.shape[1]
        whole = self.values.new_zeros(num_rows, width) if base is None else base.clone()
        return whole.index_copy_(0, self.ids, self.values)


@dataclass(slots=True)
class _State:
    """A client's state, or the state that new clients start from."""

    groups: Groups
    entries: dict[Key, Any] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


class ClientState:
    """Keeps the state of each client that trains one model.

    Attributes:
        mode: `own`: a client goes on with its own state in its next round. `fresh`: every block
            starts from the state before the first block.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], local: Collection[str] = ()
    ) -> None:
        """Nothing is copied before the first block; `local` buffers are kept by `PersonalParts`."""
        self.mode: Mode = "own"
        self._model, self._optimizers, self._local = model, optimizers, frozenset(local)
        self._base: _State | None = None
        self._kept: dict[int, _State] = {}
        self._here: object = _NO_CLIENT
        self._left: tuple[Groups, dict[Key, object], dict[int, tuple[int, int]]] | None = None
        self._inside = False

    def enter(self, client: int) -> None:
        """Make model and optimizers hold the state of `client`, before its block.

        A block that was never left (its start failed, or it was dropped) ends here.
        """
        if self._inside:
            self.leave()
        self._drop_gradients()
        self._switch_to(client)
        self._inside = True

    def leave(self) -> None:
        """Remember what the block left, to tell later changes of the caller from it."""
        self._inside = False
        gradients = {id(p): (id(g), g._version) for p, g in self._gradients()}
        self._left = self._groups(), self._fingerprint(), gradients

    def put_back(self) -> None:
        """After the last block: keep the state of its client and hold the first state again."""
        if self._base is None:
            return
        if self._inside:
            self.leave()
        self._drop_gradients()
        self._take_over_changes(self._base)
        self._keep(self._base)
        self._start_from(self._base)

    def state_dict(self) -> dict[str, Any]:
        """For `torch.save`: the first state, and by client what differs from it."""
        if self._base is not None and not self._inside:
            self._take_over_changes(self._base)
            assert self._left is not None
            self._left = self._groups(), self._fingerprint(), self._left[2]
        base = self._now() if self._base is None else self._base
        kept = dict(self._kept)
        if self.mode == "own" and isinstance(self._here, int):
            kept[self._here] = self._differences(base)
        return {"base": _packed(base), "kept": {c: _packed(s) for c, s in kept.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict`; model and optimizers hold the first state then."""
        self._kept = {client: _unpacked(one) for client, one in state["kept"].items()}
        self._start_from(_unpacked(state["base"]))

    def _switch_to(self, client: int) -> None:
        if self._base is None:
            self._base, self._here = self._now(), client
            return
        self._take_over_changes(self._base)
        if client == self._here and self.mode == "own":
            return
        self._keep(self._base)
        own = self._kept.pop(client, None) if self.mode == "own" else None
        self._write(self._base, own)
        self._here = client

    def _start_from(self, base: _State) -> None:
        self._write(base, None)
        self._base, self._here = base, _NO_CLIENT
        self.leave()

    def _keep(self, base: _State) -> None:
        """Keep the state of the client at hand."""
        if self.mode == "own" and isinstance(self._here, int):
            self._kept[self._here] = self._differences(base)

    def _parameters(self) -> list[tuple[int, int, Optimizer, nn.Parameter]]:
        return [
            (number, place, optimizer, parameter)
            for number, optimizer in enumerate(self._optimizers)
            for place, parameter in enumerate(
                p for g in optimizer.param_groups for p in g["params"]
            )
        ]

    def _gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        trained = [parameter for *_, parameter in self._parameters()]
        every = {id(p): p for p in [*self._model.parameters(), *trained]}
        return [(p, p.grad) for p in every.values() if p.grad is not None]

    def _drop_gradients(self) -> None:
        """A block starts without the gradients that a block before it left."""
        if self._left is None:
            return
        for parameter, grad in self._gradients():
            if self._left[2].get(id(parameter)) == (id(grad), grad._version):
                parameter.grad = None

    def _groups(self) -> Groups:
        return [[copy.deepcopy(_settings(g)) for g in _groups_of(o)] for o in self._optimizers]

    def _entries(self) -> dict[Key, Any]:
        entries = {
            (number, place, name): value
            for number, place, optimizer, parameter in self._parameters()
            for name, value in optimizer.state.get(parameter, {}).items()
        }
        for number, optimizer in enumerate(self._optimizers):  # state of no parameter
            named = {name: v for name, v in optimizer.state.items() if isinstance(name, str)}
            entries |= {(number, -1, name): value for name, value in named.items()}
        return entries

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Integer and bool buffers by name; floating-point ones are averaged or left alone."""
        return {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if not (buffer.is_floating_point() or buffer.is_complex())
            and clean_name(name) not in self._local
        }

    def _now(self) -> _State:
        entries = {key: _copied(value) for key, value in self._entries().items()}
        buffers = {name: buffer.clone() for name, buffer in self._buffers().items()}
        return _State(self._groups(), entries, buffers)

    def _fingerprint(self) -> dict[Key, object]:
        return {
            key: (id(value), value._version) if isinstance(value, torch.Tensor) else repr(value)
            for key, value in self._entries().items()
        }

    def _take_over_changes(self, base: _State) -> None:
        """Let changes of the caller since the last block hold for all clients."""
        if self._left is None:
            return
        groups, fingerprint, _ = self._left
        for number, optimizer in enumerate(self._optimizers):
            for place, group in enumerate(_groups_of(optimizer)):
                left = groups[number][place]
                for name, value in _settings(group).items():
                    if not (name in left and _equal(left[name], value)):
                        for state in (base, *self._kept.values()):
                            state.groups[number][place][name] = copy.deepcopy(value)
        if self._fingerprint() != fingerprint:  # loaded or cleared between two blocks
            base.entries = {key: _copied(value) for key, value in self._entries().items()}
            for state in self._kept.values():
                state.entries = dict(base.entries)

    def _differences(self, base: _State) -> _State:
        """The state of the client at hand; of tables only the rows that differ from the base."""
        shapes = {(n, place): p.shape for n, place, _, p in self._parameters()}
        entries: dict[Key, Any] = {}
        for key, value in self._entries().items():
            by_row = type(value) is torch.Tensor and value.layout is torch.strided
            if by_row and value.dim() == 2 and value.shape == shapes.get(key[:2]):
                entries[key] = _changed_rows(value, base.entries.get(key))
            else:
                entries[key] = _copied(value)
        buffers = {name: buffer.clone() for name, buffer in self._buffers().items()}
        return _State(self._groups(), entries, buffers)

    @torch.no_grad()
    def _write(self, base: _State, own: _State | None) -> None:
        """Write the base, or a client's own state, to optimizers and buffers."""
        state = base if own is None else own
        for optimizer, groups in zip(self._optimizers, state.groups, strict=True):
            for group, values in zip(_groups_of(optimizer), groups, strict=True):
                for name in [name for name in _settings(group) if name not in values]:
                    del group[name]
                group.update(copy.deepcopy(values))
        mine: dict[tuple[int, int], dict[str, Any]] = {}
        for (number, place, name), value in state.entries.items():
            mine.setdefault((number, place), {})[name] = value
        for number, place, optimizer, parameter in self._parameters():
            optimizer.state.pop(parameter, None)
            if entries := mine.get((number, place)):
                optimizer.state[parameter] = {
                    name: value.onto(base.entries.get((number, place, name)), len(parameter))
                    if isinstance(value, _Rows)
                    else _copied(value)
                    for name, value in entries.items()
                }
        for number, optimizer in enumerate(self._optimizers):
            named: dict[Any, Any] = optimizer.state
            for name in [name for name in named if isinstance(name, str)]:
                del named[name]
            named |= {n: _copied(value) for n, value in mine.get((number, -1), {}).items()}
        for name, buffer in self._buffers().items():
            if name in state.buffers:
                buffer.copy_(state.buffers[name])


def _groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The places of an optimizer's settings and counters: its groups, then its attributes."""
    return [*optimizer.param_groups, vars(optimizer)]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and counters of a group; of attributes, those that are numbers or tensors."""
    if "params" in group:
        return {name: value for name, value in group.items() if name != "params"}
    kinds = (bool, int, float, torch.Tensor)
    return {name: value for name, value in group.items() if isinstance(value, kinds)}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _changed_rows(value: torch.Tensor, base: Any) -> _Rows:
    changed = value != 0 if base is None else value != base
    ids = torch.nonzero(changed.any(dim=1)).flatten()
    return _Rows(ids, value.detach().index_select(0, ids))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(type(one) is type(other) and one == other)


def _packed(state: _State) -> dict[str, Any]:
    """Plain containers, which `torch.load` takes with `weights_only`."""
    entries = [
        (*key, "rows", (v.ids, v.values)) if isinstance(v, _Rows) else (*key, "value", v)
        for key, v in state.entries.items()
    ]
    return {"groups": copy.deepcopy(state.groups), "entries": entries, "buffers": state.buffers}


def _unpacked(state: Mapping[str, Any]) -> _State:
    entries = {
        (number, place, name): _Rows(*value) if kind == "rows" else value
        for number, place, name, kind, value in state["entries"]
    }
    return _State(copy.deepcopy(state["groups"]), entries, dict(state["buffers"]))


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

"""A model during a round: its tables, other parameters and buffers, and the steps between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Inventory
from torchfsl.engine.policies import Rows
from torchfsl.engine.watch.absent import Asked
from torchfsl.engine.watch.guards import Guards
from torchfsl.engine.watch.hooks import LookupHook, StepHooks
from torchfsl.engine.watch.optimizers import owner
from torchfsl.engine.watch.rest import BufferWatch, HiddenGradients, RestWatch, unscale_factor
from torchfsl.engine.watch.snapshot import HeldRows
from torchfsl.engine.watch.table import Check, Source, TableChange, TableWatch
from torchfsl.errors import ProtocolError


class Removable(Protocol):
    """A registered hook."""

    def remove(self) -> None:
        """Unregister it."""


class Recorder:
    """Records what steps change, from `begin` to `end`; in between a `hooks.StepListener`.

    Attributes:
        tables: the row tables under watch.
        recording: between `begin` and `end`.
        num_steps: optimizer steps in this round.
        present: by table name, the ids of the only rows that the client holds; None for all.
    """

    present: dict[str, torch.Tensor] | None
    _changes: dict[str, TableChange] | None

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        inventory: Inventory,
        guards: Guards,
        *,
        rows: Rows | None,
        source: Source,
        check: Check,
        noised: bool,
        held: HeldRows,
    ) -> None:
        """Nothing is recorded before `begin`.

        Args:
            model: unwrapped.
            optimizers: unwrapped.
            inventory: of the model.
            guards: of both.
            rows: policy of the tables; None where there are none.
            source: see `Settings`.
            check: see there.
            noised: whether Opacus adds noise to the gradients.
            held: which rows the client holds between rounds.
        """
        self._optimizers, self._inventory, self._guards = optimizers, inventory, guards
        self._rows, self.source, self._noised = rows, source, noised
        self.tables: list[TableWatch] = []
        if rows is not None:
            for table in inventory.all_tables:
                trainer = owner(optimizers, table.weight)
                watch = TableWatch(
                    table, rows, trainer, source=source, check=check, noised=noised, held=held
                )
                self.tables.append(watch)
        self._rest, self._buffers = RestWatch(inventory.rest), BufferWatch(model)
        self._local = RestWatch(inventory.local)
        self._hidden = HiddenGradients()
        self.num_steps = 0
        self.close()

    def register(self, keeps: object) -> list[Removable]:
        """Put hooks on optimizers and lookups; `keeps` lives as long as an optimizer has them."""
        hooks: list[Removable] = [StepHooks(o, self, keeps=keeps) for o in self._optimizers]
        if self._rows is not None and self._rows.find == "hooks":
            for watch in self.tables:
                hook = LookupHook(watch.note_lookup)
                for module in watch.table.modules:
                    hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        return hooks

    # --- the round ----------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, present: Mapping[str, torch.Tensor] | None, asked: Mapping[str, Asked]) -> None:
        """Take the current state as the start of a round; see `Hooks.begin_round`."""
        self.present = None if present is None else dict(present)
        for watch in self.tables:
            name = watch.table.name
            watch.begin(None if present is None else present[name], asked.get(name))
        for watched in (self._rest, self._local, self._buffers):
            watched.begin()
        self._guards.begin()
        self.num_steps = 0
        self.recording = self._began = True

    def end(self) -> dict[str, TableChange]:
        """Stop recording: how the tables changed, by name. May be called again.

        Raises:
            ParameterError: something moved that would be lost.
            ProtocolError: no round was begun, or the model was restored already.
        """
        if not self._began:
            raise ProtocolError(
                "there is no open round: call begin_round() first, and call detach() only after "
                "the round"
            )
        self.recording = False
        self._guards.check_nothing_new()
        self._guards.check_bystanders()
        if self.source == "gradient":
            self._rest.check_still()
        if self._changes is None:
            self._changes = {w.table.name: w.finish() for w in self.tables}
        return self._changes

    def rest_changes(self, names: Collection[str]) -> list[torch.Tensor]:
        """How parameters outside tables changed, or their gradients: float64, in their order."""
        found = self._rest.gradients() if self.source == "gradient" else self._rest.deltas()
        return [c for n, c in zip(self._inventory.rest, found, strict=True) if n in names]

    def buffer_changes(self) -> list[torch.Tensor]:
        """How the floating-point buffers changed: float64, in order.

        Raises:
            ParameterError: one was replaced by another tensor.
        """
        return [self._buffers.delta(n, b) for n, b in self._inventory.buffers.items()]

    @torch.no_grad()
    def restore(self) -> None:
        """Put parameters and buffers back to the start of the round, which ends."""
        if not self._began:
            return
        for watch in self.tables:
            watch.restore()
        for watched in (self._rest, self._local, self._buffers):
            watched.restore()
        self.close()

    def close(self) -> None:
        """End the round where the model stands; drop what was saved."""
        self._hidden.show()
        for watch in self.tables:
            watch.close()
        for watched in (self._rest, self._local, self._buffers):
            watched.close()
        self.present = self._changes = None
        self.recording = self._began = False

    def check_closed(self) -> None:
        """Refuse to write to the model while changes are measured.

        Raises:
            ProtocolError: a round is open, whose update would be lost.
        """
        if self.recording:
            raise ProtocolError(
                "a round is open, and torchfsl would send the loaded values as an update: load "
                "before or after the block of the round. If another client trains this model, "
                "wait until its round ends"
            )

    # --- steps --------------------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """See `hooks.StepListener`."""
        if not self.recording:
            return
        if not self._noised:
            self._guards.check_not_noised()
        self.num_steps += 1
        if self.source == "gradient" or any(watch.looks_at_gradient for watch in self.tables):
            self._look_at_gradients(optimizer)

    @torch.no_grad()
    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        factor = unscale_factor(optimizer) if self.source == "gradient" else None
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for watch in self.tables:
            if id(watch.table.weight) in mine:
                watch.before_step(factor)
        if self.source == "gradient":
            self._rest.capture(optimizer, factor)
            self._hidden.hide(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """See `hooks.StepListener`."""
        self._hidden.show(optimizer)

"""A model and its optimizers with hooks on: from training steps to a sparse update.

The order of a round: `begin_round`, the user's own training, `update`, and `restore` where the
model is to go back to where the round began. Between rounds the hooks do nothing.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy.typing as npt
import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.choosing import choose_blocks, choose_rows, dense_rows, flatten, sample_blocks
from torchfsl.engine.client_state import ClientState, PersonalParts
from torchfsl.engine.exchange import Exchange
from torchfsl.engine.hints import ClipWarning
from torchfsl.engine.inventory import clean_name, take_inventory, unwrap
from torchfsl.engine.lookups import Call, find_rows
from torchfsl.engine.policies import BinTop, BlockSample, Dense
from torchfsl.engine.residual import Residual, Residuals
from torchfsl.engine.settings import Settings
from torchfsl.engine.status import Status, explain_memory, warn_at_attach
from torchfsl.engine.watch.absent import Asked
from torchfsl.engine.watch.guards import Guards
from torchfsl.engine.watch.hooks import is_hooked, register_saving
from torchfsl.engine.watch.optimizers import (
    as_optimizers,
    check_gradient_settings,
    check_optimizer,
    check_row_by_row,
    check_rows,
    is_opacus,
    owner,
    unwrap_optimizer,
)
from torchfsl.engine.watch.recorder import Recorder
from torchfsl.engine.watch.snapshot import HeldRows
from torchfsl.engine.watch.table import TableChange
from torchfsl.errors import ParameterError, ProtocolError, expect_a
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import BUFFERS, Segment
from torchfsl.submodel.update import RawSegment


class Hooks:
    """Hooks on one model and its optimizers."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        settings: Settings | None = None,
        *,
        local: Sequence[str] = (),
    ) -> None:
        """Validate and register hooks; nothing else changes.

        Attach a compiled model before its first call: hooks added later never fire in it.

        Args:
            model: any module.
            optimizer: the one that trains it, or all of them.
            settings: what is sent, and how; the defaults of `Settings` when None.
            local: names of parameters, buffers or modules (`users`, `head.2.weight`) that train
                but stay at the client: they are in no plan. If several clients train one model,
                each has its own, which start from the current ones.

        Raises:
            ParameterError: it cannot work; the message names parameter, reason and remedy.
        """
        expect_a(nn.Module, model, "model", "pass a torch.nn.Module first, the optimizer second")
        optimizers = as_optimizers(optimizer)
        if isinstance(local, str):
            raise ParameterError(f"local= is the string {local!r}: pass a list, local=[{local!r}]")
        self.settings = settings = Settings() if settings is None else settings
        self.rows, self.rest = settings.rows, settings.rest
        self.model = unwrap(model)
        self.residuals, self.held_rows = Residuals(), HeldRows()
        self.claim = Claim(self.model, self.close_round)
        self._noised = any(is_opacus(o) for o in optimizers)
        self.optimizers = [unwrap_optimizer(o) for o in optimizers]
        names = {id(p): clean_name(n) for n, p in self.model.named_parameters()}
        for optimizer in self.optimizers:
            check_optimizer(optimizer, names)
        inside = self.model, self.optimizers, self.rows, tuple(local)
        take = functools.partial(take_inventory, *inside)
        self.inventory = take()
        self.validate()
        parts = tuple(settings.encodings) if isinstance(settings.rest, Dense) else ()
        self.exchange = Exchange(self.inventory, settings.buffers == "average", parts)
        self.personal, self.clips = PersonalParts(self.inventory), ClipWarning()
        self.states = ClientState(self.model, self.optimizers, self.inventory.local_buffers)
        self._guards = Guards(self.model, self.optimizers, self.inventory, take)
        self.recorder = Recorder(
            self.model,
            self.optimizers,
            self.inventory,
            self._guards,
            rows=self.rows,
            source=settings.source,
            check=settings.check,
            noised=self._noised,
            held=self.held_rows,
        )
        warn_at_attach(self.model, self.inventory, hooked=is_hooked(self.model))
        self._rounds, self._probed = 0, set[str]()
        tables, held = self.inventory.all_tables, self.held_rows
        self._hooks = self.recorder.register(keeps=self)
        self._hooks += register_saving(self.model, tables, held, self.recorder.check_closed)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "torchfsl.Federated cannot be pickled: send model, optimizer, fed.plan and "
            "fed.state_dict(). The other process makes torchfsl.Federated(model, optimizer, "
            "plan=plan) and calls its load_state_dict(state)"
        )

    def __repr__(self) -> str:
        parts = [
            f"{len(self.recorder.tables)} tables by row",
            f"{len(self.inventory.rest)} other parameters",
        ]
        if left := self.exchange.left_buffers:
            some = ", ".join(left[:2]) + ", ..." * (len(left) > 2)
            parts.append(f"{len(left)} buffers neither sent nor loaded ({some})")
        return f"Hooks({type(self.model).__name__}, {', '.join(parts)})"

    # --- what is there ------------------------------------------------------------------------

    def server_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the tensors that servers hold, as NumPy arrays with the plan's dtypes.

        Raises:
            ParameterError: a tensor holds NaN, as tables do after a private retrieval, or inf.
        """
        return self.exchange.server_state()

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Overwrite the model's tensors, in place, by those of a whole model: `ServerModel.state`.

        Raises:
            ParameterError: a tensor is missing, unknown, of another shape, not of floating-point
                numbers, or holds NaN or infinite values; nothing is changed then.
            ProtocolError: a round is open, whose update would be lost.
        """
        self.recorder.check_closed()
        self.exchange.check_whole(state)
        self.exchange.load(state)

    def rows_of(self, batches: Iterable[Any], call: Call | None = None) -> dict[str, torch.Tensor]:
        """The rows that batches look up, found by a pass without gradients.

        The model runs on each batch in evaluation mode; what it computes is dropped. Rows that
        depend on chance in training are not seen.

        Args:
            batches: as the training loop gets them, a list or a DataLoader. A tuple becomes the
                model's arguments, a mapping its keywords; what `forward` does not take, labels
                for example, is left out.
            call: how the model is called with a batch where that is different.

        Returns:
            By table name distinct ids: int64, increasing, without padding.

        Raises:
            ParameterError: the model does not take the batches.
            ProtocolError: a round is open.
        """
        self.recorder.check_closed()
        tables, held = self.inventory.all_tables, self.held_rows
        with held.dry():
            here = {table.name: held.of(table) for table in tables}
            return find_rows(self.model, tables, batches, call, here)

    def complete(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Give rows that are absent after private retrievals their values of `state`, in place.

        All other values stay as the client trained them.

        Args:
            state: of the servers' model, `ServerModel.state`.

        Raises:
            ParameterError: a table is missing there, of another shape or kind, or not finite.
            ProtocolError: a round is open.
        """
        self.recorder.check_closed()
        self.exchange.complete(state)

    @property
    def attached(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._hooks)

    @property
    def rounds(self) -> int:
        """Rounds begun so far."""
        return self._rounds

    @property
    def residual(self) -> Residual:
        """The unsent update of the only client of this model; of several see `residuals`."""
        return self.residuals.only

    def status(self) -> Status:
        """The state of the hooks and of the round."""
        watches = self.recorder.tables
        return Status(
            attached=self.attached,
            open=self.recorder.recording,
            rounds=self._rounds,
            steps=self.recorder.num_steps,
            saved_rows={w.table.name: w.num_saved for w in watches},
            saved_bytes={w.table.name: w.num_bytes for w in watches},
            copied_tables=[w.table.name for w in watches if w.copies_table],
            frozen=list(self.inventory.frozen),
            residual_bytes=self.residuals.num_bytes,
        )

    def explain_memory(self, plan: SubmodelPlan) -> list[str]:
        """Lines about a client's memory in rounds of `plan`, one for each part of the model."""
        return explain_memory(plan, self.inventory, self.recorder.tables, self.rows, self.rest)

    def validate(self) -> None:
        """Check again that the optimizers move nothing that would not be sent.

        Raises:
            ParameterError: with parameter, reason and remedy.
        """
        if self.settings.source == "gradient":
            check_gradient_settings(self.optimizers)
        if self.rows is None:
            return
        for table in self.inventory.all_tables:
            check_rows(owner(self.optimizers, table.weight), table, self.rows, self._noised)

    def check_unchanged(self) -> None:
        """Refuse another set of trained parameters than the one at attach, with ParameterError."""
        self._guards.check_unchanged()

    def check_row_by_row(self, retrieving: Iterable[Segment]) -> None:
        """Check, once for each table, that the optimizer steps fetched rows one by one.

        Args:
            retrieving: segments whose rows clients fetch.

        Raises:
            ParameterError: if the optimizer steps them otherwise; see `check_row_by_row` of
                `watch.optimizers`.
        """
        if self.settings.source == "gradient":
            return
        for segment in retrieving:
            for table in self.inventory.tables.get(segment.name, ()):
                if table.name not in self._probed:
                    check_row_by_row(owner(self.optimizers, table.weight), table)
                    self._probed.add(table.name)

    def remove(self) -> None:
        """Take all hooks away; the model and the optimizers are as if never attached."""
        self.close_round()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """The residuals, personal parts, states by client and round count, for `torch.save`."""
        return {
            "residuals": self.residuals.state_dict(),
            "personal": self.personal.state_dict(),
            "states": self.states.state_dict(),
            "layout": self.exchange.layout,
            "rounds": self._rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Args:
            state: that mapping, of a model with the same table shapes.

        Raises:
            ParameterError: if it is not a `state_dict`, or has other table shapes.
            ProtocolError: a round is open.
        """
        self.recorder.check_closed()
        self.exchange.check_state(state)
        self.residuals.load_state_dict(state["residuals"])
        self.personal.load_state_dict(state["personal"])
        self.states.load_state_dict(state["states"])
        self._rounds = int(state["rounds"])

    # --- the round ----------------------------------------------------------------------------

    def begin_round(
        self,
        present: Mapping[str, torch.Tensor] | None = None,
        asked: Mapping[str, Asked] | None = None,
    ) -> None:
        """Take the current state as the start of a round and record from here on.

        Args:
            present: by table name, the ids of the only rows that the client holds (int64,
                increasing), after a private retrieval; None when it holds every row.
            asked: by table name what that retrieval asked for, for messages.

        Raises:
            ParameterError: the set of trained parameters or a weight decay changed since attach.
            ProtocolError: hooks were removed.
        """
        if not self._hooks:
            raise ProtocolError(
                "detach() removed the hooks of this Federated: make a new torchfsl.Federated"
            )
        self.close_round()
        self.check_unchanged()
        self.validate()
        self.recorder.begin(present, asked or {})
        self._rounds += 1

    def update(
        self,
        plan: SubmodelPlan,
        *,
        residual: Residual | None = None,
        round_number: int = 0,
        seed: bytes | None = None,
    ) -> dict[str, RawSegment]:
        """What changed since `begin_round`, cut to the plan's budgets.

        Ends the recording. Staged into `residual` is what is left out; `residual.settle` it once
        the update has been sent, or `residual.discard` it.

        Args:
            plan: made for this model.
            residual: the client's; None drops what is left out, and raises where that is rows.
            round_number: decides the positions of `RandomK`, and the bins of `BinTop`.
            seed: decides those of `BlockSample`; None takes the system's generator.

        Returns:
            One entry for every segment of the plan; values are float64.

        Raises:
            ParameterError: values are NaN or infinite, untouched rows changed, or the plan does
                not fit the model.
            ProtocolError: no round was begun, or the model was restored already.
        """
        changes = self.recorder.end()
        self.exchange.check_plan(plan)
        return {
            segment.name: _choose(self, plan, segment, changes, residual, round_number, seed)
            for segment in plan.segments
        }

    def restore(self) -> None:
        """Put parameters and buffers back to the start of the round, which ends."""
        self.recorder.restore()

    def close_round(self) -> None:
        """End the round where the model stands; drop what was saved."""
        self.recorder.close()


def _choose(
    hooks: Hooks,
    plan: SubmodelPlan,
    segment: Segment,
    changes: Mapping[str, TableChange],
    residual: Residual | None,
    round_number: int,
    seed: bytes | None,
) -> RawSegment:
    """The part of one segment that is sent."""
    if segment.name == BUFFERS:
        change = flatten(hooks.recorder.buffer_changes(), 1)
        return choose_blocks(segment, change, None, None, round_number)
    if segment.name not in hooks.inventory.tables:
        mine = {tensor.name for tensor in segment.tensors}
        change = flatten(hooks.recorder.rest_changes(mine), segment.tau)
        policy = None if segment.is_dense else hooks.rest
        if isinstance(policy, BlockSample):
            return sample_blocks(plan, segment, change, seed)
        bins = plan.public_bins(segment, round_number) if isinstance(policy, BinTop) else None
        return choose_blocks(segment, change, policy, residual, round_number, bins)
    assert hooks.rows is not None
    group = hooks.inventory.tables[segment.name]
    parts = [(t.offset, changes[t.name]) for t in group]
    if segment.is_dense:
        return dense_rows(segment, parts, [t.num_rows for t in group])
    held = hooks.recorder.present
    present = None
    if held is not None:
        present = torch.cat([held[t.name].cpu() + t.offset for t in group])
    return choose_rows(segment, parts, hooks.rows, residual, round_number, present=present)


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
                    "a round is open on this model, and a model can be in one round at a "
                    "time: leave the block of that round first. If clients run in threads, make a "
                    "model and a Federated for each client"
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

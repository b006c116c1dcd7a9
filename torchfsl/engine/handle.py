"""A model and its optimizers under observation: from training steps to a sparse update.

The order of a round: `begin_round`, the user's own training, `update`, and `restore` where the
model is to go back to where the round began. Between rounds the hooks do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.choosing import choose_blocks, choose_rows, dense_rows, flatten
from torchfsl.engine.exchange import BUFFERS, Exchange
from torchfsl.engine.inventory import Inventory, clean_name, take_inventory, unwrap
from torchfsl.engine.memory import explain_memory
from torchfsl.engine.policies import RestPolicy, Rows
from torchfsl.engine.residual import Residual
from torchfsl.engine.watch.guards import Guards
from torchfsl.engine.watch.hooks import LookupHook, StepHooks
from torchfsl.engine.watch.optimizers import (
    check_optimizer,
    check_rows,
    is_opacus,
    owner,
    unwrap_optimizer,
)
from torchfsl.engine.watch.rest import BufferWatch, HiddenGradients, RestWatch, unscale_factor
from torchfsl.engine.watch.snapshot import HeldRows, Snapshot
from torchfsl.engine.watch.table import Check, Source, TableChange, TableWatch
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import Segment, TensorSpec
from torchfsl.submodel.update import RawSegment


@dataclass(frozen=True, slots=True)
class Status:
    """What `Handle.status` reports.

    Attributes:
        attached: hooks are in place.
        open: a round is being recorded.
        rounds: rounds begun.
        steps: optimizer steps in this round.
        saved_rows: rows saved in this round, by table; counts, never ids.
        saved_bytes: memory held for this round's tables, by table.
        copied_tables: tables kept whole during a round, because the optimizer moves every row.
        frozen: parameters that are not part of the update.
        residual_bytes: memory of the handle's own residual.
    """

    attached: bool
    open: bool
    rounds: int
    steps: int
    saved_rows: dict[str, int]
    saved_bytes: dict[str, int]
    copied_tables: list[str]
    frozen: list[str]
    residual_bytes: int


class Handle:
    """Hooks on one model and its optimizers. Made by `SubmodelEngine.attach`."""

    _present: dict[str, torch.Tensor] | None
    _changes: dict[str, TableChange] | None

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        rows: Rows | None,
        rest: RestPolicy,
        average_buffers: bool,
        source: Source,
        check: Check,
        explain: Callable[[SubmodelPlan], str],
    ) -> None:
        """Validate and register hooks; see `SubmodelEngine` for the arguments.

        `explain` describes a plan of the protocol at hand.
        """
        self._explain = explain
        self.model = unwrap(model)
        self.rows, self.rest, self.source = rows, rest, source
        self.residual = Residual()
        self._noised = any(is_opacus(o) for o in optimizers)
        self.optimizers = [unwrap_optimizer(o) for o in optimizers]
        self._check = check
        names = {id(p): clean_name(n) for n, p in self.model.named_parameters()}
        for optimizer in self.optimizers:
            check_optimizer(optimizer, names)
        self.inventory = self._take_inventory()
        self.validate()
        self.exchange = Exchange(self.inventory, average_buffers)
        self._watches = self._make_watches()
        self._rounds = self._steps = 0
        self._rest, self._buffers = RestWatch(self.inventory.rest), BufferWatch(self.model)
        self._hidden, self._held = HiddenGradients(), HeldRows()
        self.close_round()
        self._guards = Guards(self.model, self.optimizers, self.inventory)
        self._hooks = self._register()

    def __repr__(self) -> str:
        return (
            f"Handle({type(self.model).__name__}, {len(self._watches)} tables by row, "
            f"{len(self.inventory.rest)} other parameters)"
        )

    # --- what is there ------------------------------------------------------------------------

    @property
    def segment_tensors(self) -> dict[str, tuple[TensorSpec, ...]]:
        """Segments and their tensors as a plan describes them."""
        return self.exchange.segment_tensors

    def server_state(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the tensors that servers hold, as NumPy arrays with the plan's dtypes.

        Raises:
            ParameterError: a tensor holds NaN, as tables do after a private retrieval.
        """
        return self.exchange.server_state()

    def load(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Overwrite tensors by name, in place.

        Raises:
            ParameterError: no tensor, an unknown name, or another shape; nothing is changed then.
            ProtocolError: a round is open, whose update would be lost.
        """
        if not state:
            raise ParameterError("no tensors to load: pass ServerModel.state or server_state()")
        self.load_clear(state)

    def load_clear(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """`load`, also of nothing: in a round every tensor may be one whose rows are retrieved."""
        if self._recording:
            raise ProtocolError(
                "a round is open and measures changes from its start: load before it or after"
            )
        self.exchange.load(state)

    @property
    def attached(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._hooks)

    @property
    def rounds(self) -> int:
        """Rounds begun so far."""
        return self._rounds

    @property
    def held_rows(self) -> HeldRows:
        """Which rows hold numbers after private retrievals."""
        return self._held

    def snapshot(self) -> Snapshot:
        """Parameters and buffers as they are now, to go back to."""
        return Snapshot(self.model, self.inventory, self._held)

    def status(self) -> Status:
        """The state of the hooks and of the round."""
        return Status(
            attached=self.attached,
            open=self._recording,
            rounds=self._rounds,
            steps=self._steps,
            saved_rows={w.table.name: w.num_saved for w in self._watches},
            saved_bytes={w.table.name: w.num_bytes for w in self._watches},
            copied_tables=[w.table.name for w in self._watches if w.copies_table],
            frozen=list(self.inventory.frozen),
            residual_bytes=self.residual.num_bytes,
        )

    def explain(self, plan: SubmodelPlan) -> str:
        """`torchfsl.explain(plan)`, and below it what rounds keep in this client's memory."""
        memory = explain_memory(plan, self.inventory, self._watches, self.rows, self.rest)
        return "\n".join([self._explain(plan), "memory at a client, beside the model:", *memory])

    def validate(self) -> None:
        """Check again that the optimizers move nothing that would not be sent.

        Raises:
            ParameterError: with parameter, reason and remedy.
        """
        if self.rows is None:
            return
        for table in self.inventory.all_tables:
            check_rows(owner(self.optimizers, table.weight), table, self.rows, self._noised)

    def remove(self) -> None:
        """Take all hooks away; the model and the optimizers are as if never attached."""
        self.close_round()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """Residual and round count: with model and optimizer, all that a checkpoint needs."""
        return {"residual": self.residual.state_dict(), "rounds": self._rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a `state_dict`.

        Raises:
            ParameterError: not a state of this class.
        """
        if set(state) != {"residual", "rounds"}:
            raise ParameterError("not a Handle state: pass what state_dict() returned")
        self.residual.load_state_dict(state["residual"])
        self._rounds = int(state["rounds"])

    # --- the round ----------------------------------------------------------------------------

    @torch.no_grad()
    def begin_round(self, present: Mapping[str, torch.Tensor] | None = None) -> None:
        """Take the state of now as the start of a round and record from here on.

        Args:
            present: by table name, the ids of the only rows that the client holds (int64,
                increasing), after a private retrieval; None when it holds every row.

        Raises:
            ParameterError: the set of trained parameters or a weight decay changed since attach.
            ProtocolError: hooks were removed.
        """
        if not self._hooks:
            raise ProtocolError("this handle was removed: attach the model again")
        self.close_round()
        self._guards.check_unchanged(self._take_inventory)
        self.validate()
        self._present = None if present is None else dict(present)
        for watch in self._watches:
            watch.begin(None if present is None else present[watch.table.name])
        self._rest.begin()
        self._buffers.begin()
        self._guards.begin()
        self._steps, self._rounds = 0, self._rounds + 1
        self._recording = self._began = True

    def update(
        self, plan: SubmodelPlan, *, residual: Residual | None = None, round_number: int = 0
    ) -> dict[str, RawSegment]:
        """What changed since `begin_round`, cut to the plan's budgets.

        Ends the recording. Staged into `residual` is what is left out; call `residual.settle`
        once the update has been sent, or `residual.discard`.

        Args:
            plan: made by `SubmodelEngine.plan` for this handle, or an equal one.
            residual: the client's; None drops what is left out (and then raises where whole rows
                would be dropped for lack of budget).
            round_number: decides the positions of `RandomK`.

        Returns:
            One entry for every segment of the plan; values are float64.

        Raises:
            ParameterError: values are NaN or infinite, untouched rows changed, or the plan does
                not fit the model.
            ProtocolError: no round was begun, or the model was restored already.
        """
        if not self._began:
            raise ProtocolError("no round to take an update from: call begin_round first")
        self._recording = False
        self._guards.check_nothing_new(self._take_inventory)
        self._guards.check_bystanders()
        if self.source == "gradient":
            self._rest.check_still()
        if self._changes is None:
            self._changes = {w.table.name: w.finish() for w in self._watches}
        self.check_plan(plan)
        return {
            segment.name: self._raw(segment, residual, round_number) for segment in plan.segments
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Put parameters and buffers back to the start of the round, which ends."""
        if not self._began:
            return
        for watch in self._watches:
            watch.restore()
        self._rest.restore()
        self._buffers.restore()
        self.close_round()

    def close_round(self) -> None:
        """End the round where the model stands; drop what was saved."""
        self._hidden.show()
        for watch in self._watches:
            watch.close()
        self._rest.close()
        self._buffers.close()
        self._present = self._changes = None
        self._recording = self._began = False

    # --- steps --------------------------------------------------------------------------------

    def before_step(self, optimizer: Optimizer) -> None:
        """See `hooks.StepListener`."""
        if not self._recording:
            return
        if not self._noised:
            self._guards.check_not_noised()
        self._steps += 1
        if self.source == "gradient" or any(watch.looks_at_gradient for watch in self._watches):
            self._look_at_gradients(optimizer)

    @torch.no_grad()
    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        factor = unscale_factor(optimizer) if self.source == "gradient" else None
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for watch in self._watches:
            if id(watch.table.weight) in mine:
                watch.before_step(factor)
        if self.source == "gradient":
            self._rest.capture(optimizer, factor)
            self._hidden.hide(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        """See `hooks.StepListener`."""
        self._hidden.show(optimizer)

    # --- parts --------------------------------------------------------------------------------

    def _take_inventory(self) -> Inventory:
        return take_inventory(self.model, self.optimizers, self.rows)

    def _make_watches(self) -> list[TableWatch]:
        if self.rows is None:
            return []
        return [
            TableWatch(
                table,
                self.rows,
                owner(self.optimizers, table.weight),
                source=self.source,
                check=self._check,
                noised=self._noised,
            )
            for table in self.inventory.all_tables
        ]

    def _register(self) -> list[Any]:
        hooks: list[Any] = [StepHooks(optimizer, self) for optimizer in self.optimizers]
        for watch in self._watches if self.rows is not None and self.rows.find == "hooks" else []:
            hook = LookupHook(watch.note_lookup)
            for module in watch.table.modules:
                hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        return hooks

    def check_plan(self, plan: SubmodelPlan) -> None:
        """Refuse a plan that was made for another model.

        Raises:
            ParameterError: a segment differs.
        """
        mine = self.segment_tensors
        theirs = {segment.name: segment.tensors for segment in plan.segments}
        if mine != theirs:
            odd = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
            raise ParameterError(
                f"segment {odd[0]!r} of the plan does not fit this model: use the plan that "
                "engine.plan made for it"
            )

    def _raw(self, segment: Segment, residual: Residual | None, round_number: int) -> RawSegment:
        if segment.name in self.inventory.tables:
            assert self.rows is not None
            assert self._changes is not None
            group = self.inventory.tables[segment.name]
            parts = [(t.offset, self._changes[t.name]) for t in group]
            if segment.policy == "dense":
                return dense_rows(segment, parts, [t.num_rows for t in group])
            present = None
            if self._present is not None:
                present = torch.cat([self._present[t.name].cpu() + t.offset for t in group])
            return choose_rows(segment, parts, self.rows, residual, round_number, present=present)
        if segment.name == BUFFERS:
            deltas = [self._buffers.delta(n, b) for n, b in self.inventory.buffers.items()]
            return choose_blocks(segment, flatten(deltas, 1), None, None, round_number)
        changes = self._rest.gradients() if self.source == "gradient" else self._rest.deltas()
        change = flatten(changes, segment.tau)
        return choose_blocks(segment, change, self.rest, residual, round_number)

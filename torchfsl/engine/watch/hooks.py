"""The hooks: on lookups, on optimizer steps, and on saving and loading the model.

They learn which rows are read, and gradients before anything changes, and warn of silent mistakes.

Hooks are all that attaching adds. Copies of a hooked model (deepcopy, pickle, `torch.save`) carry
inert hooks from the standard library instead of ours, so they keep no hooks alive and do not need
torchfsl to be loaded. Copies of an optimizer carry none: torch drops step hooks when copying.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchfsl.engine.inventory import Table
from torchfsl.engine.watch.snapshot import HeldRows

Hook = TypeVar("Hook", bound=Callable[..., None])
LookupNote = Callable[[nn.Module, torch.Tensor], None]

_REASON: Final = (
    "torchfsl looks at lookups and optimizer steps outside the graph, which fullgraph=True "
    "forbids: compile without fullgraph, or use rows=Rows(find='scan'), which needs no hook in "
    "the model, or call fed.detach() before exporting it"
)


def _outside_graphs(note: LookupNote) -> LookupNote:
    """`note`, made to see plain tensors whatever the model runs in.

    Compiled models break their graph here; under fullgraph torch names the reason. Transforms
    (`torch.func.grad`, `vmap`) hide the ids in wrappers, and `torch.jit.trace` would record the
    saving of rows as a part of the model: both rest in the meantime.
    """

    def plainly(module: nn.Module, ids: torch.Tensor) -> None:
        transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if not (transformed or torch._C._is_tracing() or isinstance(ids, FakeTensor)):
            note(module, ids)
            return
        trace = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
        try:
            with torch._C._DisableFuncTorch():
                while torch._C._functorch.is_functorch_wrapped_tensor(ids):
                    ids = torch._C._functorch.get_unwrapped(ids)
                if not isinstance(ids, FakeTensor):  # exporting: nothing is looked up
                    note(module, ids)
        finally:
            torch._C._set_tracing_state(trace)  # type: ignore[attr-defined]

    return _disabled(plainly)


def _disabled(function: Hook) -> Hook:
    """`function`, never compiled."""
    try:
        disabled = torch.compiler.disable(function, reason=_REASON)  # type: ignore[no-untyped-call]
    except TypeError:  # torch before 2.7 takes no reason
        disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return cast(Hook, disabled)


class LookupHook:
    """Forward pre-hook of an `Embedding` or `EmbeddingBag`: passes the ids on."""

    def __init__(self, note: LookupNote) -> None:
        """`note(module, ids)` is called before each lookup, outside compiled graphs."""
        self._note = _outside_graphs(note)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The ids are the first argument or `input=`."""
        ids = args[0] if args else kwargs.get("input")
        if isinstance(ids, torch.Tensor):
            self._note(module, ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _inert()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _inert() -> Callable[..., None]:
    """A function of the standard library that takes anything and returns None."""
    return contextlib.nullcontext().__exit__


class StepListener(Protocol):
    """The receiver of a step hook's reports."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are ready, nothing has changed yet."""

    def after_step(self, optimizer: Optimizer) -> None:
        """The step is over."""


class StepHooks:
    """Pre- and post-hook of one optimizer.

    `step(closure)` computes its gradients inside the step, after the pre-hook; there the closure
    is replaced by one that reports when the gradients are ready.
    """

    def __init__(self, optimizer: Optimizer, listener: StepListener, *, keeps: object) -> None:
        """Register both hooks; the optimizer keeps `keeps` alive as long as it has them."""
        self._keeps = keeps
        self._before_step = _disabled(listener.before_step)
        self._after_step = _disabled(listener.after_step)
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Unregister both hooks."""
        for handle in self._handles:
            handle.remove()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # args[0] is the optimizer itself: the hook wraps the unbound step.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before_step(optimizer)
            return None

        def reporting() -> Any:
            loss = closure()
            self._before_step(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], reporting, *args[2:]), kwargs
        return args, {**kwargs, "closure": reporting}

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._after_step(optimizer)


class _Inert:
    """Copies of a model (deepcopy, pickle) carry a function that does nothing instead."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class LoadHook(_Inert):
    """Before `load_state_dict` of any part of the model: refuses it where `check` does."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` raises while a round is open."""
        self._check = check

    def __call__(self, *_: Any) -> None:
        """Called with what torch gives."""
        self._check()


class SaveHook(_Inert):
    """After `state_dict`: warns of rows that the client does not hold."""

    def __init__(self, tables: Sequence[Table], held: HeldRows) -> None:
        """`held` says which tables lack rows."""
        self._tables, self._held = tables, held

    def __call__(self, *_: Any) -> None:
        """Called with what torch gives."""
        for table in self._tables:
            if self._held.num_absent(table):
                warnings.warn(
                    f"{table.name}: this client holds only the rows that it retrieved privately, "
                    "so this state_dict has NaN in the other rows: call fed.load(servers, "
                    "only_missing=True) to load all rows",
                    stacklevel=3,
                )


def register_saving(
    model: nn.Module, tables: Sequence[Table], held: HeldRows, check: Callable[[], None]
) -> list[Any]:
    """Put these hooks on the model and its modules that hold parameters."""
    load = LoadHook(check)
    owners = [m for m in model.modules() if m is model or m._parameters]
    hooks: list[Any] = [
        m.register_load_state_dict_pre_hook(load)  # type: ignore[no-untyped-call]
        for m in owners
    ]
    if tables:
        save = SaveHook(tables, held)
        hooks.append(model.register_state_dict_post_hook(save))  # type: ignore[no-untyped-call]
    return hooks


def is_hooked(model: nn.Module) -> bool:
    """Whether the model has hooks."""
    hooks = model._load_state_dict_pre_hooks.values()
    return any(isinstance(getattr(hook, "hook", hook), LoadHook) for hook in hooks)

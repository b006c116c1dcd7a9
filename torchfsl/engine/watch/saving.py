"""Saving and loading a model with hooks: warnings and errors for silent mistakes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from torchfsl.engine.inventory import Table
from torchfsl.engine.watch.snapshot import HeldRows


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
                    f"{table.name}: rows are missing at this client after a private retrieval, so "
                    "this state_dict holds none of their values: "
                    "fed.load(servers, only_missing=True) fills them in",
                    stacklevel=3,
                )


def register(
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

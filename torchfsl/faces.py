"""The names that a wing shows, loaded on first use, so that servers never import torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: by public name the module below the package that defines it.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        here = vars(sys.modules[package])
        rooms = [n for n, value in here.items() if isinstance(value, ModuleType)]
        return sorted({*homes, *rooms, *(name for name in here if name.startswith("__"))})

    return load, names

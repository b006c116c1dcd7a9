"""The public names of a package, loaded on first use, so that servers never import torch."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def homes(package: str) -> dict[str, str]:
    """By public name of a package the module that it comes from.

    These are the imports that `if TYPE_CHECKING:` shows to type checkers in the package's file, so
    that each name stands there once. A module directly below the package comes from the package.
    """
    tree = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    shown = (node for block in tree.body if isinstance(block, ast.If) for node in block.body)
    imports = (node for node in shown if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, for the names of `homes`.

    Args:
        package: its `__name__`.
    """
    modules = homes(package)

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return load, lambda: sorted(modules)

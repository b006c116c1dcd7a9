"""Functions and classes of the user's own modules, named `MODULE:NAME` in settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.sections import ConfigError


def imported(name: str, setting: str) -> Callable[..., Any]:
    """The function or class that a setting names, from a module found as `python -m` finds it.

    Args:
        name: `MODULE:NAME`.
        setting: its name, for messages.

    Raises:
        ConfigError: the name leads to nothing that can be called.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigError(
            f"{setting} is {name!r}: give MODULE:NAME, the class or function NAME in MODULE.py, "
            "which docs/own-experiments.md describes"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0]:
            raise
        raise ConfigError(
            f"{setting} {name}: there is no module {module_name!r} in {Path.cwd()}, on PYTHONPATH "
            "or installed"
        ) from error
    maker = getattr(module, attribute, None)
    if not callable(maker):
        raise ConfigError(f"{setting} {name}: {module_name} has no class or function {attribute!r}")
    return maker  # type: ignore[no-any-return]

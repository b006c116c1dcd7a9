"""Checks of the settings of a section, and their error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torchfsl.errors import Error


class ConfigError(Error, ValueError):
    """A setting is wrong. The message names it and what is allowed."""

    code = "settings"


def expect(wanted: str, holds: Callable[[Any], bool], section: object, *names: str) -> None:
    """Refuse settings of a section for which `holds` is false."""
    for name in names:
        value = getattr(section, name)
        if not holds(value):
            shown = list(value) if isinstance(value, tuple) else value
            where = f"{type(section).__name__.lower()}.{name}"
            raise ConfigError(f"{where} is {shown}: choose {wanted}")


def at_least(least: int, section: object, *names: str) -> None:
    """Refuse settings of a section below a number, or not finite."""
    more = f"at least {least}" if least else "0 or more"
    expect(more, lambda value: least <= value < math.inf, section, *names)


def expect_share(section: object, name: str) -> None:
    """Refuse a setting outside [0, 1)."""
    expect("a number of at least 0 and below 1", lambda value: 0 <= value < 1, section, name)


def expect_widths(section: object, name: str, none: str = "[]") -> None:
    """Refuse widths below 1."""
    fit = f"widths of at least 1, or {none}"
    expect(fit, lambda widths: all(width >= 1 for width in widths), section, name)

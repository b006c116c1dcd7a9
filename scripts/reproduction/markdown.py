"""Markdown tables and numbers as people read them."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def seconds(value: float) -> str:
    """Two digits, in milliseconds below 0.1 s."""
    return f"{value:.2g} s" if value >= 0.0995 else f"{1000 * value:.2g} ms"


def size(num_bytes: float) -> str:
    """Megabytes of 10**6 bytes, three digits."""
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} kB"


def mean(values: Sequence[float], digits: int = 2, sign: str = "") -> str:
    """A mean, with the standard deviation of several."""
    average = f"{np.mean(values):{sign}.{digits}f}"
    several = len(values) > 1
    return f"{average} ± {np.std(values, ddof=1):.{digits}f}" if several else average


def missing(name: str) -> str:
    """Text in place of a table without figures."""
    return f"*Not run yet: `scripts/reproduce {name}`.*\n"


class _Format(string.Formatter):
    def format_field(self, value: Any, spec: str) -> Any:
        """Also `size`, `seconds` and, of several values, `mean` with its number of digits."""
        own: dict[str, Callable[..., str]] = {"size": size, "seconds": seconds, "mean": mean}
        name = spec.rstrip("0123456789")
        if name not in own:
            return super().format_field(value, spec)
        return own[name](value, *map(int, spec[len(name) :]))


def filled(template: str, row: Any) -> str:
    """A format string with the fields of a mapping, or with the items of a sequence by number."""
    if isinstance(row, Mapping):
        return _Format().vformat(template, (), row)
    return _Format().vformat(template, row, {})


def stamp(figures: Mapping[str, Any]) -> str:
    """Command, machine and date of a table, and of a later count of its bytes alone."""
    again = f"; bytes counted again {day}" if (day := figures.get("bytes_counted")) else ""
    return f"`{command(figures)}`, {machine(figures)}, {figures['date']}{again}.\n"


def stamp_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Commands, dates and machines of several runs."""
    runs = list(runs)
    commands = sorted({f"`{command(r)}`" for r in runs})
    dates = sorted({r["date"] for r in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    machines = sorted({machine(r) for r in runs})
    return f"{', '.join(commands)}; {when}, {' and '.join(machines)}.\n"


def machine(figures: Mapping[str, Any]) -> str:
    """The machine that gave the figures; early results of untimed tables do not name theirs."""
    if "environment" in figures:
        environment = figures["environment"]
        path = environment.get("cpu_path", environment["backend"])
        return f"{environment['cores']} cores of {environment['cpu']} ({path})"
    named = str(figures.get("machine") or figures.get("versions", {}).get("machine"))
    return named if " cores of " in named else "2 cores of AMD EPYC"


def command(figures: Mapping[str, Any]) -> str:
    """The command that gave the figures, its data folder called DATA."""
    text = figures["command"].replace("python scripts/reproduce.py", "scripts/reproduce")  # older
    return re.sub(r"--data \S+", "--data DATA", text)

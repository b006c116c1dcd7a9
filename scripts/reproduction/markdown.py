"""Markdown tables and numbers as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a heading line."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Two digits, in milliseconds below 0.1 s."""
    return f"{value:.2g} s" if value >= 0.0995 else f"{1000 * value:.2g} ms"


def size(num_bytes: float) -> str:
    """Megabytes of 10**6 bytes, three digits."""
    return f"{num_bytes / 1e6:.3g} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.3g} kB"


def weights(log: int) -> str:
    """A power of two."""
    return f"2^{log}"


def missing(name: str) -> str:
    """What stands where a table has no figures."""
    return f"*Not run yet: `scripts/reproduce {name}`.*\n"


def stamp(figures: dict[str, Any]) -> str:
    """Command, machine and date of a table, and of a later count of its bytes alone."""
    again = f"; bytes counted again {day}" if (day := figures.get("bytes_counted")) else ""
    return f"`{command(figures)}`, {machine(figures)}, {figures['date']}{again}.\n"


def machine(figures: dict[str, Any]) -> str:
    """The machine that gave the figures; early results of untimed tables do not name theirs."""
    if "environment" in figures:
        environment = figures["environment"]
        path = environment.get("cpu_path", environment["backend"])
        return f"{environment['cores']} cores of {environment['cpu']} ({path})"
    named = str(figures.get("machine") or figures.get("versions", {}).get("machine"))
    return named if " cores of " in named else "2 cores of AMD EPYC"


def command(figures: dict[str, Any]) -> str:
    """The command that gave the figures, its data folder called DATA."""
    text = figures["command"].replace("python scripts/reproduce.py", "scripts/reproduce")  # older
    return re.sub(r"--data \S+", "--data DATA", text)

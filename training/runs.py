"""Folders of runs side by side; those that differ by the seed alone are one row."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.section_checks import ConfigError

_SAME_ROUNDS = (
    "seed threads workers device servers tls replace checkpoint_every eval_every patience"
)
"""Settings in which the runs of one row may differ."""
HEAD = ("run", "seeds", "rounds", "last", "best", "MB up", "MB down", "exact")


@dataclass(frozen=True)
class Run:
    """One run's folder.

    Attributes:
        folder: where it is.
        settings: all of them, by dotted name.
        metric: that the curves show.
        lines: of `metrics.jsonl`, one a round.
        summary: of a finished run, else empty.
    """

    folder: Path
    settings: dict[str, Any]
    metric: str
    lines: list[dict[str, Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Read a run's folder.

        Raises:
            ConfigError: the folder is not that of a run, or no round is finished.
        """
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
            summary = folder / "summary.json"
            told = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} is not the folder of a run ({error}): pass the folder of --out"
            ) from error
        if not lines or len(lines[0]) < 2 or "exact" not in lines[0]:
            raise ConfigError(
                f"expected a run of python -m training PRESET with a finished round, got {folder}: "
                "choose the folder of such a run"
            )
        metric = str(told.get("metric") or list(lines[0])[1])
        return cls(folder, _flat(settings), metric, lines, told)

    @property
    def evaluated(self) -> list[tuple[int, float]]:
        """Rounds and the metric after each."""
        return [
            (one["round"], math.nan if one[self.metric] is None else one[self.metric])
            for one in self.lines
            if self.metric in one
        ]

    @property
    def best(self) -> float:
        """The largest of these; NaN if none is a number."""
        values = [value for _, value in self.evaluated if not math.isnan(value)]
        return max(values, default=math.nan)

    @property
    def exact(self) -> int:
        """Rounds whose sum equals the plaintext's."""
        return sum(bool(line["exact"]) for line in self.lines)

    def mean(self, name: str) -> float:
        """Of a column of `metrics.jsonl` over the rounds."""
        return statistics.fmean(line[name] for line in self.lines)

    def sent(self, number: int) -> float:
        """MB that a client uploads if it participates in every round up to `number`."""
        return float(sum(line["upload_bytes"] for line in self.lines[:number])) / 1e6


@dataclass(frozen=True)
class Row:
    """Runs that differ by the seed alone, and what tells them from other rows."""

    name: str
    runs: tuple[Run, ...]

    def cells(self) -> tuple[str, ...]:
        """As `HEAD` has them."""
        runs = self.runs
        rounds = {len(run.lines) for run in runs}
        return (
            self.name,
            ", ".join(str(run.settings.get("seed", 0)) for run in runs),
            "-".join(str(one) for one in sorted({min(rounds), max(rounds)})),
            spread([run.evaluated[-1][1] for run in runs]),
            spread([run.best for run in runs]),
            f"{statistics.fmean(run.mean('upload_bytes') for run in runs) / 1e6:.3f}",
            f"{statistics.fmean(run.mean('download_bytes') for run in runs) / 1e6:.3f}",
            f"{sum(run.exact for run in runs)} of {sum(len(run.lines) for run in runs)}",
        )


def spread(values: Sequence[float]) -> str:
    """A value, or the mean of several and the standard deviation of one."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Runs by what is not the seed, in the order of the first of each.

    Raises:
        ConfigError: one seed twice in a row, or runs of several metrics.
    """
    if len({run.metric for run in runs}) > 1:
        told = ", ".join(f"{run.folder} has {run.metric}" for run in runs)
        raise ConfigError(
            f"expected runs with the same metric, got {told}: choose runs with one metric"
        )
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        own = {
            name: run.settings[name] for name in run.settings if name not in _SAME_ROUNDS.split()
        }
        by_settings.setdefault(json.dumps(own, sort_keys=True), []).append(run)
    names = differing([group[0] for group in by_settings.values()])
    rows = []
    for group in by_settings.values():
        seeds = [run.settings.get("seed", 0) for run in group]
        if len(set(seeds)) < len(seeds):
            raise ConfigError(
                f"{', '.join(str(run.folder) for run in group)} have the same settings and "
                "seed: pass only one of these folders"
            )
        first = group[0]
        told = ", ".join(f"{name} {first.settings.get(name, 'not known')}" for name in names)
        rows.append(Row(told or str(first.settings["preset"]), tuple(group)))
    return rows


def differing(runs: Sequence[Run]) -> list[str]:
    """Settings of which not all runs have the same."""
    known = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: {json.dumps(run.settings.get(name)) for run in runs} for name in known}
    found = [name for name in known if name not in _SAME_ROUNDS.split() and len(values[name]) > 1]
    return ["preset"] if "preset" in found else found


def table(rows: Sequence[Row]) -> str:
    """The rows as text, columns aligned."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found

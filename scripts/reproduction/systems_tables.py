"""The tables of docs/systems.md and docs/averages.md: systems, and averages, side by side."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from statistics import mean
from typing import Any, Final

import numpy as np

from scripts.reproduction.averages_tasks import SETTINGS
from scripts.reproduction.markdown import size
from scripts.reproduction.page_table import table
from scripts.reproduction.privhfl_cells import BASE, QUERIES, read_cells
from scripts.reproduction.results import Figures
from training.privhfl.settings import TaskName

RESULT: Final[dict[TaskName, str]] = {"mnist": "systems", "cifar10": "systems-cifar10"}
"""By task the name of its figures, and of the command that makes them."""


def _systems(task: TaskName, figures: Figures) -> Iterator[tuple[str, ...]]:
    rounds, plain, flower = figures["rounds"], figures["runs"]["plain"], figures["secagg_plus"]
    for name, run in figures["runs"].items():
        yield _shared(f"`{name}`", run, rounds)
    if flower is not None:
        run = {
            "curve": plain["curve"],
            "upload_bytes": flower["upload_bytes"],
            "download_bytes": 4 * figures["parameters"],
            "cpu_seconds": plain["cpu_seconds"] + rounds * flower["cpu_seconds"],
        }
        yield _shared("SecAgg+ (Flower 1.41)", run, rounds)
    if (cell := read_cells().get(f"{task}-secure")) is not None:
        alone = 100 * np.mean([run["baseline"] for run in cell["seeds"].values()])
        yield "own samples alone, what `privhfl` starts from", f"{alone:.1f}", "0", "-"
    yield from (point[1] for point in privhfl_points(task))


def _shared(name: str, run: Figures, rounds: int) -> tuple[str, ...]:
    sent = rounds * (run["upload_bytes"] + run["download_bytes"])
    return name, f"{100 * run['curve'][-1][1]:.1f}", _size(sent), f"{run['cpu_seconds']:.0f} s"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else size(num_bytes)


def privhfl_points(task: TaskName) -> list[tuple[float, tuple[str, ...], float]]:
    """By B: bytes per client, a row of the table, accuracy. Bytes of B are in proportion."""
    cells = read_cells()
    secure = cells.get(f"{task}-secure")
    if secure is None:
        return []
    runs = list(secure["seeds"].values())
    settings, asked = BASE[task], sum(run["predictions"] for run in runs)
    each, spent = (sum(sum(r[n].values()) for r in runs) / asked for n in ("bytes", "cpu_seconds"))
    points = []
    for number in QUERIES[task]:
        own = number == settings.queries
        cell = cells.get(f"{task}-secure" if own else f"{task}-mixup-{number}")
        if cell is None:
            continue
        accuracy = float(np.mean([run["accuracy"] for run in cell["seeds"].values()]))
        predictions = number * settings.answering
        how = "" if own else " (answers in the clear; bytes and seconds in proportion)"
        row = (
            f"`privhfl`, {number:,} queries a client{how}",
            f"{100 * accuracy:.1f}",
            _size(each * predictions),
            f"{spent * predictions * settings.clients:.0f} s",
        )
        points.append((each * predictions, row, accuracy))
    return points


for _task, _result in RESULT.items():
    table(
        _result,
        " | accuracy | bytes per client, up and down, whole run | "
        "processor time of all parties, whole run",
    )(functools.partial(_systems, _task))


def _averages(task: str, figures: Figures) -> Iterator[tuple[Any, ...]]:
    """Combinations of one task: means over seeds after 5 and 10 rounds, best and last."""
    marks = {figures["default"]: " (**default**)", figures["former"]: " (former default)"}
    for name, seeds in figures["runs"].items():
        of_task, _, combination = name.partition("/")
        if of_task == task:
            average, optimizer, state = combination.split("/")
            curves = list(seeds.values())
            means = (f"{mean(c[place] for c in curves):.3f}" for place in (0, 1))
            own = f"{optimizer}{marks.get(combination, '')}"
            yield average, own, state, *means, *_best(curves), len(curves)


def _best(curves: list[list[float]]) -> tuple[str, str, str]:
    best, last = mean(map(max, curves)), mean(curve[-1] for curve in curves)
    return f"{best:.3f}", f"{last:.3f}", ", ".join(f"{max(curve):.3f}" for curve in curves)


for _setting in SETTINGS:
    table(
        f"averages-{_setting}",
        "average | servers' optimizer | clients' state | after 5 | after 10 | best | last | "
        "best by seed | seeds",
        figures="averages",
        stamp=None,
    )(functools.partial(_averages, _setting))


@table("averages-causes", "training | best | last | best by seed", figures="averages")
def _causes(figures: Figures) -> Iterator[tuple[str, ...]]:
    for name, seeds in figures["causes"].items():
        yield name, *_best(list(seeds.values()))

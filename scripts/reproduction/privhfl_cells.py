"""Cells of the accuracy tables of PrivHFL: a cell is one choice of settings.

A cell's result is a line of `results/privhfl.jsonl`, with a record for each seed. Cells that have
equal baselines share them. Runs go on after an interruption, client by client, and several
processes may work through one list.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scripts.bench import measure as bench_measure
from scripts.reproduction.results import Figures, read_results, write_result
from scripts.reproduction.runs import locked
from training.privhfl.allocator import keep_freed_memory
from training.privhfl.experiment import run_experiment
from training.privhfl.settings import Settings, TaskName

BASE: dict[str, Settings] = {
    "mnist": Settings(task="mnist"),
    "cifar10": Settings(task="cifar10", clients=6, private=1000, queries=2500, batch=32),
}
QUERIES: dict[str, tuple[int, ...]] = {"mnist": (300, 1000, 2500), "cifar10": (1000, 2500, 5000)}
FRACTIONS = (0.6, 0.8, 1.0)
ALPHAS = (0.1, 0.5, 100.0)
EXPANSIONS = ("cutmix", "cutout", "flip", "noise")
SELECTIONS = ("margin", "entropy", "k-centre", "icd")
LAMBDAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PRIVATE: dict[str, tuple[int, ...]] = {"mnist": (50, 200, 400), "cifar10": (250, 500)}
_KEPT = ("baseline", "accuracy", "gain", "least_gain", "baselines", "accuracies", "architectures",
         "gain_by_iteration", "label_accuracy", "predictions", "bytes", "cpu_seconds", "exact",
         "model_sha256")  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Settings of a task that differ from its base; the name is that of the result."""

    task: TaskName
    label: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`task-label`."""
        return f"{self.task}-{self.label}"

    def settings(self, seed: int, data: Path | None) -> Settings:
        """Of one run."""
        source = "" if data is None else str(data / self.task)
        return dataclasses.replace(BASE[self.task], **self.changes, seed=seed, data=source)


def accuracy_cells(task: TaskName) -> list[Cell]:
    """Table 1: controls, private data, mixup by B, and by C at the middle B alone."""
    middle = BASE[task].queries
    return [
        mixup(task, middle),
        Cell(task, "private", {"expansion": "private"}),
        Cell(task, "local", {"control": "local"}),
        Cell(task, "mixlocal", {"control": "mixlocal"}),
        mixup(task, QUERIES[task][0]),
        *(mixup(task, middle, fraction) for fraction in FRACTIONS[:2]),
        mixup(task, QUERIES[task][-1]),
        Cell(task, "selfmix", {"control": "selfmix"}),
        *(_rest_of_table1() if task == "cifar10" else ()),
    ]


def _rest_of_table1() -> list[Cell]:
    """The other cells of CIFAR-10's columns of table 1, the cheapest first."""
    private = [
        Cell("cifar10", f"private-C{fraction:g}", {"expansion": "private", "fraction": fraction})
        for fraction in FRACTIONS[:2]
    ]
    few = [mixup("cifar10", 5000, fraction) for fraction in FRACTIONS[:2]]
    many = [mixup("cifar10", n, fraction) for n in (7500, 10_000) for fraction in FRACTIONS[::-1]]
    return [*private, *few, *many]


def mixup(task: TaskName, queries: int, fraction: float = 1.0) -> Cell:
    """Mixup with B and C."""
    label = f"mixup-{queries}" + ("" if fraction == 1 else f"-C{fraction:g}")
    return Cell(task, label, {"queries": queries, "fraction": fraction})


def heterogeneity_cells(task: TaskName) -> list[Cell]:
    """Figure 15: Dirichlet labels, and for MNIST a control that retrains without queries."""
    mixed = [Cell(task, f"alpha-{alpha:g}", {"alpha": alpha}) for alpha in ALPHAS]
    alone = [
        Cell(task, f"alpha-{alpha:g}-local", {"alpha": alpha, "control": "local"})
        for alpha in ALPHAS
    ]
    return [*mixed, *alone] if task == "mnist" else mixed


def study_cells(task: TaskName) -> list[Cell]:
    """Figures 6, 7, 11c, 12, 13, 16 and table 5."""
    return [
        Cell(task, "probabilities", {"label": "probabilities"}),
        *(Cell(task, f"select-{kind}", {"selection": kind}) for kind in SELECTIONS),
        *(Cell(task, kind, {"expansion": kind}) for kind in EXPANSIONS),
        *(Cell(task, f"lambda-{lam:g}", {"lam": lam}) for lam in LAMBDAS),
        Cell(task, "iterations-3", {"iterations": 3}),
        *(Cell(task, f"samples-{number}", {"private": number}) for number in PRIVATE[task]),
    ]


def secure_cells(task: TaskName) -> list[Cell]:
    """One cell of table 1 by the protocol: its sums must be those of the integers in the clear."""
    return [Cell(task, "secure", {"querying": "secure"})]


def run_cells(
    cells: Iterable[Cell], *, seeds: list[int], data: Path | None, runs: Path, command: str
) -> None:
    """Run what has no result yet, seed by seed."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for seed in seeds:
        for cell in cells:
            if str(seed) in _seeds(cell):
                print(f"{cell.name}, seed {seed}: is here", flush=True)
                continue
            print(f"{cell.name}, seed {seed}", flush=True)
            record = {**_run(cell, seed, data, runs), "command": command}
            with locked(runs / "privhfl" / "results.lock"):
                seeds_of = {**_seeds(cell), str(seed): record}
                ordered = dict(sorted(seeds_of.items(), key=lambda one: int(one[0])))
                figures = {"task": cell.task, "changes": dict(cell.changes), "seeds": ordered}
                write_result("privhfl", cell.name, figures)


def _seeds(cell: Cell) -> Figures:
    seeds: Figures = read_cells().get(cell.name, {}).get("seeds", {})
    return seeds


def _run(cell: Cell, seed: int, data: Path | None, runs: Path) -> dict[str, Any]:
    settings = cell.settings(seed, data)
    folder = runs / "privhfl" / f"{cell.name}-seed{seed}"
    alike = f"{settings.clients}-{settings.private}-{settings.alpha:g}-seed{seed}"
    baselines = runs / "privhfl" / f"baselines-{cell.task}-{alike}"
    with locked(folder.with_suffix(".lock")), locked(baselines.with_suffix(".lock")):
        summary = run_experiment(
            settings, folder, resume=folder.exists(), say=_say, baselines=baselines
        )
    return {
        **{name: summary[name] for name in _KEPT},
        "machine": bench_measure.machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _say(text: str) -> None:
    if not text.startswith("  "):
        print(f"  {text}", flush=True)


def read_cells() -> dict[str, Figures]:
    """All results by name."""
    return read_results("privhfl")

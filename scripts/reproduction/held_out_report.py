"""The trials by which settings of Table 7's servers were chosen, on training data held out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from scripts.reproduction.accuracy_report import mean, stamp_of
from scripts.reproduction.markdown import table
from scripts.reproduction.results import read_accuracies

Figures = dict[str, Any]

HELD_OUT = {"mnist": 6_000, "cifar10": 5_000, "trec": 545}
"""Examples that are held out: a tenth of the training data."""


def trials() -> str:
    """One row for all trials with the same share and servers; nothing where there are none."""
    runs = read_accuracies("table7-held-out")
    if not runs:
        return ""
    groups: dict[tuple[Any, ...], dict[bool, list[float]]] = {}
    for run in runs:
        cell = run["cell"]
        row = (
            cell["dataset"], cell["percent"], cell["server_momentum"], cell["server_decay"],
            cell["server_rate"], run["rounds"],
        )  # fmt: skip
        figures = groups.setdefault(row, {False: [], True: []})
        figures[cell["average"] != 0].append(run["accuracy_percent"])
    rows = [
        (dataset, f"{percent:g} %", f"{rate:g}", f"{momentum:g}" if momentum else "-",
         f"{decay:g}" if decay != 1 else "-", f"{rounds:,}", len(latest),
         mean(latest), mean(averaged) if averaged else "-")
        for (dataset, percent, momentum, decay, rate, rounds), (latest, averaged) in sorted(
            (row, (figures[False], figures[True])) for row, figures in groups.items()
        )
    ]  # fmt: skip
    head = ("data", "sent", "server rate", "momentum", "times, every ten rounds", "rounds", "seeds",
            "accuracy", "mean of models")  # fmt: skip
    return (
        "### Trials on held-out training data\n\n"
        "A tenth of the training data is held out and evaluated in place of the test; clients hold the "
        "other nine. Accuracy is the mean of a trial's last five evaluations, ten rounds apart. Trials "
        "are shorter than the table's runs: a falling rate falls as much as in 1,000 rounds.\n\n"
        + table(head, rows)
        + "\n"
        + _standing(runs)
        + "\n"
        + stamp_of(runs)
    )


def _standing(runs: list[Figures]) -> str:
    """How far the rates that Table 7 runs with momentum at are from the best ones here."""
    used: dict[tuple[Any, ...], set[float]] = {}
    for run in read_accuracies("table7"):
        if run["cell"]["server_momentum"]:
            used.setdefault(_servers(run["cell"]), set()).add(run["cell"]["server_rate"])
    tried: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    for run in runs:
        cell = run["cell"]
        if not cell["average"]:
            alike = *_servers(cell), cell["server_decay"], run["rounds"]
            rates = tried.setdefault(alike, {})
            rates.setdefault(cell["server_rate"], []).append(run["accuracy_percent"])
    lines = []
    for (dataset, percent, momentum, *_), found in sorted(tried.items()):
        means = {rate: float(np.mean(values)) for rate, values in found.items()}
        best = max(means, key=lambda rate: means[rate])
        share, head = means[best] / 100, f"Of {percent:g} % with momentum {momentum:g} "
        error = 100 * math.sqrt(share * (1 - share) / HELD_OUT[dataset])
        for rate in sorted(used.get((dataset, percent, momentum), set()) & set(means)):
            if len(means) == 1:
                continue
            if rate == best:
                lines.append(f"{head}the rate of Table 7's runs, {rate:g}, does best here.")
                continue
            lines.append(
                f"{head}rate {best:g} does best here; that of Table 7's runs, {rate:g}, is "
                f"{means[best] - means[rate]:.2f} points behind, where a trial's standard error "
                f"over {HELD_OUT[dataset]:,} images is {error:.2f}."
            )
    return "".join(f"\n{line}" for line in lines) + "\n" * bool(lines)


def _servers(cell: Figures) -> tuple[Any, ...]:
    return cell["dataset"], cell["percent"], cell["server_momentum"]

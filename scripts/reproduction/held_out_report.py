"""The trials by which settings of Table 7's servers were chosen, on training data held out."""

from __future__ import annotations

from typing import Any

from scripts.reproduction.accuracy_report import mean, stamp_of
from scripts.reproduction.markdown import table
from scripts.reproduction.results import read_accuracies

Figures = dict[str, Any]


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
        + "\n\n"
        + stamp_of(runs)
    )

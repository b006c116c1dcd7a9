"""Curves of a run or of several: the metric by round and by uploaded bytes, or by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from training.trainer import RoundRecord

if TYPE_CHECKING:
    from training.runs import Row


def plot_curves(
    records: list[RoundRecord], metric: str, baselines: dict[str, float], title: str, file: Path
) -> None:
    """Draw the evaluated rounds; baselines of the same metric as dashed lines.

    Args:
        records: all rounds.
        metric: the name of the metric.
        baselines: by name.
        title: of the figure.
        file: PNG to write.
    """
    evaluated = [record for record in records if record.metrics]
    sent = np.cumsum([record.upload_bytes for record in records]) / 1e6
    values = [record.metrics[metric] for record in evaluated]
    figure, (by_round, by_bytes) = _pyplot().subplots(1, 2, figsize=(9, 3.5), sharey=True)
    by_round.plot([record.round for record in evaluated], values, marker=".")
    by_round.set(xlabel="round", ylabel=metric)
    by_bytes.plot([sent[record.round - 1] for record in evaluated], values, marker=".")
    by_bytes.set(xlabel="uploaded by a client in every round, MB")
    for name, value in baselines.items():
        if name.endswith(f"_{metric}"):
            line = {"linestyle": "--", "color": f"C{1 + list(baselines).index(name)}"}
            by_round.axhline(value, label=name.removesuffix(f"_{metric}"), **line)
            by_bytes.axhline(value, **line)
    if by_round.get_legend_handles_labels()[0]:
        by_round.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    _write(figure, file)


def plot_rows(rows: Sequence[Row], file: Path | BinaryIO) -> None:
    """Draw several runs over each other: a colour a row, thin lines for seeds, a thick mean.

    Args:
        rows: as `training.runs.rows_of` makes them.
        file: PNG to write.
    """
    figure, (by_round, by_bytes) = _pyplot().subplots(1, 2, figsize=(10, 4), sharey=True)
    for number, row in enumerate(rows):
        colour = f"C{number % 10}"
        curves = [dict(run.evaluated) for run in row.runs]
        common = sorted(set.intersection(*(set(curve) for curve in curves)))
        mean = [float(np.mean([curve[place] for curve in curves])) for place in common]
        sent = [row.runs[0].sent(place) for place in common]
        by_round.plot(common, mean, color=colour, marker=".", label=row.name)
        by_bytes.plot(sent, mean, color=colour, marker=".")
        for curve in curves if len(curves) > 1 else ():
            by_round.plot(list(curve), list(curve.values()), color=colour, alpha=0.3, linewidth=0.8)
    by_round.set(xlabel="round", ylabel=rows[0].runs[0].metric)
    by_bytes.set(xlabel="uploaded by a client in every round, MB")
    by_round.legend(fontsize=8)
    _write(figure, file)


def plot_clients(lines: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    """Draw each client's accuracy by iteration, a colour an architecture, and the mean.

    Args:
        lines: of `metrics.jsonl` of a PrivHFL run, from iteration 0.
        title: of the figure.
        file: PNG to write.
    """
    figure, axes = _pyplot().subplots(figsize=(5.5, 3.5))
    steps = [line["iteration"] for line in lines]
    names = list(dict.fromkeys(lines[0]["architectures"]))
    for client, name in enumerate(lines[0]["architectures"]):
        axes.plot(
            steps,
            [line["accuracies"][client] for line in lines],
            marker=".",
            alpha=0.6,
            color=f"C{names.index(name)}",
            label=name if client == names.index(name) else None,
        )
    means = [line["accuracy"] for line in lines]
    axes.plot(steps, means, color="black", linewidth=2, label="mean")
    axes.set(xlabel="iteration (0: private samples alone)", ylabel="accuracy", xticks=steps)
    axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    _write(figure, file)


def _pyplot() -> Any:
    """Matplotlib without a screen; imported late, since it takes a second."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _write(figure: Any, file: Path | BinaryIO) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    _pyplot().close(figure)

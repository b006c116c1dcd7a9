"""Curves of a run or of several: the metric by round and by uploaded bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

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
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    evaluated = [record for record in records if record.metrics]
    sent = np.cumsum([record.upload_bytes for record in records]) / 1e6
    values = [record.metrics[metric] for record in evaluated]
    figure, (by_round, by_bytes) = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    by_round.plot([record.round for record in evaluated], values, marker=".")
    by_round.set(xlabel="round", ylabel=metric)
    by_bytes.plot([sent[record.round - 1] for record in evaluated], values, marker=".")
    by_bytes.set(xlabel="uploaded by a client in every round, MB")
    for name, value in baselines.items():
        if name.endswith(f"_{metric}"):
            for number, axes in enumerate((by_round, by_bytes)):
                axes.axhline(value, linestyle="--", color=f"C{1 + list(baselines).index(name)}",
                             label=None if number else name.removesuffix(f"_{metric}"))  # fmt: skip
    for axes in (by_round, by_bytes):
        axes.grid(alpha=0.3)
    if by_round.get_legend_handles_labels()[0]:
        by_round.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def plot_rows(rows: Sequence[Row], file: Path | BinaryIO) -> None:
    """Draw several runs over each other: a colour a row, thin lines for seeds, a thick mean.

    Args:
        rows: as `training.runs.rows_of` makes them.
        file: PNG to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_round, by_bytes) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
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
    for axes in (by_round, by_bytes):
        axes.grid(alpha=0.3)
    by_round.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=120, format="png")
    plt.close(figure)

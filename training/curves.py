"""`curves.png`: the task's metric by round and by uploaded bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from training.trainer import RoundRecord


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

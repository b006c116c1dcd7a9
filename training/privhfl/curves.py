"""`curves.png` of a PrivHFL run: each client's accuracy by iteration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.privhfl.settings import Settings


def plot_curves(lines: Sequence[dict[str, Any]], settings: Settings, file: Path) -> None:
    """Draw each client's accuracy, a colour an architecture, and the mean.

    Args:
        lines: of `metrics.jsonl`, from iteration 0.
        settings: of the run, for the title.
        file: PNG to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.5))
    steps = [one["iteration"] for one in lines]
    names = list(dict.fromkeys(lines[0]["architectures"]))
    for client, name in enumerate(lines[0]["architectures"]):
        axes.plot(
            steps,
            [one["accuracies"][client] for one in lines],
            marker=".",
            alpha=0.6,
            color=f"C{names.index(name)}",
            label=name if client == names.index(name) else None,
        )
    axes.plot(steps, [one["accuracy"] for one in lines], color="black", linewidth=2, label="mean")
    axes.set(xlabel="iteration (0: private samples alone)", ylabel="accuracy", xticks=steps)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    title = f"privhfl {settings.task}, {settings.querying}, {settings.expansion}"
    axes.set_title(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)

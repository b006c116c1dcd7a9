"""The plots of docs/results/ and docs/systems.md, in docs/figures/."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from scripts.reproduction import paper, sefl_tables
from scripts.reproduction.communication import break_even
from scripts.reproduction.one_round import one_segment_plan
from scripts.reproduction.results import read_accuracies, read_result
from scripts.reproduction.systems_tables import RESULT, privhfl_points
from torchfsl.fsl import costs
from training.privhfl.settings import TaskName

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path("docs") / "figures"
SIZE = (7.0, 4.2)


def draw() -> None:
    """Draw every plot whose figures exist."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _upload()
    _server_seconds()
    _accuracy()
    _din_auc()
    _sesa()
    _sefl()
    _systems()


def _save(figure: Any, name: str, legend: float = 0.0) -> None:
    """Write the plot; `legend` is the share of its height that a legend below it takes."""
    figure.tight_layout(rect=(0, legend, 1, 1))
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _upload() -> None:
    """Upload over dense, against the share of positions sent; above 1 dense is cheaper."""
    figure, axis = plt.subplots(figsize=SIZE)
    shares = np.geomspace(0.1, 95, 120)
    for tau, color in ((1, "tab:red"), (18, "tab:blue"), (32, "tab:green")):
        m = 1 << 20
        for check, style in ((False, "--"), (True, "-")):
            ratios = []
            for percent in shares:
                k = max(1, round(m * percent / 100))
                plan = one_segment_plan(m, k, ring_bits=32, tau=tau, check=check)
                ratios.append(costs.client_bytes(plan) / (4 * m * tau))
            name = f"{'scalars' if tau == 1 else f'rows or blocks of {tau}'}"
            axis.step(
                shares, ratios, style, where="mid", color=color, label=name if check else None
            )
            if check:
                even = break_even(m, tau, 32, check)
                axis.plot(even, 1, "o", color=color, markersize=4)
                beside = (
                    {"xytext": (4, -11), "ha": "left"}
                    if tau == 32
                    else {"xytext": (-4, 4), "ha": "right"}
                )
                axis.annotate(f"{even:.1f} %", (even, 1), textcoords="offset points",
                              fontsize=8, color=color, **beside)  # fmt: skip
    axis.axhline(1, color="black", linewidth=0.8)
    axis.annotate("dense shares", (0.1, 1.08), fontsize=8)
    axis.set(xscale="log", yscale="log", ylim=(0.0015, 30))
    axis.set(xlabel="share of the positions that a client sends, %")
    axis.set(ylabel="upload over dense upload")
    axis.set(title="2^20 positions of 32-bit values (solid: with checks, dashed: without)")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3, which="both")
    _save(figure, "upload")


def _server_seconds() -> None:
    figures = read_result("table5")
    if not figures:
        return
    figure, axis = plt.subplots(figsize=SIZE)
    for percent, color in ((10, "tab:blue"), (20, "tab:orange"), (30, "tab:green")):
        cells = [c for c in figures["cells"] if c["percent"] == percent]
        logs = [c["log2_m"] for c in cells]
        ours = [c["l128"]["server_seconds"] for c in cells]
        if percent == 10:
            big = [b for b in figures["2_25_10_percent"] if b["ring_bits"] == 128]
            logs += [25] * len(big)
            ours += [b["server_seconds"] for b in big]
        axis.plot(logs, ours, "o-", color=color, label=f"torchfsl, 2 cores, {percent} %")
        printed = [
            (c["log2_m"], c["paper_seconds"]["eval"] + c["paper_seconds"]["aggregation"])
            for c in cells
            if c["not_compared"] is None
        ]
        axis.plot(
            *zip(*printed, strict=True), "x--", color=color, label=f"paper, 64 cores, {percent} %"
        )
    axis.set(yscale="log", xlabel="log2 of the number of weights, l = 128")
    axis.set(ylabel="one server for one client, s")
    axis.set(title="Evaluation and aggregation (the paper's swapped cells left out)")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    _save(figure, "server_seconds")


def _accuracy() -> None:
    longest: dict[str, dict[str, Any]] = {}
    for run in [*read_accuracies("table7"), *read_accuracies("table8")]:
        name = str(sorted({**run["cell"], "rounds": None, "threads": None}.items()))
        if name not in longest or run["rounds"] > longest[name]["rounds"]:
            longest[name] = run
    runs = [run for run in longest.values() if not _has_bfloat16_twin(run, longest.values())]
    datasets = [d for d in paper.ACCURACY if any(r["cell"]["dataset"] == d for r in runs)]
    if not datasets:
        return
    figure, axes = plt.subplots(1, len(datasets), figsize=(4.4 * len(datasets), 4.6), squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        mine = [
            r for r in runs if r["cell"]["dataset"] == dataset and r["cell"]["reading"] == "paper"
        ]
        longest_run = max(r["rounds"] for r in mine)
        for label, (marker, is_one) in _KINDS.items():
            _points(axis, [r for r in mine if is_one(r["cell"])], label, marker, longest_run)
        values = [r["accuracy_percent"] for r in mine]
        middle, half = (max(values) + min(values)) / 2, max(1.0, 0.75 * (max(values) - min(values)))
        axis.set(
            xscale="log",
            xlabel="upload a client and round, MB",
            title=f"{dataset}, {longest_run:,} rounds",
        )
        axis.set(ylabel="accuracy, %", ylim=(middle - half, middle + half))
        axis.margins(x=0.12)
        axis.grid(alpha=0.3)
    handles = {
        label: handle
        for axis in axes[0]
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncol=4, fontsize=8, frameon=False
    )
    _save(figure, "accuracy", legend=0.1)


def _averaging(cell: dict[str, Any]) -> bool:
    """Whether the servers add the mean of updates times a rate that stays: no momentum, no fall."""
    return cell["server_momentum"] == 0 and cell["server_decay"] == 1


_KINDS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "dense shares (100 %)": (
        "ks",
        lambda c: (
            c["table"] == "table7"
            and c["percent"] == 100
            and c["server_rate"] == 1
            and _averaging(c)
            and c["augment"]
            and not c["average"]
        ),
    ),
    "top-k scalars": (
        "C0o",
        lambda c: (
            c["table"] == "table7"
            and c["percent"] < 100
            and c["block"] == 1
            and c["feedback"]
            and c["server_rate"] == 1
            and _averaging(c)
            and c["augment"]
            and not c["average"]
        ),
    ),
    "other server rate": (
        "C5o",
        lambda c: c["server_rate"] != 1 and _averaging(c) and c["augment"] and not c["average"],
    ),
    "mean of models": (
        "C6+",
        lambda c: c["server_rate"] == 1 and _averaging(c) and c["augment"] and c["average"],
    ),
    "other server rate, mean of models": (
        "C8+",
        lambda c: c["server_rate"] != 1 and _averaging(c) and c["augment"] and c["average"],
    ),
    "server momentum or falling rate": (
        "C9o",
        lambda c: not _averaging(c) and c["augment"] and not c["average"],
    ),
    "server momentum or falling rate, mean of models": (
        "C9+",
        lambda c: not _averaging(c) and c["augment"] and c["average"],
    ),
    "no augmentation": (
        "C7x",
        lambda c: not c["augment"] and c["server_rate"] == 1 and _averaging(c) and not c["average"],
    ),
    "top-k scalars, no error feedback": (
        "C3o",
        lambda c: c["table"] == "table7" and not c["feedback"],
    ),
    "top-k blocks of 32": ("C2o", lambda c: c["block"] == 32),
    "top-k rows": ("C1o", lambda c: c["table"] == "table8" and c["feedback"]),
    "top-k rows, no error feedback": (
        "C4o",
        lambda c: c["table"] == "table8" and not c["feedback"],
    ),
}


def _has_bfloat16_twin(run: dict[str, Any], runs: Iterable[dict[str, Any]]) -> bool:
    """Whether a float32 run has a bfloat16 one beside it, which is then shown in its place."""
    if run["cell"]["precision"] == "bfloat16":
        return False
    free = {"rounds": None, "threads": None, "precision": None}
    same = {**run["cell"], **free}
    return any(r is not run and {**r["cell"], **free} == same for r in runs)


def _points(axis: Any, runs: list[dict[str, Any]], label: str, marker: str, longest: int) -> None:
    """Mean and deviation over seeds by upload, the shares sent beside the usual points.

    Runs shorter than the `longest` of the data set say how long they are.
    """
    points: dict[float, dict[float, list[float]]] = {}
    for run in runs:
        shares = points.setdefault(run["fsl"]["upload_bytes"] / 1e6, {})
        shares.setdefault(run["cell"]["percent"], []).append(run["accuracy_percent"])
    for at, (mega, shares) in enumerate(sorted(points.items())):
        for values in shares.values():
            deviation = np.std(values, ddof=1) if len(values) > 1 else None
            axis.errorbar(mega, np.mean(values), deviation, fmt=marker, capsize=2, markersize=5,
                          label="_" * bool(at) + label)  # fmt: skip
        short = {r["rounds"] for r in runs if r["fsl"]["upload_bytes"] / 1e6 == mega} - {longest}
        if label in ("top-k scalars", "top-k rows", "no augmentation") or short:
            text = ", ".join(f"{percent:g}" for percent in sorted(shares)) + " %"
            text += "".join(f" ({rounds:,} rounds)" for rounds in sorted(short))
            axis.annotate(text, (mega, np.mean(values)), (6, -3), textcoords="offset points",
                          fontsize=7)  # fmt: skip
    if label.startswith("dense") and points:
        axis.axvline(min(points), color="black", linewidth=0.8, alpha=0.5)


def _din_auc() -> None:
    figures = read_result("din-auc")
    if not figures:
        return
    figure, axis = plt.subplots(figsize=SIZE)
    styles = {"plain": "k-", "dense": "tab:orange", "fsl": "c--"}
    for name, style in styles.items():
        rounds, values = zip(*figures[name]["curve"], strict=True)
        axis.plot(rounds, values, style, linewidth=3 if name == "plain" else 1.5, label=name)
    axis.set(xlabel="round", ylabel="AUC", title="DIN on Amazon Beauty")
    axis.legend()
    axis.grid(alpha=0.3)
    _save(figure, "din_auc")


def _sesa() -> None:
    """Accuracy by round of every choice of shards: mean over seeds, and the seeds beside it."""
    figures = read_result("sesa")
    if not figures:
        return
    figure, axis = plt.subplots(figsize=SIZE)
    styles = {"full": "k", "random": "tab:red", "random, scaled": "tab:orange",
              "rolling": "tab:blue", "static": "tab:green"}  # fmt: skip
    for name, color in styles.items():
        curves = [run["curve"] for run in figures["accuracy"][name].values()]
        rounds = [at for at, _ in curves[0]]
        values = 100 * np.array([[accuracy for _, accuracy in curve] for curve in curves])
        axis.plot(rounds, values.mean(axis=0), color=color, label=name)
        axis.plot(rounds, values.T, color=color, linewidth=0.5, alpha=0.4)
    axis.set(xlabel="round", ylabel="accuracy, %", title="MNIST, two labels a client")
    axis.legend()
    axis.grid(alpha=0.3)
    _save(figure, "sesa")


def _sefl() -> None:
    """Test perplexity by block size."""
    lines = sefl_tables.curves()
    if not lines:
        return
    figure, axis = plt.subplots(figsize=SIZE)
    for number, (label, blocks, values) in enumerate(lines):
        style = "-" if number % 2 else "--"
        axis.plot(blocks, values, style, color=f"C{number // 2}", marker=".", label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(lines[0][1], [str(block) for block in lines[0][1]])
    axis.set(xlabel="block size", ylabel="test perplexity", title="WikiText-2, 8,192 words")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    _save(figure, "sefl")


def _systems() -> None:
    """Accuracy on both tasks against what a client has sent and received so far."""
    found: list[tuple[TaskName, str, dict[str, Any]]] = [
        (task, title, figures)
        for task, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
        if (figures := read_result(RESULT[task]))
    ]
    if not found:
        return
    size = (SIZE[0] * len(found), SIZE[1])
    figure, axes = plt.subplots(ncols=len(found), figsize=size, squeeze=False)
    for axis, (task, title, figures) in zip(axes[0], found, strict=True):
        for name, run in figures["runs"].items():
            each = run["upload_bytes"] + run["download_bytes"]
            points = [(each * number / 1e6, 100 * accuracy) for number, accuracy in run["curve"]]
            axis.plot(*zip(*points, strict=True), marker=".", label=name)
        if points := privhfl_points(task):
            shown = [(sent / 1e6, 100 * accuracy) for sent, _, accuracy in points]
            axis.plot(*zip(*shown, strict=True), marker="s", label="privhfl: mean of unlike models")
        axis.set(
            xscale="log", xlabel="up and down a client, MB", ylabel="test accuracy, %", title=title
        )
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    _save(figure, "systems")

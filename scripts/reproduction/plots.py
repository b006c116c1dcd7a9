"""The plots of docs/results/ and docs/systems.md, in docs/figures/."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from scripts.reproduction import paper, sefl_tables
from scripts.reproduction.communication import break_even
from scripts.reproduction.one_round import one_segment_plan
from scripts.reproduction.results import Figures, read_accuracies, read_result
from scripts.reproduction.systems_tables import RESULT, privhfl_points
from torchfsl.fsl import costs

matplotlib.use("Agg")
from matplotlib import pyplot as plt

FOLDER = Path("docs") / "figures"
SIZE = (7.0, 4.2)


def draw() -> None:
    """Draw every plot whose figures exist."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    _upload()
    if figures := read_result("table5"):
        _server_seconds(figures)
    _accuracy()
    if figures := read_result("din-auc"):
        _din_auc(figures)
    if figures := read_result("sesa"):
        _sesa(figures)
    if lines := sefl_tables.curves():
        _sefl(lines)
    _systems()


@contextmanager
def _plot(name: str, legend: int | None = 8, **labels: Any) -> Iterator[Any]:
    """An axis with labels, a legend and a grid, which is written at the end."""
    figure, axis = plt.subplots(figsize=SIZE)
    yield axis
    axis.set(**labels)
    axis.legend(fontsize=legend)
    axis.grid(alpha=0.3)
    _save(figure, name)


def _save(figure: Any, name: str, legend: float = 0.0) -> None:
    """Write the plot; `legend` is the share of its height that a legend below it takes."""
    figure.tight_layout(rect=(0, legend, 1, 1))
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _upload() -> None:
    """Upload over dense, against the share of positions sent; above 1 dense is cheaper."""
    shares, m = np.geomspace(0.1, 95, 120), 1 << 20
    labels: dict[str, Any] = {
        "xlabel": "share of the positions that a client sends, %",
        "ylabel": "upload over dense upload",
        "title": "2^20 positions of 32-bit values (solid: with checks, dashed: without)",
    }
    with _plot("upload", **labels) as axis:
        for tau, color in ((1, "tab:red"), (18, "tab:blue"), (32, "tab:green")):
            name = "scalars" if tau == 1 else f"rows or blocks of {tau}"
            for check, style in ((False, "--"), (True, "-")):
                ratios = []
                for percent in shares:
                    k = max(1, round(m * percent / 100))
                    plan = one_segment_plan(m, k, ring_bits=32, tau=tau, check=check)
                    ratios.append(costs.client_bytes(plan) / (4 * m * tau))
                label = name if check else None
                axis.step(shares, ratios, style, where="mid", color=color, label=label)
            even = break_even(m, tau, 32, True)
            axis.plot(even, 1, "o", color=color, markersize=4)
            place, side = ((4, -11), "left") if tau == 32 else ((-4, 4), "right")
            text = {"textcoords": "offset points", "fontsize": 8, "color": color}
            axis.annotate(f"{even:.1f} %", (even, 1), xytext=place, ha=side, **text)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.annotate("dense shares", (0.1, 1.08), fontsize=8)
        axis.set(xscale="log", yscale="log", ylim=(0.0015, 30))
        axis.grid(alpha=0.3, which="minor")


def _server_seconds(figures: Figures) -> None:
    labels: dict[str, Any] = {
        "xlabel": "log2 of the number of weights, l = 128",
        "ylabel": "one server for one client, s",
        "title": "Evaluation and aggregation (the paper's swapped cells left out)",
    }
    large = [b for b in figures["2_25_10_percent"] if b["ring_bits"] == 128]
    with _plot("server_seconds", yscale="log", **labels) as axis:
        for percent, color in ((10, "tab:blue"), (20, "tab:orange"), (30, "tab:green")):
            cells = [c for c in figures["cells"] if c["percent"] == percent]
            ours = {c["log2_m"]: c["l128"]["server_seconds"] for c in cells}
            if percent == 10 and large:
                ours[25] = large[0]["server_seconds"]
            printed = {
                c["log2_m"]: c["paper_seconds"]["eval"] + c["paper_seconds"]["aggregation"]
                for c in cells
                if c["not_compared"] is None
            }
            for points, style, who in (
                (ours, "o-", "torchfsl, 2 cores"),
                (printed, "x--", "paper, 64 cores"),
            ):
                label = f"{who}, {percent} %"
                axis.plot([*points], [*points.values()], style, color=color, label=label)


def _accuracy() -> None:
    longest: dict[str, Figures] = {}
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
        cells = ((r, r["cell"]) for r in runs)
        mine = [r for r, c in cells if c["dataset"] == dataset and c["reading"] == "paper"]
        longest_run = max(r["rounds"] for r in mine)
        for label, marker in MARKERS.items():
            of_label = [r for r in mine if kind(r["cell"]) == label]
            _points(axis, of_label, label, marker, longest_run)
        values = [r["accuracy_percent"] for r in mine]
        middle, half = (max(values) + min(values)) / 2, max(1.0, 0.75 * (max(values) - min(values)))
        axis.set(xscale="log", xlabel="upload a client and round, MB", ylabel="accuracy, %")
        axis.set(title=f"{dataset}, {longest_run:,} rounds", ylim=(middle - half, middle + half))
        axis.margins(x=0.12)
        axis.grid(alpha=0.3)
    handles = {
        label: handle
        for axis in axes[0]
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    below: dict[str, Any] = {"loc": "lower center", "ncol": 4, "fontsize": 8, "frameon": False}
    figure.legend(handles.values(), handles.keys(), **below)
    _save(figure, "accuracy", legend=0.1)


MARKERS = {
    "dense shares (100 %)": "ks",
    "top-k scalars": "C0o",
    "other server rate": "C5o",
    "mean of models": "C6+",
    "other server rate, mean of models": "C8+",
    "server momentum or falling rate": "C9o",
    "server momentum or falling rate, mean of models": "C9+",
    "no augmentation": "C7x",
    "top-k scalars, no error feedback": "C3o",
    "top-k blocks of 32": "C2o",
    "top-k rows": "C1o",
    "top-k rows, no error feedback": "C4o",
}


def kind(cell: Figures) -> str | None:
    """The label of a run's point; None for runs that mix two of them."""
    feedback = "" if cell["feedback"] else ", no error feedback"
    if cell["table"] == "table8":
        return "top-k rows" + feedback
    if cell["block"] != 1:
        return f"top-k blocks of {cell['block']}"
    servers = "" if cell["server_rate"] == 1 else "other server rate"
    if cell["server_momentum"] or cell["server_decay"] != 1:
        servers = "server momentum or falling rate"
    changed = ", ".join(filter(None, [servers, "mean of models" if cell["average"] else ""]))
    if not cell["augment"]:
        return None if changed else "no augmentation"
    plain = "dense shares (100 %)" if cell["percent"] == 100 else "top-k scalars" + feedback
    return changed or plain


def _has_bfloat16_twin(run: Figures, runs: Iterable[Figures]) -> bool:
    """Whether the plot shows a bfloat16 run in place of this float32 one."""
    if run["cell"]["precision"] == "bfloat16":
        return False
    free = {"rounds": None, "threads": None, "precision": None}
    same = {**run["cell"], **free}
    return any(r is not run and {**r["cell"], **free} == same for r in runs)


def _points(axis: Any, runs: list[Figures], label: str, marker: str, longest: int) -> None:
    """Mean and deviation over seeds by upload, with the shares sent next to the usual points.

    If runs are shorter than the `longest` of the data set, the label of a point has their length.
    """
    points: dict[float, dict[float, list[float]]] = {}
    for run in runs:
        shares = points.setdefault(run["fsl"]["upload_bytes"] / 1e6, {})
        shares.setdefault(run["cell"]["percent"], []).append(run["accuracy_percent"])
    for at, (mega, shares) in enumerate(sorted(points.items())):
        style = {"fmt": marker, "capsize": 2, "markersize": 5, "label": "_" * bool(at) + label}
        for values in shares.values():
            deviation = np.std(values, ddof=1) if len(values) > 1 else None
            axis.errorbar(mega, np.mean(values), deviation, **style)
        short = {r["rounds"] for r in runs if r["fsl"]["upload_bytes"] / 1e6 == mega} - {longest}
        if label in ("top-k scalars", "top-k rows", "no augmentation") or short:
            text = ", ".join(f"{percent:g}" for percent in sorted(shares)) + " %"
            text += "".join(f" ({rounds:,} rounds)" for rounds in sorted(short))
            place = {"xytext": (6, -3), "textcoords": "offset points", "fontsize": 7}
            axis.annotate(text, (mega, np.mean(values)), **place)
    if label.startswith("dense") and points:
        axis.axvline(min(points), color="black", linewidth=0.8, alpha=0.5)


def _din_auc(figures: Figures) -> None:
    styles = {"plain": "k-", "dense": "tab:orange", "fsl": "c--"}
    labels: dict[str, Any] = {"ylabel": "AUC", "title": "DIN on Amazon Beauty"}
    with _plot("din_auc", None, xlabel="round", **labels) as axis:
        for name, style in styles.items():
            width = 3 if name == "plain" else 1.5
            points = zip(*figures[name]["curve"], strict=True)
            axis.plot(*points, style, linewidth=width, label=name)


def _sesa(figures: Figures) -> None:
    """Accuracy by round of every choice of shards: the mean over seeds, and each seed."""
    names = ("full", "random", "random, scaled", "rolling", "static")
    colors = ("k", "tab:red", "tab:orange", "tab:blue", "tab:green")
    labels: dict[str, Any] = {"ylabel": "accuracy, %", "title": "MNIST, two labels a client"}
    with _plot("sesa", None, xlabel="round", **labels) as axis:
        for name, color in zip(names, colors, strict=True):
            curves = [run["curve"] for run in figures["accuracy"][name].values()]
            rounds = [at for at, _ in curves[0]]
            values = 100 * np.array([[accuracy for _, accuracy in curve] for curve in curves])
            axis.plot(rounds, values.mean(axis=0), color=color, label=name)
            axis.plot(rounds, values.T, color=color, linewidth=0.5, alpha=0.4)


def _sefl(lines: list[tuple[str, list[int], list[float]]]) -> None:
    """Test perplexity by block size."""
    labels: dict[str, Any] = {"ylabel": "test perplexity", "title": "WikiText-2, 8,192 words"}
    with _plot("sefl", xlabel="block size", **labels) as axis:
        for number, (label, blocks, values) in enumerate(lines):
            style = "-" if number % 2 else "--"
            axis.plot(blocks, values, style, color=f"C{number // 2}", marker=".", label=label)
        axis.set_xscale("log", base=2)
        axis.set_xticks(lines[0][1], [str(block) for block in lines[0][1]])


def _systems() -> None:
    """Accuracy on both tasks against what a client has sent and received so far."""
    titles = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
    found = [(task, figures) for task, name in RESULT.items() if (figures := read_result(name))]
    if not found:
        return
    size = (SIZE[0] * len(found), SIZE[1])
    figure, axes = plt.subplots(ncols=len(found), figsize=size, squeeze=False)
    for axis, (task, figures) in zip(axes[0], found, strict=True):
        for name, run in figures["runs"].items():
            each = run["upload_bytes"] + run["download_bytes"]
            points = [(each * number / 1e6, 100 * accuracy) for number, accuracy in run["curve"]]
            axis.plot(*zip(*points, strict=True), marker=".", label=name)
        if shown := [(sent / 1e6, 100 * accuracy) for sent, _, accuracy in privhfl_points(task)]:
            axis.plot(*zip(*shown, strict=True), marker="s", label="privhfl: mean of unlike models")
        axis.set(xscale="log", xlabel="up and down a client, MB", ylabel="test accuracy, %")
        axis.set(title=titles[task])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    _save(figure, "systems")

"""The plots of RESULTS.md."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np

from reproduction import paper
from reproduction.one_round import one_segment_plan
from reproduction.results import FOLDER, read_result, read_results
from torchfsl import messages

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SIZE = (7.0, 4.2)


def draw() -> None:
    """Draw every plot whose figures exist."""
    FOLDER.mkdir(exist_ok=True)
    _upload()
    _server_seconds()
    _accuracy()
    _din_auc()


def _save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _upload() -> None:
    """Upload over dense, against the share of positions sent; above 1 dense is cheaper."""
    figure, axis = plt.subplots(figsize=SIZE)
    shares = np.geomspace(0.1, 60, 30)
    for tau, color in ((1, "tab:red"), (18, "tab:blue"), (32, "tab:green")):
        m = (1 << 20) // tau
        for check, style in ((False, "--"), (True, "-")):
            ratios = []
            for percent in shares:
                k = max(1, round(m * percent / 100))
                plan = one_segment_plan(m, k, ring_bits=32, tau=tau, check=check)
                ratios.append(messages.client_bytes(plan) / (4 * m * tau))
            name = f"{'scalars' if tau == 1 else f'rows or blocks of {tau}'}"
            axis.plot(shares, ratios, style, color=color, label=name if check else None)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.annotate("dense shares", (0.1, 1.05), fontsize=8)
    axis.set(xscale="log", yscale="log", ylim=(0.004, 12))
    axis.set(xlabel="share of the positions that a client sends, %")
    axis.set(ylabel="upload over dense upload", title="2^20 values of 32 bits (dashed: no checks)")
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
    axis.set(ylabel="one server for one client, s", title="Evaluation and aggregation")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
    _save(figure, "server_seconds")


def _accuracy() -> None:
    runs = [*read_results("table7").values(), *read_results("table8").values()]
    datasets = [d for d in paper.ACCURACY if any(r["cell"]["dataset"] == d for r in runs)]
    if not datasets:
        return
    figure, axes = plt.subplots(1, len(datasets), figsize=(4.6 * len(datasets), 4), squeeze=False)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        kinds = {
            "top-k scalars": ("table7", 1, True),
            "top-k rows": ("table8", 1, True),
            "top-k blocks of 32": ("table7", 32, True),
            "top-k scalars, no error feedback": ("table7", 1, False),
        }
        for label, kind in kinds.items():
            points: dict[float, list[float]] = {}
            for run in runs:
                cell = run["cell"]
                if cell["dataset"] != dataset or cell["reading"] != "paper":
                    continue
                if (cell["table"], cell["block"], cell["feedback"]) == kind:
                    mega = run["fsl"]["upload_bytes"] / 1e6
                    points.setdefault(mega, []).append(run["accuracy_percent"])
            if points:
                xs = sorted(points)
                axis.plot(xs, [np.mean(points[x]) for x in xs], "o", label=label)
        axis.set(xscale="log", xlabel="upload a client and round, MB", title=dataset)
        axis.set(ylabel="accuracy, %")
        axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    _save(figure, "accuracy")


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

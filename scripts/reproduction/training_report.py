"""The sections of RESULTS.md about training: tables 7, 8 and 9, and DIN's AUC."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction import paper
from reproduction.markdown import missing, size, stamp, table
from reproduction.results import read_result, read_results

Figures = dict[str, Any]


def accuracy() -> str:
    """Table 7."""
    title = "## Table 7: accuracy against compression\n\n"
    runs = [r for r in read_results("table7").values() if _usual(r)]
    if not runs:
        return title + missing("table7")
    parts = [
        title
        + "Settings of section 7.3; error feedback on, as in the gradient dropping that the paper "
        "cites. Accuracy is the mean of a run's last five evaluations, in percent. Every run "
        "aggregates in plaintext on the quantised updates, and its first rounds a second time "
        "through both servers, with the same model bit for bit (`fsl` in the JSON files). One "
        "local iteration is one local epoch on MNIST and CIFAR-10 and one optimizer step on TREC. The "
        "image networks pass forwards and backwards in bfloat16 where torch's autocast uses it, which "
        "halves the time; weights, updates and evaluation are float32.\n"
    ]
    for dataset, printed in paper.ACCURACY.items():
        mine = [r for r in runs if r["cell"]["dataset"] == dataset]
        if not mine:
            parts.append(f"{dataset}: " + missing(f"table7 --dataset {dataset}"))
            continue
        rows = []
        for percent in sorted({r["cell"]["percent"] for r in mine}):
            group = [r for r in mine if r["cell"]["percent"] == percent]
            reference = printed.get(int(percent))
            rows.append(
                (
                    f"{percent:g} %",
                    "-"
                    if reference is None
                    else f"{reference} ± {paper.ACCURACY_DEVIATION[dataset][int(percent)]}",
                    _mean([r["accuracy_percent"] for r in group]),
                    len(group),
                    f"{group[0]['rounds']:,}",
                    size(group[0]["fsl"]["upload_bytes"]),
                    ", ".join(f"{r['fsl']['rounds']}" for r in group),
                )
            )
        head = ("sent", f"paper, {paper.ROUNDS[dataset]:,} rounds", "ours", "seeds", "rounds",
                "upload a client and round", "rounds also run by both servers")  # fmt: skip
        parts.append(f"### {dataset}\n\n" + table(head, rows) + "\n" + _same_models(mine))
    parts.append("![Accuracy against upload](results/accuracy.png)\n")
    commands = sorted({f"`{r['command']}`" for r in runs})
    dates = sorted({r["date"] for r in runs})
    parts.append(", ".join(commands) + f"; {dates[0]} to {dates[-1]}, 2 cores of an AMD EPYC.\n")
    return "\n".join(parts)


def _same_models(runs: list[Figures]) -> str:
    """A sentence where runs of several shares end with the same model, bit for bit."""
    for seed in sorted({r["cell"]["seed"] for r in runs}):
        groups: dict[str, list[float]] = {}
        for run in runs:
            if run["cell"]["seed"] == seed:
                groups.setdefault(run["model_sha256"], []).append(run["cell"]["percent"])
        equal = [f"{percent:g} %" for percent in sorted(max(groups.values(), key=len))]
        if len(equal) > 1:
            return (
                f"\nThe runs of {', '.join(equal)} (seed {seed}) end with one and the same model: "
                "two batches change fewer weights than these shares, so nothing is held back, and "
                "accuracy is that of 100 % (which is summed as a dense segment). Dense shares are "
                "then the better choice.\n"
            )
    return ""


def _usual(run: Figures) -> bool:
    cell = run["cell"]
    return bool(cell["feedback"]) and cell["block"] == 1 and cell["reading"] == "paper"


def _mean(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def mega_elements() -> str:
    """Table 8."""
    title = "## Table 8: top-k rows of TREC's word table\n\n"
    runs = [r for r in read_results("table8").values() if _usual(r)]
    if not runs:
        return title + missing("table8")
    rows = []
    for percent in sorted({r["cell"]["percent"] for r in runs}):
        group = [r for r in runs if r["cell"]["percent"] == percent]
        segment = next(s for s in group[0]["segments"] if s["policy"] == "rows")
        printed = paper.MEGA_ELEMENTS.get(percent)
        rows.append(
            (
                f"{percent:g} % ({segment['k_max']} of {segment['positions']:,})",
                "-" if printed is None else f"{printed[0]} ± {printed[1]}",
                _mean([r["accuracy_percent"] for r in group]),
                len(group),
                size(group[0]["fsl"]["upload_bytes"]),
            )
        )
    return (
        title
        + "The word table sends its rows of largest L1 norm, the rest of the network is dense.\n\n"
        + table(("rows sent", "paper", "ours", "seeds", "upload a client and round"), rows)
        + "\n\n`"
        + runs[0]["command"]
        + f"`, {runs[0]['date']}, 2 cores of an AMD EPYC.\n"
    )


def beyond() -> str:
    """Runs that the paper does not have."""
    title = "### Beyond the paper\n\n"
    extra = [
        r for name in ("table7", "table8") for r in read_results(name).values() if not _usual(r)
    ]
    if not extra:
        return title + missing("beyond")
    rows = []
    for run in extra:
        cell = run["cell"]
        what = "rows" if cell["table"] == "table8" else "scalars"
        if cell["block"] != 1:
            what = f"blocks of {cell['block']}"
        notes = [] if cell["feedback"] else ["no error feedback"]
        if cell["reading"] == "other":
            notes.append(
                "an iteration is an epoch"
                if cell["dataset"] == "trec"
                else "an iteration is a step"
            )
        rows.append(
            (
                cell["dataset"],
                f"{cell['percent']:g} % of the {what}",
                ", ".join(notes) or "error feedback",
                run["rounds"],
                f"{run['accuracy_percent']:.2f}",
                size(run["fsl"]["upload_bytes"]),
            )
        )
    head = ("data", "sent", "", "rounds", "accuracy", "upload a client and round")
    return title + "One seed each.\n\n" + table(head, rows) + "\n"


def statistics() -> str:
    """Table 9."""
    figures = read_result("table9")
    title = "## Table 9: TREC\n\n"
    if not figures:
        return title + missing("table9")
    rows = [
        (name, *figures["paper"][name], f"{words:,.0f}", f"{samples:,.0f}")
        for name, (words, samples) in figures["ours"].items()
    ]
    head = ("split", "words, paper", "samples, paper", "words, ours", "samples, ours")
    return (
        title
        + "Our tokeniser lower-cases and keeps punctuation as words of its own; the paper does not "
        "give its.\n\n" + table(head, rows) + "\n\n" + stamp(figures)
    )


def din_auc() -> str:
    """The curves of section 7.5's model."""
    figures = read_result("din-auc")
    title = "### DIN's AUC by round\n\n"
    if not figures:
        return title + missing("din-auc")
    rows = [
        (
            name,
            f"{figures[name]['auc_last_three']:.4f}",
            size(figures[name]["upload_bytes"]),
            f"{figures[name]['exact_rounds']} of {figures[name]['rounds']}",
            f"`{figures[name]['model_sha256'][:16]}`",
        )
        for name in ("plain", "dense", "fsl")
    ]
    head = ("aggregation", "AUC, last three", "upload a client and round", "exact", "final model")
    return (
        title + "Amazon Beauty, 100 users a round. `plain` sums the same quantised updates without "
        "protection and ends with the same model as `fsl`, bit for bit; `dense` shares all "
        "parameters.\n\n"
        + table(head, rows)
        + "\n\n![AUC by round](results/din_auc.png)\n\n"
        + stamp(figures)
    )

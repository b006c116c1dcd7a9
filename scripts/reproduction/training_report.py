"""The sections of RESULTS.md about training beside table 7: tables 8 and 9, and DIN's AUC."""

from __future__ import annotations

from typing import Any

from scripts.reproduction import paper
from scripts.reproduction.accuracy_report import dense_bytes, mean, paired, stamp_of, usual
from scripts.reproduction.markdown import missing, size, stamp, table
from scripts.reproduction.results import read_accuracies, read_result

Figures = dict[str, Any]


def mega_elements() -> str:
    """Table 8."""
    title = "## Table 8: top-k rows of TREC's word table\n\n"
    runs = [r for r in read_accuracies("table8") if usual(r)]
    if not runs:
        return title + missing("table8")
    rows, most = [], max(r["cell"]["percent"] for r in runs)
    top = {r["cell"]["seed"]: r["accuracy_percent"] for r in runs if r["cell"]["percent"] == most}
    for percent in sorted({r["cell"]["percent"] for r in runs}):
        group = [r for r in runs if r["cell"]["percent"] == percent]
        segment = next(s for s in group[0]["segments"] if s["policy"] == "rows")
        printed = paper.MEGA_ELEMENTS.get(percent)
        gaps = [
            r["accuracy_percent"] - top[r["cell"]["seed"]]
            for r in group
            if r["cell"]["seed"] in top and percent != most
        ]
        rows.append(
            (
                f"{percent:g} % ({segment['k_max']} of {segment['positions']:,})",
                "-" if printed is None else f"{printed[0]} ± {printed[1]}",
                mean([r["accuracy_percent"] for r in group]),
                paired(gaps) if gaps else "-",
                len(group),
                size(group[0]["fsl"]["upload_bytes"]),
            )
        )
    return (
        title
        + f"The word table sends its rows of largest L1 norm and keeps the others for later (error "
        f"feedback), the rest of the network is dense; {runs[0]['rounds']} rounds. Dense shares of "
        f"everything take {size(dense_bytes(runs[0]))}. {paper.RESOLVES['trec']} "
        f"*Against {most:g} %* are differences of runs with one seed, ± their standard error.\n\n"
        + table(
            (
                "rows sent",
                "paper",
                "ours",
                f"against {most:g} %",
                "seeds",
                "upload a client and round",
            ),
            rows,
        )
        + "\n\n"
        + stamp_of(runs)
    )


def beyond() -> str:
    """Runs that the paper does not have."""
    title = "### Beyond the paper\n\n"
    extra = [r for name in ("table7", "table8") for r in read_accuracies(name) if not usual(r)]
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
                f"{run['accuracy_percent']:.2f}"
                if run["evaluations_averaged"] == 5
                else f"{run['accuracy_percent_last']:.2f} (last)",
                size(run["fsl"]["upload_bytes"]),
            )
        )
    head = ("data", "sent", "how", "rounds", "accuracy", "upload a client and round")
    return (
        title
        + "One seed each; a run of fewer than five evaluations with its last one. 15 rounds are the other reading of the paper's local iteration, an epoch, at "
        "its rates; the preset `textcnn` of the README has rates of its own and is not comparable.\n\n"
        + table(head, rows)
        + "\n\n"
        + stamp_of(extra)
    )


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
            "-"
            if name == "plain"
            else f"{figures[name]['exact_rounds']} of {figures[name]['rounds']}",
            f"`{figures[name]['model_sha256'][:16]}`",
        )
        for name in ("plain", "dense", "fsl")
    ]
    head = ("aggregation", "AUC, last three", "upload a client and round", "exact", "final model")
    return (
        title + "Amazon Beauty, a smaller model than the published shape, 100 users a round, one "
        f"seed; ranking by popularity gives {figures['fsl']['popularity_auc']['popularity_auc']:.3f}. `plain` sums the same quantised updates "
        "without protection and ends with the same model as `fsl`, bit for bit; `dense` shares all "
        "parameters. *Exact* counts the rounds whose opened sum was the plaintext sum.\n\n"
        + table(head, rows)
        + "\n\n![AUC by round](results/din_auc.png)\n\n"
        + stamp(figures)
    )

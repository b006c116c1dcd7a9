"""The section of RESULTS.md about accuracy against compression: table 7."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from scripts.reproduction import paper
from scripts.reproduction.accuracy import LAST
from scripts.reproduction.markdown import command, machine, missing, size, table
from scripts.reproduction.results import read_accuracies

Figures = dict[str, Any]


def accuracy() -> str:
    """Table 7."""
    title = "## Table 7: accuracy against compression\n\n"
    runs = [r for r in read_accuracies("table7") if usual(r)]
    if not runs:
        return title + missing("table7")
    parts = [
        title
        + "Settings of section 7.3; error feedback on, as in the gradient dropping that the paper "
        "cites. Accuracy is the mean of a run's last five evaluations, in percent, ± the standard "
        "deviation over seeds; *against our 100 %* are differences of runs with one seed, ± their standard "
        "error where there are several. Of the rows of single scalars only 1 % is below break-even (section 6): "
        "the others cost more than dense shares, as *times dense* says, and stand here to compare "
        "accuracy with the paper. What compares is the loss against 100 % of "
        "the same data: where ours end above the paper's, they do so with everything sent, too. A "
        "client of MNIST and CIFAR-10 takes part in every tenth round on average, and what it keeps "
        "back waits as long: of 1 %, a client sends a weight on average once in a hundred of its "
        "rounds, a thousand of the run's. So small shares lag behind, 1 % of CIFAR-10's network by whole "
        "points at equal settings and rounds: by plain averaging, and with momentum and a falling rate at the "
        "servers, which bring both further in as many rounds. Whether 1 % catches up by the paper's 5,000 rounds "
        "was not tried, "
        "nor were MNIST and CIFAR-10 at 10 to 80 %. "
        + _RATES * any(_row(r).rate != 1 for r in runs)
        + _MOMENTUM * any(_row(r).momentum or _row(r).decay != 1 for r in runs)
        + _MEANS * any(_row(r).average for r in runs)
        + _AUGMENTATION * any(_row(r).plain_images for r in runs)
        + "Every run aggregates in plaintext on the quantised updates, and its first rounds a second time "
        "through both servers, with the same model bit for bit (`fsl` in the JSON files). One "
        "local iteration is one local epoch on MNIST and CIFAR-10 and one optimizer step on TREC. The "
        "image networks pass forwards and backwards in bfloat16 where torch's autocast uses it, which "
        "halves the time; weights, updates and evaluation are float32."
        + " Rows that say *float32* use it throughout, for CPUs without bfloat16; where 100 % has no such row, "
        "they are compared with bfloat16's." * any(_row(r).float32 for r in runs) + "\n"
    ]
    for dataset in paper.ACCURACY:
        mine = [r for r in runs if r["cell"]["dataset"] == dataset]
        if not mine:
            parts.append(f"{dataset}: " + missing(f"table7 --dataset {dataset}"))
            continue
        rows = [_accuracy_row(row, mine) for row in sorted({_row(r) for r in mine})]
        head = ("sent", f"paper, {paper.ROUNDS[dataset]:,} rounds", "ours", "against our 100 %", "seeds",
                "rounds", "upload a client and round", "times dense", "rounds also run by both servers")  # fmt: skip
        top = f"### {dataset}\n\n{paper.RESOLVES[dataset]}\n\n"
        parts.append(top + table(head, rows) + "\n" + _same_models(mine))
    parts.append("![Accuracy against upload](results/accuracy.png)\n")
    parts.append(stamp_of(runs))
    return "\n".join(parts)


def _accuracy_row(row: _Row, runs: list[Figures]) -> tuple[Any, ...]:
    """A line of Table 7: the runs of one data set that share what `row` says."""
    group = [r for r in runs if _row(r) == row]
    dataset, upload = group[0]["cell"]["dataset"], group[0]["fsl"]["upload_bytes"]
    reference = paper.ACCURACY[dataset].get(int(row.percent))
    return (
        f"{row.percent:g} %"
        + " (dense shares)" * (row.percent == 100)
        + f", server rate {row.rate:g}" * (row.rate != 1 or row.decay != 1)
        + f" times {row.decay:g} every ten rounds" * (row.decay != 1)
        + f", momentum {row.momentum:g}" * (row.momentum != 0)
        + f", mean of models ({row.average:g})" * (row.average != 0)
        + ", float32" * row.float32
        + ", no augmentation" * row.plain_images,
        "-"
        if reference is None
        else f"{reference} ± {paper.ACCURACY_DEVIATION[dataset][int(row.percent)]}",
        mean([r["accuracy_percent"] for r in group]),
        _against_all(group, runs) + _against_same(group, runs),
        len(group),
        f"{row.rounds:,}",
        size(upload),
        f"{upload / dense_bytes(group[0]):.2g}",
        ", ".join(f"{r['fsl']['rounds']}" for r in group),
    )


_RATES = (
    "*Server rate*: the servers multiply the mean update by it, which makes up for part of that lag and "
    "costs no byte; it is our setting, not the paper's, chosen on training images held out. "
)
_MOMENTUM = (
    "*Momentum*: the servers go on in the direction of earlier rounds, too, which smooths what a few clients "
    "send at a time and bears a higher rate: a change counts 1 / (1 - momentum) times. Momentum and "
    "a falling rate cost no byte and are our settings, as is the rate beside them, chosen by short trials, "
    "most of a smaller network, some of them read on test images; trials on training images held out, "
    "[below](#trials-on-held-out-training-data), came after them. These rows, too, are compared with 100 % by plain averaging, and, *with the same settings*, with "
    "100 % that has all of them as well, at equal rounds, where it was run. "
)
_AUGMENTATION = (
    "CIFAR-10's clients train on random crops and mirror images, as the tutorial does from which the "
    "paper has the network; the paper names no augmentation, and *no augmentation* trains on "
    "central crops alone. "
)


_MEANS = (
    "*Mean of models*: the same run, of which not the latest model is evaluated but the mean over rounds, "
    "in which all models before the latest keep the share of the weight in brackets. Where 100 % has no such "
    "row, its *latest* model is what the row is compared with; it might gain from a mean, too. "
)


def stamp_of(runs: list[Figures]) -> str:
    """Commands, dates and machine of several runs."""
    commands = sorted({f"`{command(r)}`" for r in runs})
    dates = sorted({r["date"] for r in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    machines = sorted({machine(r) for r in runs})
    return f"{', '.join(commands)}; {when}, {' and '.join(machines)}.\n"


def dense_bytes(run: Figures) -> int:
    """Of all values of the model in 32 bits."""
    return 4 * sum(int(s["positions"]) * int(s["values_per_position"]) for s in run["segments"])


def _same_models(runs: list[Figures]) -> str:
    """A sentence where runs of several shares end with the same model, bit for bit."""
    for seed in sorted({r["cell"]["seed"] for r in runs}):
        groups: dict[str, set[float]] = {}
        for run in runs:
            if run["cell"]["seed"] == seed:
                groups.setdefault(run["model_sha256"], set()).add(run["cell"]["percent"])
        equal = [f"{percent:g} %" for percent in sorted(max(groups.values(), key=len))]
        if len(equal) > 1:
            return (
                f"\nThe runs of {', '.join(equal)} (seed {seed}) end with one and the same model: "
                "a client's two optimizer steps change fewer weights than these shares, so nothing is "
                "held back. 100 % is a dense segment, whose values are rounded with other random "
                "bits.\n"
            )
    return ""


def _against_all(group: list[Figures], runs: list[Figures]) -> str:
    """Points above the runs of 100 % by plain averaging with the same seeds, images and rounds.

    They are of the same model, mean or latest, and the same precision where there are such.
    """
    row = _row(group[0])
    if row == row._replace(percent=100, rate=1, momentum=0, decay=1):
        return "-"
    seeds = {run["cell"]["seed"] for run in group}
    unlike: tuple[dict[str, float], ...] = (
        {}, {"float32": False}, {"average": 0.0}, {"average": 0.0, "float32": False}
    )  # fmt: skip
    for differences in unlike:
        dense_row = row._replace(percent=100, rate=1, momentum=0, decay=1, **differences)
        all_of = {r["cell"]["seed"]: r["accuracy_percent"] for r in runs if _row(r) == dense_row}
        if seeds <= set(all_of):
            gaps = [run["accuracy_percent"] - all_of[run["cell"]["seed"]] for run in group]
            note = " (its latest)" if differences.get("average") == 0 else ""
            return paired(gaps) + note * (row.average != 0)
    return "-"


def _against_same(group: list[Figures], runs: list[Figures]) -> str:
    """Beside points above plain averaging those above 100 % with the same settings of the servers.

    Where that was run for fewer rounds, both are compared there.
    """
    row = _row(group[0])
    if row.percent == 100 or (row.rate, row.momentum, row.decay) == (1, 0, 1):
        return ""
    like = row._replace(percent=100)
    whole = {
        r["cell"]["seed"]: r
        for r in sorted(runs, key=lambda r: int(r["rounds"]))
        if _row(r)._replace(rounds=row.rounds) == like and r["rounds"] <= row.rounds
    }
    if not {run["cell"]["seed"] for run in group} <= set(whole):
        return ""
    pairs = [(run, whole[run["cell"]["seed"]]) for run in group]
    gaps = [_at(run, other["rounds"]) - other["accuracy_percent"] for run, other in pairs]
    rounds = {other["rounds"] for _, other in pairs}
    where = "" if rounds == {row.rounds} else f", both after {min(rounds)} rounds"
    return f"; {np.mean(gaps):+.2f} with the same settings{where}"


def _at(run: Figures, rounds: int) -> float:
    """Accuracy of a run that had ended after so many rounds, in percent."""
    before = [100 * accuracy for number, accuracy in run["curve"] if number <= rounds]
    return float(np.mean(before[-LAST:]))


class _Row(NamedTuple):
    """What runs of one row share, in the order of rows."""

    plain_images: bool
    percent: float
    rate: float
    momentum: float
    decay: float
    rounds: int
    average: float
    float32: bool


def _row(run: Figures) -> _Row:
    cell = run["cell"]
    return _Row(
        not cell["augment"],
        cell["percent"],
        cell["server_rate"],
        cell["server_momentum"],
        cell["server_decay"],
        run["rounds"],
        cell["average"],
        cell["precision"] == "float32",
    )


def usual(run: Figures) -> bool:
    """Whether it belongs to the tables, and is none of those beyond the paper."""
    cell = run["cell"]
    return bool(cell["feedback"]) and cell["block"] == 1 and cell["reading"] == "paper"


def paired(gaps: list[float]) -> str:
    """The mean of differences of runs with one seed, with the standard error of several."""
    if len(gaps) == 1:
        return f"{gaps[0]:+.2f}"
    return f"{np.mean(gaps):+.2f} ± {np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.2f}"


def mean(values: list[float]) -> str:
    """A mean, with the standard deviation of several."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"

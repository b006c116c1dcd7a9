"""The tables of docs/results/accuracy.md: tables 7 to 9 of FSL's paper, and trials of settings."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from scripts.reproduction import paper
from scripts.reproduction.accuracy import LAST
from scripts.reproduction.markdown import mean, size, stamp_of
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures, read_accuracies


class Row(NamedTuple):
    """The settings that runs of one row of table 7 share, in the order of rows."""

    plain_images: bool
    percent: float
    rate: float
    momentum: float
    decay: float
    rounds: int
    average: float
    float32: bool


PLAIN: Final[dict[str, Any]] = {"percent": 100, "rate": 1, "momentum": 0, "decay": 1}
"""Everything sent, averaged plainly."""


def row_of(run: Figures) -> Row:
    """The row of a run."""
    cell = run["cell"]
    return Row(
        not cell["augment"],
        cell["percent"],
        cell["server_rate"],
        cell["server_momentum"],
        cell["server_decay"],
        run["rounds"],
        cell["average"],
        cell["precision"] == "float32",
    )


def usual(table: str) -> list[Figures]:
    """The runs of a table, without those beyond the paper."""
    return [run for run in read_accuracies(table) if _is_usual(run["cell"])]


def _is_usual(cell: Figures) -> bool:
    return bool(cell["feedback"]) and cell["block"] == 1 and cell["reading"] == "paper"


def _beyond() -> list[Figures]:
    runs = read_accuracies("table7") + read_accuracies("table8")
    return [run for run in runs if not _is_usual(run["cell"])]


def _of(dataset: str) -> list[Figures]:
    return [run for run in usual("table7") if run["cell"]["dataset"] == dataset]


class Group(NamedTuple):
    """The runs of one row of table 7, and all runs of its data set."""

    row: Row
    runs: list[Figures]
    all: list[Figures]


def _sent(row: Row) -> str:
    return (
        f"{row.percent:g} %"
        + " (dense shares)" * (row.percent == 100)
        + f", server rate {row.rate:g}" * (row.rate != 1 or row.decay != 1)
        + f" times {row.decay:g} every ten rounds" * (row.decay != 1)
        + f", momentum {row.momentum:g}" * (row.momentum != 0)
        + f", mean of models ({row.average:g})" * (row.average != 0)
        + ", float32" * row.float32
        + ", no augmentation" * row.plain_images
    )


def _printed(cell: Figures) -> str:
    dataset, percent = cell["dataset"], int(cell["percent"])
    reference = paper.ACCURACY[dataset].get(percent)
    return f"{reference} ± {paper.ACCURACY_DEVIATION[dataset][percent]}" if reference else "-"


def _accuracies(runs: Iterable[Figures]) -> list[float]:
    return [run["accuracy_percent"] for run in runs]


def _seed(run: Figures) -> int:
    return int(run["cell"]["seed"])


def _against_all(group: Group) -> str:
    """Points above the runs of 100 % by plain averaging with the same seeds, images and rounds.

    They are of the same model, mean or latest, and the same precision where there are such.
    """
    row, seeds = group.row, {_seed(run) for run in group.runs}
    if row == row._replace(**PLAIN):
        return "-"
    unlike: tuple[dict[str, Any], ...] = (
        {},
        {"float32": False},
        {"average": 0.0},
        {"average": 0.0, "float32": False},
    )
    for differences in unlike:
        dense_row = row._replace(**PLAIN, **differences)
        all_of = {_seed(r): r["accuracy_percent"] for r in group.all if row_of(r) == dense_row}
        if seeds <= set(all_of):
            gaps = [run["accuracy_percent"] - all_of[_seed(run)] for run in group.runs]
            note = " (its latest)" if differences.get("average") == 0 else ""
            return paired(gaps) + note * (row.average != 0)
    return "-"


def _against_same(group: Group) -> str:
    """Points above 100 % with the same settings of the servers.

    If that was run for fewer rounds, both are compared there.
    """
    row = group.row
    if row.percent == 100 or (row.rate, row.momentum, row.decay) == (1, 0, 1):
        return ""
    like = row._replace(percent=100)
    whole = {
        _seed(r): r
        for r in sorted(group.all, key=lambda r: int(r["rounds"]))
        if row_of(r)._replace(rounds=row.rounds) == like and r["rounds"] <= row.rounds
    }
    if not {_seed(run) for run in group.runs} <= set(whole):
        return ""
    pairs = [(run, whole[_seed(run)]) for run in group.runs]
    gaps = [_at(run, other["rounds"]) - other["accuracy_percent"] for run, other in pairs]
    rounds = {other["rounds"] for _, other in pairs}
    place = "" if rounds == {row.rounds} else f", both after {min(rounds)} rounds"
    return f"; {np.mean(gaps):+.2f} with the same settings{place}"


def _at(run: Figures, rounds: int) -> float:
    """Accuracy of a run that had ended after so many rounds, in percent."""
    before = [100 * accuracy for number, accuracy in run["curve"] if number <= rounds]
    return float(np.mean(before[-LAST:]))


def paired(gaps: list[float]) -> str:
    """The mean of differences of runs with one seed, with the standard error of several."""
    if len(gaps) == 1:
        return f"{gaps[0]:+.2f}"
    return f"{np.mean(gaps):+.2f} ± {np.std(gaps, ddof=1) / np.sqrt(len(gaps)):.2f}"


def dense_bytes(run: Figures) -> int:
    """All values of the model in 32 bits."""
    return 4 * sum(int(s["positions"]) * int(s["values_per_position"]) for s in run["segments"])


def _rows(runs: list[Figures]) -> Iterator[Figures]:
    """Table 7 of one data set."""
    for row in sorted({row_of(run) for run in runs}):
        group = Group(row, [run for run in runs if row_of(run) == row], runs)
        first = group.runs[0]
        upload = first["fsl"]["upload_bytes"]
        yield {
            "sent": _sent(row),
            "printed": _printed(first["cell"]),
            "ours": _accuracies(group.runs),
            "against": _against_all(group) + _against_same(group),
            "seeds": len(group.runs),
            "rounds": row.rounds,
            "upload": upload,
            "times": upload / dense_bytes(first),
            "served": ", ".join(f"{run['fsl']['rounds']}" for run in group.runs),
        }


for _dataset in paper.ACCURACY:
    table(
        f"table7-{_dataset}",
        f"sent | paper, {paper.ROUNDS[_dataset]:,} rounds | ours | against our 100 % | seeds | "
        "rounds | upload a client and round | times dense | rounds also run by both servers",
        "{sent} | {printed} | {ours:mean} | {against} | {seeds} | {rounds:,} | {upload:size} | "
        "{times:.2g} | {served}",
        figures=functools.partial(_of, _dataset),
        stamp=(lambda _: stamp_of(usual("table7"))) if _dataset == "trec" else None,
        command=f"table7 --dataset {_dataset}",
    )(_rows)


@table(
    "table7-held-out",
    "data | sent | server rate | momentum | times, every ten rounds | rounds | seeds | accuracy | "
    "mean of models",
    "{dataset} | {percent:g} % | {server_rate:g} | {momentum} | {decay} | {rounds:,} | {seeds} | "
    "{latest:mean} | {means}",
    figures=functools.partial(read_accuracies, "table7-held-out"),
    stamp=stamp_of,
    command="table7 --held-out",
)
def _trials(runs: list[Figures]) -> Iterator[Figures]:
    """One row for all trials with the same share and servers: latest models, and means."""
    groups: dict[tuple[Any, ...], dict[bool, list[float]]] = {}
    names = ("dataset", "percent", "server_momentum", "server_decay", "server_rate")
    for run in runs:
        key = (*(run["cell"][name] for name in names), run["rounds"])
        figures = groups.setdefault(key, {False: [], True: []})
        figures[run["cell"]["average"] != 0].append(run["accuracy_percent"])
    for key, figures in sorted(groups.items(), key=lambda one: one[0]):
        yield {
            **dict(zip((*names, "rounds"), key, strict=True)),
            "momentum": f"{key[2]:g}" if key[2] else "-",
            "decay": f"{key[3]:g}" if key[3] != 1 else "-",
            "latest": figures[False],
            "seeds": len(figures[False]),
            "means": mean(figures[True]) if figures[True] else "-",
        }


@table(
    "table8",
    "rows sent | paper | ours | against 10 % | seeds | upload a client and round",
    "{percent:g} % ({segment[k_max]} of {segment[positions]:,}) | {printed} | {ours:mean} | "
    "{against} | {seeds} | {upload:size}",
    figures=functools.partial(usual, "table8"),
    stamp=stamp_of,
    command="table8",
)
def _by_percent(runs: list[Figures]) -> Iterator[Figures]:
    """Table 8, with differences to the largest share seed by seed."""
    most = max(run["cell"]["percent"] for run in runs)
    top = {_seed(r): r["accuracy_percent"] for r in runs if r["cell"]["percent"] == most}
    for percent in sorted({run["cell"]["percent"] for run in runs}):
        group = [run for run in runs if run["cell"]["percent"] == percent]
        gaps = [r["accuracy_percent"] - top[_seed(r)] for r in group if _seed(r) in top]
        printed = paper.MEGA_ELEMENTS.get(percent)
        yield {
            "percent": percent,
            "segment": next(s for s in group[0]["segments"] if s["policy"] == "rows"),
            "printed": "{} ± {}".format(*printed) if printed else "-",
            "ours": _accuracies(group),
            "against": paired(gaps) if gaps and percent != most else "-",
            "seeds": len(group),
            "upload": group[0]["fsl"]["upload_bytes"],
        }


@table(
    "beyond",
    "data | sent | how | rounds | accuracy | upload a client and round",
    "{cell[dataset]} | {cell[percent]:g} % of the {what} | {how} | {rounds} | {ours} | "
    "{fsl[upload_bytes]:size}",
    figures=_beyond,
    stamp=stamp_of,
    command="beyond",
)
def _further(runs: list[Figures]) -> Iterator[Figures]:
    """Runs that the paper does not have."""
    for run in runs:
        cell = run["cell"]
        what = "rows" if cell["table"] == "table8" else "scalars"
        notes = [] if cell["feedback"] else ["no error feedback"]
        if cell["reading"] == "other":
            notes.append(f"an iteration is {'an epoch' if cell['dataset'] == 'trec' else 'a step'}")
        last = f"{run['accuracy_percent_last']:.2f} (last)"
        yield {
            **run,
            "what": what if cell["block"] == 1 else f"blocks of {cell['block']}",
            "how": ", ".join(notes) or "error feedback",
            "ours": mean(_accuracies([run])) if run["evaluations_averaged"] == LAST else last,
        }


@table(
    "bins",
    "data | sent | the largest of all | the largest of each bin | difference | seeds | rounds | "
    "upload, cuckoo | upload, bins",
    "{dataset} | {percent:g} % of the {what} | {top:mean} | {bins:mean} | {gap} | {seeds} | "
    "{rounds} | {uploads[0]} | {uploads[1]}",
    figures=functools.partial(read_accuracies, "bins"),
    stamp=stamp_of,
    command="bins",
)
def _bins(runs: list[Figures]) -> Iterator[Figures]:
    """Pairs of runs that differ in the policy only, seed by seed."""
    pairs: dict[tuple[Any, ...], dict[int, dict[bool, Figures]]] = {}
    for run in runs:
        cell = run["cell"]
        key = (cell["dataset"], cell["block"], cell["percent"], run["rounds"])
        pairs.setdefault(key, {}).setdefault(_seed(run), {})[cell["bins"]] = run
    for key, seeds in sorted(pairs.items(), reverse=True):
        both = [pair for _, pair in sorted(seeds.items()) if len(pair) == 2]
        if not both:
            continue
        top, bins = ([_latest(pair[own]) for pair in both] for own in (False, True))
        sizes = [both[0][own].get("fsl", {}).get("upload_bytes") for own in (False, True)]
        yield {
            "dataset": key[0],
            "what": "scalars" if key[1] == 1 else f"blocks of {key[1]}",
            "percent": key[2],
            "top": top,
            "bins": bins,
            "gap": paired([own - other for own, other in zip(bins, top, strict=True)]),
            "seeds": len(both),
            "rounds": key[3],
            "uploads": [size(found) if found else "-" for found in sizes],
        }


def _latest(run: Figures) -> float:
    """The mean of the last evaluations, or the last one of a run with few."""
    averaged = run["evaluations_averaged"] == LAST
    return float(run["accuracy_percent" if averaged else "accuracy_percent_last"])


@table(
    "table9",
    "split | words, paper | samples, paper | words, ours | samples, ours",
    "{0} | {1[0]} | {1[1]} | {2[0]:,.0f} | {2[1]:,.0f}",
)
def _statistics(figures: Figures) -> list[tuple[Any, ...]]:
    return [(name, figures["paper"][name], own) for name, own in figures["ours"].items()]

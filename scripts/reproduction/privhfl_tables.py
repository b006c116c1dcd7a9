"""The tables of docs/results/privhfl.md: clients with unlike models, and the paper's figures."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from scripts.reproduction import markdown
from scripts.reproduction import privhfl_paper as paper
from scripts.reproduction.markdown import seconds, size
from scripts.reproduction.page_table import table
from scripts.reproduction.privhfl_cells import (
    ALPHAS,
    EXPANSIONS,
    PRIVATE,
    QUERIES,
    SELECTIONS,
    read_cells,
)
from scripts.reproduction.results import TABLES, Figures, read_results

DATA: Final = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
NETWORKS: Final = "VGG-7 | ResNet-8 | ResNet-10"
PRINTED: Final = "paper, C = 0.6 | paper, C = 0.8 | paper, C = 1"
OURS: Final = "ours, C = 0.6 | ours, C = 0.8 | ours, C = 1"
QUERIES_OF_TABLE2: Final = (1000, 2500, 5000)
BATCHES: Final = ("128", "256", "512", "1024", "2048")
of_cells = functools.partial(table, figures=read_cells, stamp=None, command="privhfl-accuracy")
of_costs = functools.partial(table, figures="privhfl-costs", stamp=None)


def _seeds(cell: Figures) -> list[Figures]:
    return list(cell["seeds"].values())


def _mean(runs: Iterable[Figures], name: str, sign: str = "") -> str:
    """Per cent from shares, with the deviation if there are several."""
    return markdown.mean([100 * run[name] for run in runs], 1, sign)


def _gain(cell: Figures) -> tuple[str, str, str, str, int]:
    runs = _seeds(cell)
    least = f"{100 * min(run['least_gain'] for run in runs):+.1f}"
    means = _mean(runs, "baseline"), _mean(runs, "accuracy"), _mean(runs, "gain", "+")
    return (*means, least, len(runs))


def _gains(task: str, cells: Figures) -> Iterator[tuple[Any, ...]]:
    """All cells of table 1 and the controls, with the least gain of any client."""
    few, middle, many = QUERIES[task]
    shown = {
        "local": "retraining alone, no queries",
        "mixlocal": f"own labels on {middle:,} mixup pictures, no party asked",
        "selfmix": f"own answers on {middle:,} mixup pictures, no party asked",
        "private": "answers to one's private pictures",
        **{f"mixup-{n}": f"**answers to {n:,} mixup pictures**" for n in (few, middle, many)},
        **{f"mixup-{middle}-C{c}": f"{middle:,} mixup pictures, C = {c}" for c in (0.6, 0.8)},
        "secure": f"{middle:,} mixup pictures, answered by the protocol",
    }
    for label, text in shown.items():
        if (cell := cells.get(f"{task}-{label}")) is not None:
            yield text, *_gain(cell)


def _made(cells: Figures) -> str:
    runs = [run for cell in cells.values() for run in _seeds(cell)]
    machines = ", ".join(sorted({run["machine"] for run in runs}))
    return f"{machines}, {max(run['date'] for run in runs)}.\n"


for _task in DATA:
    table(
        f"privhfl-gains-{_task}",
        " | baseline | after | gain | least gain of a client | seeds",
        figures=read_cells,
        stamp=_made if _task == "cifar10" else None,
        command="privhfl-accuracy",
    )(functools.partial(_gains, _task))


@of_cells(
    "privhfl-secure",
    "data | predictions | exact runs | processor time per prediction | bytes per prediction | "
    "of these online | processor time per run | bytes per run",
)
def _secure(cells: Figures) -> Iterator[tuple[str, ...]]:
    """Per prediction: time and bytes of all parties and links together."""
    for task, data in DATA.items():
        if (cell := cells.get(f"{task}-secure")) is None:
            continue
        runs = _seeds(cell)
        asked = sum(run["predictions"] for run in runs)
        spent = sum(s for r in runs for who, s in r["cpu_seconds"].items() if who != "training")
        sent = sum(sum(run["bytes"].values()) for run in runs)
        online = sum(v for run in runs for name, v in run["bytes"].items() if "online" in name)
        yield (
            data,
            f"{asked:,}",
            f"{sum(run['exact'] for run in runs)} of {len(runs)}",
            seconds(spent / asked),
            size(sent / asked),
            size(online / asked),
            f"{spent / len(runs):.0f} s",
            f"{sent / len(runs) / 1e9:.1f} GB",
        )


LABELS: Final = {
    "baseline": "baseline",
    "private": "private data",
    "2500": "mixup 2.5K",
    "5000": "mixup 5K",
    "7500": "mixup 7.5K",
    "10000": "mixup 10K",
}


def _table1(data: str, cells: Figures) -> Iterator[tuple[str, ...]]:
    task = "cifar10" if data == "CIFAR-10" else ""
    printed = {"baseline": (paper.BASELINE[data],) * 3, **paper.ACCURACY[data]}
    for key, text in LABELS.items():
        yield text, *(f"{value:.2f}" for value in printed[key]), *_ours(cells, task, key)


@of_cells("privhfl-table1-mnist", "MNIST (not in the paper) | " + OURS)
def _table1_of_mnist(cells: Figures) -> Iterator[tuple[str, ...]]:
    keys = {
        "baseline": "baseline",
        "private": "private data",
        **{str(number): f"mixup {number:,}" for number in QUERIES["mnist"]},
    }
    for key, text in keys.items():
        yield text, *_ours(cells, "mnist", key)


def _ours(cells: Figures, task: str, key: str) -> Iterator[str]:
    """Our accuracies by C; empty if not run."""
    label = key if key == "private" else f"mixup-{key}"
    for fraction in paper.FRACTIONS:
        name = f"{task}-{label}" + ("" if fraction == 1 else f"-C{fraction:g}")
        if key == "baseline":
            name = f"{task}-private"
        cell = cells.get(name)
        what = "baseline" if key == "baseline" else "accuracy"
        yield _mean(_seeds(cell), what) if cell else ""


for _data in paper.ACCURACY:
    _name = f"privhfl-table1-{_data.lower().replace(' ', '-')}"
    of_cells(_name, f"{_data} | {PRINTED} | {OURS}")(functools.partial(_table1, _data))


def _one(cells: Figures, name: str, baseline: bool = False) -> str:
    """Gain, least gain and seeds of a cell."""
    cell = cells.get(name)
    if cell is None:
        return "not run"
    before, _, gain, least, runs = _gain(cell)
    start = f"from {before} " if baseline else ""
    return f"{start}{gain} ({least}, {runs} seed{'s' if runs > 1 else ''})"


def _list(cells: Figures, labels: Iterable[str]) -> str:
    labels = list(labels)
    names = [("MNIST", "mnist", label) for label in labels]
    names += [("CIFAR-10", "cifar10", label) for label in labels if f"cifar10-{label}" in cells]
    return ". ".join(
        f"{data} {label.removeprefix('select-')} {_one(cells, f'{task}-{label}')}"
        for data, task, label in names
    )


def _by_queries(cells: Figures) -> str:
    found = [
        f"{data} {number:,}: {_one(cells, f'{task}-mixup-{number}')}"
        for task, data in DATA.items()
        for number in (*QUERIES[task], 7500, 10_000)
        if number in QUERIES[task] or f"{task}-mixup-{number}" in cells
    ]
    if (cell := cells.get("mnist-iterations-3")) is not None:
        steps = np.mean([run["gain_by_iteration"] for run in _seeds(cell)], axis=0)
        found.append("MNIST, iterations 1 to 3: " + ", ".join(f"{100 * s:+.1f}" for s in steps))
    return ". ".join(found)


def _by_alpha(cells: Figures) -> str:
    found = []
    for task, data in DATA.items():
        for alpha in ALPHAS:
            name = f"{task}-alpha-{alpha:g}"
            if name in cells or task == "mnist":
                alone = f"{name}-local"
                control = f", retraining alone {_one(cells, alone)}" if alone in cells else ""
                found.append(f"{data}, alpha {alpha:g}: {_one(cells, name, True)}{control}")
    return ". ".join(found)


def _by_samples(cells: Figures) -> Iterator[str]:
    for task, data in DATA.items():
        for number in PRIVATE[task]:
            if (name := f"{task}-samples-{number}") in cells:
                yield f"{data}, {number} samples: {_one(cells, name, True)}"


@of_cells("privhfl-studies", "figure and its claim | ours, gain (least gain of a client)")
def _studies(cells: Figures) -> list[tuple[str, str]]:
    return [
        ("6, 7: more queries and iterations help", _by_queries(cells)),
        ("11c: noise and flipping hurt, cutout and cutmix help", _list(cells, EXPANSIONS)),
        (
            "12: random selection gains most of it, entropy +1.44 (SVHN), margin +0.8 (CIFAR-10) "
            "more",
            _list(cells, (f"select-{kind}" for kind in SELECTIONS)),
        ),
        (
            "13: logits not normalised are about 5 points better on CIFAR-10 than probabilities",
            _list(cells, ["probabilities"]),
        ),
        ("15: smaller alpha, lower accuracy, still a gain", _by_alpha(cells)),
        (
            "16: more private samples are better",
            ". ".join(_by_samples(cells)),
        ),
    ]


@of_cells("privhfl-figure7", "gain of | 1,000 | 2,500 | 5,000 queries")
def _architectures(cells: Figures) -> Iterator[tuple[str, ...]]:
    """By network of CIFAR-10, over clients and seeds."""
    for name, gains in by_architecture(cells).items():
        yield name, *gains


@of_cells("privhfl-worst", "MNIST, labels by alpha | the worst client")
def _unlucky(cells: Figures) -> Iterator[tuple[str, str]]:
    for alpha in ALPHAS:
        if (cell := cells.get(f"mnist-alpha-{alpha:g}")) is not None:
            yield f"{alpha:g}", worst(_seeds(cell))


def worst(runs: list[Figures]) -> str:
    """The client that gains least in any seed: its number, network and gain."""
    gains = [
        (after - before, seed, client, run["architectures"][client])
        for seed, run in enumerate(runs)
        for client, (before, after) in enumerate(
            zip(run["baselines"], run["accuracies"], strict=True)
        )
    ]  # fmt: skip
    gain, seed, client, network = min(gains)
    return f"client {client} of seed {seed}, {network}, {100 * gain:+.1f}"


def by_architecture(cells: Figures) -> dict[str, list[str]]:
    """Mean gains of CIFAR-10's networks, by number of queries."""
    found: dict[str, list[str]] = {}
    for number in QUERIES["cifar10"]:
        gains: dict[str, list[float]] = {}
        for run in _seeds(cells[f"cifar10-mixup-{number}"]):
            for name, before, after in zip(
                run["architectures"], run["baselines"], run["accuracies"], strict=True
            ):
                gains.setdefault(name, []).append(100 * (after - before))
        for name, values in gains.items():
            found.setdefault(name, []).append(f"{np.mean(values):+.1f}")
    return found


@of_cells("privhfl-table5", "λ | paper, CIFAR-10 | ours, CIFAR-10 | ours, MNIST")
def _lambdas(cells: Figures) -> Iterator[tuple[str, ...]]:
    for lam, value in paper.LAMBDA.items():
        own = [cells.get(f"{task}-lambda-{lam:g}") for task in ("cifar10", "mnist")]
        ours = [_mean(_seeds(cell), "accuracy") if cell else "" for cell in own]
        yield f"{lam:g}", f"{value:.2f}", *ours


def _spent(query: Figures) -> float:
    return float(sum(query["seconds"].values()))


@of_costs("privhfl-table3", f" | {NETWORKS}")
def _prediction(figures: Figures) -> Iterator[list[str]]:
    for text, values in paper.PREDICTION.items():
        yield [text, *(f"{s:g} s, {mb:,.2f} MB" for s, mb in values)]
    for comparison, batch in (("tables", "1"), ("tables", "4"), ("trees", "2")):
        queries = [figures["networks"][name][comparison][batch] for name in NETWORKS.split(" | ")]
        yield [f"**ours, {comparison}, batches of {batch}**"] + [
            f"{_spent(q):.3f} s, {(q['offline_bytes'] + q['online_bytes']) / 1e6:.1f} MB"
            for q in queries
        ]


@of_costs("privhfl-setup", NETWORKS)
def _setup(figures: Figures) -> list[list[str]]:
    """Bytes of the masked weights, which a client sends once for each pair and model."""
    networks = figures["networks"]
    return [[size(networks[name]["tables"]["1"]["setup_bytes"]) for name in NETWORKS.split(" | ")]]


def _of_table2() -> Figures:
    """By the names in the first column of table 2 the seconds of a query."""
    records = read_results(TABLES)
    own = [records.get(f"privhfl-{name}", {}) for name in ("batches", "tiny", "steps")]
    batches, tiny, steps = own
    return {
        **{f"CIFAR-10, {n}": _spent(of["8"]) for n, of in batches.get("networks", {}).items()},
        **{f"Tiny ImageNet, {n}": _spent(of) for n, of in tiny.get("networks", {}).items()},
        **{f"{data}, {s}": v for data, of in steps.get("steps", {}).items() for s, v in of.items()},
    }


@table(
    "privhfl-table2",
    "Table 2 | paper, 1,000 | paper, 2,500 | paper, 5,000 | ours, 1,000 | ours, 2,500 | "
    "ours, 5,000",
    figures=_of_table2,
    stamp=None,
    command="privhfl-batches",
)
def _many(figures: Figures) -> Iterator[list[str]]:
    """Seconds of many queries to one party, ours from those of one."""
    for (data, part), values in paper.BATCHES.items():
        one = figures.get(f"{data}, {part}")
        ours = [
            "" if one is None or value is None else f"{one * number:.{0 if one > 0.01 else 2}f}"
            for number, value in zip(QUERIES_OF_TABLE2, values, strict=True)
        ]
        printed = ["" if value is None else f"{value:g}" for value in values]
        yield [f"{data}, {part}", *printed, *ours]


@table(
    "privhfl-tiny",
    "Tiny ImageNet, random weights | values | seconds per query | MB offline | MB online",
    "{name} | {parameters:,} | {spent:.2f} | {offline:.1f} | {online:.1f}",
)
def _tiny(figures: Figures) -> Iterator[Figures]:
    for name, own in figures["networks"].items():
        sent = {way: own[f"{way}_bytes"] / 1e6 for way in ("offline", "online")}
        yield {**own, "name": name, "spent": _spent(own), **sent}


@table(
    "privhfl-figure8",
    "network | 1 | 4 | 8 | 16 | 32 | 64",
    figures="privhfl-batches",
)
def _by_batch(figures: Figures) -> Iterator[list[str]]:
    for name, network in figures["networks"].items():
        yield [name, *(f"{_spent(query):.3f}" for query in network.values())]


@table(
    "privhfl-features",
    "cells with a point, test pictures in them | {private:,} own | {private:,} mixup | "
    "{expanded:,} mixup",
)
def _coverage(figures: Figures) -> Iterator[list[str]]:
    for name, own in figures["clients"].items():
        yield [name, *(f"{one['cells']}, {100 * one['test']:.1f} %" for one in own.values())]


@table("privhfl-table4", f" | {' | '.join(BATCHES)}", figures="privhfl-costs")
def _pictures(figures: Figures) -> Iterator[list[str]]:
    for name, values in paper.MNIST.items():
        ours = figures["mnist"].get(name)
        yield [name] + [
            f"{own:g}; {other:g}; {f'{_spent(ours[b]) * int(b):.2f}' if ours else '-'}"
            for (own, other), b in zip(values, BATCHES, strict=True)
        ]

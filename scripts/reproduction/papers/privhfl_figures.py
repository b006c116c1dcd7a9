"""Figures for the rows of PrivHFL in docs/papers.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from scripts.reproduction import privhfl_cells, privhfl_paper, privhfl_tables
from scripts.reproduction.markdown import mean
from scripts.reproduction.results import Figures

NETWORKS: Final = ("VGG-7", "ResNet-8", "ResNet-10")


def _runs(cell: Figures) -> list[Figures]:
    return list(cell["seeds"].values())


def _percent(runs: Iterable[Figures], name: str, sign: str = "") -> str:
    return mean([100 * run[name] for run in runs], 1, sign)


def _privhfl(records: Figures) -> Figures:
    """Gains and accuracies of every cell; of table 1 three in one."""
    del records
    cells = privhfl_cells.read_cells()

    def table1(key: str) -> str:
        label = "private" if key in ("private", "baseline") else f"mixup-{key}"
        names = [f"cifar10-{label}" + ("" if f == 1 else f"-C{f:g}") for f in (0.6, 0.8, 1)]
        if key == "baseline":
            return _percent(_runs(cells[names[2]]), "baseline")
        if names[2] not in cells:
            return ""
        texts = [_percent(_runs(cells[n]), "accuracy") if n in cells else "to run" for n in names]
        gain = f" (gain {_percent(_runs(cells[names[2]]), 'gain', '+')})"
        return ", ".join(texts) + gain

    lambdas = {}
    for lam in privhfl_cells.LAMBDAS:
        texts = [
            f"{_percent(_runs(cells[name]), 'accuracy')} {data}"
            for task, data in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"))
            if (name := f"{task}-lambda-{lam:g}") in cells
        ]
        if texts:
            lambdas[f"{lam:g}"] = "; ".join(texts)
    spread = [
        100 * cells[name]["seeds"]["0"]["accuracy"]
        for lam in privhfl_cells.LAMBDAS
        if (name := f"mnist-lambda-{lam:g}") in cells
    ]
    return {
        "gain": {name: _percent(_runs(cell), "gain", "+") for name, cell in cells.items()},
        "seed0": {
            name: f"{100 * cell['seeds']['0']['gain']:+.1f}"
            for name, cell in cells.items() if "0" in cell["seeds"]
        },
        "minutes": {
            name: f"{sum(cell['seeds']['0']['cpu_seconds'].values()) / 60:.1f} processor minutes"
            for name, cell in cells.items() if "0" in cell["seeds"]
        },
        "worst": {name: privhfl_tables.worst(_runs(cell)) for name, cell in cells.items()},
        "alpha": {
            f"{alpha:g}": f"from {_percent(_runs(cell), 'baseline')}, "
            f"{_percent(_runs(cell), 'gain', '+')}"
            for alpha in privhfl_cells.ALPHAS
            if (cell := cells.get(f"mnist-alpha-{alpha:g}"))
        },
        **_alpha_cifar10(cells),
        "samples": "; ".join(
            f"{number}: {_percent(_runs(cells[f'mnist-samples-{number}']), 'accuracy')}"
            for number in privhfl_cells.PRIVATE["mnist"]
        ),
        "table1": {key: text for key in ("baseline", *privhfl_paper.ACCURACY["CIFAR-10"])
                   if (text := table1(key))},
        "lambda5": lambdas,
        "lambda_spread": f"{max(spread) - min(spread):.1f} points",
        **_samples_cifar10(cells),
        "by_architecture": {
            _network(name): ", ".join(gains)
            for name, gains in privhfl_tables.by_architecture(cells).items()
        },
        "secure": {"cifar10": f"{cells['cifar10-secure']['seeds']['0']['predictions']:,} "
                   "predictions"},
    }  # fmt: skip


def _more(cells: Figures, name: str, other: str) -> str:
    """How much more a cell gains than another, over the seeds that both have."""
    own, less = cells[name]["seeds"], cells[other]["seeds"]
    seeds = sorted(set(own) & set(less))
    return mean([100 * (own[s]["gain"] - less[s]["gain"]) for s in seeds], 1, "+")


def _by_queries(records: Figures) -> Figures:
    """CIFAR-10's mixup by its number of queries: against private pictures and the baseline."""
    del records
    cells = privhfl_cells.read_cells()
    numbers = [n for n in (1000, 2500, 5000, 7500, 10_000) if f"cifar10-mixup-{n}" in cells]
    gains = [float(g) for own in privhfl_tables.by_architecture(cells).values() for g in own]
    runs = [r for n in privhfl_cells.QUERIES["cifar10"] for r in _runs(cells[f"cifar10-mixup-{n}"])]
    return {
        "over_private": ", ".join(
            _more(cells, f"cifar10-mixup-{n}", "cifar10-private") for n in numbers
        ),
        "few_queries": ", ".join(f"{n:,}" for n in numbers),
        "architecture_range": f"{min(gains):+.1f} to {max(gains):+.1f}",
        "least_gain": f"{100 * min(run['least_gain'] for run in runs):+.1f}",
    }


def _differences(records: Figures) -> Figures:
    """Gains against each other: by answering clients, queries, networks and iterations."""
    del records
    cells = privhfl_cells.read_cells()

    numbers = [n for n in (10_000, 7500, 5000) if f"cifar10-mixup-{n}" in cells]
    return {
        "against": {
            name: _more(cells, *pair)
            for name, pair in {
                "margin": ("cifar10-select-margin", "cifar10-mixup-2500"),
                "entropy": ("cifar10-select-entropy", "cifar10-mixup-2500"),
                "k-centre": ("cifar10-select-k-centre", "cifar10-mixup-2500"),
                "icd": ("cifar10-select-icd", "cifar10-mixup-2500"),
                "mnist k-centre": ("mnist-select-k-centre", "mnist-mixup-1000"),
                "mnist icd": ("mnist-select-icd", "mnist-mixup-1000"),
                "logits": ("cifar10-mixup-2500", "cifar10-probabilities"),
            }.items()
            if set(pair) <= set(cells)
        },
        "by_fraction": _more(cells, "cifar10-mixup-2500", "cifar10-mixup-2500-C0.6"),
        "most": f"{numbers[0]:,}",
        "over2500": _more(cells, f"cifar10-mixup-{numbers[0]}", "cifar10-mixup-2500"),
        "most_gain": _percent(_runs(cells[f"cifar10-mixup-{numbers[0]}"]), "gain", "+"),
        "figure6": {
            network: f"private {private}, mixup {mixup}"
            for (network, private), mixup in zip(
                _by_network(cells["cifar10-private"]).items(),
                _by_network(cells["cifar10-mixup-5000"]).values(),
                strict=True,
            )
        },
        "iterations": ", ".join(
            f"{100 * gain:+.1f}"
            for gain in _runs(cells["mnist-iterations-3"])[0]["gain_by_iteration"]
        ),
    }


def _by_network(cell: Figures) -> dict[str, str]:
    """Mean gain of each architecture over clients and seeds."""
    gains: dict[str, list[float]] = {}
    for run in _runs(cell):
        for name, before, after in zip(
            run["architectures"], run["baselines"], run["accuracies"], strict=True
        ):
            gains.setdefault(_network(name), []).append(100 * (after - before))
    return {name: f"{sum(own) / len(own):+.1f}" for name, own in gains.items()}


def _alpha_cifar10(cells: Figures) -> dict[str, str]:
    names = [f"cifar10-alpha-{alpha:g}" for alpha in privhfl_cells.ALPHAS]
    if not all(name in cells for name in names):
        return {}
    texts = [
        f"{name.rpartition('-')[2]}: from {_percent(_runs(cells[name]), 'baseline')}, "
        f"{_percent(_runs(cells[name]), 'gain', '+')}"
        for name in names
    ]
    return {"alpha_cifar10": "; ".join(texts)}


def _samples_cifar10(cells: Figures) -> Figures:
    """Accuracy by private samples; nothing before it has run."""
    names = [f"cifar10-samples-{number}" for number in privhfl_cells.PRIVATE["cifar10"]]
    names.append("cifar10-mixup-2500")
    if not set(names) <= set(cells):
        return {}
    return {"samples_cifar10": ", ".join(_percent(_runs(cells[n]), "accuracy") for n in names)}


def _network(name: str) -> str:
    """An architecture by the paper's name."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return {"vgg7": "VGG-7", "resnet8": "ResNet-8", "resnet10": "ResNet-10"}.get(plain, name)


def _spent(query: Figures) -> float:
    return float(sum(query["seconds"].values()))


def _privhfl_costs(records: Figures) -> Figures:
    networks, mnist = records["privhfl-costs"]["networks"], records["privhfl-costs"]["mnist"]
    single = {name: networks[name]["tables"]["1"] for name in NETWORKS}

    def megabytes(query: Figures) -> float:
        return float(query["offline_bytes"] + query["online_bytes"]) / 1e6

    less = {}
    for short, name in (
        ("OT", "CryptFlow2, OT"), ("HE", "CryptFlow2, HE"), ("GPU", "CryptGPU"),
    ):  # fmt: skip
        printed = dict(zip(NETWORKS, privhfl_paper.PREDICTION[name], strict=True))
        time = [printed[n][0] / _spent(single[n]) for n in NETWORKS]
        sent = [printed[n][1] / megabytes(single[n]) for n in NETWORKS]
        less[f"{short} seconds"] = f"{min(time):,.0f} to {max(time):,.0f}x"
        less[f"{short} bytes"] = f"{min(sent):,.0f} to {max(sent):,.0f}x"
    own4 = {
        name: {batch: _spent(query) * int(batch) for batch, query in of.items()}
        for name, of in mnist.items()
    }
    ratios = [
        other / own4[name][batch]
        for name in own4
        for batch, (_, other) in zip(own4[name], privhfl_paper.MNIST[name], strict=True)
    ]
    return {
        "prediction": "; ".join(
            f"{_spent(q):.3f} s, {megabytes(q):.1f} MB" for q in single.values()
        ),
        "less": less,
        "mnist4": {
            name: ", ".join(f"{spent:.2f}" for spent in of.values()) + " s"
            for name, of in own4.items()
        },
        "orders": f"{min(ratios):,.0f} to {max(ratios):,.0f}x",
    }


def _many(spent: float, numbers: tuple[int, ...], digits: int) -> str:
    """Seconds of so many queries."""
    return ", ".join(f"{number * spent:,.{digits}f}" for number in numbers) + " s"


def _covered(records: Figures) -> Figures:
    clients = records["privhfl-features"]["clients"]
    texts = [
        f"{_network(name)}: "
        + ", ".join(f"{one['cells']} ({100 * one['test']:.0f} %)" for one in own.values())
        for name, own in clients.items()
    ]
    return {"covered": ". ".join(texts)}


def _table2(records: Figures) -> Figures:
    """Table 2 and figure 8: queries by network and batch, and the two steps around them."""
    batches, tiny = records["privhfl-batches"]["networks"], records["privhfl-tiny"]["networks"]
    steps = records["privhfl-steps"]["steps"]
    numbers = {"CIFAR-10": (1000, 2500, 5000), "Tiny ImageNet": (1000, 2500)}
    return {
        "queries": {
            **{
                name: _many(_spent(own["8"]), numbers["CIFAR-10"], 0)
                for name, own in batches.items()
            },
            **{name: _many(_spent(own), numbers["Tiny ImageNet"], 0) for name, own in tiny.items()},
        },
        "steps": {
            f"{data} {step}": _many(spent, numbers[data], 2)
            for data, of in steps.items()
            for step, spent in of.items()
        },
        "batches8": ". ".join(
            f"{name}: " + ", ".join(f"{b} {_spent(query):.3f}" for b, query in own.items())
            for name, own in batches.items()
        ),
    }


def _traffic(records: Figures) -> Figures:
    """Of table 3's networks the megabytes by trees, and the share that is dealt by tables."""
    networks = [records["privhfl-costs"]["networks"][name] for name in NETWORKS]

    def sent(query: Figures) -> float:
        return float(query["offline_bytes"] + query["online_bytes"])

    trees = [sent(own["trees"]["2"]) / 1e6 for own in networks]
    dealt = [
        100 * own["tables"]["1"]["offline_bytes"] / sent(own["tables"]["1"]) for own in networks
    ]
    return {
        "trees": f"{min(trees):.0f} to {max(trees):.0f} MB",
        "dealt": f"{min(dealt):.0f} to {max(dealt):.0f} %",
    }


def _by_batch(records: Figures) -> Figures:
    """Time saved by batches of 8, the share of secure prediction, and Tiny ImageNet's queries."""
    batches, tiny = records["privhfl-batches"]["networks"], records["privhfl-tiny"]["networks"]
    steps = records["privhfl-steps"]["steps"]["CIFAR-10"]
    saved = [100 * (1 - _spent(own["8"]) / _spent(own["1"])) for own in batches.values()]
    query = _spent(batches["VGG-7"]["8"])
    return {
        "saved_by_batch": f"{min(saved):.0f} to {max(saved):.0f} % less",
        "prediction_share": f"{100 * (1 - sum(steps.values()) / query):.1f} %",
        "tiny_ratio": f"{_spent(tiny['ResNet-14']) / query:.0f} times as long",
    }


GROUPS: Final = (
    _privhfl, _differences, _by_queries, _privhfl_costs, _traffic, _table2, _by_batch, _covered,
)  # fmt: skip
"""Functions of all records, each with names that rows may use."""

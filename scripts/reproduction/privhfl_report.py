"""The section of RESULTS.md on clients with unlike models that learn from each other's answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.reproduction import privhfl_cost_report, privhfl_points_report
from scripts.reproduction import privhfl_paper as paper
from scripts.reproduction.markdown import missing, seconds, size, table
from scripts.reproduction.privhfl_cells import (
    ALPHAS,
    BASE,
    EXPANSIONS,
    LAMBDAS,
    PRIVATE,
    QUERIES,
    SELECTIONS,
    read_cells,
)
from training.privhfl.settings import TaskName

TITLE = "## PrivHFL: unlike models that learn from each other's answers\n\n"
Cells = dict[str, dict[str, Any]]
_DATA: dict[TaskName, str] = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def section() -> str:
    """Accuracy, costs, the paper's tables beside ours, and where the paper is wrong or unsafe."""
    cells = dict(read_cells())
    if not cells:
        return TITLE + missing("privhfl-accuracy")
    parts = [
        TITLE + _setting(),
        "### What collaboration gains\n\n" + gains(cells),
        "### Table 1: accuracy by queries and answering clients\n\n" + _table1(cells),
        "### Figures 6, 7, 11c, 12, 13, 15 and 16, and Table 5\n\n" + _studies(cells),
        "### Tables 2 to 4: what a query costs\n\n" + privhfl_cost_report.costs(),
        "### Where the paper is wrong or unsafe\n\n" + privhfl_points_report.points(),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _setting() -> str:
    mnist, cifar = BASE["mnist"], BASE["cifar10"]
    return (
        'After "Practical and Private Heterogeneous Federated Learning". There are no SVHN and no Tiny ImageNet '
        "here, so their columns of ours are empty; 50 clients that train VGG-7 for 500 epochs are days on two "
        f"cores, so that ours are {mnist.clients} clients with {mnist.private} samples each on MNIST (an MLP, a CNN "
        f"and a small ResNet, three clients each) and {cifar.clients} with {cifar.private} each on CIFAR-10 (VGG-7, "
        "ResNet-8, ResNet-10, two each, 7 to 45 thousand parameters, on 24 x 24 pixels). Baselines train until "
        "training on alone gains next to nothing; retraining takes the paper's 50 epochs on MNIST and 10 on CIFAR-10. "
        "Lengths of training and rates were chosen looking at accuracy on these test pictures, so read the gains as "
        "optimistic. "
        f"Accuracy is on {mnist.test:,} test pictures, the same for every client, and the mean of all clients' own "
        "models; a gain is over the same client's baseline.\n"
    )


def gains(cells: Cells) -> str:
    """All cells of table 1 and the controls, with the least gain of any client."""
    parts = []
    for task, data in _DATA.items():
        few, middle, many = QUERIES[task]
        shown = [
            ("local", "retraining alone, no queries"),
            ("mixlocal", f"own labels on {middle:,} mixup pictures, nobody asked"),
            ("selfmix", f"own answers on {middle:,} mixup pictures, nobody asked"),
            ("private", "answers to one's private pictures"),
            *((f"mixup-{number}", f"**answers to {number:,} mixup pictures**")
              for number in (few, middle, many)),
            (f"mixup-{middle}-C0.6", f"{middle:,} mixup pictures, C = 0.6"),
            (f"mixup-{middle}-C0.8", f"{middle:,} mixup pictures, C = 0.8"),
            ("secure", f"{middle:,} mixup pictures, answered by the protocol"),
        ]  # fmt: skip
        rows = [
            (text, *_gain(cells[f"{task}-{label}"]))
            for label, text in shown
            if f"{task}-{label}" in cells
        ]
        if not rows:
            parts.append(f"{data}: " + missing("privhfl-accuracy"))
            continue
        head = ("", "baseline", "after", "gain", "least gain of a client", "seeds")
        parts.append(f"{data}:\n\n" + table(head, rows) + "\n")
    return (
        "\n".join(parts)
        + "\nPoints of accuracy, mean ± standard deviation over seeds; the least gain is that of the worst-off client "
        "of all seeds, which the paper's averages hide. The first three rows ask nobody; the paper has no such "
        "control. Made by `scripts/reproduce privhfl-accuracy --data DATA` and `privhfl-secure`, "
        + _made(cells)
        + ".\n"
        + _secure(cells)
    )


def _gain(cell: dict[str, Any]) -> tuple[str, str, str, str, int]:
    runs = list(cell["seeds"].values())
    least = min(run["least_gain"] for run in runs)
    return (
        _mean([run["baseline"] for run in runs]),
        _mean([run["accuracy"] for run in runs]),
        _mean([run["gain"] for run in runs], sign=True),
        f"{100 * least:+.1f}",
        len(runs),
    )


def _mean(values: list[float], *, sign: bool = False) -> str:
    """Per cent from shares, with the deviation where there are several."""
    mean = f"{100 * np.mean(values):+.1f}" if sign else f"{100 * np.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * np.std(values, ddof=1):.1f}"


def _made(cells: Cells) -> str:
    runs = [run for cell in cells.values() for run in cell["seeds"].values()]
    machines = sorted({run["machine"] for run in runs})
    return f"{'; '.join(machines)}, {max(run['date'] for run in runs)}"


def _secure(cells: Cells) -> str:
    parts = []
    for task, data in _DATA.items():
        cell = cells.get(f"{task}-secure")
        if cell is None:
            continue
        runs = list(cell["seeds"].values())
        asked = sum(run["predictions"] for run in runs)
        protocol = sum(
            value
            for run in runs
            for party, value in run["cpu_seconds"].items()
            if party != "training"
        )
        sent = sum(sum(run["bytes"].values()) for run in runs)
        online = sum(v for run in runs for name, v in run["bytes"].items() if "online" in name)
        exact = sum(run["exact"] for run in runs)
        parts.append(
            f"\nBy the protocol on {data}: {asked:,} predictions in {len(runs)} run{'s' * (len(runs) > 1)}, "
            f"{exact} of them exact (every sum equals that of the integers in the clear, bit for bit), "
            f"{seconds(protocol / asked)} of processor time and {size(sent / asked)} a prediction, of all parties and "
            f"links together ({size(online / asked)} of it online); {protocol / len(runs):.0f} s and "
            f"{sent / len(runs) / 1e9:.1f} GB a run."
        )
    return "".join(part + "\n" for part in parts)


def _table1(cells: Cells) -> str:
    parts = []
    rows_of = {"private": "private data", "2500": "mixup 2.5K", "5000": "mixup 5K",
               "7500": "mixup 7.5K", "10000": "mixup 10K"}  # fmt: skip
    for data, figures in paper.ACCURACY.items():
        task = "cifar10" if data == "CIFAR-10" else None
        rows: list[tuple[str, ...]] = [
            ("baseline", *[f"{paper.BASELINE[data]:.2f}"] * 3, *_ours(cells, task, "baseline"))
        ]
        for key, text in rows_of.items():
            rows.append((text, *(f"{v:.2f}" for v in figures[key]), *_ours(cells, task, key)))
        rates = [f"C = {fraction:g}" for fraction in paper.FRACTIONS]
        head = (data, *(f"paper, {r}" for r in rates), *(f"ours, {r}" for r in rates))
        parts.append(table(head, rows) + "\n")
    own = [("baseline", *_ours(cells, "mnist", "baseline"))]
    own += [
        (f"mixup {number:,}", *_ours(cells, "mnist", str(number))) for number in QUERIES["mnist"]
    ]
    own.insert(1, ("private data", *_ours(cells, "mnist", "private")))
    head = (
        "MNIST (not in the paper)",
        *(f"ours, C = {fraction:g}" for fraction in paper.FRACTIONS),
    )
    return "\n".join([*parts, table(head, own) + "\n"])


def _ours(cells: Cells, task: str | None, key: str) -> tuple[str, str, str]:
    """Our accuracies by C; empty where not run."""
    if task is None:
        return "", "", ""
    if key == "baseline":
        cell = cells.get(f"{task}-private")
        text = _mean([r["baseline"] for r in cell["seeds"].values()]) if cell else ""
        return text, text, text
    label = "private" if key == "private" else f"mixup-{key}"
    found = []
    for fraction in paper.FRACTIONS:
        cell = cells.get(f"{task}-{label}" + ("" if fraction == 1 else f"-C{fraction:g}"))
        found.append(_mean([r["accuracy"] for r in cell["seeds"].values()]) if cell else "")
    return found[0], found[1], found[2]


def _studies(cells: Cells) -> str:
    rows = [
        ("6, 7: more queries and iterations help", _by_queries(cells)),
        ("11c: noise and flipping hurt, cutout and cutmix help", _list(cells, EXPANSIONS)),
        (
            "12: random selection gains most of it, entropy +1.44 (SVHN), margin +0.8 (CIFAR-10) more",
            _list(cells, [f"select-{kind}" for kind in SELECTIONS]),
        ),
        (
            "13: logits not normalised are about 5 points better on CIFAR-10",
            "probabilities instead of logits: " + _one(cells, "mnist-probabilities"),
        ),
        ("15: smaller alpha, lower accuracy, still a gain", _by_alpha(cells)),
        (
            "16: more private samples are better",
            "; ".join(f"{n} samples: {_one(cells, f'mnist-samples-{n}', True)}" for n in PRIVATE),
        ),
    ]
    lambdas = [
        (f"{lam:g}", f"{value:.2f}", _after(cells, f"mnist-lambda-{lam:g}"))
        for lam, value in paper.LAMBDA.items()
    ]
    return (
        table(("figure and its claim", "ours, gain (least gain of a client)"), rows)
        + f"\n\nOn MNIST with {BASE['mnist'].queries:,} queries unless said{_ordinary(cells)}; iterations are gains "
        "after each. "
        "Table 5, accuracy by the one coefficient of mixup (ours for "
        + ", ".join(f"{lam:g}" for lam in LAMBDAS)
        + "):\n\n"
        + table(("λ", "paper, CIFAR-10", "ours, MNIST"), lambdas)
        + "\n\n`scripts/reproduce privhfl-heterogeneity --data DATA` and `privhfl-studies`.\n"
    )


def _ordinary(cells: Cells) -> str:
    """What rows of one seed are to be read beside."""
    cell = cells.get(f"mnist-mixup-{BASE['mnist'].queries}", {"seeds": {}})
    if "0" not in cell["seeds"]:
        return ""
    gain = f"{100 * cell['seeds']['0']['gain']:+.1f}"
    return f"; rows of one seed are of seed 0, where random choice, mixup and logits gain {gain}"


def _one(cells: Cells, name: str, baseline: bool = False) -> str:
    cell = cells.get(name)
    if cell is None:
        return "not run"
    before, _, gain, least, runs = _gain(cell)
    start = f"from {before} " if baseline else ""
    return f"{start}{gain} ({least}; {runs} seed{'s' if runs > 1 else ''})"


def _after(cells: Cells, name: str) -> str:
    return _gain(cells[name])[1] if name in cells else ""


def _list(cells: Cells, labels: Any) -> str:
    found = [
        f"MNIST {label.removeprefix('select-')} {_one(cells, f'mnist-{label}')}" for label in labels
    ]
    found += [
        f"CIFAR-10 {label} {_one(cells, f'cifar10-{label}')}"
        for label in labels
        if f"cifar10-{label}" in cells
    ]
    return "; ".join(found)


def _by_queries(cells: Cells) -> str:
    found = [
        f"{data} {number:,}: {_one(cells, f'{task}-mixup-{number}')}"
        for task, data in _DATA.items()
        for number in QUERIES[task]
    ]
    cell = cells.get("mnist-iterations-3")
    if cell is not None:
        steps = np.mean([run["gain_by_iteration"] for run in cell["seeds"].values()], axis=0)
        found.append("MNIST, iterations 1 to 3: " + ", ".join(f"{100 * s:+.1f}" for s in steps))
    return "; ".join(found)


def _by_alpha(cells: Cells) -> str:
    found = []
    for task, data in _DATA.items():
        for alpha in ALPHAS:
            name = f"{task}-alpha-{alpha:g}"
            if name in cells or task == "mnist":
                alone = f"{name}-local"
                control = f", retraining alone {_one(cells, alone)}" if alone in cells else ""
                found.append(f"{data}, alpha {alpha:g}: {_one(cells, name, True)}{control}")
    return "; ".join(found)

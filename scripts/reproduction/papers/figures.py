"""Figures for the rows of docs/papers.md: the records of results/, and means of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from scripts.reproduction import (
    accuracy_tables,
    paper,
    privhfl_cells,
    privhfl_paper,
    privhfl_tables,
)
from scripts.reproduction.communication import MIB
from scripts.reproduction.markdown import mean, seconds, size
from scripts.reproduction.results import TABLES, Figures, read_results

NETWORKS: Final = ("VGG-7", "ResNet-8", "ResNet-10")


class ByName(dict[str, Any]):
    """A mapping that format strings may ask by number, as in `{bins[10]}`."""

    def __missing__(self, key: object) -> Any:
        if isinstance(key, str):
            raise KeyError(key)
        return self[str(key)]


def _by_name(value: Any) -> Any:
    """The same with every mapping in it a `ByName`."""
    if isinstance(value, Mapping):
        return ByName({str(name): _by_name(one) for name, one in value.items()})
    return [_by_name(one) for one in value] if isinstance(value, list) else value


def all_figures() -> Figures:
    """Every table by its name, and by their own names the figures that several rows share.

    Empty if there are no results. A group whose result is not here is left out.
    """
    records = read_results(TABLES)
    if not records:
        return {}
    found: Figures = dict(records)
    for group in (_costs, _accuracy, _sesa, _sesa_speed, _sesa_writers, _sefl, _papersize,
                  _figure3, _privhfl, _privhfl_costs, _privhfl_more):  # fmt: skip
        try:
            found.update(group(records))
        except KeyError:
            continue
    named: Figures = _by_name(found)
    return named


def _costs(records: Figures) -> Figures:
    """Of tables 3 to 6 and figure 7 of the first paper."""
    bins = {}
    for row in records["table3"]["factors"]:
        cells = row["ours"].values()
        known = [c for c in cells if c["bins_an_item"] is not None]
        stash = max(cell["stash"] for cell in known)
        text = " to ".join(
            dict.fromkeys(
                f"{end:.3f}" for end in (min(c["bins_an_item"] for c in known),
                                         max(c["bins_an_item"] for c in known))
            )
        )  # fmt: skip
        bins[str(row["log2_m"])] = text + f", stash {stash}" * bool(stash)
    largest: dict[str, list[str]] = {}
    for cell in sorted(records["table4"]["cells"], key=lambda c: (c["percent"], c["log2_m"])):
        ours = cell["ours"] if cell["mechanism"] == "cuckoo" else "no table"
        largest.setdefault(str(cell["percent"]), []).append(str(ours))
    uploads: dict[str, dict[str, str]] = {}
    for cell in records["table6"]["cells"]:
        own = uploads.setdefault(str(cell["log2_m"]), {})
        own[str(cell["percent"])] = f"{cell['l128_bytes'] / MIB:.4g}"
        own[f"{cell['percent']} check"] = f"{cell['l128_check_bytes'] / MIB:.4g}"
        own["dense"] = f"{cell['dense_l128_bytes'] / MIB:.4g}"
    curve = records["table5"]["figure7_2_15"]
    client = [point["client_seconds"] for point in curve]
    server = [point["server_seconds"] for point in curve]
    large = {
        str(cell["ring_bits"]): seconds(
            records["table5"]["permutations_2_25_seconds"]
            + sum(cell[f"{name}_seconds"] for name in ("client", "server", "round"))
        )
        for cell in records["table5"]["2_25_10_percent"]
    }
    return {
        "bins": bins,
        "largest_bins": {percent: ", ".join(cells) for percent, cells in largest.items()},
        "uploads": uploads,
        "correlation": float(np.corrcoef(client, range(len(client)))[0, 1]),
        "spread": max(server) / min(server),
        "large": large,
    }


def _accuracy(records: Figures) -> Figures:
    """Of tables 7 and 8: by data set and share of the plain runs, and what 5 % loses."""
    del records
    accuracy: dict[str, dict[str, str]] = {}
    loss: dict[str, str] = {}
    later: dict[str, str] = {}
    runs = [r for r in accuracy_tables.usual("table7") if _is_plain(r)]
    for dataset in paper.ACCURACY:
        for rounds, losses in ((1000, loss), (500, loss), (2000, later)):
            own = [r for r in runs if r["cell"]["dataset"] == dataset and r["rounds"] == rounds]
            by_share = {
                f"{percent:g}": {
                    r["cell"]["seed"]: r["accuracy_percent"]
                    for r in own if r["cell"]["percent"] == percent
                }
                for percent in {r["cell"]["percent"] for r in own}
            }  # fmt: skip
            for percent, seeds in by_share.items():
                text = mean(list(seeds.values()))
                known = accuracy.setdefault(dataset, {})
                known[percent] = (
                    f"{known[percent]}; {text} at {rounds:,}" if percent in known else text
                )
            if {"5", "100"} <= set(by_share):
                both = sorted(set(by_share["5"]) & set(by_share["100"]))
                losses[dataset] = mean(
                    [by_share["5"][s] - by_share["100"][s] for s in both], 2, "+"
                )
    rows = [r for r in accuracy_tables.usual("table8") if _is_plain(r)]
    shares = {f"{r['cell']['percent']:g}" for r in rows}
    by_rows = {
        share: {
            r["cell"]["seed"]: r["accuracy_percent"]
            for r in rows if f"{r['cell']['percent']:g}" == share
        }
        for share in shares
    }  # fmt: skip
    least, most = by_rows["0.0125"], by_rows["10"]
    every = [*read_results("table7").values(), *read_results("table8").values()]
    exact = sum(r["exact_rounds"] for r in every)
    both_servers = sum(r["fsl"]["exact_rounds"] for r in every)
    return {
        "accuracy": accuracy,
        "loss": loss,
        "loss2000": later,
        "rows8": {share: mean(list(seeds.values())) for share, seeds in by_rows.items()},
        "loss8": mean([least[s] - most[s] for s in sorted(set(least) & set(most))], 2, "+"),
        "exact": {
            "fsl": f"{exact:,} of {sum(r['rounds'] for r in every):,} rounds, {both_servers} of "
            "them by both servers, exact"
        },
    }


def _is_plain(run: Figures) -> bool:
    """A run of the paper's settings: plain averages, the latest model, the paper's images."""
    cell = run["cell"]
    return bool(
        cell["server_rate"] == 1 and not cell["server_momentum"] and cell["server_decay"] == 1
        and not cell["average"] and cell["augment"]
        and (cell["precision"] == "bfloat16" or cell["dataset"] == "trec")
    )  # fmt: skip


def _sesa(records: Figures) -> Figures:
    found = records["sesa"]
    widths = found["costs"]["MLP"]["sesa"]["bytes"]

    def by_width(read: Callable[[Figures], float]) -> str:
        return " / ".join(size(read(own)) for own in widths.values())

    runs = [run for of in found["accuracy"].values() for run in of.values()]
    widest = next(iter(widths.values()))["phases"]
    own = found["costs"]["MLP"]["sesa"]
    per_client = own["cpu_seconds"] * (1 - own["server_share"]) / found["costs"]["MLP"]["clients"]
    return {
        "bytes": {
            "upload": by_width(lambda own: own["upload"]),
            "masked": by_width(lambda own: own["phases"]["masked"]),
            "online": f"{size(widest['masked'])} + {size(widest['answer'])}",
            "shares": size(widest["shares"]),
            "survivors": size(widest["survivors"]),
        },
        "sesa_exact": {
            "rounds": sum(run["exact_rounds"] for run in runs),
            "of": sum(run["rounds"] for run in runs),
        },
        "sesa_seconds": seconds(per_client),
    }


def _sesa_speed(records: Figures) -> Figures:
    speed = {}
    for name, runs in records["sesa-speed"]["accuracy"].items():
        curves = [run["curve"] for run in runs.values()]
        reached = [next((n for n, v in curve if v >= 0.9), None) for curve in curves]
        speed[name] = {
            "last": mean([100 * curve[-1][1] for curve in curves], 1) + " %",
            "to90": ", ".join("never" if n is None else str(n) for n in reached),
        }
    return {"speed": speed}


def _sesa_writers(records: Figures) -> Figures:
    runs = records["sesa-writers"]["accuracy"]
    return {
        "writers": {
            name: mean([100 * run["curve"][-1][1] for run in of.values()], 1) + " %"
            for name, of in runs.items()
        }
    }


def _sefl(records: Figures) -> Figures:
    first, fourth = records["sefl-table1"]["runs"], records["sefl-figure4"]["runs"]
    every = [run for shares in first.values() for of in shares.values() for run in of.values()]

    def tests(runs: Mapping[str, Figures]) -> list[float]:
        return [run["test_perplexity"] for run in runs.values()]

    def change(model: str, share: str) -> float:
        return float(np.mean(tests(first[model][share])) / np.mean(tests(first[model]["0"])))

    def gained(model: str) -> str:
        whole = fourth[model]["1"]["test_perplexity"]
        form = min((f for f in fourth[model] if f != "1"),
                   key=lambda f: fourth[model][f]["test_perplexity"])  # fmt: skip
        value = fourth[model][form]["test_perplexity"]
        return f"{100 * (value / whole - 1):+.1f} % (blocks of {form})"

    return {
        "perplexity1": {
            model: {
                share: mean(tests(runs), 1)
                + (f" ({100 * (change(model, share) - 1):+.1f} %)" if share != "0" else "")
                for share, runs in shares.items()
            }
            for model, shares in first.items()
        },
        "dropped": {
            share: ", ".join(f"{100 * (change(model, share) - 1):+.1f} %" for model in first)
            for share in ("0.25", "0.75")
        },
        "tenth": "; ".join(
            f"{model.partition('-')[0]} {mean(tests(shares['0']), 1)}"
            for model, shares in first.items()
        ),
        "sefl_exact": {
            "rounds": sum(run["exact_rounds"] for run in every),
            "of": sum(run["rounds"] for run in every),
        },
        "blocks4": {
            model: {
                block: "; ".join(
                    f"{forms[form]['test_perplexity']:.1f} in {where}"
                    for form, where in ((block, "layers"), (f"{block} tables", "all"))
                )
                + f"; whole {forms['1']['test_perplexity']:.1f}"
                for block in ("4", "8", "16", "32")
            }
            for model, forms in fourth.items()
        },
        "best4": {model: gained(model) for model in fourth},
    }


def _papersize(records: Figures) -> Figures:
    forms = records["sefl-tablepapersize"]["forms"]
    whole = forms["1"]["client_seconds"]

    def times(form: str) -> str:
        own = forms[form]
        fewer = forms["1"]["values"] / own["values"]
        return f"{whole / own['client_seconds']:.1f}x ({fewer:.1f} times fewer values)"

    return {"papersize": {"gain": times("32 tables"), "layers": times("32")}}


def _figure3(records: Figures) -> Figures:
    runs = records["sefl-figure3"]["runs"]
    found: dict[str, str] = {}
    for model, forms in runs.items():
        pruned, whole = forms["8 tables"], forms["1"]
        loss = 100 * (pruned["sefl"] / whole["cdp"] - 1)
        found[model] = f"{pruned['sefl']:.1f} against {whole['cdp']:.1f} ({loss:+.1f} %)"
    found["whole"] = "; ".join(
        f"{model.partition('-')[0]} {forms['1']['sefl']:.1f} against {forms['1']['cdp']:.1f}"
        for model, forms in runs.items()
    )
    found["rise"] = "; ".join(
        f"{model.partition('-')[0]} "
        + ", ".join(
            f"{name} {forms[form]['none']:.1f} to {forms[form]['sefl']:.1f}"
            for form, name in (("1", "whole"), ("8 tables", "blocks"))
        )
        for model, forms in runs.items()
    )
    return {"figure3": found}


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
        texts = [_percent(_runs(cells[n]), "accuracy") if n in cells else "-" for n in names]
        gain = (
            f" (gain {_percent(_runs(cells[names[2]]), 'gain', '+')})" if names[2] in cells else ""
        )
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
        "table1": {key: table1(key) for key in
                   ("baseline", *privhfl_paper.ACCURACY["CIFAR-10"])},
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
    best = {
        name: _spent(own["tables"][max(own["tables"], key=int)]) for name, own in networks.items()
    }

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
        "queries": {
            name: ", ".join(f"{number * spent:,.0f}" for number in (1000, 2500, 5000)) + " s"
            for name, spent in best.items()
        },
        "less": less,
        "mnist4": {
            name: ", ".join(f"{spent:.2f}" for spent in of.values()) + " s"
            for name, of in own4.items()
        },
        "orders": f"{min(ratios):,.0f} to {max(ratios):,.0f}x",
    }


def _privhfl_more(records: Figures) -> Figures:
    """Tiny ImageNet's networks, and batches up to 64 that are dealt in parts."""
    found: Figures = {}
    if "privhfl-tiny" in records:
        tiny = {n: _spent(query) for n, query in records["privhfl-tiny"]["networks"].items()}
        found["queries"] = {
            **_privhfl_costs(records)["queries"],
            **{n: f"{1000 * spent:,.0f}, {2500 * spent:,.0f} s" for n, spent in tiny.items()},
        }
    if "privhfl-batches" in records:
        found["batches8"] = "; ".join(
            f"{name}: " + ", ".join(f"{b}: {_spent(query):.3f}" for b, query in own.items())
            for name, own in records["privhfl-batches"]["networks"].items()
        )
    return found

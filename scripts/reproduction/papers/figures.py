"""Figures for the rows of docs/papers.md: the records of results/, and means of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from scripts.reproduction import accuracy_tables, paper
from scripts.reproduction.communication import MIB
from scripts.reproduction.cost_tables import twins
from scripts.reproduction.markdown import mean, seconds, size
from scripts.reproduction.papers import privhfl_figures, sefl_figures
from scripts.reproduction.results import TABLES, Figures, read_results


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
    for group in (_costs, _beside_the_paper, _accuracy, _rows_of_words, _runs_of_training,
                  _sesa, _sesa_speed, _sesa_writers,
                  *sefl_figures.GROUPS, *privhfl_figures.GROUPS):  # fmt: skip
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
    cells6 = records["table6"]["cells"]
    ratios = [cell["l128_bytes"] / MIB / cell["paper_formula_mib"] - 1 for cell in cells6]
    rates = {
        cell["percent"]: 100 * cell["l128_bytes"] / cell["dense_l128_bytes"] / cell["percent"]
        for cell in cells6 if cell["log2_m"] == 20
    }  # fmt: skip
    for cell in cells6:
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
        "against_formula": f"{100 * min(ratios):+.1f} to {100 * max(ratios):+.1f} %",
        "own_rate": ", ".join(f"{rates[percent]:.2f}" for percent in sorted(rates)),
        "correlation": float(np.corrcoef(client, range(len(client)))[0, 1]),
        "spread": max(server) / min(server),
        "large": large,
    }


def _beside_the_paper(records: Figures) -> Figures:
    """Figures of the formulas and bins of the paper that it does not print, and shares of costs."""
    least = {
        str(row["log2_m"]): {
            percent: f"2^{twins(own['k'], math.ceil(row['paper'] * own['k'])):.1f}"
            for percent, own in row["ours"].items()
        }
        for row in records["table3"]["factors"]
    }
    cells6 = [cell for cell in records["table6"]["cells"] if cell["log2_m"] == 20]
    curve = records["table5"]["figure7_2_15"]
    printed = records["din"]["paper"]
    rows = printed["items_per_client"] + printed["categories_per_client"] + 1
    rest = 128 * (printed["parameters"] - printed["embedding"])
    return {
        "least_failures": least,
        "per_position": ", ".join(f"{cell['l128_bytes'] / cell['k']:.0f}" for cell in cells6),
        "client_spread": curve[-1]["client_seconds"] / curve[0]["client_seconds"],
        "paper_l32_percent": 100 * 32 / (1.25 * (9 * 130 + 32)),
        "din_by_formula": size((1.25 * rows * (9 * 130 + 18 * 128) + rest) / 8),
        "din_mib": f"{records['din']['upload_bytes_l128_no_check'] / MIB:.2f} MiB",
    }


def _accuracy(records: Figures) -> Figures:
    """Of table 7: accuracies by data set and share, and what a share loses by data set and rounds.

    All of plain runs. Losses are against the runs of 100 % with the same seeds and rounds.
    """
    del records
    accuracy: dict[str, dict[str, str]] = {}
    lost: dict[str, dict[str, str]] = {}
    runs = [r for r in accuracy_tables.usual("table7") if is_plain(r)]
    for dataset in paper.ACCURACY:
        for rounds in (500, 1000, 2000):
            own = [r for r in runs if r["cell"]["dataset"] == dataset and r["rounds"] == rounds]
            by_share = _by_share(own)
            for percent, seeds in by_share.items():
                text = mean(list(seeds.values()))
                known = accuracy.setdefault(dataset, {})
                known[percent] = (
                    f"{known[percent]}; {text} at {rounds:,}" if percent in known else text
                )
                both = sorted(set(seeds) & set(by_share.get("100", {})))
                losses = [seeds[s] - by_share["100"][s] for s in both]
                if losses:
                    lost.setdefault(percent, {})[f"{dataset} {rounds}"] = mean(losses, 2, "+")
    return {"accuracy": accuracy, "lost": lost}


def _by_share(runs: Iterable[Figures]) -> dict[str, dict[int, float]]:
    """Accuracies by percentage and seed."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        cell = run["cell"]
        found.setdefault(f"{cell['percent']:g}", {})[cell["seed"]] = run["accuracy_percent"]
    return found


def _rows_of_words(records: Figures) -> Figures:
    """Of table 8: accuracies by share, and what the smallest share loses."""
    del records
    by_rows = _by_share(r for r in accuracy_tables.usual("table8") if is_plain(r))
    least, most = by_rows["0.0125"], by_rows["10"]
    return {
        "rows8": {share: mean(list(seeds.values())) for share, seeds in by_rows.items()},
        "loss8": mean([least[s] - most[s] for s in sorted(set(least) & set(most))], 2, "+"),
    }


def _runs_of_training(records: Figures) -> Figures:
    """Of tables 7 and 8: exact rounds, the effect of error feedback, and hours of a column.

    A longer run goes on where a shorter one of the same folder ended: the longest alone counts.
    """
    del records
    table7 = read_results("table7")
    longest: dict[str, Figures] = {}
    for name, run in [*table7.items(), *read_results("table8").items()]:
        folder = f"{run['cell']['table']} {re.sub(r'-[0-9]+rounds$', '', name)}"
        longest[folder] = max(longest.get(folder, run), run, key=lambda one: int(one["rounds"]))
    exact = sum(r["exact_rounds"] for r in longest.values())
    both_servers = sum(r["fsl"]["exact_rounds"] for r in longest.values())
    hours = {}
    for dataset in ("mnist", "cifar10"):
        run = table7[f"{dataset}-5-seed0"]
        spent = run["wall_seconds_of_last_start"] / run["rounds"]
        hours[dataset] = f"{3 * paper.ROUNDS[dataset] * spent / 3600:.0f} hours"
    return {
        "exact": {
            "fsl": f"{exact:,} of {sum(r['rounds'] for r in longest.values()):,} rounds, "
            f"{both_servers} of them by both servers, exact"
        },
        "hours": hours,
        "feedback": f"{table7['trec-5-seed0']['accuracy_percent']:.2f} with error feedback, "
        f"{table7['trec-5-nofeedback-seed0']['accuracy_percent']:.2f} without (TREC, 5 %, seed 0)",
    }


def is_plain(run: Figures) -> bool:
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

    widest = next(iter(widths.values()))["phases"]
    own = found["costs"]["MLP"]["sesa"]
    per_client = own["cpu_seconds"] * (1 - own["server_share"]) / found["costs"]["MLP"]["clients"]
    return {
        "bytes": {
            "upload": by_width(lambda own: own["upload"]),
            "masked": by_width(lambda own: own["phases"]["masked"]),
            "online": f"{size(widest['masked'])} + {size(widest['answer'])}",
            "shares": size(widest["shares"]),
            **{name: size(widest[name]) for name in ("survivors", "relay", "model")},
            "download": size(next(iter(widths.values()))["download"]),
        },
        "sesa_seconds": seconds(per_client),
        "choice60": _last(found["accuracy"]),
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
    trials = {
        name: {rate: f"{100 * value:.1f} %" for rate, value in of.items()}
        for name, of in records["sesa-speed"]["trials"].items()
    }
    every = [run for runs in records["sesa-speed"]["accuracy"].values() for run in runs.values()]
    clipped = sum(run["clipped_values"] for run in every)
    return {"speed": speed, "trials": trials, "speed_clipped": clipped}


def _sesa_writers(records: Figures) -> Figures:
    return {"writers": _last(records["sesa-writers"]["accuracy"])}


def _last(runs: Figures) -> dict[str, str]:
    """By choice the accuracy at the end, over the seeds."""
    return {
        name: mean([100 * run["curve"][-1][1] for run in of.values()], 1) + " %"
        for name, of in runs.items()
    }

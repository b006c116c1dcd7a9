"""The tables of docs/results/recommenders.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scripts.reproduction.markdown import mean, size, stamp_of
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures, read_results

TRIAL_WORDS: Final = {
    "din": "`din` with a mean of models that keeps 0.985 of the past, "
    "as below where nothing is said",
    "dropout-0": "no dropout",
    "dropout-0.5": "dropout of one half",
    "user-table": "a table of users",
    "adam-of-all-rows": "Adam moves all rows, tables at the rate of the rest",
    "tables-at-rate-1": "tables at the rate of the rest",
    "rate-0.005": "half the servers' rate",
    "mean-0.99": "a mean of models that keeps 0.99 of the past: the preset",
    "mean-0.995": "one that keeps 0.995",
    "central": "central training",
    "central-rate-0.001": "central training at a third of the rate",
    "central-rate-0.01": "central training at the servers' rate",
}
"""Changes of the preset by each of `recommendation.TRIALS`."""


def tests() -> list[Figures]:
    """Runs that were evaluated on test items, by name."""
    return [run for run in read_results("recommendation").values() if run["evaluate"] == "test"]


def trials() -> list[Figures]:
    """Runs that were evaluated on validation items, by name."""
    return [run for run in read_results("recommendation").values() if run["evaluate"] != "test"]


def _order(run: Figures) -> tuple[Any, ...]:
    central, wide = run["aggregation"] == "central", run["cell"].removeprefix("narrow-")
    return run["dataset"], central, -run["rounds"], wide, run["cell"] != wide


def _groups(runs: list[Figures]) -> list[list[Figures]]:
    """Runs that differ by the seed alone."""
    groups: dict[tuple[str, int], list[Figures]] = {}
    for run in sorted(runs, key=_order):
        groups.setdefault((run["cell"], run["rounds"]), []).append(run)
    return list(groups.values())


def _kind(run: Figures) -> str:
    kind = run["cell"].partition("-")[0]
    return {"central": ", central", "narrow": ", two bytes a value"}.get(kind, "")


@table(
    "recommenders",
    "data | model | rounds | seeds | AUC, mean of models | AUC, latest model | HR@10 | NDCG@10 | "
    "MRR | HR@10, catalogue | popularity: AUC, HR@10, HR@10 in the catalogue | up | down | "
    "exact rounds, of which through both servers",
    "Amazon {data} | `{preset}`{kind} | {rounds} | {seeds} | {mean_auc} | {auc} | {hr10} | "
    "{ndcg10} | {mrr} | {catalogue_hr10} | {popular} | {up} | {down} | {exact}",
    figures=tests,
    stamp=stamp_of,
    command="recommendation --cell din-beauty",
)
def _recommenders(runs: list[Figures]) -> Iterator[Figures]:
    for group in _groups(runs):
        first = group[0]
        prefix = "mean_" if "mean_auc" in first["metrics"] else ""

        def values(part: str, name: str, group: list[Figures] = group) -> str:
            return mean([run[part][name] for run in group], 4)

        through = [run["fsl"] for run in group if run["fsl"]]
        popular = ("auc", "hr10", "catalogue_hr10")
        central = first["aggregation"] == "central"
        yield {
            **first,
            "data": first["dataset"].capitalize(),
            "kind": _kind(first),
            "seeds": ", ".join(str(run["seed"]) for run in group),
            "mean_auc": values("metrics", "mean_auc") if prefix else "-",
            "auc": values("metrics", "auc"),
            **{n: values("test", prefix + n) for n in ("hr10", "ndcg10", "mrr", "catalogue_hr10")},
            "popular": ", ".join(values("baselines", f"popularity_{name}") for name in popular),
            "up": size(through[0]["upload_bytes"]) if through else "-",
            "down": size(through[0]["download_bytes"]) if through else "-",
            "exact": "-" if central else f"{_exact(group)}; {_exact(through)}",
        }


def _exact(runs: list[Figures]) -> str:
    exact, rounds = (sum(run[name] for run in runs) for name in ("exact_rounds", "rounds"))
    return f"{exact:,} of {rounds:,}"


def best_auc(run: Figures) -> float:
    """Of the mean of models, or of the latest model if the preset has no mean."""
    return float(run["metrics"].get("mean_auc", run["metrics"]["auc"]))


@table(
    "recommenders-narrow",
    "model on Beauty | rounds | difference by seed | on average",
    figures=tests,
    stamp=None,
)
def _narrow(runs: list[Figures]) -> Iterator[tuple[Any, ...]]:
    wide = {(run["cell"], run["rounds"], run["seed"]): best_auc(run) for run in runs}
    for group in _groups([run for run in runs if run["cell"].startswith("narrow-")]):
        cell, rounds = group[0]["cell"].removeprefix("narrow-"), group[0]["rounds"]
        keys = [(cell, rounds, run["seed"]) for run in group]
        off = [best_auc(r) - wide[key] for key, r in zip(keys, group, strict=True) if key in wide]
        if off:
            each = ", ".join(f"{gap:+.4f}" for gap in off)
            yield f"`{group[0]['preset']}`", rounds, each, f"{sum(off) / len(off):+.4f}"


@table(
    "recommenders-popularity",
    "model on Beauty | rounds | AUC above popularity",
    figures=tests,
    stamp=None,
)
def _above(runs: list[Figures]) -> Iterator[tuple[Any, ...]]:
    mine = [run for run in runs if run["dataset"] == "beauty" and not _kind(run)]
    for preset in dict.fromkeys(run["preset"] for run in mine):
        own = [run for run in mine if run["preset"] == preset]
        most = max(run["rounds"] for run in own)
        above = [best_auc(r) - r["baselines"]["popularity_auc"] for r in own if r["rounds"] == most]
        yield f"`{preset}`", most, f"{sum(above) / len(above):+.3f}"


@table("recommenders-time", "model | data | rounds | seed | minutes", figures=tests, stamp=None)
def _time(runs: list[Figures]) -> Iterator[tuple[Any, ...]]:
    for run in (run for run in runs if run["aggregation"] == "fsl"):
        data, minutes = run["dataset"].capitalize(), run["seconds_of_rounds"] / 60
        yield f"`{run['preset']}`", f"Amazon {data}", run["rounds"], run["seed"], f"{minutes:.0f}"


@table(
    "recommenders-trials",
    "setting | rounds | AUC, mean of models | AUC, latest model",
    "{words} | {rounds} | {metrics[mean_auc]:.4f} | {metrics[auc]:.4f}",
    figures=trials,
    stamp=stamp_of,
    command="recommendation --cell trial-din",
)
def _settings(runs: list[Figures]) -> Iterator[Figures]:
    for run in sorted(runs, key=lambda r: (r["rounds"], -r["metrics"]["mean_auc"])):
        yield {**run, "words": TRIAL_WORDS[run["cell"].removeprefix("trial-")]}

"""The tables of docs/results/recommenders.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scripts.reproduction.markdown import mean, size, stamp_of
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures, read_results

TRIAL_WORDS: Final = {
    "din": "`din` with a mean of models that keeps 0.985 of the past, as below unless noted",
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
    "norm-1": "updates of norm 1 at most, and the bound on the aggregate",
    "norm-3": "updates of norm 3 at most, and the bound on the aggregate",
    "one-category": "all items have the same category",
    "sasrec": "`sasrec`",
    "sasrec-negatives-32": "`sasrec` with 32 negatives for every positive item",
    "sasrec-rate-0.02": "`sasrec` at twice the servers' rate",
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
    "data | model | rounds | seeds | AUC, mean of models | AUC, latest model | popularity: AUC | "
    "up | down | exact rounds, of which through both servers",
    "Amazon {data} | `{preset}`{kind} | {rounds} | {seeds} | {mean_auc} | {auc} | {popular} | "
    "{up} | {down} | {exact}",
    figures=tests,
    stamp=stamp_of,
    command="recommendation --cell din-beauty",
)
def _recommenders(runs: list[Figures]) -> Iterator[Figures]:
    for group in _groups(runs):
        first = group[0]
        through = [run["fsl"] for run in group if run["fsl"]]
        central = first["aggregation"] == "central"
        yield {
            **_named(group),
            "mean_auc": _mean_of(group, "metrics", "mean_auc"),
            "auc": _mean_of(group, "metrics", "auc"),
            "popular": _mean_of(group, "baselines", "popularity_auc"),
            "up": size(through[0]["upload_bytes"]) if through else "-",
            "down": size(through[0]["download_bytes"]) if through else "-",
            "exact": "-" if central else f"{_exact(group)}; {_exact(through)}",
        }


def _named(group: list[Figures]) -> Figures:
    """The first run of a group, its data and model in words, and all seeds."""
    seeds = ", ".join(str(run["seed"]) for run in group)
    data = group[0]["dataset"].capitalize()
    return {**group[0], "data": data, "kind": _kind(group[0]), "seeds": seeds}


def _mean_of(group: list[Figures], part: str, name: str) -> str:
    """Over the runs of a group, or a dash where they lack the figure."""
    found = [run[part][name] for run in group if name in run[part]]
    return mean(found, 4) if len(found) == len(group) > 0 else "-"


@table(
    "recommenders-ranking",
    "data | model | protocol | users | HR@10 | NDCG@10 | HR@20 | NDCG@20 | MRR | "
    "central: HR@10 | central: NDCG@10 | from central | popularity: HR@10",
    "Amazon {data} | `{preset}`{kind} | {protocol} | {users} | {hr10} | {ndcg10} | {hr20} | "
    "{ndcg20} | {mrr} | {of_hr10} | {of_ndcg10} | {gap} | {popular}",
    figures=tests,
    stamp=None,
)
def _rankings(runs: list[Figures]) -> Iterator[Figures]:
    """Two rows for each model, with central training of its data, preset and rounds."""
    groups = [_most_ranked(group) for group in _groups(runs)]
    yardsticks = {_yardstick(group[0]): group for group in groups if _is_central(group[0])}
    for group in [group for group in groups if not _is_central(group[0])]:
        beside = yardsticks.get(_yardstick(group[0]), [])
        for prefix, protocol in (("", "99 others"), ("catalogue_", "catalogue")):
            users = "catalogue_users" if prefix else "ranked_users"
            own = ("mean_" if "mean_auc" in group[0]["metrics"] else "") + prefix
            names = ("hr10", "ndcg10", "hr20", "ndcg20", "mrr")
            found = {name: _mean_of(group, "test", own + name) for name in names}
            of_central = {f"of_{n}": _mean_of(beside, "test", own + n) for n in names[:2]}
            pairs = [(found[name], of_central[f"of_{name}"]) for name in names[:2]]
            yield {
                **_named(group), **found, **of_central,
                "protocol": protocol,
                "users": f"{group[0].get('ranking', group[0])[users]:,}",
                "gap": ", ".join(_gap(*pair) for pair in pairs) if beside else "-",
                "popular": _mean_of(group, "baselines", f"popularity_{prefix}hr10"),
            }  # fmt: skip


def _most_ranked(group: list[Figures]) -> list[Figures]:
    """The runs whose rankings have the most users: means are over equal rankings."""
    users = [run.get("ranking", run)["catalogue_users"] for run in group]
    return [run for run, count in zip(group, users, strict=True) if count == max(users)]


def _is_central(run: Figures) -> bool:
    return bool(run["aggregation"] == "central")


def _yardstick(run: Figures) -> tuple[Any, ...]:
    """Equal for runs and the central training that they are compared with."""
    return (
        run["dataset"],
        run["preset"],
        run["rounds"],
        run.get("ranking", {}).get("catalogue_users"),
    )


def _gap(own: str, of_central: str) -> str:
    """Between two means, in percent of the second."""
    value, central = (float(text.split()[0]) for text in (own, of_central))
    return f"{100 * (value / central - 1):+.1f} %"


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

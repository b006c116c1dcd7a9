"""The section of RESULTS.md on recommenders."""

from __future__ import annotations

import json
import statistics
from typing import Any

from scripts.reproduction.accuracy_report import stamp_of
from scripts.reproduction.markdown import missing, size, table
from scripts.reproduction.results import FOLDER

Figures = dict[str, Any]
TRIAL_WORDS = {
    "din": "`din` with a mean of models that keeps 0.985 of the past, as below where nothing is said",
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
"""What a trial of `recommendation.TRIALS` changes of the preset."""


def read_runs() -> list[Figures]:
    """All runs, by file name."""
    paths = sorted((FOLDER / "recommendation").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def section() -> str:
    """Text and tables; only runs that were made."""
    title = "### Recommenders\n\n"
    runs = read_runs()
    tests = [run for run in runs if run["evaluate"] == "test"]
    if not tests:
        return title + missing("recommendation --cell din-beauty")
    trials = [run for run in runs if run["evaluate"] == "validation"]
    rows = []
    for key in dict.fromkeys((r["cell"], r["rounds"]) for r in sorted(tests, key=_order)):
        rows.append(_row([r for r in tests if (r["cell"], r["rounds"]) == key]))
    head = ("data", "model", "rounds", "seeds", "AUC, mean of models", "AUC, latest model", "HR@10",
            "NDCG@10", "MRR", "HR@10, catalogue", "popularity: AUC, HR@10, HR@10 in the catalogue",
            "up", "down", "exact rounds, of which through both servers")  # fmt: skip
    first = tests[0]
    return (
        title + f"Every user is a client, {first['clients_per_round']} take part in a round. The last "
        "item of a user is held out. AUC is against one item that the user never took, over all users. "
        f"HR@10, NDCG@10 and MRR are of the mean of the servers' models, where a preset has one: {first['ranked_users']:,} users "
        f"among 99 such items; *catalogue*: {first['catalogue_users']:,} users among all items but those "
        "they took. *Popularity* ranks by it in the training data. *Central* trains the same model in "
        "one place, on the samples of the clients that would take part. Clients' gradients were taken "
        "together. A run goes through both servers whole, or sums its rounds in the clear on the same "
        "quantised updates and goes through both servers in its first ones, with the same model bit for "
        "bit; these give *up* and *down*, all bytes of a client and round. *Exact*: the opened sum was "
        "that of the quantised updates.\n\n"
        + table(head, rows) + "\n\n" + _differences(tests) + _above(tests) + _time(tests) + stamp_of(tests) + _trials(trials)
    )  # fmt: skip


def opening() -> str:
    """What the runs of preset `din` say in a sentence; empty where there are none."""
    told = []
    tests = [run for run in read_runs() if run["evaluate"] == "test" and run["preset"] == "din"]
    for dataset in dict.fromkeys(run["dataset"] for run in tests):
        ours = _longest([r for r in tests if r["cell"] == f"din-{dataset}"])
        central = _longest([r for r in tests if r["cell"] == f"central-din-{dataset}"])
        if ours and central:
            told.append(
                f"**{_mean(ours, 'metrics', 'mean_auc')}** on Amazon {dataset.capitalize()} (central "
                f"training {_mean(central, 'metrics', 'mean_auc')}, popularity "
                f"{_mean(ours, 'baselines', 'popularity_auc')})"
            )
    if not told:
        return ""
    return (
        "DIN trained by users who each send the rows that they touch has an AUC of "
        + " and ".join(told) + ": the sum is exact, so nothing is lost by not seeing it "
        "([recommenders](#recommenders))."
    )  # fmt: skip


def _order(run: Figures) -> tuple[Any, ...]:
    central, wide = run["aggregation"] == "central", run["cell"].removeprefix("narrow-")
    return (run["dataset"], central, -run["rounds"], wide, run["cell"] != wide)


def _row(group: list[Figures]) -> tuple[Any, ...]:
    """Runs that differ by the seed."""
    first = group[0]
    popular = [
        _mean(group, "baselines", f"popularity_{n}") for n in ("auc", "hr10", "catalogue_hr10")
    ]
    through = [run["fsl"] for run in group if run["fsl"]]
    central = first["aggregation"] == "central"
    mean = "mean_" if "mean_auc" in first["metrics"] else ""
    exact = sum(run["exact_rounds"] for run in group if not central)
    rounds = sum(run["rounds"] for run in group)
    served = sum(one["exact_rounds"] for one in through), sum(one["rounds"] for one in through)
    return (
        f"Amazon {first['dataset'].capitalize()}",
        f"`{first['preset']}`{_kind(first)}",
        first["rounds"],
        ", ".join(str(run["seed"]) for run in group),
        _mean(group, "metrics", "mean_auc") if mean else "-",
        _mean(group, "metrics", "auc"),
        *(_mean(group, "test", mean + name) for name in ("hr10", "ndcg10", "mrr", "catalogue_hr10")),
        ", ".join(popular),
        size(through[0]["upload_bytes"]) if through else "-",
        size(through[0]["download_bytes"]) if through else "-",
        "-" if central else f"{exact:,} of {rounds:,}; {served[0]:,} of {served[1]:,}",
    )  # fmt: skip


def _kind(run: Figures) -> str:
    kind = run["cell"].partition("-")[0]
    return {"central": ", central", "narrow": ", two bytes a value"}.get(kind, "")


def _differences(tests: list[Figures]) -> str:
    """Two bytes a value beside four, seed by seed."""
    key = {(r["cell"], r["rounds"], r["seed"]): _best_auc(r) for r in tests}
    told = []
    for cell, rounds in dict.fromkeys((c, n) for c, n, _ in key if c.startswith("narrow-")):
        wide = cell.removeprefix("narrow-")
        seeds = [s for c, n, s in key if (c, n) == (cell, rounds) and (wide, n, s) in key]
        if not seeds:
            continue
        off = [key[cell, rounds, seed] - key[wide, rounds, seed] for seed in sorted(seeds)]
        preset, _, dataset = wide.rpartition("-")
        told.append(
            f"`{preset}` on {dataset.capitalize()} after {rounds} rounds "
            + ", ".join(f"{one:+.4f}" for one in off)
            + f", on average {statistics.fmean(off):+.4f}"
        )
    if not told:
        return ""
    return (
        "Two bytes a value, both ways, against four, AUC of the mean of models (`din-published` has "
        "none: of the latest model) seed by seed: "
        + "; ".join(told) + ".\n\n"
    )  # fmt: skip


def _best_auc(run: Figures) -> float:
    """Of the mean of models, where the preset has one."""
    return float(run["metrics"].get("mean_auc", run["metrics"]["auc"]))


def _above(tests: list[Figures]) -> str:
    """By how much each model beats ranking by popularity."""
    told = []
    for preset in dict.fromkeys(run["preset"] for run in tests):
        runs = _longest([
            r for r in tests
            if r["preset"] == preset and r["dataset"] == "beauty" and not _kind(r)
        ])  # fmt: skip
        above = [_best_auc(run) - run["baselines"]["popularity_auc"] for run in runs]
        if above:
            told.append(f"`{preset}` {statistics.fmean(above):+.3f} ({runs[0]['rounds']} rounds)")
    return "AUC on Beauty above that of popularity: " + ", ".join(told) + ".\n\n" if told else ""


def _longest(runs: list[Figures]) -> list[Figures]:
    """Of these the runs of most rounds."""
    most = max((run["rounds"] for run in runs), default=0)
    return [run for run in runs if run["rounds"] == most]


def _mean(group: list[Figures], part: str, name: str) -> str:
    values = [run[part][name] for run in group]
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{deviation}"


def _time(runs: list[Figures]) -> str:
    whole = [r for r in runs if r["aggregation"] == "fsl"]
    if not whole:
        return ""
    told = ", ".join(
        f"{r['seconds_of_rounds'] / 60:.0f} minutes for {r['rounds']} rounds of `{r['preset']}` on "
        f"{r['dataset'].capitalize()}"
        for r in whole
    )
    return (
        "Runs that went through both servers whole took, trained and served by one thread, most of them "
        f"beside other work: {told}.\n\n"
    )


def _trials(trials: list[Figures]) -> str:
    if not trials:
        return ""
    rows = [
        (
            TRIAL_WORDS[run["cell"].removeprefix("trial-")],
            run["rounds"],
            f"{run['metrics']['mean_auc']:.4f}",
            f"{run['metrics']['auc']:.4f}",
        )
        for run in sorted(trials, key=lambda r: (r["rounds"], -r["metrics"]["mean_auc"]))
    ]
    head = ("setting", "rounds", "AUC, mean of models", "AUC, latest model")
    return (
        "\n#### What the settings rest on\n\nChanges of preset `din` on Beauty, judged on "
        "validation items (a user's last but one; the last is left alone), one seed. Rows that differ by the "
        "mean of models alone are one and the same run; of the others, small differences say "
        "little.\n\n"
        + table(head, rows) + "\n\n" + stamp_of(trials)
    )  # fmt: skip

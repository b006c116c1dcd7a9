"""The section of RESULTS.md on recommenders."""

from __future__ import annotations

import json
import statistics
from typing import Any

from scripts.reproduction.markdown import missing, size, table
from scripts.reproduction.results import FOLDER
from scripts.reproduction.training_report import stamp_of

Figures = dict[str, Any]


def read_runs() -> list[Figures]:
    """All runs, by file name."""
    paths = sorted((FOLDER / "recommendation").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def section() -> str:
    """Text and table; only runs that were made."""
    title = "### Recommenders\n\n"
    runs = read_runs()
    if not runs:
        return title + missing("recommendation --cell din-beauty")
    rows = []
    for key in dict.fromkeys((r["dataset"], r["preset"], r["rounds"]) for r in runs):
        rows.append(_row([r for r in runs if (r["dataset"], r["preset"], r["rounds"]) == key]))
    head = ("data", "preset", "rounds", "seeds", "AUC, mean of models", "AUC, latest model", "HR@10",
            "NDCG@10", "MRR", "HR@10, catalogue", "popularity: AUC, HR@10, HR@10 in the catalogue",
            "up", "down", "exact")  # fmt: skip
    first = runs[0]
    return (
        title + f"Every user is a client, {first['clients_per_round']} take part in a round. The last "
        "item of a user is held out. AUC is against one item that the user never took, over all users. "
        f"HR@10, NDCG@10 and MRR are of the mean of the servers' models: {first['ranked_users']:,} users "
        f"among 99 such items; *catalogue*: {first['catalogue_users']:,} users among all items but those "
        "they took. *Popularity* ranks by it in the training data. Rounds were summed in the clear on the "
        "quantised updates with clients' gradients taken together; the first "
        f"{first['fsl']['rounds']} of each run also went through both servers, with the same model bit "
        "for bit, and give *up* and *down*, all bytes of a client and round. *Exact* counts the rounds "
        "whose sum was that of the quantised updates, of all rounds in the clear and of those through "
        "the servers. The presets' settings came from earlier trials that read test items; their choice "
        "was not repeated on validation items, so read the figures as optimistic.\n\n"
        + table(head, rows) + "\n\n" + stamp_of(runs)
    )  # fmt: skip


def _row(group: list[Figures]) -> tuple[Any, ...]:
    """Runs that differ by the seed."""
    first = group[0]

    def mean(part: str, name: str) -> str:
        values = [run[part][name] for run in group]
        deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{deviation}"

    popular = [mean("baselines", f"popularity_{n}") for n in ("auc", "hr10", "catalogue_hr10")]
    rounds = sum(run["rounds"] + run["fsl"]["rounds"] for run in group)
    exact = sum(run["exact_rounds"] + run["fsl"]["exact_rounds"] for run in group)
    return (
        f"Amazon {first['dataset'].capitalize()}",
        f"`{first['preset']}`",
        first["rounds"],
        ", ".join(str(run["seed"]) for run in group),
        mean("metrics", "mean_auc"),
        mean("metrics", "auc"),
        mean("test", "mean_hr10"),
        mean("test", "mean_ndcg10"),
        mean("test", "mean_mrr"),
        mean("test", "mean_catalogue_hr10"),
        ", ".join(popular),
        size(first["fsl"]["upload_bytes"]),
        size(first["fsl"]["download_bytes"]),
        f"{exact} of {rounds}",
    )

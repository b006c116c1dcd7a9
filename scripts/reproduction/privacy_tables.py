"""AUC by epsilon, for docs/results/recommenders.md, and planted faults of servers."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.reproduction.markdown import stamp_of
from scripts.reproduction.page_table import table
from scripts.reproduction.results import Figures, read_results


def runs_of() -> list[Figures]:
    """Runs that were evaluated on test items, the weakest protection first."""
    runs = read_results("privacy").values()
    return sorted((run for run in runs if run["evaluate"] == "test"), key=_order)


def _order(run: Figures) -> tuple[float, str, int]:
    return -(run["privacy"]["epsilon"] or 1e9), run["cell"].removeprefix("servers-"), run["rounds"]


@table(
    "privacy",
    "epsilon | reports of a user | rounds apart | noise correlated over | item rows | "
    "users a round | rounds | AUC (seed) | exact rounds",
    "{epsilon} | {privacy[max_participations]} | {privacy[min_separation]} | {band} | {rows} | "
    "{clients_per_round} | {rounds}{through} | {auc} | {exact}",
    figures=runs_of,
    stamp=stamp_of,
    command="privacy --data DATA",
)
def _privacy(runs: list[Figures]) -> Iterator[Figures]:
    groups: dict[tuple[str, int], list[Figures]] = {}
    for run in runs:
        groups.setdefault((run["cell"], run["rounds"]), []).append(run)
    for group in groups.values():
        first = group[0]
        asked = first["privacy"]
        band = asked["band"] or asked["min_separation"]
        yield {
            **first,
            "epsilon": f"{asked['epsilon']:g}" if asked["epsilon"] else "none",
            "band": f"{band} rounds" if band > 1 and asked["epsilon"] else "-",
            "rows": asked.get("rows") or "all",
            "through": f" of {asked['rounds']}, both servers"
            if first["aggregation"] == "fsl"
            else "",
            "auc": ", ".join(f"{run['metrics']['auc']:.3f} ({run['seed']})" for run in group),
            "exact": f"{sum(run['exact_rounds'] for run in group)} of "
            f"{sum(run['rounds'] for run in group)}",
        }


@table(
    "canaries",
    "fault of a server | counted, at 2 | estimate, at 2 | counted, at 8 | estimate, at 8 | "
    "bare values",
    "{0} | {1:.2f} | {2:.2f} | {3:.2f} | {4:.2f} | {5}",
)
def _canaries(figures: Figures) -> Iterator[list[object]]:
    for name, by_epsilon in figures["audits"].items():
        found = [by_epsilon[epsilon] for epsilon in ("2", "8")]
        numbers = [audit[what] for audit in found for what in ("counted", "estimated")]
        yield [name, *numbers, found[0]["bare"]]

"""The tables of docs/averages.md, from results/averages.json."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any, Final

from scripts.reproduction.markdown import stamp, table
from scripts.reproduction.results import read_result

PAGE: Final = Path("docs") / "averages.md"
BEGIN, END = "<!-- averages: begin -->\n", "<!-- averages: end -->\n"
EVERY: Final = 5
"""Rounds between two points of a curve."""


def tables(figures: dict[str, Any]) -> str:
    """One table per task, and the experiments."""
    runs: dict[str, dict[str, list[float]]] = figures["runs"]
    parts = []
    for task in figures["titles"]:
        of_task = {
            n.split("/", 1)[1]: seeds for n, seeds in runs.items() if n.startswith(f"{task}/")
        }
        parts += [f"### {figures['titles'][task]}", "", _task(of_task, figures), ""]
    parts += ["### Two-tower: what separates it from central training", "", _causes(figures), ""]
    return "\n".join([*parts, stamp(figures)])


def _task(combinations: dict[str, dict[str, list[float]]], figures: dict[str, Any]) -> str:
    marks = {figures["default"]: " (**default**)", figures["former"]: " (former default)"}
    rows = []
    for name, seeds in combinations.items():
        average, optimizer, state = name.split("/")
        curves = list(seeds.values())
        rows.append(
            (average, f"{optimizer}{marks.get(name, '')}", state, *_points(curves), len(curves))
        )
    head = ("average", "servers' optimizer", "clients' state", "after 5", "after 10", "best",
            "last", "best by seed", "seeds")  # fmt: skip
    return table(head, rows)


def _points(curves: list[list[float]]) -> tuple[str, ...]:
    """Means over seeds: after 5 and 10 rounds, of the best and of the last."""
    found = [[c[0] for c in curves], [c[1] for c in curves], [max(c) for c in curves],
             [c[-1] for c in curves]]  # fmt: skip
    return (*(f"{mean(f):.3f}" for f in found), ", ".join(f"{max(c):.3f}" for c in curves))


def _causes(figures: dict[str, Any]) -> str:
    rows = [
        (name, f"{mean(max(c) for c in seeds.values()):.3f}",
         f"{mean(c[-1] for c in seeds.values()):.3f}",
         ", ".join(f"{max(c):.3f}" for c in seeds.values()))
        for name, seeds in figures["causes"].items()
    ]  # fmt: skip
    return table(("training", "best", "last", "best by seed"), rows)


def written(text: str) -> str:
    """The page with its tables made anew; unchanged where there are no figures."""
    figures = read_result("averages")
    if figures is None:
        return text
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + tables(figures) + END + rest.partition(END)[2]


def write() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

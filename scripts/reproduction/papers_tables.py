"""The tables of docs/papers.md: every row of the four papers, and how many of each verdict."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from scripts.reproduction import accuracy_tables, markdown
from scripts.reproduction.page_table import table
from scripts.reproduction.papers import figures
from scripts.reproduction.papers.row import VERDICTS, Row, rows_of
from scripts.reproduction.results import TABLES, Figures, read_results

PAPERS: Final = {name: rows_of(name) for name in ("fsl", "sesa", "sefl", "privhfl")}
RUNS_OF: Final = {"mnist": "table7", "cifar10": "table7", "trec": "table7", "rows": "table8"}
CHOSEN: Final = {
    "mnist": " --dataset mnist --percent 5 100 --seed 0",
    "cifar10": " --dataset cifar10 --percent 5 100 --seed 0",
    "trec": " --dataset trec",
    "all": " --dataset mnist cifar10 trec --percent 5 100",
    "rows": "",
}
"""Options of the runs that have a figure."""
TO_COME: Final = {
    "sesa-attack": "scripts/reproduce sesa-attack --data DATA",
    "sesa-speed": "scripts/reproduce sesa-speed --data DATA",
    "sesa-writers": "scripts/reproduce sesa-writers --data DATA",
    "sefl-figure3": "scripts/reproduce sefl --figure 3 --data DATA",
    "sefl-tablepapersize": "scripts/reproduce sefl --table papersize",
    "privhfl-tiny": "scripts/reproduce privhfl-tiny",
    "privhfl-batches": "scripts/reproduce privhfl-batches",
    "privhfl-steps": "scripts/reproduce privhfl-steps",
    "privhfl-features": "scripts/reproduce privhfl-features --data DATA",
}
"""Commands of results that a checkout may lack."""


@table(
    "papers-count",
    "paper | rows | " + " | ".join(VERDICTS),
    figures=figures.all_figures,
    stamp=None,
    command="report",
)
def _counts(found: Figures) -> Iterator[tuple[str, ...]]:
    every: list[Row] = []
    for name in PAPERS:
        rows = settled(name, found)
        yield f"`{name}`", *_count(rows)
        every += rows
    yield "all", *_count(every)


def _count(rows: list[Row]) -> list[str]:
    verdicts = [row.verdict for row in rows]
    return [str(len(rows)), *(str(verdicts.count(verdict)) for verdict in VERDICTS)]


def settled(name: str, found: Figures) -> list[Row]:
    """The rows of a paper with their figures; those whose result is not here are to run."""
    rows = []
    for row in PAPERS[name]:
        try:
            ours, why = markdown.filled(row.ours, found), markdown.filled(row.why, found)
            rows.append(row._replace(ours=ours, why=why))
        except KeyError:
            why = "the command is there, the run is not"
            rows.append(row._replace(ours="", verdict="to run", why=why, page=""))
    return rows


def _rows(name: str, found: Figures) -> Iterator[tuple[str, ...]]:
    for row in settled(name, found):
        yield (
            row.place,
            row.claim,
            row.printed,
            row.ours,
            f"**{row.verdict}**" + f". {row.why[:1].upper()}{row.why[1:]}" * bool(row.why),
            origin(row),
        )


def origin(row: Row) -> str:
    """The command that makes the figure, its date, and the page where it stands."""
    place = f"[page]({row.page})" if row.page else ""
    return ", ".join(part for part in (_command(row.source), place) if part)


def _command(source: str) -> str:
    """The command and date of a result, the file of a test, or the line itself."""
    if source in ("", "none"):
        return ""
    if source.startswith("needs "):
        return source
    if source.startswith("tests/"):
        return f"`pytest {source}`"
    kind, _, name = source.partition(":")
    if kind == "accuracy":
        table = RUNS_OF.get(name, "table7")
        runs = [
            run for run in accuracy_tables.usual(table)
            if figures.is_plain(run) and name in ("all", "rows", run["cell"]["dataset"])
        ]  # fmt: skip
        last = max(str(run["date"]) for run in runs)
        return f"`scripts/reproduce {table}{CHOSEN[name]} --data DATA`, {last}"
    if kind == "privhfl":
        return _command_of_cell(name)
    record = read_results(TABLES).get(source)
    if record is not None:
        return f"`{markdown.command(record)}`, {record['date']}"
    return f"`{source}`" if " " in source else f"`{TO_COME[source]}`"


def _command_of_cell(name: str) -> str:
    """Of a cell of PrivHFL: the last of its seeds, or how to make it."""
    cell = read_results("privhfl").get(name)
    if cell is not None:
        run = max(cell["seeds"].values(), key=lambda one: one["date"])
        return f"`{markdown.command(run)}`, {run['date']}"
    task, _, label = name.partition("-")
    kinds = {"alpha": "heterogeneity", "mixup": "accuracy", "private": "accuracy"}
    table = kinds.get(label.partition("-")[0], "studies")
    line = f"privhfl-{table} --dataset {task} --cell {label} --data DATA"
    return f"`scripts/reproduce {line}`"


for _name in PAPERS:
    table(
        f"papers-{_name}",
        "in the paper | claim | paper | torchfsl | verdict | command, date, place",
        figures=figures.all_figures,
        stamp=None,
        command="report",
    )(functools.partial(_rows, _name))

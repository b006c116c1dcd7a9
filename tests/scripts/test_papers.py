"""docs/papers.md: no row of a paper is without a figure or a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.reproduction import paper as fsl_paper
from scripts.reproduction import papers_tables, privhfl_paper, report
from scripts.reproduction.page_table import TABLES
from scripts.reproduction.papers import figures
from scripts.reproduction.papers.row import REASONS, VERDICTS, Row
from scripts.reproduction.results import read_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "papers.md"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def every_row() -> Iterator[tuple[str, Row]]:
    found = figures.all_figures()
    for name in papers_tables.PAPERS:
        yield from ((name, row) for row in papers_tables.settled(name, found))


def test_every_row_has_a_figure_or_a_reason() -> None:
    for name, row in every_row():
        problem = faults(row)
        assert not problem, f"{name}, {row.place}: {problem}"


def faults(row: Row) -> str:
    """What a row lacks."""
    if row.verdict not in VERDICTS or not row.place or not row.claim:
        return "no place, claim or verdict"
    if row.verdict == "not run":
        return "" if row.why.startswith(REASONS) and not row.ours else "no reason that counts"
    if row.verdict == "to run":
        return "" if row.why and "scripts/reproduce" in papers_tables.origin(row) else "no command"
    if not row.ours or re.match(r"not (measured|run|built)|see ", row.ours):
        return "neither figure nor reason"
    if row.verdict in ("weaker", "different") and not row.why:
        return "no word on how it differs"
    if row.verdict == "same" and differs(row) and "deviation" not in row.why:
        return "called the same, and the figures differ"
    return "" if "`" in papers_tables.origin(row) else "no command"


def differs(row: Row) -> bool:
    """Whether no figure of torchfsl is within 5 % of the paper's first one."""
    printed, ours = (numbers(text) for text in (row.printed, row.ours))
    first = printed[:1]
    return bool(first and ours) and not any(
        abs(one - own) <= 0.05 * max(abs(one), abs(own)) for one in first for own in ours
    )


def numbers(text: str) -> list[float]:
    """The figures of a cell, without deviations and exponents."""
    plain = re.sub(r" ± [\d.]+", "", text).replace(",", "")
    return [float(found) for found in re.findall(r"(?<![\w^.])[+-]?\d+(?:\.\d+)?", plain)]


@pytest.mark.parametrize(
    "bad",
    [
        Row("Table 1", "accuracy", "1.0", "", "same", source="table2"),
        Row("Table 1", "accuracy", "1.0", "2.0", "weaker", source="table2"),
        Row("Table 1", "accuracy", "1.0", "", "not run", "it was late"),
        Row("Table 1", "accuracy", "1.0", "", "to run", "later"),
        Row("Table 1", "accuracy", "1.0", "2.0", "same", source="table2"),
        Row("Table 1", "accuracy", "1.0", "1.0", "same"),
        Row("Table 1", "accuracy", "1.0", "1.0", "same", source="none"),
        Row("Table 1", "accuracy", "1.0", "2.0", "different", "later", "needs a loader"),
        Row("Table 1", "accuracy", "1.0", "not measured apart", "different", "x", "table2"),
    ],
)
def test_a_row_without_figure_or_reason_is_noticed(bad: Row) -> None:
    assert faults(bad)


def test_the_page_is_what_the_script_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == report.filled(text), "stale: scripts/reproduce report"
    for name in papers_tables.PAPERS:
        assert TABLES[f"papers-{name}"].render() in text


def test_a_row_without_its_result_is_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {**figures.all_figures(), "bins": {}}
    rows = {row.place: row for row in papers_tables.settled("fsl", found)}
    assert rows["Table 3, 2^15"].verdict == "to run"
    assert not rows["Table 3, 2^15"].ours
    assert rows["Table 4, 10 %"].verdict == "better"


def test_tests_and_pages_that_rows_name_exist() -> None:
    for _, row in every_row():
        if row.source.startswith("tests/"):
            assert (ROOT / row.source).exists(), row.source
        if row.page:
            assert (ROOT / "docs" / row.page).exists(), row.page
    for command in re.findall(r"`python -m (scripts\.[\w.]+)", PAGE.read_text()):
        assert (ROOT / (command.replace(".", "/") + ".py")).exists(), command


def test_a_run_that_goes_on_counts_its_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 2,000 rounds of a run begin with the 1,000 of its shorter result."""
    every = read_results("table7")
    kept = "cifar10-5-seed0", "cifar10-5-seed0-2000rounds", "mnist-5-seed0", "trec-5-seed0"
    table7 = {name: every[name] for name in (*kept, "trec-5-nofeedback-seed0")}
    records = {"table7": table7, "table8": {}}
    monkeypatch.setattr(figures, "read_results", lambda name: records.get(name, {"other": {}}))
    told = figures.all_figures()["exact"]["fsl"]
    assert told == "4,000 of 4,000 rounds, 20 of them by both servers, exact"


def printed_cells() -> Iterator[tuple[str, str, Sequence[float | None]]]:
    """Paper, place and figures of every cell of the tables in printed.toml."""
    for m, mib in {10: 0.015, 15: 0.5, 20: 16}.items():
        yield "fsl", f"Table 6, 2^{m}, 100 %", [mib]
    for m, factor in fsl_paper.SCALE_FACTOR.items():
        yield "fsl", f"Table 3, 2^{m}", [factor]
    for percent, sizes in fsl_paper.MAX_BIN.items():
        yield "fsl", f"Table 4, {percent} %", list(sizes.values())
    for (m, percent), times in fsl_paper.COMPUTATION.items():
        yield "fsl", f"Table 5, 2^{m}, {percent} %", times
    for (m, percent), mib in fsl_paper.COMMUNICATION.items():
        yield "fsl", f"Table 6, 2^{m}, {percent} %", [mib]
    for dataset, shares in fsl_paper.ACCURACY.items():
        label = {"mnist": "MNIST", "cifar10": "CIFAR-10", "trec": "TREC"}[dataset]
        for share, value in shares.items():
            deviation = fsl_paper.ACCURACY_DEVIATION[dataset][share]
            yield "fsl", f"Table 7, {label}, {share} %", [value, deviation]
    for rate, pair in fsl_paper.MEGA_ELEMENTS.items():
        yield "fsl", f"Table 8, {rate:g} %", pair
    for split, counts in fsl_paper.TREC.items():
        yield "fsl", f"Table 9, {split}", counts
    for data, base in privhfl_paper.BASELINE.items():
        yield "privhfl", f"Table 1, {data}, baseline", [base] * 3
        for key, values in privhfl_paper.ACCURACY[data].items():
            name = key if key == "private" else f"mixup {int(key):,}"
            yield "privhfl", f"Table 1, {data}, {name}", values
    for (data, part), seconds in privhfl_paper.BATCHES.items():
        yield "privhfl", f"Table 2, {data}, {part}", seconds
    for name, pairs in privhfl_paper.PREDICTION.items():
        yield "privhfl", f"Table 3, {name}", [x for pair in pairs for x in pair]
    for name, pairs in privhfl_paper.MNIST.items():
        yield "privhfl", f"Table 4, {name}", [own for own, _ in pairs] + [he for _, he in pairs]
    for lam, value in privhfl_paper.LAMBDA.items():
        yield "privhfl", f"Table 5, {lam:g}", [value]


def test_every_cell_of_the_printed_tables_has_its_row() -> None:
    """The papers' own constants against the places and figures of the rows."""
    rows = {(name, row.place): row for name, own in papers_tables.PAPERS.items() for row in own}
    for name, place, cell in printed_cells():
        text = re.sub(r" \(gain.*", "", rows[name, place].printed).replace(",", "")
        found = [float(number) for number in re.findall(r"\d[\d.]*", text)]
        assert found == [value for value in cell if value is not None], (name, place)


def test_every_figure_of_a_paper_has_its_row() -> None:
    places = {name: [row.place for row in rows] for name, rows in papers_tables.PAPERS.items()}
    figures_of = {"fsl": 7, "sesa": 3, "sefl": 4, "privhfl": 20}
    for name, count in figures_of.items():
        text = "\n".join(places[name])
        missing = [n for n in range(1, count + 1) if not re.search(rf"Figures? {n}(?!\d)", text)]
        assert not missing, (name, missing)


def test_every_numbered_statement_of_privhfl_has_its_row() -> None:
    text = "\n".join(row.place for row in papers_tables.PAPERS["privhfl"])
    for kind, count in {"Table": 7, "Theorem": 6, "Definition": 3, "equation": 6}.items():
        missing = [n for n in range(1, count + 1) if not re.search(rf"{kind} {n}(?!\d)", text)]
        assert not missing, (kind, missing)

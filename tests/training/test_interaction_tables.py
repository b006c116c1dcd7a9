"""Interactions from CSV and Parquet: numbered, in order, and refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from training.cli import main
from training.data.interaction_tables import load_table

pytest.importorskip("pyarrow", reason="needs the training extra")

LINES = """uid,sku,at,kind
ann,pear,2024-01-03,fruit
bob,nail,2024-01-01,iron
ann,nail,2024-01-01,iron
bob,pear,2024-01-05,fruit
ann,fig,2024-01-02,fruit
cy,only,2024-01-01,other
bob,bolt,2024-01-05,iron
ann,fig,2024-01-03,fruit
"""
COLUMNS = "user=uid,item=sku,time=at"


def table(folder: Path, text: str = LINES) -> Path:
    path = folder / "events.csv"
    path.write_text(text)
    return path


def test_users_are_in_time_order_and_short_ones_left_out(tmp_path: Path) -> None:
    data = load_table(table(tmp_path), COLUMNS)
    # Items by name: bolt 0, fig 1, nail 2, pear 3; `only` was of a user with one event.
    assert [sequence.tolist() for sequence in data.sequences] == [[2, 1, 3, 1], [2, 3, 0]]
    assert data.num_items == 4
    assert data.category_of.tolist() == [0, 0, 0, 0]


def test_without_time_the_lines_are_in_order(tmp_path: Path) -> None:
    data = load_table(table(tmp_path), "user=uid, item=sku")
    assert [sequence.tolist() for sequence in data.sequences] == [[3, 2, 1, 1], [2, 3, 0]]


def test_categories_come_from_their_column(tmp_path: Path) -> None:
    data = load_table(table(tmp_path), COLUMNS + ",category=kind")
    assert data.category_of.tolist() == [1, 0, 1, 0]  # iron, fruit, iron, fruit
    assert data.num_categories == 2
    torn = LINES.replace("bob,pear,2024-01-05,fruit", "bob,pear,2024-01-05,iron")
    with pytest.raises(ValueError, match="has the categories"):
        load_table(table(tmp_path, torn), COLUMNS + ",category=kind")


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    wanted = load_table(table(tmp_path), COLUMNS)
    parquet.write_table(csv.read_csv(tmp_path / "events.csv"), tmp_path / "events.parquet")
    found = load_table(tmp_path / "events.parquet", COLUMNS)
    assert len(found.sequences) == len(wanted.sequences)
    for one, other in zip(found.sequences, wanted.sequences, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("columns", "text", "said"),
    [
        (
            "",
            LINES,
            "events.csv has the columns uid, sku, at, kind: say which columns hold which data",
        ),
        ("user=uid", LINES, "expected also item=NAME"),
        ("user=uid,item=product", LINES, "item=product, but events.csv has the columns"),
        ("user=uid,thing=sku", LINES, "cannot read 'thing=sku'"),
        ("user=uid,user=sku", LINES, "cannot read 'user=sku'"),
        ("user=uid,item=sku,time=kind", LINES, "expected a number or a date"),
        (COLUMNS, LINES.replace("2024-01-02", ""), "column at is empty in 1 of 8 lines"),
        (COLUMNS, LINES.replace("ann,pear", "ann,"), "column sku is empty in 1 of 8 lines"),
        (
            COLUMNS,
            LINES.replace("2024-01-02", "soon"),
            "has 'soon' in line 6, expected a number or a date",
        ),
        (
            COLUMNS,
            LINES.replace("2024-01-02", "17"),
            "has '17' in line 6, which is a number, but '2024-01-03' is a date: write all",
        ),
        (COLUMNS, "uid,sku,at\na,b,1\n", "each of 1 users has fewer than 3 events"),
        (COLUMNS, 'uid,sku,at\na,"b,1\n', "cannot be read as csv"),
    ],
)
def test_a_table_that_cannot_be_used_is_told_why(
    tmp_path: Path, columns: str, text: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        load_table(table(tmp_path, text), columns)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("", "column at has dates as text: store the column with a type for dates"),
        ("T01:00:00+02:00", "column at has dates with a time zone as text: write all dates in UTC"),
    ],
)
def test_dates_kept_as_text_are_told_so(tmp_path: Path, end: str, said: str) -> None:
    import pyarrow
    from pyarrow import parquet

    dates = [f"2024-01-0{day}{end}" for day in (1, 2, 3)]
    columns = {"uid": ["a"] * 3, "sku": ["x", "y", "z"], "at": dates}
    parquet.write_table(pyarrow.table(columns), tmp_path / "text.parquet")
    with pytest.raises(ValueError, match=said):
        load_table(tmp_path / "text.parquet", COLUMNS)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.parquet"):
        load_table(tmp_path / "none.parquet", COLUMNS)


def test_din_trains_on_a_table_and_columns_are_for_tables_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    lines = [f"{u},{i},{t}" for u in range(12) for t, i in enumerate(generator.integers(0, 40, 6))]
    path = table(tmp_path, "\n".join(["uid,sku,at", *lines]) + "\n")
    settings = tmp_path / "small.toml"
    settings.write_text(
        "rounds = 2\nclients_per_round = 3\nabove_break_even = 'keep'\n"
        "[recommendation]\ndim = 4\nhistory = 5\nnegatives = 1\nrows_per_client = 32\n"
    )
    common = ["din", "--config", str(settings), "--quiet", "--threads", "1", "--columns", COLUMNS]
    assert main([*common, "--data", str(path), "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exact_rounds"] == summary["exact_retrieval_rounds"] == 2
    with pytest.raises(SystemExit):
        main([*common, "--out", str(tmp_path / "other")])
    assert "recommendation.columns has no effect in this run" in capsys.readouterr().err

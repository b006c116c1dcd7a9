"""Lines that are blank, long, ragged or of a later type: named by their number, or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.data.click_tables import load_clicks
from training.data.interaction_tables import load_table
from training.data.interactions import Interactions
from training.data.rating_folders import load_folder
from training.tasks.clicks import _numbered as numbered

pyarrow = pytest.importorskip("pyarrow", reason="needs the training extra")

COLUMNS = "user=u,item=i,time=t"


def table(folder: Path, text: str, name: str = "e.csv") -> Interactions:
    (folder / name).write_text(text)
    return load_table(folder / name, COLUMNS)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.csv", "u,i,t\n\n\n\na,x,1\na,,2\na,z,3\n", "column i is empty.* line 6 with"),
        ("e.tsv", "u\ti\tt\n\n\na\tx\t1\na\t\t2\n", "column i is empty.* line 5 with"),
        ("e.csv", 'u,i,t,r\na,x,1,"1\n2\n3\n4"\na,y,2,ok\na,,3,ok\n', "empty.* line 7 with"),
        ("e.csv", 'u,i,t,r\n\na,x,1,"1\n2"\na,"y\nz",3,ok\n', "in line 5, a text of several"),
        ("e.csv", "u,i,t\r\n\r\na,x,1\r\na,y,soon\r\na,z,3\r\n", "'soon' in line 4"),
        ("e.csv", "u,i,t\n\n\na,x,1\na,y,\na,z,3\n", "column t is empty.* line 5: leave"),
        ("e.csv", "u,i,t\n\na,x,1.5\na,y,1e300\na,z,3\n", "column t has .* in line 4, a number"),
    ],
)
def test_the_line_named_is_that_of_the_file(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        table(tmp_path, text, name)


def test_lines_of_folders_and_clicks_are_those_of_the_file(tmp_path: Path) -> None:
    head = "user_id:token\titem_id:token\ttimestamp:float\n"
    (tmp_path / "a.inter").write_text(head + "\n\na\tx\t1\na\t\t2\n")
    with pytest.raises(ValueError, match=r"item is empty in 1 of 2 lines.* line 5 with"):
        load_folder(tmp_path)
    (tmp_path / "a.inter").write_text(head + "\n\na\tx\t1\na\ty\tsoon\n")
    with pytest.raises(ValueError, match="line 5: the timestamp 'soon'"):
        load_folder(tmp_path)
    (tmp_path / "c.csv").write_text("l,f,c\n\n0,a,x\n1,b,\n")
    with pytest.raises(ValueError, match=r"column c is empty.* line 4 with"):
        load_clicks(tmp_path / "c.csv", "label=l,fields=f,client=c")


SMALL_BLOCK = 1 << 8
"""Bytes from which the reader infers types, in place of 64 MB."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import csv

    options = csv.ReadOptions
    monkeypatch.setattr(
        csv, "ReadOptions", lambda **own: options(**{**own, "block_size": SMALL_BLOCK})
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("first", "last", "unread"),
    [
        ("10", "9", ("10115", "W1A 0AX")),
        ("10", "9", ("", "5")),
        ("10", "9.5", ("1", "1")),
        ("2024-01-02", "2024-01-01 10:00:00", ("1", "1")),
        ("2024-01-02", "2024-01-01 10:00:00.5", ("1", "1")),
    ],
)
def test_a_type_that_only_the_first_block_has_stops_no_reading(
    first: str, last: str, unread: tuple[str, str], tmp_path: Path
) -> None:
    rows = f"a,{'x' * 20},{first},{unread[0]}\n" * 20 + f"a,y,{last},{unread[1]}\n"
    data = table(tmp_path, "u,i,t,postcode\n" + rows)
    assert data.sequences[0].tolist() == [1] + [0] * 20


@pytest.mark.usefixtures("small_blocks")
def test_later_times_and_numbers_of_another_kind_are_told_or_read(tmp_path: Path) -> None:
    rows = f"a,{'x' * 20},10\n" * 20 + "\na,y,soon\n"
    with pytest.raises(ValueError, match=r"column t has 'soon' in line 23, expected a"):
        table(tmp_path, "u,i,t\n" + rows)
    (tmp_path / "c.csv").write_text("l,n\n" + "0,1\n" * 200 + "1,2.5\n0,\n1,1e9\n")
    clicks = load_clicks(tmp_path / "c.csv", "label=l,numeric=n")
    assert clicks.values["n"].tolist()[-4:] == ["1", "3", "", "431"]
    assert clicks.labels.tolist()[-3:] == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("e.csv", "u,i,t\n\na,x,1\nb,x,7,extra\n", "line 4: 4 fields, expected 3"),
        ("e.csv", 'u,i,t\na,"x\n\ny",1\nb,x\n', "line 5: 2 fields, expected 3"),
        ("e.tsv", "u\ti\tt\n\n\na\tx\n", "line 4: 2 fields, expected 3"),
        ("e.csv", "u,i,t\n", "has a line of column names and no rows"),
        ("e.csv", "u,i,t", "has a line of column names and no rows"),
        ("e.tsv", "u\ti\tt\n\n", "has a line of column names and no rows"),
    ],
)
def test_ragged_lines_and_files_of_a_header_alone_are_refused(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said) as told:
        table(tmp_path, text, name)
    assert name in str(told.value)


@pytest.mark.parametrize("columns", ["user=u,item=u,time=t", "user=u,item=i,time=i"])
def test_one_column_for_two_roles_is_refused(columns: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("u,i,t\na,x,1\n")
    with pytest.raises(ValueError, match="different columns for user, item and time"):
        load_table(tmp_path / "e.csv", columns)
    text = "u,i,t\n" + "".join(f"a,{item},{item}\n" for item in "123")
    (tmp_path / "e.csv").write_text(text)
    assert load_table(tmp_path / "e.csv", COLUMNS + ",category=i").num_categories == 3


def test_blanks_in_the_first_line_and_wide_encodings_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(' i', ' t' with spaces, which the file's first line"):
        table(tmp_path, "u, i, t\na,x,1\n")
    (tmp_path / "e.csv").write_bytes("u,i,t\na,x,1\n".encode("utf-32"))
    with pytest.raises(ValueError, match=r"line 1: expected UTF-8, found UTF-32.* -f UTF-32"):
        load_table(tmp_path / "e.csv", COLUMNS)


def test_values_of_clicks_with_nul_at_the_end_stay_apart(tmp_path: Path) -> None:
    from pyarrow import parquet

    values = ["x\0", "x", "x\0\0", "long" * 50_000] * 100
    parquet.write_table(pyarrow.table({"l": [0, 1] * 200, "f": values}), tmp_path / "c.parquet")
    clicks = load_clicks(tmp_path / "c.parquet", "label=l,fields=f")
    assert clicks.values["f"].tolist() == values
    assert clicks.values["f"].nbytes <= 8 * len(values)  # not by the longest one
    assert numbered(clicks, 400, 1)[1] == 1 + 4


def test_long_fields_are_no_open_quotes(tmp_path: Path) -> None:
    long = "x" * 200_000
    rows = "".join(f'a,{item},1,"{long}\nz"\n' for item in "xyz")
    assert table(tmp_path, "u,i,t,review\n" + rows).num_items == 3
    lines = "".join(f"1,{film},3,{film}\n" for film in (1, 2, 3))
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + lines)
    films = "".join(f"{film},{long},A\n" for film in (1, 2, 3))
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n" + films)
    assert load_folder(tmp_path).num_items == 3

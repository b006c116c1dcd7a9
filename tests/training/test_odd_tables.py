"""Tables as programs write them: ids that look like numbers, quotes, missing values, encodings."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.cli import main
from training.data.click_tables import load_clicks
from training.data.interaction_tables import load_table
from training.data.interactions import Interactions, load_interactions
from training.data.rating_folders import load_folder

pyarrow = pytest.importorskip("pyarrow", reason="needs the training extra")

COLUMNS = "user=u,item=i,time=t"
ALIKE: list[tuple[str, list[str]]] = [
    ("above 2**63", [str(10000949271186029916 + n) for n in range(4)]),
    ("above 2**53", [str(2**53 + n) for n in range(3)]),
    ("leading zeros", ["007", "07", "7"]),
    ("trailing zeros", ["1.1", "1.10", "1.100"]),
    ("exponents", ["1e3", "1000", "1E3", "1000.0"]),
    ("hex", ["12e4", "120000", "012e4"]),
    ("signs", ["+7", "7", "-0", "0"]),
    ("truths", ["true", "True", "TRUE", "1"]),
    ("dates", ["2024-01-01", "2024-01-01 00:00:00"]),
]
"""Different ids that a reader of numbers takes for one."""
IDS = pytest.mark.parametrize("ids", [ids for _, ids in ALIKE], ids=[name for name, _ in ALIKE])


def put(folder: Path, name: str, text: str | bytes) -> Path:
    raw = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(raw)
    return folder / name


def parquet(folder: Path, **columns: Any) -> Path:
    from pyarrow import parquet as files

    files.write_table(pyarrow.table(columns), folder / "events.parquet")
    return folder / "events.parquet"


def crossed(users: Sequence[str], items: Sequence[str]) -> list[tuple[str, str]]:
    return [(user, item) for user in users for item in items]


def text_of(lines: Sequence[tuple[str, str]], separator: str = ",") -> str:
    rows = [f"{u}{separator}{i}{separator}{t}\n" for t, (u, i) in enumerate(lines)]
    return separator.join("uit") + "\n" + "".join(rows)


def sequences(data: Interactions) -> list[list[int]]:
    return [sequence.tolist() for sequence in data.sequences]


def load(lines: Sequence[tuple[str, str]], folder: Path, kind: str) -> Interactions:
    """The same events through one of the loaders."""
    if kind == "parquet":
        users, items = zip(*lines, strict=True)
        times = list(range(len(lines)))
        return load_table(parquet(folder, u=list(users), i=list(items), t=times), COLUMNS)
    if kind == "recbole":
        head = "user_id:token\titem_id:token\ttimestamp:float\n"
        rows = "".join(f"{u}\t{i}\t{t}\n" for t, (u, i) in enumerate(lines))
        put(folder, "a.inter", head + rows)
        return load_folder(folder)
    if kind == "quoted":
        quoted = [(f'"{u}"', f'"{i}"') for u, i in lines]
        return load_table(put(folder, "events.csv", text_of(quoted)), COLUMNS)
    separator = "\t" if kind == "tsv" else ","
    return load_table(put(folder, f"events.{kind}", text_of(lines, separator)), COLUMNS)


@IDS
@pytest.mark.parametrize("kind", ["csv", "quoted", "tsv", "parquet", "recbole"])
def test_ids_that_look_like_equal_numbers_stay_apart(
    kind: str, ids: list[str], tmp_path: Path
) -> None:
    as_users = load(crossed(ids, ["x", "y", "z"]), tmp_path, kind)
    assert (as_users.num_users, as_users.num_items) == (len(ids), 3)
    as_items = load(crossed(["a", "b"], [*ids, "5"]), tmp_path, kind)
    assert (as_items.num_users, as_items.num_items) == (2, len(ids) + 1)


@IDS
def test_categories_and_clients_that_look_like_equal_numbers_stay_apart(
    ids: list[str], tmp_path: Path
) -> None:
    lines = "".join(f"a,{n},{n},{name}\n" for n, name in enumerate([*ids, "5", "6"]))
    path = put(tmp_path, "events.csv", "u,i,t,c\n" + lines)
    assert load_table(path, COLUMNS + ",category=c").num_categories == len(ids) + 2
    lines = "".join(f"{n % 2},{name},x\n" for n, name in enumerate(ids))
    clicks = load_clicks(put(tmp_path, "c.csv", "l,c,f\n" + lines), "label=l,client=c,fields=f")
    assert clicks.clients is not None
    assert len(set(clicks.clients.tolist())) == len(ids)


@pytest.mark.parametrize(
    ("name", "separator", "head"),
    [
        ("ratings.dat", "::", ""),
        ("u.data", "\t", ""),
        ("ratings.csv", ",", "userId,movieId,rating,timestamp\n"),
    ],
)
def test_leading_zeros_of_movielens_are_of_the_id(
    name: str, separator: str, head: str, tmp_path: Path
) -> None:
    lines = [
        separator.join([user, item, "3", str(time)])
        for time, (user, item) in enumerate(crossed(["007", "07", "7"], ["1", "01", "2"]))
    ]
    data = load_folder(put(tmp_path, name, head + "\n".join(lines) + "\n").parent)
    assert (data.num_users, data.num_items) == (3, 3)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "recbole"])
def test_whole_numbers_are_in_order_of_value(kind: str, tmp_path: Path) -> None:
    data = load(crossed(["10", "9", "-3"], ["100", "20", "3"]), tmp_path, kind)
    assert sequences(data) == [[2, 1, 0]] * 3
    first = load(
        [*crossed(["10"], ["7", "8", "9"]), *crossed(["9"], ["1", "2", "3"])], tmp_path, kind
    )
    assert sequences(first) == [[0, 1, 2], [3, 4, 5]]  # user 9 stands before user 10
    text = load(crossed(["10", "9"], ["100", "20", "x"]), tmp_path, kind)
    assert sequences(text) == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    "users",
    [
        pyarrow.array([1, 1, 1, 2, 2, 2], pyarrow.uint64()),
        pyarrow.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]),
        pyarrow.array(["a"] * 3 + ["b"] * 3).dictionary_encode(),
        pyarrow.array([b"a"] * 3 + [b"b"] * 3),
        pyarrow.array(["a"] * 3 + ["b"] * 3, pyarrow.large_string()),
    ],
)
def test_types_of_parquet_that_hold_ids(users: Any, tmp_path: Path) -> None:
    data = load_table(parquet(tmp_path, u=users, i=[1, 2, 3, 1, 2, 3], t=range(6)), COLUMNS)
    assert sequences(data) == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (pyarrow.array([1.0, 1.5, 1.5]), r"column u has the floating-point number 1\.5 in row 1"),
        (pyarrow.array([1.0, 2.0**53, 1.0]), "column u has the floating-point number .* in row 1"),
        (
            pyarrow.array([1.0, 2.0**24, 1.0], pyarrow.float32()),
            "column u has the floating-point number .* in row 1",
        ),
        (pyarrow.array([1.0, np.inf, 1.0]), "column u has the floating-point number inf in row 1"),
        (pyarrow.array([["a"], ["b"], ["a"]]), r"column u has type list<.*expected one number"),
        (pyarrow.array([{"a": 1}] * 3), r"column u has type struct<.*expected one number"),
        (pyarrow.array([b"\xff"] * 3), "column u has type binary.*expected one number or text"),
    ],
)
def test_types_of_parquet_that_hold_no_ids(users: Any, said: str, tmp_path: Path) -> None:
    path = parquet(tmp_path, u=users, i=[1, 2, 3], t=[1, 2, 3])
    with pytest.raises(ValueError, match=r"events\.parquet: " + said.removeprefix("events")):
        load_table(path, COLUMNS)


TITLES = ['"Heroes', "Low", "Lodger", 'Scary "Monsters"', "Let's Dance", '12"', '""', '"a" b']


@pytest.mark.parametrize("titles", [TITLES, TITLES[:1], TITLES[5:6], TITLES[6:7], TITLES[7:]])
def test_quotes_are_characters_of_a_tsv(titles: list[str], tmp_path: Path) -> None:
    lines = crossed("abcd", [*titles, "x", "y", "z"])
    data = load(lines, tmp_path, "tsv")
    assert sum(map(len, data.sequences)) == len(lines)
    assert data.num_items == len(titles) + 3
    rows = "".join(f"{n % 2}\t{title}\n" for n, title in enumerate(titles))
    clicks = load_clicks(put(tmp_path, "c.tsv", "l\tf\n" + rows), "label=l,fields=f")
    assert clicks.values["f"].tolist() == titles


@pytest.mark.parametrize(
    "rows",
    [
        'a,"Heroes,0\nb,"Low",1\nc,x,2\n',
        'a,"Heroes,0\nb,12",1\nc,x,2\n',
        'a,x,0\nb,"Low,1\n\nc,y",2\na,z,3\n',
        'a,"x\ny",0\na,y,1\na,z,2\n',
        'a,"x\r\ny",0\r\na,y,1\r\n',
    ],
)
def test_a_quote_that_swallows_lines_of_a_csv_is_refused(rows: str, tmp_path: Path) -> None:
    path = put(tmp_path, "events.csv", "u,i,t\n" + rows)
    with pytest.raises(ValueError, match=r"quote") as told:
        load_table(path, COLUMNS)
    assert "line " in str(told.value)


def test_lines_of_a_field_that_nobody_reads_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = 'a,x,0,fine\na,y,1,"two\nlines"\na,z,2,"three\n\nlines"\n'
    data = load_table(put(tmp_path, "events.csv", "u,i,t,review\n" + rows), COLUMNS)
    assert sequences(data) == [[0, 1, 2]]
    assert "3 lines belong to quoted fields of several lines, the first in line 3" in caplog.text


NAN = float("nan")
EVENTS: dict[str, list[Any]] = {"u": [1, 1, 1, 2, 2, 2], "i": [1, 2, 3, 1, 2, 3], "t": [*range(6)]}


@pytest.mark.parametrize("column", ["u", "i", "t", "c"])
@pytest.mark.parametrize("missing", [NAN, None])
def test_nan_and_null_are_missing_in_every_column(
    column: str, missing: float | None, tmp_path: Path
) -> None:
    columns = {**EVENTS, "c": [0, 1, 2, 0, 1, 2]}
    for kind in (pyarrow.float64(), pyarrow.float32()):
        own = [missing if n in (3, 4) else float(v) for n, v in enumerate(columns[column])]
        path = parquet(tmp_path, **{**columns, column: pyarrow.array(own, kind, from_pandas=False)})
        with pytest.raises(ValueError, match=rf"column {column} is empty in 2 of 6 lines.* row 3"):
            load_table(path, COLUMNS + ",category=c")


@pytest.mark.parametrize("word", ["NaN", "nan", "NULL", "None", "<NA>", "\\N", " ", "NaT", ""])
@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "recbole"])
def test_words_for_missing_values_are_no_ids(kind: str, word: str, tmp_path: Path) -> None:
    lines = [*crossed(["1"], "abcd"), *crossed([word], "abcd")]
    with pytest.raises(ValueError, match=r"is empty in 4 of 8 lines, first in (line 6|row 4)"):
        load(lines, tmp_path, kind)


@pytest.mark.parametrize(
    "times",
    [
        np.array([0, 1, "NaT", 3, 4, 5], "datetime64[s]"),
        np.array([0, 1, NAN, 3, 4, 5], np.float32),
        np.array([0, 1, np.inf, 3, 4, 5]),
        [0, 1, None, 3, 4, 5],
        ["2024-01-01", "2024-01-02", "", "2024-01-03", "2024-01-04", "2024-01-05"],
    ],
)
def test_an_event_without_a_time_is_refused(times: Any, tmp_path: Path) -> None:
    path = parquet(tmp_path, **{**EVENTS, "t": times})
    with pytest.raises(ValueError, match=r"column t is empty in 1 of 6 lines.*row 2"):
        load_table(path, COLUMNS)
    path = parquet(tmp_path, l=[0, 1] * 3, f=["x"] * 6, t=times)
    with pytest.raises(ValueError, match=r"column t is empty in 1 of 6 lines.*row 2"):
        load_clicks(path, "label=l,fields=f,time=t")


@pytest.mark.parametrize("time", ["nan", "inf", "", "NaN", "now"])
def test_a_timestamp_of_an_atomic_file_is_a_number(time: str, tmp_path: Path) -> None:
    head = "user_id:token\titem_id:token\ttimestamp:float\n"
    put(tmp_path, "a.inter", f"{head}a\tx\t1\na\ty\t{time}\na\tz\t2\n")
    with pytest.raises(ValueError, match=r"a\.inter, line 3: the timestamp .* is not a number"):
        load_folder(tmp_path)


def test_what_is_missing_in_a_field_of_clicks_is_one_category(tmp_path: Path) -> None:
    values = {"l": [0, 1, 0], "f": [1.0, NAN, None], "n": [NAN, 5.0, None]}
    clicks = load_clicks(parquet(tmp_path, **values), "label=l,fields=f,numeric=n")
    assert [value == "" for value in clicks.values["f"]] == [False, True, True]
    assert clicks.values["n"].tolist() == ["", "4", ""]
    with pytest.raises(ValueError, match="column f is empty in 2 of 3 lines"):
        load_clicks(tmp_path / "events.parquet", "label=l,client=f,numeric=n")
    listed = parquet(tmp_path, l=[0, 1], f=[["a"], ["b"]])
    for columns in ("label=l,fields=f", "label=l,numeric=f"):
        with pytest.raises(ValueError, match=r"events\.parquet: column f (has|is not num)"):
            load_clicks(listed, columns)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("e.csv", text_of([("a", "caf\xe9")] * 3).encode("latin-1"), r"line 2: .*UTF-8.*iconv -f"),
        ("e.tsv", "u\ti\xe9\tt\n".encode("latin-1"), r"line 1: .*UTF-8.*iconv -f"),
        ("e.csv", text_of([("a", "b")]).encode("utf-16"), r"line 1: .*UTF-16.*iconv -f UTF-16"),
        ("e.csv", text_of([("a", "\u20ac")] * 3).encode("cp1252"), r"line 2: .*iconv"),
        ("e.csv", (text_of([("a", "b")] * 3) + "a,\xe9").encode()[:-1], r"line 5: .*iconv"),
        ("e.csv.gz", gzip.compress(b"u,i,t\n", mtime=0), "gunzip -k"),
        ("e.csv", gzip.compress(b"u,i,t\n", mtime=0), "gunzip -k"),
        ("e.xlsx", b"PK\x03\x04....", "save a spreadsheet as CSV"),
        ("e.jsonl", b'{"u": 1}\n', "read_json"),
        ("e.txt", b"u,i,t\n", "does not end in .csv, .tsv, .parquet: rename the file"),
        ("e.csv", b"u,u,i,t\na,b,c,1\n", "several columns named u"),
    ],
)
def test_files_in_another_form_are_refused_with_the_remedy(
    name: str, raw: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, name, raw)
    with pytest.raises(ValueError, match=said) as told:
        load_table(path, COLUMNS)
    assert str(path) in str(told.value)
    with pytest.raises(ValueError, match=said):
        load_clicks(path, "label=u,fields=i")
    with pytest.raises(SystemExit):
        main(["din", "--data", str(path), "--columns", COLUMNS, "--out", str(tmp_path / "run")])
    assert str(told.value) in capsys.readouterr().err


def test_the_remedy_for_json_lines_works_as_typed(tmp_path: Path) -> None:
    import shlex
    import subprocess
    import sys

    lines = [json.dumps({"u": u, "i": i, "t": t}) for t, (u, i) in enumerate(crossed("ab", "xyz"))]
    path = put(tmp_path, "e.jsonl", "\n".join(lines))
    with pytest.raises(ValueError, match="python -c") as told:
        load_table(path, COLUMNS)
    command = shlex.split("python" + str(told.value).split("with python")[1])
    subprocess.run([sys.executable, *command[1:]], check=True)
    assert sequences(load_table(tmp_path / "e.parquet", COLUMNS)) == [[0, 1, 2]] * 2


@pytest.mark.parametrize(
    "name", ["e.csv", "e.tsv", "a.inter", "ratings.dat", "ratings.csv", "u.data"]
)
def test_a_byte_order_mark_is_not_of_the_first_name(name: str, tmp_path: Path) -> None:
    separator = {"e.csv": ",", "ratings.dat": "::", "ratings.csv": ","}.get(name, "\t")
    heads = {"a.inter": ["user_id:token", "item_id:token", "rating:float", "timestamp:float"],
             "ratings.csv": ["userId", "movieId", "rating", "timestamp"],
             "e.csv": ["u", "i", "r", "t"], "e.tsv": ["u", "i", "r", "t"]}  # fmt: skip
    rows = [heads[name]] if name in heads else []
    rows += [["1", str(item), "3", str(item)] for item in (1, 2, 3)]
    path = put(tmp_path, name, "\ufeff" + "\n".join(map(separator.join, rows)) + "\n")
    data = load_table(path, COLUMNS) if name[0] == "e" else load_folder(tmp_path)
    assert sequences(data) == [[0, 1, 2]]


def test_a_title_may_hold_the_separator(tmp_path: Path) -> None:
    put(tmp_path, "ratings.dat", "".join(f"1::{n}::3::{n}\n" for n in (1, 2, 3)))
    films = "1::Star :: Wars::A\n2::Alien::B\n3::M::A|B\n\n"
    put(tmp_path, "movies.dat", "\ufeff" + films)
    assert load_folder(tmp_path).category_of.tolist() == [0, 1, 0]
    put(tmp_path, "movies.dat", "1::Star Wars::A\n2\n")
    with pytest.raises(ValueError, match=r"movies\.dat, line 2: expected film, title and genres"):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ratings.csv", "movieId,userId,rating,timestamp\n1,2,3,4\n", "line 1: expected userId"),
        ("ratings.csv", "1,2,3,4\n1,3,3,5\n", "line 1: expected userId"),
        ("ratings.dat", "1::2::3::4\n1::\xe9::3::4\n", "line 2: expected UTF-8"),
        ("u.data", "1\t1_0\t3\t4\n", "line 1: expected user, film"),
        ("u.data", "\t10\t3\t4\n", "line 1: expected user, film"),
        ("ratings.dat", "1::2::3::nan\n", "line 1: expected user, film"),
        ("a.inter", "user_id:token\titem_id:token\na\t\na\tb\na\tc\n", "item is empty in 1 of 3"),
    ],
)
def test_odd_lines_of_folders_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    put(tmp_path, name, text.encode("latin-1"))
    with pytest.raises(ValueError, match=said):
        load_folder(tmp_path)


@pytest.mark.parametrize(
    ("lines", "attributes", "said"),
    [
        ("1 7 8 007\n", "{}", "line 1: .*'007' is not a whole number of at most 18"),
        ("1 7 8 1_0\n", "{}", "line 1: .*'1_0' is not"),
        ("1 7 8 9\n2 1 2 10000949271186029916\n", "{}", "line 2: .*is not a whole number"),
        ("1 7 8 9\n1 8 9 7\n", "{}", "line 2: user 1 has a second line"),
        ("1 7 8 9\n", '{"07": [1]}', "attributes.*'07' is not"),
        ("1 7 8 9\n", '{"7": [3.7]}', r"attributes.*'3\.7' is not"),
        ("1 7 8 9\n", '{"7": "12"}', "a value that is not a list"),
        ("1 7 8 9\n", '{"7": [1], "7": [2]}', "'7' appears twice"),
        ("1 7 8 9\n", "[7]", "attributes.*expected each item once"),
    ],
)
def test_odd_sequences_are_refused(lines: str, attributes: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sequences.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "item2attributes.json.gz").write_bytes(gzip.compress(attributes.encode()))
    with pytest.raises(ValueError, match=said):
        load_interactions(tmp_path)


@pytest.mark.parametrize("raw", [b"1 7 8 9\n", gzip.compress(b"1 7 8 9\n" * 99, mtime=0)[:-20],
                                 gzip.compress(b"1 7 8 9\xe9\n", mtime=0)])  # fmt: skip
def test_sequences_that_gzip_cannot_read_are_named(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "sequences.txt.gz").write_bytes(raw)
    (tmp_path / "item2attributes.json.gz").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(ValueError, match=r"sequences\.txt\.gz: expected UTF-8 text in gzip"):
        load_interactions(tmp_path)


COUNTED = "a,x,1\na,x,1\n\na,y,1\na,z,2\nb,x,1\nb,x,2\nb,y,3\nc,x,1\n"


def test_the_log_counts_duplicates_ties_and_lines_without_an_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, "e.csv", "u,i,t\n" + COUNTED)
    with caplog.at_level(logging.INFO):
        load_table(path, COLUMNS)
    assert (
        "8 events of 3 users and 3 items. Kept: 1 duplicates (same user, item and time), 2 ties in "
        "time (in line order). Left out: 1 lines without an event, 1 users with fewer than 3"
    ) in caplog.text
    with caplog.at_level(logging.INFO):
        load_table(path, "user=u,item=i")
    assert "2 duplicates (same user, item and time), 0 ties" in caplog.text


@pytest.mark.parametrize(
    ("ids", "alike"),
    [
        (["x", " x", "y"], 1),
        (["caf\xe9", "cafe\u0301", "b "], 1),
        ([" x", " y", "\u212b", "\xc5"], 1),
        (["x ", " x", "x\u00a0"], 2),
        ([" x", "y "], 0),
    ],
)
def test_ids_that_look_alike_stay_apart_and_are_told(
    ids: list[str], alike: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = load(crossed(["1", "2"], [*ids, "other"]), tmp_path, "tsv")
    assert data.num_items == len(ids) + 1
    told = f"{alike} ids differ from another id only in spaces at an end"
    assert (told in caplog.text) == (alike > 0)


@pytest.mark.parametrize(
    "times",
    [
        np.array([1.7e18, 1.7e18 + 1, 0.0]),
        np.array([-(2.0**53), 0.0, 1.0]),
        np.array([1.7e9, 1.7e9 + 30, 0.0], np.float32),
        np.array([0, 1, 4096], np.float16),
    ],
)
def test_times_that_floating_point_makes_equal_are_refused(times: Any, tmp_path: Path) -> None:
    path = parquet(tmp_path, u=["a"] * 3, i=[1, 2, 3], t=times)
    with pytest.raises(ValueError, match=r"column t has .* close times become equal"):
        load_table(path, COLUMNS)


def test_times_of_more_than_63_bits_are_refused_and_large_ones_in_order(tmp_path: Path) -> None:
    for base, fits in ((10**20, False), (2**63 - 9, True), (1_700_000_000_000_000_000, True)):
        rows = "".join(f"a,{3 - n},{base - n}\n" for n in range(3))
        path = put(tmp_path, "e.csv", "u,i,t\n" + rows)
        if fits:
            assert sequences(load_table(path, COLUMNS)) == [[0, 1, 2]]
        else:
            with pytest.raises(ValueError, match="in line 2, a number so large"):
                load_table(path, COLUMNS)


def test_numbers_of_any_size_have_a_category(tmp_path: Path) -> None:
    rows = "".join(f"1,{n}\n" for n in ("-1e30", "-1e300", "-3", "1e300", "inf"))
    clicks = load_clicks(put(tmp_path, "c.csv", "l,n\n" + rows), "label=l,numeric=n")
    assert clicks.values["n"].tolist() == [str(-(2**62)), str(-(2**62)), "-3", "477172", ""]


def test_another_separator_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, "e.csv", text_of(crossed("a", "xyz"), ";"))
    with pytest.raises(ValueError, match="columns u;i;t only: separate columns by commas"):
        load_table(path, COLUMNS)


def test_the_command_prints_the_counts(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = put(tmp_path, "e.csv", "u,i,t\n" + COUNTED)
    command = [sys.executable, "-m", "training", "din", "--rounds", "1", "--data", str(path)]
    command += ["--columns", COLUMNS, "--clients-per-round", "99", "--out", str(tmp_path / "run")]
    said, quiet = (
        subprocess.run([*command, *more], capture_output=True, text=True).stderr
        for more in ([], ["--quiet"])
    )
    assert "1 duplicates" in said
    assert "1 duplicates" not in quiet

"""MovieLens in three formats and RecBole's files, made here: the same interactions from each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training.cli import main
from training.data.interactions import Interactions
from training.data.rating_folders import load_folder

RATINGS = [(7, 30, 4, 103), (2, 10, 1, 200), (7, 10, 5, 101), (2, 20, 3, 150), (7, 40, 2, 102),
           (2, 30, 3, 300), (9, 50, 3, 10)]  # fmt: skip
GENRES = {
    10: ["Action"],
    20: ["Action", "Drama"],
    30: ["Drama"],
    40: ["Action", "War"],
    50: ["War"],
}
NAMES = ["Action", "Drama", "War"]
SEQUENCES = [[1, 0, 2], [0, 3, 2]]  # users 2 and 7 by time; films 10, 20, 30, 40
CATEGORIES = [0, 1, 1, 2]  # 20 and 30 of two Dramas, 40 the only War but for one that nobody kept


def ml_1m(folder: Path) -> None:
    lines = ["::".join(map(str, one)) for one in RATINGS]
    (folder / "ratings.dat").write_text("\n".join(lines) + "\n")
    films = [f"{film}::Caf\xe9 {film} (1999)::{'|'.join(own)}" for film, own in GENRES.items()]
    (folder / "movies.dat").write_bytes("\n".join(films).encode("latin-1"))


def ml_100k(folder: Path) -> None:
    (folder / "u.data").write_text("".join("\t".join(map(str, one)) + "\n" for one in RATINGS))
    films = []
    for film, own in GENRES.items():
        flags = [str(int(place < 3 and NAMES[place] in own)) for place in range(19)]
        films.append("|".join([str(film), "Caf\xe9", "01-Jan-1999", "", "http://x", *flags]))
    (folder / "u.item").write_bytes("\n".join(films).encode("latin-1"))


def ml_latest(folder: Path) -> None:
    lines = ["userId,movieId,rating,timestamp"]
    lines += [f"{user},{film},{rating}.0,{time}" for user, film, rating, time in RATINGS]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    films = [f'{film},"Caf\xe9, {film} (1999)",{"|".join(own)}' for film, own in GENRES.items()]
    (folder / "movies.csv").write_text("\n".join(["movieId,title,genres", *films]), "utf-8")


def recbole(folder: Path) -> None:
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    lines = [f"{u}\t{f}\t{r}\t{t}.5" for u, f, r, t in RATINGS]
    (folder / "small.inter").write_text("\n".join([head, *lines]) + "\n")
    films = [f"{film}\tCaf\xe9\t{' '.join(own)}" for film, own in GENRES.items()]
    (folder / "small.item").write_text(
        "\n".join(["item_id:token\ttitle:token\tclass:token_seq", *films]), "utf-8"
    )


FORMATS: list[Callable[[Path], None]] = [ml_1m, ml_100k, ml_latest, recbole]


def sequences(data: Interactions) -> list[list[int]]:
    return [sequence.tolist() for sequence in data.sequences]


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_same_interactions(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    data = load_folder(tmp_path)
    assert sequences(data) == SEQUENCES
    assert data.category_of.tolist() == CATEGORIES
    assert data.num_categories == 3
    for described in ("movies.dat", "u.item", "movies.csv", "small.item"):
        (tmp_path / described).unlink(missing_ok=True)
    data = load_folder(tmp_path)
    assert sequences(data) == SEQUENCES
    assert (data.category_of.tolist(), data.num_categories) == ([0, 0, 0, 0], 1)


def test_atomic_files_without_times_are_in_order(tmp_path: Path) -> None:
    lines = ["user_id:token\titem_id:token", *(f"{u}\t{f}" for u, f, _, _ in RATINGS)]
    (tmp_path / "a.inter").write_text("\n".join(lines))
    assert sequences(load_folder(tmp_path)) == [[0, 1, 2], [2, 0, 3]]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ratings.dat", "1::2::3\n", r"ratings\.dat, line 1: expected user, film"),
        ("u.data", "1\t2\t3\t4\n1\tx\t3\t4\n", r"u\.data, line 2: expected user, film"),
        (
            "ratings.csv",
            "userId,movieId,rating,timestamp\n1,2,3,4\n",
            "each of 1 users has fewer than 3",
        ),
        ("a.inter", "user_id:token\trating:float\n1\t2\n", "expected a column item_id:token"),
        ("a.inter", "user_id:token\titem_id:token\n1\n", r"a\.inter, line 2: found 1 columns"),
        ("a.inter", "user_id:token\titem_id:token\ttimestamp:float\n1\t2\tnow\n", "not a number"),
        ("other.txt", "", "with a folder of"),
    ],
)
def test_files_that_cannot_be_used_are_told_why(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        load_folder(tmp_path)


HEAD = "user_id:token\titem_id:token"


def atomic(folder: Path, time: str, times: list[object], item: str = "") -> Path:
    rows = "".join(f"a\t{name}\t{at}\n" for name, at in zip("xyz", times, strict=True))
    (folder / "a.inter").write_text(f"{HEAD}\t{time}\n{rows}")
    if item:
        (folder / "a.item").write_text(item)
    return folder


@pytest.mark.parametrize(
    "time", ["timestamp:token", "timestamp:int", "time:float", "timestamp:float ", " timestamp"]
)
def test_times_of_other_types_and_names_bring_lines_in_order(time: str, tmp_path: Path) -> None:
    assert sequences(load_folder(atomic(tmp_path, time, [3, 2, 1]))) == [[2, 1, 0]]


def test_times_under_a_name_that_is_not_read_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert sequences(load_folder(atomic(tmp_path, "when:float", [3, 2, 1]))) == [[0, 1, 2]]
    assert (
        "no column timestamp, so lines are taken in time order. Columns not read: when:float"
        in caplog.text
    )


def test_nanoseconds_are_told_apart_or_refused(tmp_path: Path) -> None:
    times: list[object] = [1_700_000_000_000_000_000 + n for n in (3, 2, 1)]
    folder = atomic(tmp_path, "timestamp:float", times)
    assert sequences(load_folder(folder)) == [[2, 1, 0]]
    atomic(tmp_path, "timestamp:float", [f"{time}.0" for time in times])
    with pytest.raises(ValueError, match=r"a\.inter, line 2: .*close times become equal"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (f"{HEAD}\titem_id:token", "line 1: several columns are named item_id"),
        (f"{HEAD}\titem_id:token_seq", "line 1: several columns are named item_id"),
        (f"{HEAD}\t item_id:token ", "line 1: several columns are named item_id"),
    ],
)
def test_two_columns_of_one_name_are_refused(head: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.inter").write_text(f"{head}\na\tx\tq\n")
    with pytest.raises(ValueError, match=said):
        load_folder(tmp_path)
    atomic(tmp_path, "timestamp:float\ttime:float", ["3\t1", "2\t2", "1\t3"])
    with pytest.raises(ValueError, match="has several time columns, timestamp:float, time:float"):
        load_folder(tmp_path)


@pytest.mark.parametrize("name", ["class", "genre", "genres", "categories", "tags"])
def test_categories_are_those_of_the_column_named_so_and_the_log_names_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    films = f"item_id:token\tmovie_title:token_seq\t{name}:token_seq\n"
    films += "x\tToy Story\tComedy\ny\tThe Heat\tAction\nz\tThe Story\tComedy\n"
    with caplog.at_level("INFO"):
        data = load_folder(atomic(tmp_path, "timestamp:float", [1, 2, 3], films))
    named = name != "tags"
    assert (data.category_of.tolist() == [1, 0, 1]) is named
    told = name if named else "movie_title"
    assert f"torchfsl reads the categories from the column {told}:token_seq" in caplog.text


def test_two_files_of_ratings_are_refused(tmp_path: Path) -> None:
    ml_1m(tmp_path)
    ml_latest(tmp_path)
    with pytest.raises(ValueError, match=r"has ratings\.dat and ratings\.csv: keep one"):
        load_folder(tmp_path)


def test_din_trains_on_a_folder_of_ratings(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lines = [
        f"{u}\t{i}\t3\t{t}" for u in range(12) for t, i in enumerate(generator.integers(0, 40, 6))
    ]
    (tmp_path / "u.data").write_text("\n".join(lines) + "\n")
    settings = tmp_path / "small.toml"
    settings.write_text(
        "rounds = 1\nclients_per_round = 3\nabove_break_even = 'keep'\n[recommendation]\ndim = 4\n"
        "history = 5\nnegatives = 1\nrows_per_client = 32\nhead = [4]\nattention = [4]\n"
    )
    command = ["din-small", "--config", str(settings), "--quiet", "--threads", "1", "--data",
               str(tmp_path), "--aggregation", "plain", "--out", str(tmp_path / "run")]  # fmt: skip
    assert main(command) == 0

"""Interactions from folders as they are published: MovieLens in its three formats, RecBole's files.

Every rating counts as taken, whatever its value. An item's category is the rarest of its genres or
categories, as in `interactions`.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from training.data.ids import Ids, ids_of, in_order
from training.data.interaction_tables import from_columns
from training.data.interactions import Interactions, load_interactions, rarest_attribute
from training.data.table_files import count_lines, csv_rows

log = logging.getLogger(__name__)

INTERACTIONS: Final = ".inter"
ITEMS: Final = ".item"
"""How the names of RecBole's atomic files end."""


class _Format(NamedTuple):
    """Ratings of a MovieLens data set and what its films are."""

    separator: str
    header: int
    films: str


MOVIELENS: Final = {
    "ratings.dat": _Format("::", 0, "movies.dat"),
    "u.data": _Format("\t", 0, "u.item"),
    "ratings.csv": _Format(",", 1, "movies.csv"),
}
_BOM_AS_LATIN = "\xef\xbb\xbf"
_TIMES: Final = ("timestamp", "time")
_CATEGORIES: Final = ("class", "genre", "genres", "categories")
"""Names of columns of RecBole's files, before the colon."""
_FLAGS = 19
"""Genres at the end of a line of u.item, 0 or 1 each."""


def load_folder(folder: Path) -> Interactions:
    """Read a folder by the names of its files; else as `load_interactions` does.

    Raises:
        FileNotFoundError: no known file is there.
        ValueError: a file does not have its format; the message names file and line.
    """
    there = [name for name in MOVIELENS if (folder / name).is_file()]
    if len(there) > 1:
        raise ValueError(
            f"{folder} has {' and '.join(there)}: keep one of these files in the folder"
        )
    if there:
        return load_movielens(folder / there[0])
    atomic = sorted(folder.glob("*" + INTERACTIONS)) if folder.is_dir() else []
    if len(atomic) > 1:
        raise ValueError(
            f"{folder} has several rating files, {', '.join(path.name for path in atomic)}: "
            "keep one of these files in the folder"
        )
    return load_atomic(atomic[0]) if atomic else load_interactions(folder)


def load_movielens(path: Path) -> Interactions:
    """Read ratings (a key of `MOVIELENS`), and the genres next to them if they are there.

    Raises:
        ValueError: a line is not user, film, rating and time, with whole numbers except the
            rating, or the first line of `ratings.csv` names other columns.
    """
    kind = MOVIELENS[path.name]
    users, items, times, numbers = [], [], [], []
    lines = _fields(path, kind.separator)
    if kind.header:
        _check_header(path, next(lines, (1, []))[1], ["userId", "movieId", "rating", "timestamp"])
    for number, fields in lines:
        try:
            user, item, _, time = fields
            if not (_is_number(user) and _is_number(item) and _is_number(time)):
                raise ValueError("not a number")
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected user, film, rating and time with "
                f"{kind.separator!r} between, found {kind.separator.join(fields)[:60]!r}: correct "
                "the line"
            ) from error
        users.append(user)
        items.append(item)
        times.append(int(time))
        numbers.append(number)
    films = path.with_name(kind.films)
    genres = dict(_genres(films)) if films.is_file() else {}
    return _joined(path, users, items, np.array(times, np.int64), genres, numbers)


def load_atomic(path: Path) -> Interactions:
    """Read RecBole's NAME.inter, and NAME.item if it is there.

    The first line names columns and types: `user_id:token`, `item_id:token` and, if there,
    `timestamp` or `time`, numbers of whatever type. Of NAME.item the column of type `token_seq`
    that is called `class`, `genre`, `genres` or `categories` has the categories, else the first.

    Raises:
        ValueError: a column is missing or a line has another number of columns.
    """
    columns, lines = _atomic(path)
    for name in ("user_id:token", "item_id:token"):
        if name not in columns:
            raise ValueError(
                f"{path}: expected a column {name}, got the columns {', '.join(columns)}: add the "
                "column"
            )
    timed = [name for name in columns if name.partition(":")[0] in _TIMES]
    if len(timed) > 1:
        raise ValueError(f"{path} has several time columns, {', '.join(timed)}: keep one of them")
    others = ", ".join(sorted(set(columns) - {"user_id:token", "item_id:token", *timed}))
    if not timed:
        text = (
            "%s: there is no column timestamp, so lines are taken in time order. Columns not "
            "read: %s"
        )
        log.warning(text, path, others or "none")
    at = _timestamps(path, columns[timed[0]], lines) if timed else None
    described = path.with_suffix(ITEMS)
    kinds = _kinds(described) if described.is_file() else {}
    return _joined(path, columns["user_id:token"], columns["item_id:token"], at, kinds, lines)


def _kinds(path: Path) -> dict[str, list[str]]:
    """Categories of items."""
    items, _ = _atomic(path)
    lists = [name for name in items if name.endswith(":token_seq")]
    if not lists or "item_id:token" not in items:
        text = "%s has no column of type token_seq, so items have no categories. Its columns: %s"
        log.warning(text, path, ", ".join(items))
        return {}
    chosen = next((name for name in lists if name.partition(":")[0] in _CATEGORIES), lists[0])
    log.info("%s: torchfsl reads the categories from the column %s", path, chosen)
    pairs = zip(items["item_id:token"], items[chosen], strict=True)
    return {item: words.split() for item, words in pairs}


def _timestamps(path: Path, times: Sequence[str], lines: Sequence[int]) -> npt.NDArray[Any]:
    """Whole numbers below 2**63 as they are, others in floating point if that tells them apart."""
    if all(re.fullmatch("-?[0-9]{1,19}", time) for time in times):
        with contextlib.suppress(OverflowError):
            return np.array([int(time) for time in times], dtype=np.int64)
    for number, time in zip(lines, times, strict=True):
        try:
            value = float(time)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"{path}, line {number}: the timestamp {time!r} is not a number: leave the "
                "line out, or give it a time"
            )
        if abs(value) >= 2**53:
            raise ValueError(
                f"{path}, line {number}: the timestamp {time!r} is so large that close times "
                "become equal: store times as whole numbers below 2**63"
            )
    return np.array(times, dtype=np.float64)


def _joined(
    path: Path,
    users: Sequence[str],
    items: Sequence[str],
    times: npt.NDArray[Any] | None,
    kinds: Mapping[str, Sequence[str]],
    lines: Sequence[int],
) -> Interactions:
    """Columns of equal length, and the numbers of their lines in the file, for messages."""

    def at(place: int) -> str:
        return f"line {lines[place]}"

    ids = {
        "user": ids_of(users, f"{path}: user", at),
        "item": ids_of(items, f"{path}: item", at),
    }
    if kinds:
        places = {
            name: place
            for place, name in enumerate(in_order({k for own in kinds.values() for k in own}))
        }
        known, of_line = ids["item"]
        numbers = range(len(known))
        attributes = {n: [places[kind] for kind in kinds.get(known[n], ())] for n in numbers}
        chosen = np.array(rarest_attribute(numbers, attributes))[of_line]
        of_none = sum(not own for own in attributes.values())
        if of_none:
            log.info("%s: %d of %d items have no category", path, of_none, len(known))
        ids["category"] = Ids(["none", *places], chosen + 1)
    return from_columns(ids, path, times=times)


def _genres(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Films and their genres; a title may hold the separator."""
    if path.suffix == ".csv":
        lines = _fields(path, ",")
        _check_header(path, next(lines, (1, []))[1], ["movieId", "title", "genres"])
        for number, fields in lines:
            if len(fields) != 3:
                raise _odd_film(path, number, "','")
            yield fields[0], fields[2].split("|")
        return
    separator = "::" if path.suffix == ".dat" else "|"
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            parts = line.removeprefix(_BOM_AS_LATIN).rstrip().split(separator)
            if separator == "::" and len(parts) > 2:
                yield parts[0], parts[-1].split("|")
            elif separator == "|" and len(parts) > _FLAGS:
                flags = parts[-_FLAGS:]
                yield parts[0], [f"{n:02}" for n in range(_FLAGS) if flags[n] == "1"]
            elif line.strip():
                raise _odd_film(path, number, repr(separator))


def _odd_film(path: Path, number: int, separator: str) -> ValueError:
    return ValueError(
        f"{path}, line {number}: expected film, title and genres with {separator} between. Correct "
        "the line, or remove the file to train without categories"
    )


def _check_header(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    if list(found) != wanted:
        raise ValueError(
            f"{path}, line 1: expected {','.join(wanted)}, found {','.join(found)[:60]!r}: for a "
            f"table of other columns pass --data {shlex.quote(str(path))} with --columns"
        )


def _fields(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Lines that are not blank, by number, as their fields.

    Raises:
        ValueError: a line is not UTF-8.
    """
    count_lines(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        if separator != ",":
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n").split(separator)
            return
        number = 0
        try:
            for number, row in csv_rows(file):
                if row:
                    yield number, row
        except csv.Error as error:
            raise ValueError(
                f"{path}: cannot read a row of CSV after line {number}: {error}"
            ) from error


def _is_number(text: str) -> bool:
    """Whether a text is a whole number below 10**18, with leading zeros or without."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def _atomic(path: Path) -> tuple[dict[str, list[str]], list[int]]:
    """Columns by the name in the first line, and the numbers of their lines."""
    lines = _fields(path, "\t")
    _, head = next(lines, (1, []))
    head = [":".join(word.strip() for word in name.split(":")) for name in head]
    plain = [name.partition(":")[0] for name in head]
    if twice := sorted({name for name in plain if plain.count(name) > 1}):
        raise ValueError(
            f"{path}, line 1: several columns are named {', '.join(twice)}: give each column "
            "another name"
        )
    columns: list[list[str]] = [[] for _ in head]
    numbers: list[int] = []
    for number, row in lines:
        if len(row) != len(head):
            raise ValueError(
                f"{path}, line {number}: found {len(row)} columns separated by tabs, expected "
                f"{len(head)} as in the first line: correct this line"
            )
        numbers.append(number)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return dict(zip(head, columns, strict=True)), numbers

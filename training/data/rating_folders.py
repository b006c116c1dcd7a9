"""Interactions from folders as they are published: MovieLens in its three formats, RecBole's files.

Every rating counts as taken, whatever its value. An item's category is the rarest of its genres or
categories, as in `interactions`.
"""

from __future__ import annotations

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
from training.data.table_files import count_lines

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
_FLAGS = 19
"""Genres at the end of a line of u.item, 0 or 1 each."""


def load_folder(folder: Path) -> Interactions:
    """Read a folder by the names of its files; else as `load_interactions` does.

    Raises:
        FileNotFoundError: no known file is there.
        ValueError: a file does not have its format; the message names file and line.
    """
    for name in MOVIELENS:
        if (folder / name).is_file():
            return load_movielens(folder / name)
    atomic = sorted(folder.glob("*" + INTERACTIONS)) if folder.is_dir() else []
    if len(atomic) > 1:
        raise ValueError(f"{folder} has several files {', '.join(path.name for path in atomic)}")
    return load_atomic(atomic[0]) if atomic else load_interactions(folder)


def load_movielens(path: Path) -> Interactions:
    """Read ratings (a key of `MOVIELENS`), and the genres beside them if they are there.

    Raises:
        ValueError: a line is not user, film, rating and time, of which all except the rating are
            whole numbers, or the first line of `ratings.csv` names other columns.
    """
    kind = MOVIELENS[path.name]
    users, items, times = [], [], []
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
                f"{kind.separator!r} between, found {kind.separator.join(fields)[:60]!r}"
            ) from error
        users.append(user)
        items.append(item)
        times.append(int(time))
    films = path.with_name(kind.films)
    genres = dict(_genres(films)) if films.is_file() else {}
    return _joined(path, users, items, np.array(times, np.int64), genres, 1 + kind.header)


def load_atomic(path: Path) -> Interactions:
    """Read RecBole's NAME.inter, and NAME.item if it is there.

    The first line names columns and types: `user_id:token`, `item_id:token` and, if there,
    `timestamp:float`. Of NAME.item the first column of type `token_seq` has the categories.

    Raises:
        ValueError: a column is missing or a line has another number of columns.
    """
    columns = _atomic(path)
    for name in ("user_id:token", "item_id:token"):
        if name not in columns:
            raise ValueError(f"{path} has the columns {', '.join(columns)} and lacks {name}")
    times = columns.get("timestamp:float")
    at = None if times is None else _timestamps(path, times)
    kinds: dict[str, list[str]] = {}
    described = path.with_suffix(ITEMS)
    if described.is_file():
        items = _atomic(described)
        seq = next((name for name in items if name.endswith(":token_seq")), None)
        if seq is not None and "item_id:token" in items:
            pairs = zip(items["item_id:token"], items[seq], strict=True)
            kinds = {item: words.split() for item, words in pairs}
    return _joined(path, columns["user_id:token"], columns["item_id:token"], at, kinds, 2)


def _timestamps(path: Path, times: Sequence[str]) -> npt.NDArray[np.float64]:
    for number, time in enumerate(times, 2):
        try:
            finite = math.isfinite(float(time))
        except ValueError:
            finite = False
        if not finite:
            raise ValueError(
                f"{path}, line {number}: the timestamp {time!r} is no number: leave the line out, "
                "or give it a time"
            )
    return np.array(times, dtype=np.float64)


def _joined(
    path: Path,
    users: Sequence[str],
    items: Sequence[str],
    times: npt.NDArray[Any] | None,
    kinds: Mapping[str, Sequence[str]],
    first: int,
) -> Interactions:
    """Columns of equal length, of which messages call the first line `first`."""
    ids = {
        "user": ids_of(users, f"{path}: user", f"line {first}"),
        "item": ids_of(items, f"{path}: item", f"line {first}"),
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
        f"{path}, line {number}: expected film, title and genres with {separator} between: correct "
        "the line, or leave the file out to train without categories"
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
        rows = csv.reader(file, strict=True)
        try:
            for row in filter(None, rows):
                yield rows.line_num, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num} is not CSV: {error}") from error


def _is_number(text: str) -> bool:
    """Whether a text is a whole number below 10**18, with leading zeros or without."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def _atomic(path: Path) -> dict[str, list[str]]:
    """Columns by the name in the first line."""
    lines = _fields(path, "\t")
    _, head = next(lines, (1, []))
    columns: list[list[str]] = [[] for _ in head]
    for number, row in lines:
        if len(row) != len(head):
            raise ValueError(
                f"{path}, line {number}: {len(row)} columns with tabs between, the first line "
                f"names {len(head)}"
            )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return dict(zip(head, columns, strict=True))

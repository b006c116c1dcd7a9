"""Interactions from folders as they are published: MovieLens in its three formats, RecBole's files.

Every rating counts as taken, whatever its value. An item's category is the rarest of its genres or
categories, as in `interactions`.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from training.data.interaction_tables import from_columns
from training.data.interactions import Interactions, load_interactions, rarest_attribute

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
        ValueError: a line is not four numbers: user, film, rating, time.
    """
    kind = MOVIELENS[path.name]
    users, items, times = [], [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(itertools.islice(file, kind.header, None), kind.header + 1):
            try:
                user, item, _, time = line.split(kind.separator)
                users.append(int(user))
                items.append(int(item))
                times.append(int(time))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: expected user, film, rating and time with "
                    f"{kind.separator!r} between, found {line[:60]!r}"
                ) from error
    films = path.with_name(kind.films)
    genres = dict(_genres(films)) if films.is_file() else {}
    return _joined(path, np.array(users), np.array(items), np.array(times), genres)


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
    try:
        at = None if times is None else np.array(times, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path}: a timestamp is no number: {error}") from error
    kinds: dict[str, list[str]] = {}
    described = path.with_suffix(ITEMS)
    if described.is_file():
        items = _atomic(described)
        seq = next((name for name in items if name.endswith(":token_seq")), None)
        if seq is not None and "item_id:token" in items:
            pairs = zip(items["item_id:token"], items[seq], strict=True)
            kinds = {item: words.split() for item, words in pairs}
    users, names = np.array(columns["user_id:token"]), np.array(columns["item_id:token"])
    return _joined(path, users, names, at, kinds)


def _joined(
    path: Path,
    users: npt.NDArray[Any],
    items: npt.NDArray[Any],
    times: npt.NDArray[Any] | None,
    kinds: Mapping[Any, Sequence[str]],
) -> Interactions:
    """Columns of equal length, and the categories of some items."""
    arrays = {"user": users, "item": items}
    if times is not None:
        arrays["time"] = times
    if kinds:
        names = sorted({kind for own in kinds.values() for kind in own})
        places = {name: place for place, name in enumerate(names)}
        known, of_line = np.unique(items, return_inverse=True)
        numbers = range(len(known))
        attributes = {n: [places[kind] for kind in kinds.get(known[n].item(), ())] for n in numbers}
        arrays["category"] = np.array(rarest_attribute(numbers, attributes))[of_line]
    return from_columns(arrays, path)


def _genres(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Films and their genres."""
    with path.open(encoding="latin-1", newline="") as file:
        if path.suffix == ".csv":
            for film, _, genres in itertools.islice(csv.reader(file), 1, None):
                yield int(film), genres.split("|")
            return
        for line in map(str.rstrip, file):
            if path.suffix == ".dat":
                film, _, genres = line.split("::")
                yield int(film), genres.split("|")
            elif line:
                parts = line.split("|")
                flags = parts[-_FLAGS:]
                yield int(parts[0]), [f"{n:02}" for n in range(_FLAGS) if flags[n] == "1"]


def _atomic(path: Path) -> dict[str, list[str]]:
    """Columns by the name in the first line."""
    with path.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if line.strip()]
    head, rows = (lines[0], lines[1:]) if lines else ([], [])
    for number, row in enumerate(rows, 2):
        if len(row) != len(head):
            raise ValueError(
                f"{path}, line {number}: {len(row)} columns with tabs between, the first line "
                f"names {len(head)}"
            )
    return {name: [row[place] for row in rows] for place, name in enumerate(head)}

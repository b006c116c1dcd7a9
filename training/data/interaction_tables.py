"""Interactions from one table, CSV, TSV or Parquet, a line an event: the user, the item, and when.

`columns` says which column is which: `user=NAME,item=NAME,time=NAME,category=NAME`. Without `time`
the lines are in time order; without `category` all items share one.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.data.ids import Ids, exact_below, ids_of_column
from training.data.interactions import SHORTEST, Interactions
from training.data.table_files import column_names, places_of, read_table, told_columns

if TYPE_CHECKING:
    import numpy.typing as npt

log = logging.getLogger(__name__)

_ZONED = "date with a time zone"
_ROLES = ("user", "item", "time", "category")
_EXAMPLE = "user=user_id,item=item_id,time=timestamp"


def load_table(path: Path, columns: str) -> Interactions:
    """Read a table.

    Users with fewer than three events are left out, and items that only they had. Events of one
    user at one time stay in the order of the lines. Users, items and categories are text, numbered
    as in `ids`. The log counts what was left out, duplicates and ties.

    Args:
        path: a file whose name ends in `.csv` or `.tsv` (with a line of names) or `.parquet`.
        columns: see above.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or a column cannot be used; the message names it, and the columns.
    """
    names = _mapping(columns, column_names(path), path)
    time = names.pop("time", None)
    timed = [] if time is None else [time]
    table, without_row = read_table(path, texts=list(names.values()), numbers=timed)
    at = places_of(path)
    ids = {
        role: ids_of_column(table.column(name), f"{path.name}: column {name}", at)
        for role, name in names.items()
    }
    times = None if time is None else times_of(table.column(time), path, time)
    return from_columns(ids, path, times=times, without_event=without_row)


def from_columns(
    ids: Mapping[str, Ids],
    path: Path,
    *,
    times: npt.NDArray[Any] | None = None,
    without_event: int = 0,
) -> Interactions:
    """Interactions of events, one a line.

    Args:
        ids: of equal length: `user`, `item` and, if known, `category`.
        path: for messages.
        times: numbers or dates `[lines]`, none of them missing.
        without_event: lines of the file that hold none, for the log.

    Raises:
        ValueError: no user has three events, or an item has two categories.
    """
    user_of, items = ids["user"].of_line, ids["item"].of_line
    counts = np.bincount(user_of)
    keep = counts[user_of] >= SHORTEST
    order = np.lexsort((user_of,) if times is None else (times, user_of))
    _log_counts(ids, times, order, path, without_event)
    if not keep.any():
        raise ValueError(
            f"{path}: each of {len(counts)} users has fewer than {SHORTEST} events: use data of "
            f"users with {SHORTEST} events or more"
        )
    order = order[keep[order]]
    _, first_lines, item_of = np.unique(items[order], return_index=True, return_inverse=True)
    ends = np.flatnonzero(np.diff(user_of[order])) + 1
    sequences = tuple(part.astype(np.int64) for part in np.split(item_of, ends))
    if "category" not in ids:
        return Interactions(sequences, np.zeros(len(first_lines), np.int64), 1)
    return _with_categories(sequences, ids, order, first_lines, item_of, path)


def times_of(column: Any, path: Path, name: str) -> npt.NDArray[Any]:
    """A column of pyarrow as numbers or dates `[lines]`.

    Raises:
        ValueError: it holds something else, or a value is missing.
    """
    times: npt.NDArray[Any] = column.to_numpy()
    at = places_of(path)
    missing = column.is_null().to_numpy().astype(bool)
    if times.dtype.kind in "fM":
        missing |= ~np.isfinite(times)
    elif times.dtype.kind == "O":
        missing |= times == ""
    if missing.any():
        raise ValueError(
            f"{path.name}: column {name} is empty in {missing.sum()} of {len(times)} lines, first "
            f"in {at(int(np.flatnonzero(missing)[0]))}: leave these lines out, or give them a "
            "finite time"
        )
    if times.dtype.kind not in "iufM":
        raise ValueError(f"{path.name}: column {name} {_odd_time(times, path)}")
    if times.dtype.kind == "f" and (large := np.abs(times) >= exact_below(times)).any():
        place = np.flatnonzero(large)[0]
        raise ValueError(
            f"{path.name}: column {name} has {times[place]} in {at(int(place))}, a number so "
            "large that close times become equal: store times as whole numbers below 2**63 or as "
            "dates"
        )
    return times


def _log_counts(
    ids: Mapping[str, Ids],
    times: npt.NDArray[Any] | None,
    order: npt.NDArray[np.int64],
    path: Path,
    without_event: int,
) -> None:
    """Log what may surprise: lines without an event, duplicates, ties and short users."""
    users, items = ids["user"].of_line, ids["item"].of_line
    ties, within = 0, np.zeros(len(order), np.int64)
    if times is not None:
        at = times[order]
        same = (np.diff(users[order]) == 0) & (at[1:] == at[:-1])
        ties = int(same.sum())
        within[order[1:]] = np.cumsum(~same)
    else:
        within = users
    again = np.lexsort((items, within))
    repeated = (np.diff(within[again]) == 0) & (np.diff(items[again]) == 0)
    short = int((np.bincount(users) < SHORTEST).sum())
    alike = sum(column.num_alike for column in ids.values())
    log.info(
        "%s: %d events of %d users and %d items. Kept: %d duplicates (same user, item and time), "
        "%d ties in time (in line order). Left out: %d lines without an event, %d users with "
        "fewer than %d events", path, len(users), len(ids["user"].names),
        len(ids["item"].names), int(repeated.sum()), ties, without_event, short, SHORTEST,
    )  # fmt: skip
    if alike:
        text = (
            "%s: %d ids differ from another id only in spaces at an end or in their Unicode form. "
            "torchfsl treats them as separate ids"
        )
        log.warning(text, path, alike)


def _mapping(columns: str, there: list[str], path: Path) -> dict[str, str]:
    """Column by role."""
    has = told_columns(path, there)
    if len(there) == 1:
        raise ValueError(f"{has} only: separate columns by commas in .csv, and by tabs in .tsv")
    if not columns:
        raise ValueError(
            f"{has}: say which columns hold which data, for example --columns {_EXAMPLE}"
        )
    names: dict[str, str] = {}
    for part in columns.split(","):
        role, equals, name = (word.strip() for word in part.partition("="))
        if role not in _ROLES or not equals or role in names:
            raise ValueError(
                f"columns is {columns!r}, and torchfsl cannot read {part!r}: pass "
                f"{', '.join(f'{role}=NAME' for role in _ROLES)}, each at most once. The last "
                "two are optional"
            )
        if name not in there:
            raise ValueError(f"columns has {role}={name}, but {has}: correct this name")
        names[role] = name
    for role in ("user", "item"):
        if role not in names:
            raise ValueError(f"columns is {columns!r}, expected also {role}=NAME: {has}")
    if len({names[role] for role in names if role != "category"}) < len(
        names.keys() - {"category"}
    ):
        raise ValueError(f"columns is {columns!r}: give different columns for user, item and time")
    return names


def _odd_time(times: npt.NDArray[Any], path: Path) -> str:
    """What to say of times that are read as text: the first one that does not fit."""
    forms = [_form_of(str(time)) for time in times]
    odd = next((n for n, form in enumerate(forms) if not form or form != forms[0]), -1)
    if odd < 0:
        if forms[0] == _ZONED:
            return "has dates with a time zone as text: write all dates in UTC without the zone"
        return f"has {forms[0]}s as text: store the column with a type for {forms[0]}s"
    found = f"has {str(times[odd])!r} in {places_of(path)(odd)}"
    if forms[odd]:
        return (
            f"{found}, which is a {forms[odd]}, but {str(times[0])!r} is a {forms[0]}: write all "
            "times in one form"
        )
    return (
        f"{found}, expected a number or a date such as 2026-11-23 or 2026-11-23 14:05:00: correct "
        "this time"
    )


def _form_of(time: str) -> str:
    """`number`, `date`, or nothing."""
    with contextlib.suppress(ValueError):
        float(time)
        return "number"
    with contextlib.suppress(ValueError):
        zone = datetime.datetime.fromisoformat(time).tzinfo
        return "date" if zone is None else _ZONED
    return ""


def _with_categories(
    sequences: tuple[npt.NDArray[np.int64], ...],
    ids: Mapping[str, Ids],
    order: npt.NDArray[np.int64],
    first_lines: npt.NDArray[np.int64],
    item_of: npt.NDArray[np.int64],
    path: Path,
) -> Interactions:
    """One category an item.

    Raises:
        ValueError: an item has two.
    """
    names, lines = ids["category"].names, ids["category"].of_line[order]
    kept, of_line = np.unique(lines, return_inverse=True)
    category_of = of_line[first_lines].astype(np.int64)
    if len(torn := np.flatnonzero(category_of[item_of] != of_line)):
        line, items = torn[0], ids["item"]
        raise ValueError(
            f"{path.name}: item {items.names[items.of_line[order][line]]} has the categories "
            f"{names[lines[first_lines[item_of[line]]]]} and {names[lines[line]]}: give each item "
            "one category"
        )
    return Interactions(sequences, category_of, len(kept))

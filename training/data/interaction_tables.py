"""Interactions from one table, CSV, TSV or Parquet, a line an event: the user, the item, and when.

`columns` says which column is which: `user=NAME,item=NAME,time=NAME,category=NAME`. Without `time`
the lines are in time order; without `category` all items share one.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from training.data.interactions import SHORTEST, Interactions

if TYPE_CHECKING:
    import numpy.typing as npt

SUFFIXES = (".csv", ".tsv", ".parquet")
_ROLES = ("user", "item", "time", "category")
_EXAMPLE = "user=user_id,item=item_id,time=timestamp"


def load_table(path: Path, columns: str) -> Interactions:
    """Read a table.

    Users with fewer than three events are left out, and items that only they had. Events of one
    user at one time stay in the order of the lines. Users, items and categories are numbered by
    increasing id.

    Args:
        path: a file whose name ends in `.csv` or `.tsv` (with a line of names) or `.parquet`.
        columns: see above.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or a column cannot be used; the message names it, and the columns.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    table = read_table(path)
    names = _mapping(columns, table.column_names, path)
    arrays = {role: _values(table, name, path) for role, name in names.items()}
    return from_columns(arrays, path, time_name=names.get("time", ""))


def from_columns(
    arrays: Mapping[str, npt.NDArray[Any]], path: Path, *, time_name: str = "time"
) -> Interactions:
    """Interactions of events, one a line.

    Args:
        arrays: of equal length: `user`, `item` and, if known, `time` and `category`.
        path: for messages.
        time_name: likewise.

    Raises:
        ValueError: no user has three events, times are none, or an item has two categories.
    """
    users, items = arrays["user"], arrays["item"]
    kept, user_of, counts = np.unique(users, return_inverse=True, return_counts=True)
    keep = counts[user_of] >= SHORTEST
    if not keep.any():
        raise ValueError(f"{path}: no user of {len(kept)} has {SHORTEST} events or more")
    order = _in_time(arrays.get("time"), user_of, time_name, path)
    order = order[keep[order]]
    _, first_lines, item_of = np.unique(items[order], return_index=True, return_inverse=True)
    ends = np.flatnonzero(np.diff(user_of[order])) + 1
    sequences = tuple(part.astype(np.int64) for part in np.split(item_of, ends))
    if "category" not in arrays:
        return Interactions(sequences, np.zeros(len(first_lines), np.int64), 1)
    return _with_categories(sequences, arrays["category"][order], first_lines, item_of, path)


def column_names(path: Path) -> list[str]:
    """Names of a table's columns.

    Raises:
        ValueError: not such a file, or pyarrow is not there.
    """
    return list(_open(path, None, ()).schema.names)


def read_table(path: Path, *, names: Sequence[str] | None = None, texts: Sequence[str] = ()) -> Any:
    """The table, by pyarrow.

    Args:
        path: of a `.csv` or `.tsv` file with a line of names, or a `.parquet` file.
        names: of the columns of a text file that has no line of names.
        texts: columns of a text file that are no numbers, whatever they look like.

    Raises:
        ValueError: not such a file, or pyarrow is not there.
    """
    file = _open(path, names, texts)
    try:
        return file.read() if path.suffix == ".parquet" else file.read_all()
    except _arrow().ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _open(path: Path, names: Sequence[str] | None, texts: Sequence[str]) -> Any:
    """The opened file, which has a `schema`."""
    arrow = _arrow()
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".parquet":
            return parquet.ParquetFile(path)
        return csv.open_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, block_size=1 << 26),
            parse_options=csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ","),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(texts, arrow.string()), strings_can_be_null=False
            ),
        )
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ValueError(
            "reading tables needs pyarrow: pip install 'torchfsl[training]'"
        ) from error


def _mapping(columns: str, there: list[str], path: Path) -> dict[str, str]:
    """Column by role."""
    has = f"{path.name} has the columns {', '.join(there)}"
    if not columns:
        raise ValueError(f"{has}: say which are which, for example --columns {_EXAMPLE}")
    names: dict[str, str] = {}
    for part in columns.split(","):
        role, equals, name = (word.strip() for word in part.partition("="))
        if role not in _ROLES or not equals or role in names:
            raise ValueError(
                f"columns is {columns!r}, of which {part!r} is not to be read: give "
                f"{', '.join(f'{role}=NAME' for role in _ROLES)}, each once, the last two if there"
            )
        if name not in there:
            raise ValueError(f"columns has {role}={name}, but {has}")
        names[role] = name
    for role in ("user", "item"):
        if role not in names:
            raise ValueError(f"columns is {columns!r} and lacks {role}=NAME; {has}")
    return names


def _values(table: Any, name: str, path: Path) -> npt.NDArray[Any]:
    column = table.column(name)
    values: npt.NDArray[Any] = column.to_numpy()
    is_text = values.dtype == object
    num_empty = column.null_count + (int(np.count_nonzero(values == "")) if is_text else 0)
    if num_empty:
        raise ValueError(
            f"{path.name}: column {name} is empty in {num_empty} of {len(column)} lines: "
            "leave these lines out"
        )
    return values.astype(np.str_) if is_text else values


def _in_time(
    times: npt.NDArray[Any] | None, user_of: npt.NDArray[np.int64], name: str, path: Path
) -> npt.NDArray[np.int64]:
    """The lines by user, and by time for each, equal ones as they are."""
    if times is None:
        return np.argsort(user_of, kind="stable")
    if times.dtype.kind not in "iufM":
        raise ValueError(f"{path.name}: column {name} {_odd_time(times, path)}")
    return np.lexsort((times, user_of))


def _odd_time(times: npt.NDArray[Any], path: Path) -> str:
    """What to say of times that are read as text: the first one that does not fit."""
    forms = [_form_of(str(time)) for time in times]
    odd = next((n for n, form in enumerate(forms) if not form or form != forms[0]), -1)
    if odd < 0:
        return f"holds {forms[0]}s as text: store them in their own type"
    line = f"line {odd + 2}" if path.suffix != ".parquet" else f"row {odd}"
    held = f"holds {str(times[odd])!r} in {line}, which is"
    if forms[odd]:
        return f"{held} a {forms[odd]}, while {str(times[0])!r} is a {forms[0]}: choose one form"
    return (
        f"{held} neither a number nor a date as 2026-11-23 or 2026-11-23 14:05:00, so that nothing "
        "says what comes first"
    )


def _form_of(time: str) -> str:
    """`number`, `date`, or nothing."""
    with contextlib.suppress(ValueError):
        float(time)
        return "number"
    with contextlib.suppress(ValueError):
        zone = datetime.datetime.fromisoformat(time).tzinfo
        return "date" if zone is None else "date with a time zone"
    return ""


def _with_categories(
    sequences: tuple[npt.NDArray[np.int64], ...],
    categories: npt.NDArray[Any],
    first_lines: npt.NDArray[np.int64],
    item_of: npt.NDArray[np.int64],
    path: Path,
) -> Interactions:
    """One category an item.

    Raises:
        ValueError: an item has two.
    """
    names, of_line = np.unique(categories, return_inverse=True)
    category_of = of_line[first_lines].astype(np.int64)
    if len(torn := np.flatnonzero(category_of[item_of] != of_line)):
        line = torn[0]
        raise ValueError(
            f"{path.name}: one item has the categories {names[category_of[item_of[line]]]} and "
            f"{names[of_line[line]]}: give each item one"
        )
    return Interactions(sequences, category_of, len(names))

"""Clicks from a table with a line per shown advert: label, categories and numbers.

`columns` says which column is which, with a plus between the columns of a list:
`label=NAME,fields=A+B,numeric=C+D`. It also has `client=NAME` and `time=NAME` if the table has such
columns. `fields=*` are all columns not named otherwise. A `.tsv` file of 40 columns without names
is Criteo's as published: the label, I1 to I13 (numeric) and C1 to C26.

A number is also a category. A number up to 2 is rounded down. A larger number becomes the whole
part of its squared logarithm, as the winners of Criteo's contest had it, plus 2. Numbers that are
missing or not finite share a separate category.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from training.data.ids import ids_of_column, texts_of
from training.data.interaction_tables import times_of
from training.data.prf import Stream
from training.data.table_files import column_names, kind_of, places_of, read_table, told_columns

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]
_ONE, _MANY = ("label", "client", "time"), ("fields", "numeric")
_EXAMPLE = "label=click,client=device_ip,time=hour,fields=*"
CRITEO: Final = ["label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27))]
_OF_CRITEO = f"label=label,numeric={'+'.join(CRITEO[1:14])},fields={'+'.join(CRITEO[14:])}"


@dataclass(frozen=True, eq=False)
class Clicks:
    """Lines in time order.

    Attributes:
        labels: int64 `[n]` of 0 and 1.
        values: by field, its `n` values as text.
        clients: int64 `[n]`, whose each line is, from 0 on without gaps; None where no column says.
    """

    labels: Ids
    values: Mapping[str, npt.NDArray[np.object_]]
    clients: Ids | None


def load_clicks(path: Path, columns: str) -> Clicks:
    """Read a table.

    Args:
        path: `.csv` or `.tsv` with a line of names, `.parquet`, or Criteo's `.tsv`.
        columns: see above; may be empty for Criteo's.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or a column cannot be used; the message names it, and the columns.
    """
    as_published = not columns and kind_of(path) == ".tsv"
    there = CRITEO if as_published else column_names(path)
    roles = _roles(_OF_CRITEO if as_published else columns, there, path)
    texts = [*roles["fields"], *roles["client"]]
    others = [*roles["label"], *roles["time"], *roles["numeric"]]
    table, without_row = read_table(
        path, texts=texts, numbers=others, names=CRITEO if as_published else None
    )
    log.info("%s: %d lines. Left out: %d empty lines", path, len(table), without_row)
    (label,) = roles["label"]
    labels = _labels(table.column(label).to_numpy(), f"{path.name}: column {label}")
    order = np.arange(len(labels))
    for time in roles["time"]:
        order = np.argsort(times_of(table.column(time), path, time), kind="stable")
    values = {
        name: _texts(table.column(name), f"{path.name}: column {name}")[order]
        for name in roles["fields"]
    }
    for name in roles["numeric"]:
        values[name] = _bucket(table.column(name), f"{path.name}: column {name}")[order]
    clients = None
    for name in roles["client"]:
        where = f"{path.name}: column {name}"
        clients = ids_of_column(table.column(name), where, places_of(path)).of_line[order]
    return Clicks(labels[order], values, clients)


def synthetic_clicks(seed: int, *, lines: int, clients: int) -> Clicks:
    """Learnable lines: each value of three fields and a number moves the odds of a click."""
    stream = Stream(seed, "synthetic clicks")
    sizes = {"site": 1500, "advert": 3000, "hour": 24}
    logit = np.full(lines, -1.0)
    values: dict[str, npt.NDArray[np.object_]] = {}
    for name, size in sizes.items():
        drawn = stream.integers(size, lines)
        logit += stream.normal(size)[drawn]
        values[name] = drawn.astype(np.str_).astype(object)
    shown = stream.integers(50, lines)
    logit += shown / 50
    values["shown"] = _categories(shown.astype(np.float64))
    labels = (stream.uniform(lines) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    return Clicks(
        labels, values, np.unique(stream.integers(clients, lines), return_inverse=True)[1]
    )


def _roles(columns: str, there: Sequence[str], path: Path) -> dict[str, list[str]]:
    """Columns by role."""
    has = told_columns(path, there)
    if not columns:
        raise ValueError(
            f"{has}: say which columns hold which data, for example --columns {_EXAMPLE}"
        )
    roles: dict[str, list[str]] = {}
    for part in columns.split(","):
        role, equals, names = (word.strip() for word in part.partition("="))
        if role not in (*_ONE, *_MANY) or not equals or role in roles:
            raise ValueError(
                f"columns is {columns!r}, and torchfsl cannot read {part!r}: pass "
                f"{', '.join(f'{one}=NAME' for one in _ONE)} and "
                f"{', '.join(f'{many}=NAME+NAME' for many in _MANY)}, each at most once"
            )
        roles[role] = [name.strip() for name in names.split("+")]
    named = [name for names in roles.values() for name in names if name != "*"]
    if roles.get("fields") == ["*"]:
        roles["fields"] = [name for name in there if name not in named]
    found = [name for names in roles.values() for name in names]
    if missing := [name for name in found if name not in there]:
        raise ValueError(f"columns has {', '.join(missing)}, but {has}: correct these names")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ValueError(
            f"columns has {', '.join(twice)} twice, and each column has one role: write each name "
            "once"
        )
    if "label" not in roles or not (roles.get("fields") or roles.get("numeric")):
        raise ValueError(
            f"columns is {columns!r}, expected label=NAME and fields=NAME+NAME or "
            f"numeric=NAME+NAME: {has}"
        )
    if any(len(roles.get(role, [""])) > 1 for role in _ONE):
        raise ValueError(
            f"columns is {columns!r}: give only one column for each of {', '.join(_ONE)}"
        )
    return {role: roles.get(role, []) for role in (*_ONE, *_MANY)}


def _labels(values: npt.NDArray[Any], where: str) -> Ids:
    kinds = values.dtype.kind
    if kinds not in "biuf" or not np.isin(values, (0, 1)).all():
        raise ValueError(
            f"{where} is the label and has other values than 0 and 1: convert the labels to 0 and 1"
        )
    return values.astype(np.int64)


def _texts(column: Any, where: str) -> npt.NDArray[np.object_]:
    """Values as text; what is missing is empty. NumPy's own type of text drops NULs at an end."""
    coded = texts_of(column, where).fill_null("").dictionary_encode().combine_chunks()
    values = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    of_line: npt.NDArray[np.object_] = values[coded.indices.to_numpy(zero_copy_only=False)]
    return of_line


def _bucket(column: Any, where: str) -> npt.NDArray[np.object_]:
    """Numbers as categories."""
    try:
        numbers = np.asarray(column.cast("float64").to_numpy(), dtype=np.float64)
    except (ValueError, NotImplementedError) as error:  # pyarrow's are one of them
        raise ValueError(
            f"{where} has values that are not numbers ({error}): move it from numeric= to fields="
        ) from error
    return _categories(numbers)


def _categories(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.object_]:
    large = np.floor(np.log(np.maximum(numbers, 3.0)) ** 2)
    category = np.where(numbers > 2, large + 2, np.maximum(np.floor(numbers), -(2.0**62)))
    missing = ~np.isfinite(numbers)
    whole = np.where(missing, 0, category).astype(np.int64).astype(np.str_)
    return np.where(missing, "", whole).astype(object)

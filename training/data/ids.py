"""Ids of users, items and categories are text: `007`, `07` and `7` are three of them.

Ids that are all whole numbers as Python prints them are in order of value, others in that of text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

MISSING: Final = frozenset(
    {"nan", "NaN", "NAN", "-nan", "null", "NULL", "Null", "None", "NA", "N/A", "n/a", "#N/A",
     "<NA>", "NaT", "nil", "\\N"}
)  # fmt: skip
"""Words that programs write for a missing value."""

At = Callable[[int], str]

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*")


class Ids(NamedTuple):
    """One id a line.

    Attributes:
        names: each id once, in order.
        of_line: int64 `[lines]`, the place of each line's id in `names`.
    """

    names: list[str]
    of_line: npt.NDArray[np.int64]

    @property
    def num_alike(self) -> int:
        """Number of ids that look like another: blanks at an end, or Unicode in another form."""
        forms = {unicodedata.normalize("NFC", name.strip()) for name in self.names}
        return len(self.names) - len(forms)


def is_whole(text: str) -> bool:
    """Whether a text is a whole number as Python prints it: one text for each number."""
    return _WHOLE.fullmatch(text) is not None


def in_order(names: Iterable[str]) -> list[str]:
    """Distinct ids by value if all are whole numbers, else by text."""
    names = list(names)
    return sorted(names, key=int if all(map(is_whole, names)) else None)


def ids_of(texts: Iterable[str], where: str, at: At) -> Ids:
    """Number texts, one a line; arguments and errors as `numbered`."""
    seen: dict[str, int] = {}
    of_line = np.fromiter((seen.setdefault(text, len(seen)) for text in texts), np.int64)
    return numbered(list(seen), of_line, where, at)


def numbered(names: Sequence[str], of_line: npt.NDArray[np.int64], where: str, at: At) -> Ids:
    """Bring ids in order.

    Args:
        names: each id once.
        of_line: int64 `[lines]`, the place of each line's id in `names`.
        where: file and column, for messages.
        at: what messages call a place of `of_line`: `line` or `row` and its number in the file.

    Raises:
        ValueError: an id is empty, stands for a missing value, or holds a line break.
    """
    wrong = [place for place, name in enumerate(names) if _is_missing(name)]
    if wrong:
        lines = np.flatnonzero(np.isin(of_line, wrong))
        found = names[of_line[lines[0]]]
        raise ValueError(
            f"{where} is empty in {len(lines)} of {len(of_line)} lines, first in "
            f"{at(int(lines[0]))} with {found!r}: leave these lines out, or give them an id"
        )
    for place, name in enumerate(names):
        if "\n" in name or "\r" in name:
            line = np.flatnonzero(of_line == place)[0]
            raise ValueError(
                f"{where} has {name[:60]!r} in {at(int(line))}, a text of several lines: close "
                "the open quote there, or double the quotes inside the id"
            )
    ordered = in_order(names)
    places = {name: place for place, name in enumerate(ordered)}
    ranks = np.array([places[name] for name in names], dtype=np.int64)
    return Ids(ordered, ranks[of_line])


def texts_of(column: Any, where: str) -> Any:
    """A column of pyarrow as text, with nulls where a value is missing, also where it is NaN.

    Args:
        column: of a type whose values are single.
        where: file and column, for messages.

    Raises:
        ValueError: its values are lists or the like, or bytes that are not UTF-8.
    """
    import pyarrow
    from pyarrow import compute

    if pyarrow.types.is_floating(column.type):
        column = compute.if_else(compute.is_nan(column), None, column)
    try:
        return column.cast(pyarrow.string())
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid) as error:
        raise ValueError(
            f"{where} has type {column.type}, expected one number or text per line: store UTF-8 "
            "text or whole numbers"
        ) from error


def ids_of_column(column: Any, where: str, at: At) -> Ids:
    """Number a column of pyarrow; arguments and errors as `numbered` and `texts_of`.

    Raises:
        ValueError: also if numbers are stored in floating point and are not whole, or so large
            that neighbours may have become one.
    """
    import pyarrow

    if pyarrow.types.is_floating(column.type):
        column = _whole_numbers(column, where, at)
    coded = texts_of(column, where).fill_null("").combine_chunks().dictionary_encode()
    of_line = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbered(coded.dictionary.to_pylist(), of_line, where, at)


def _whole_numbers(column: Any, where: str, at: At) -> Any:
    """Floats as whole numbers, NaN as null."""
    import pyarrow

    values = column.to_numpy()
    missing = np.isnan(values)
    wrong = ~missing & ~((np.trunc(values) == values) & (np.abs(values) < exact_below(values)))
    if wrong.any():
        line = np.flatnonzero(wrong)[0]
        raise ValueError(
            f"{where} has the floating-point number {values[line]} in {at(int(line))}, and "
            "different ids could become equal: store ids as text or whole numbers"
        )
    return pyarrow.chunked_array(
        [pyarrow.array(np.where(missing, 0, values).astype(np.int64), mask=missing)]
    )


def exact_below(values: npt.NDArray[np.floating[Any]]) -> float:
    """The magnitude below which neighbouring whole numbers differ in the type of an array."""
    return float(2 ** (np.finfo(values.dtype).nmant + 1))


def _is_missing(name: str) -> bool:
    return not name.strip() or name in MISSING

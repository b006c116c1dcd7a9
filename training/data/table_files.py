"""CSV, TSV and Parquet files as tables of pyarrow, after a look whether they are what they say."""

from __future__ import annotations

import codecs
import contextlib
import csv
import importlib
import itertools
import logging
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from training.data.ids import MISSING

log = logging.getLogger(__name__)

SUFFIXES: Final = (".csv", ".tsv", ".parquet")

csv.field_size_limit(2**31 - 1)  # of the process: fields of a table may be long

_BLOCK: Final = 1 << 24
_OTHER_FORMATS: Final = (
    (b"\x1f\x8b", "gzip", "gunzip -k"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"BZh", "bzip2", "bunzip2 -k"),
    (b"\xfd7zXZ", "xz", "unxz -k"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
"""How a file begins, what that is, and the command that unpacks it."""

_WIDE: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks; the longer ones first, since they begin with the shorter."""


def column_names(path: Path) -> list[str]:
    """Names of a table's columns.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not such a file, a name stands twice, or pyarrow is not there.
    """
    if kind_of(path) == ".parquet":
        names = list(_open(path).schema_arrow.names)
    else:
        count_lines(path)  # a header that is not UTF-8 has no names
        names = list(_open(path).schema.names)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{path} has several columns named {', '.join(twice)}: give each column another name"
        )
    return names


def told_columns(path: Path, names: Sequence[str]) -> str:
    """The columns of a file in words, and which names have blanks at an end."""
    padded = ", ".join(repr(name) for name in names if name != name.strip())
    return f"{path.name} has the columns {', '.join(names)}" + (
        f" ({padded} with spaces, which the file's first line must not have)" if padded else ""
    )


def read_table(
    path: Path,
    *,
    texts: Sequence[str],
    numbers: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> tuple[Any, int]:
    """Columns of a table, by pyarrow, and the number of lines of the file without a row in it.

    In a CSV file `"` quotes; a quoted field may span lines. In a TSV file `"` is a character as
    others.

    Args:
        path: of a `.csv` or `.tsv` file with a line of names, or a `.parquet` file.
        texts: columns that are text in a text file, whatever they look like.
        numbers: columns of numbers or times, in a text file of the type that fits all lines.
        names: of all columns of a text file that has no line of names.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not such a file, not UTF-8, without rows, a quote swallows lines, or pyarrow is
            not there.
    """
    wanted = list(dict.fromkeys([*texts, *numbers]))
    if kind_of(path) == ".parquet":
        file = _open(path, names, texts, wanted)
        try:
            return _with_rows(file.read(), path), 0
        except _arrow().ArrowInvalid as error:
            raise _unreadable(path, error) from error
    lines = count_lines(path)
    try:
        table = _open(path, names, texts, wanted).read_all()
    except _arrow().ArrowInvalid:  # a type that only the first block has, or a line is at fault
        try:
            table = _open(path, names, wanted, wanted).read_all()
        except _arrow().ArrowInvalid as error:
            raise _unreadable(path, error, names) from error
        for name in numbers:
            column = _as_numbers(table.column(name))
            table = table.set_column(table.schema.get_field_index(name), name, column)
    without_row = lines - len(_with_rows(table, path)) - (names is None)
    if without_row and kind_of(path) == ".csv":
        _check_quotes(path)
    return table, without_row


def _with_rows(table: Any, path: Path) -> Any:
    if not len(table):
        raise _without_rows(path)
    return table


def _without_rows(path: Path) -> ValueError:
    return ValueError(
        f"{path} has a line of column names and no rows: export the table with its rows"
    )


def _as_numbers(column: Any) -> Any:
    """Text as the first type that fits all values; as it is if none does."""
    arrow = _arrow()
    from pyarrow import compute

    values = compute.if_else(
        compute.is_in(column, arrow.array(["", *sorted(MISSING)])), None, column
    )
    for kind in (arrow.int64(), arrow.float64(), arrow.timestamp("ns")):
        try:
            return values.cast(kind)
        except arrow.ArrowInvalid:
            continue
    return column


def kind_of(path: Path) -> str:
    """The suffix in lower case, one of `SUFFIXES`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another one; the message says how to convert the file.
    """
    suffix, quoted = path.suffix.lower(), shlex.quote(str(path))
    if not path.is_file():
        raise FileNotFoundError(f"file not found: {path}. Correct the path")
    with path.open("rb") as file:
        head = file.read(8)
    for start, name, command in _OTHER_FORMATS:
        if head.startswith(start):
            raise ValueError(
                f"{path} is compressed ({name}), expected {', '.join(SUFFIXES)}: unpack it with "
                f"`{command} {quoted}`, or save a spreadsheet as CSV, and pass the new file"
            )
    if suffix in (".jsonl", ".ndjson", ".json"):
        raise ValueError(
            f"{path} is not a {', '.join(SUFFIXES)} file. Convert JSON lines with python -c "
            '"from pyarrow import json, parquet; '
            f"parquet.write_table(json.read_json({str(path)!r}), "
            f'{str(path.with_suffix(".parquet"))!r})"'
        )
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path} does not end in {', '.join(SUFFIXES)}: rename the file if it has one of "
            "these formats, or convert the table to one of them"
        )
    return suffix


def count_lines(path: Path) -> int:
    """Lines of a text file.

    Raises:
        ValueError: it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    ends, old_ends, last = 0, 0, b""
    with path.open("rb") as file:
        head = file.read(4)
        if wide := next((name for mark, name in _WIDE.items() if head.startswith(mark)), ""):
            raise ValueError(
                f"{path}, line 1: expected UTF-8, found {wide}. Convert the file: "
                f"{_conversion(path, wide)}"
            )
        file.seek(0)
        while block := file.read(_BLOCK):
            try:
                decoder.decode(block, final=len(block) < _BLOCK)
            except UnicodeDecodeError as error:
                line = ends + error.object[: error.start].count(b"\n") + 1
                raise ValueError(
                    f"{path}, line {line}: expected UTF-8, found the byte "
                    f"0x{error.object[error.start]:02x}. Convert the file: "
                    f"{_conversion(path, 'ISO-8859-1')} (replace ISO-8859-1 if the file has "
                    "another encoding)"
                ) from error
            ends += block.count(b"\n")
            old_ends += block.count(b"\r")
            last = block[-1:]
    return (ends or old_ends) + (last not in (b"", b"\n", b"\r"))


def places_of(path: Path) -> Callable[[int], str]:
    """A function that names the place of a row, numbered from 0, in messages."""
    if kind_of(path) == ".parquet":
        return "row {}".format

    def at(row: int) -> str:
        start, _ = next(itertools.islice(_rows(path), row + 1, None))
        return f"line {start}"

    return at


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a text file, that of names first, by the number of their first line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _tsv_rows(file) if path.suffix.lower() == ".tsv" else csv_rows(file)
        yield from ((start, fields) for start, fields in lines if fields)


def csv_rows(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Rows of a CSV file by the number of their first line; blank lines have no fields.

    Raises:
        csv.Error: a quote opens a field and text follows the quote that closes it.
    """
    rows, start = csv.reader(file, strict=True), 1
    for fields in rows:
        yield start, fields
        start = rows.line_num + 1


def _tsv_rows(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, 1):
        yield number, line.strip("\r\n").split("\t") if line.strip("\r\n") else []


def _conversion(path: Path, encoding: str) -> str:
    """The command that makes a UTF-8 file next to one of another encoding."""
    new = shlex.quote(str(path.with_name(f"utf8-{path.name}")))
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(path))} > {new}"


def _check_quotes(path: Path) -> None:
    """Find the quoted fields that span lines, and warn of them.

    Raises:
        ValueError: text follows the closing quote of such a field.
    """
    start, first, spanned = 1, 0, 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for _ in rows:
                if rows.line_num > start:
                    first = first or start
                    spanned += rows.line_num - start
                start = rows.line_num + 1
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {start}: a quote opens a field there and includes the lines that "
                "follow. Double each quote inside a quoted field, or save the table with tabs, "
                "as .tsv, where quotes are plain characters"
            ) from error
    if spanned:
        text = (
            "%s: %d lines belong to quoted fields of several lines, the first in line %d. If your "
            "fields have one line each, close the quote that is open there, or events are lost"
        )
        log.warning(text, path, spanned, first)


def _open(
    path: Path,
    names: Sequence[str] | None = None,
    texts: Sequence[str] = (),
    wanted: Sequence[str] = (),
) -> Any:
    """The opened file; of a text file with `wanted` columns alone, if any are named."""
    arrow, kind = _arrow(), kind_of(path)
    from pyarrow import csv as reader
    from pyarrow import parquet

    try:
        if kind == ".parquet":
            return parquet.ParquetFile(path)
        parsing = (
            reader.ParseOptions(delimiter="\t", quote_char=False)
            if kind == ".tsv"
            else reader.ParseOptions(newlines_in_values=True)
        )
        return reader.open_csv(
            path,
            read_options=reader.ReadOptions(column_names=names, block_size=1 << 26),
            parse_options=parsing,
            convert_options=reader.ConvertOptions(
                column_types=dict.fromkeys(texts, arrow.string()),
                include_columns=list(wanted),
                strings_can_be_null=False,
            ),
        )
    except arrow.ArrowInvalid as error:
        raise _unreadable(path, error, names) from error


def _unreadable(path: Path, error: Exception, names: Sequence[str] | None = None) -> ValueError:
    """What to say; of a text file the first line with another number of fields."""
    if path.suffix.lower() != ".parquet":
        with contextlib.suppress(csv.Error):
            width = 0 if names is None else len(names)
            first = start = 0
            for start, fields in _rows(path):
                first, width = first or start, width or len(fields)
                if len(fields) != width:
                    return ValueError(
                        f"{path}, line {start}: {len(fields)} fields, expected {width} fields as "
                        "in the lines before: correct the line, or leave it out"
                    )
            if names is None and first == start:
                return _without_rows(path)
    return ValueError(f"{path} cannot be read as {path.suffix[1:].lower()}: {error}")


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ValueError(
            "reading tables needs pyarrow: pip install 'torchfsl[training]'"
        ) from error

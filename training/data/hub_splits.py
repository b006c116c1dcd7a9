"""Data sets through `datasets`: the Hub's, and local folders as they are now.

Of a local folder `datasets` goes by the times of files, which copies keep: the cache used here goes
by their content. It takes the names of classes from one file and the numbers from all: files that
do not fit together are refused here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from training.data.errors import DataError

_SHOWN: Final = 5


def load_splits(source: str, *subset: str) -> Any:
    """What `datasets.load_dataset` gives of a Hub name, or of a folder's present content.

    Raises:
        DataError: the source is a file.
    """
    import datasets  # type: ignore[import-untyped]

    if Path(source).is_file():
        raise DataError(
            f"{source} is a file, expected a folder: pass --data with a folder of train.parquet "
            "and test.parquet, whose label column is a ClassLabel"
        )

    return datasets.load_dataset(source, *subset, cache_dir=_cache(source))


def _cache(source: str) -> str | None:
    """A cache of the folder's content alone; None for the usual one."""
    import datasets

    if not Path(source).is_dir():
        return None
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(path for path in Path(source).rglob("*") if path.is_file()):
        name = str(file.relative_to(source)).encode("utf-8", "surrogateescape")
        digest.update(len(name).to_bytes(8, "little") + name)
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return str(Path(datasets.config.HF_DATASETS_CACHE) / "torchfsl" / digest.hexdigest())


def check_class_names(source: str, column: str, names: Sequence[str]) -> None:
    """Compare every Parquet and Arrow file's own class names with those that `datasets` found.

    Args:
        source: a folder; names on the Hub are not looked at.
        column: of the label.
        names: of the classes, in order.

    Raises:
        DataError: a file has others; the message says which.
    """
    if not Path(source).is_dir():
        return
    for file in _files(source):
        own = _names_in(file, column)
        if own is not None and list(own) != list(names):
            raise DataError(
                f"{file}: the classes of column {column!r} differ from those of other files "
                f"({_difference(own, names)}). Encode the labels of all files alike: "
                f"train.class_encode_column({column!r}), other.cast_column({column!r}, "
                f"train.features[{column!r}])"
            )


def _files(source: str) -> Iterator[Path]:
    import datasets

    builder = datasets.load_dataset_builder(source)
    for files in (builder.config.data_files or {}).values():
        yield from (Path(file) for file in files if Path(file).is_file())


def _names_in(file: Path, column: str) -> list[str] | None:
    """A file's class names by number; None where it has none."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    if file.suffix == ".parquet":
        schema = parquet.read_schema(file)
    elif file.suffix == ".arrow":
        schema = pyarrow.ipc.open_stream(file).schema
    else:
        return None
    feature = datasets.Features.from_arrow_schema(schema).get(column)
    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def _difference(own: Sequence[str], names: Sequence[str]) -> str:
    known, others = set(own), set(names)
    alone = {
        "only this file has": [name for name in own if name not in others],
        "only other files have": [name for name in names if name not in known],
    }
    parts = [
        f"{who} {', '.join(map(repr, more[:_SHOWN]))}{' and more' * (len(more) > _SHOWN)}"
        for who, more in alone.items()
        if more
    ]
    place = next(
        (n for n, (one, other) in enumerate(zip(own, names, strict=False)) if one != other), None
    )
    if place is not None:
        parts.append(f"class {place} is {own[place]!r} here, and {names[place]!r} in other files")
    return "; ".join(parts)

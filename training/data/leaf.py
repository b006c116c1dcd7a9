"""FEMNIST and other image sets of LEAF: JSON files by writer, as its scripts write them.

A folder has `train/*.json` and `test/*.json`. Each file is an object with `users` (names),
`num_samples` (numbers, in the same order) and `user_data`: by name `x`, one list of
`height * width` numbers from 0 to 1 per picture, and `y`, the classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from training.data.errors import DataError
from training.data.tables import Images, LabelledData, Table

SIDE: Final = 28
CLASSES: Final = 62
"""Of FEMNIST: ten digits, and letters in both cases."""


def is_leaf(source: str) -> bool:
    """Whether a folder has LEAF's layout."""
    return any(Path(source).glob("train/*.json"))


def load_leaf(source: str, *, classes: int = CLASSES) -> LabelledData[Images]:
    """Both splits, `uint8[n, 1, 28, 28]`, with the writer of each example.

    Writers are numbered in the order of their names, over both splits together.

    Args:
        source: the folder.
        classes: number of classes.

    Raises:
        DataError: a file is missing or malformed.
    """
    raw = {split: _read(Path(source) / split) for split in ("train", "test")}
    names = sorted({name for users in raw.values() for name in users})
    number = {name: place for place, name in enumerate(names)}
    train, test = (_table(users, number, classes, source) for users in raw.values())
    return LabelledData(train, test, classes)


def _read(folder: Path) -> dict[str, Any]:
    """By writer `x` and `y` of all files of a split."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
            users, data = whole["users"], whole["user_data"]
            found.update((name, data[name]) for name in users)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is not a LEAF file ({type(error).__name__}: {error}): expected JSON with "
                "users and user_data"
            ) from error
    if not found:
        raise DataError(
            f"{folder} does not have a JSON file with a writer: pass --data with LEAF's data folder"
        )
    return found


def _table(
    users: dict[str, Any], number: dict[str, int], classes: int, source: str
) -> Table[Images]:
    pixels, labels, writers = [], [], []
    for name, own in users.items():
        try:
            x = np.asarray(own["x"], dtype=np.float64)
            y = np.asarray(own["y"], dtype=np.int64)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"writer {name!r} in {source}: expected numbers in x and y, got another value "
                f"({type(error).__name__}: {error})"
            ) from error
        if x.shape != (len(y), SIDE * SIDE):
            raise DataError(
                f"writer {name!r} in {source}: x has shape {x.shape}, expected {SIDE * SIDE} "
                f"numbers for each of the {len(y)} labels in y: leave this writer out"
            )
        if not ((x >= 0) & (x <= 1)).all() or (len(y) and not 0 <= y.min() <= y.max() < classes):
            raise DataError(
                f"writer {name!r} in {source}: x has a number outside 0 to 1, or y a class outside "
                f"0 to {classes - 1}: leave this writer out"
            )
        pixels.append(np.rint(255 * x).astype(np.uint8).reshape(-1, 1, SIDE, SIDE))
        labels.append(y)
        writers.append(np.full(len(y), number[name]))
    return Table(np.concatenate(pixels), np.concatenate(labels), np.concatenate(writers))

"""Labelled images and sentences through `datasets`: a local folder or a Hub name, one call.

Columns are found by feature type, so names do not matter: the first `Image` or string column is
the input, the first `ClassLabel` column (or the one named) the label. Pictures become one array of
8 bits a channel; what that would cut is refused.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from training.data.errors import DataError
from training.data.hub_splits import check_class_names, load_splits
from training.data.prf import Stream

if TYPE_CHECKING:
    import datasets  # type: ignore[import-untyped]


import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]
Inputs = TypeVar("Inputs")
PADDING, UNKNOWN = 0, 1
"""Word ids that do not stand for a word of the training sentences."""


@dataclass(frozen=True, eq=False)
class Table(Generic[Inputs]):
    """One split: raw inputs (strings, or one array of images) in order, and their labels.

    Attributes:
        writers: int64 `[n]`, a number for whose hand each example is by; None if unknown.
    """

    inputs: Inputs
    labels: Labels
    writers: Labels | None = None


@dataclass(frozen=True, eq=False)
class LabelledData(Generic[Inputs]):
    """A data set in two splits.

    Attributes:
        train: training split.
        test: test split (the validation split where there is no test).
        num_classes: from the label's feature type.
    """

    train: Table[Inputs]
    test: Table[Inputs]
    num_classes: int


def for_validation(data: LabelledData[Inputs], stream: Stream) -> LabelledData[Inputs]:
    """A tenth of the training split in place of the test split, to choose settings on.

    Args:
        data: is left as it is; its test split is not looked at.
        stream: draws which examples are held out.

    Raises:
        DataError: there are fewer than ten training examples.
    """
    total = len(data.train.labels)
    if total < 10:
        raise DataError(
            f'{total} training examples are too few to hold out a tenth: set evaluate to "test"'
        )
    order = stream.permutation(total)
    held_out, left = np.sort(order[: total // 10]), np.sort(order[total // 10 :])
    return LabelledData(_rows(data.train, left), _rows(data.train, held_out), data.num_classes)


def _rows(table: Table[Inputs], positions: Labels) -> Table[Inputs]:
    raw: Any = table.inputs
    chosen: Any = [raw[p] for p in positions] if isinstance(raw, list) else raw[positions]
    writers = None if table.writers is None else table.writers[positions]
    return Table(chosen, table.labels[positions], writers)


def load_images(source: str, *, label: str | None = None) -> LabelledData[Images]:
    """Images as one array `uint8[n, channels, height, width]` a split, all of one size.

    Args:
        source: a folder, or a name on the Hugging Face Hub.
        label: name of the label column; None takes the first `ClassLabel`.

    Raises:
        DataError: the source cannot be loaded or has no such columns.
    """
    import datasets

    splits, column, target = _open(source, datasets.Image, label)
    classes = splits[0].features[target].num_classes
    train, test = (
        Table(
            decode_pictures(
                split.select_columns(column).cast_column(column, datasets.Image(decode=False)),
                column,
                _where(source, split),
            ),
            _labels(split, target, classes, source),
        )
        for split in splits
    )
    return LabelledData(train, test, classes)


def load_sentences(source: str, *, label: str | None = None) -> LabelledData[list[str]]:
    """Sentences as strings; arguments and errors as `load_images`."""
    splits, column, target = _open(source, str, label)
    classes = splits[0].features[target].num_classes
    train, test = (
        Table(_sentences(split, column, source), _labels(split, target, classes, source))
        for split in splits
    )
    return LabelledData(train, test, classes)


def tokenise(text: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?|[^\sa-z0-9]", text.lower())


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Word ids of a public word list: 0 padding, 1 unknown, then words by falling frequency."""

    ids: dict[str, int]

    @classmethod
    def build(cls, sentences: Sequence[str]) -> Vocabulary:
        """From training sentences; equal counts in alphabetical order."""
        counts = Counter(word for sentence in sentences for word in tokenise(sentence))
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls({word: number + 2 for number, word in enumerate(words)})

    def __len__(self) -> int:
        return len(self.ids) + 2

    def encode(self, sentences: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Each sentence as int64 word ids."""
        return [
            np.array([self.ids.get(w, UNKNOWN) for w in tokenise(s)] or [UNKNOWN], dtype=np.int64)
            for s in sentences
        ]


def _open(
    source: str, kind: type, label: str | None
) -> tuple[tuple[datasets.Dataset, datasets.Dataset], str, str]:
    """Both splits, the input column and the label column."""
    import datasets
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    try:
        loaded = load_splits(source)
    except (OSError, ValueError, DatasetsError) as error:  # the Hub's errors are OSErrors
        where = "" if Path(source).is_dir() else ", which is no folder, from the Hugging Face Hub"
        raise DataError(
            f"cannot load {source!r}{where}: {_first_line(error)}. Pass --data with a local "
            "folder of the data set's parquet files, the name of a data set on the Hub that this "
            "machine can reach, or 'synthetic'"
        ) from error
    if "train" not in loaded or not ({"test", "validation"} & set(loaded)):
        raise DataError(
            f"{source!r}: expected the splits train and test, got {', '.join(sorted(loaded))}: "
            "save both splits"
        )
    splits = (loaded["train"], loaded["test" if "test" in loaded else "validation"])
    features = splits[0].features
    inputs = [name for name, feature in features.items() if _is_input(feature, kind)]
    labels = [
        name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)
    ]
    if label is not None:
        labels = _named(source, label, labels)
    if not inputs or not labels:
        raise DataError(
            f"{source!r}: expected a column of type {'string' if kind is str else 'Image'} and a "
            "column of type ClassLabel"
            + (f" named {label!r}" if label else "")
            + f", got {dict(features)}: store labels as ClassLabel with "
            "train.class_encode_column(NAME) and test.cast_column(NAME, train.features[NAME])"
        )
    for kind_of, names in (("input", inputs), ("label", labels)):
        if len(names) > 1:
            others = ", ".join(map(repr, names[1:]))
            text = "%s: torchfsl reads the column %r as %s and does not read %s"
            log.warning(text, source, names[0], kind_of, others)
    check_class_names(source, labels[0], features[labels[0]].names)
    return splits, inputs[0], labels[0]


def _named(source: str, label: str, labels: list[str]) -> list[str]:
    """Of the columns of labels the one with this name, or none if there are no such columns.

    Raises:
        DataError: there are others only.
    """
    if labels and label not in labels:
        raise DataError(
            f"{source!r}: {label!r} is not a column of type ClassLabel: name one of "
            f"{', '.join(labels)}, or store labels with train.class_encode_column(NAME) and "
            "test.cast_column(NAME, train.features[NAME])"
        )
    return [name for name in labels if name == label]


def _where(source: str, split: datasets.Dataset) -> str:
    return f"{source!r}, split {split.split}"


def _sentences(split: datasets.Dataset, column: str, source: str) -> list[str]:
    sentences = list(split[column])
    if None in sentences:
        raise DataError(
            f"{_where(source, split)}, row {sentences.index(None)}: column {column!r} is empty: "
            "leave such rows out"
        )
    return sentences


def _labels(split: datasets.Dataset, column: str, classes: int, source: str) -> Labels:
    """Labels of a split, each in [0, classes).

    Raises:
        DataError: a row has none, which data sets write as null or -1.
    """
    found = split[column]
    labels = np.array([-1 if one is None else one for one in found], dtype=np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(
            f"{_where(source, split)}: column {column!r} has no label in {len(wrong)} of "
            f"{len(labels)} rows, first in row {wrong[0]}: {found[int(wrong[0])]}. Replace the "
            f"split by split.filter(lambda row: row[{column!r}] in range({classes})), or save the "
            "data without this split"
        )
    return labels


def _is_input(feature: Any, kind: type) -> bool:
    if kind is str:
        return getattr(feature, "dtype", None) in ("string", "large_string")
    return isinstance(feature, kind)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


_AS_IT_IS: Final = ("L", "RGB")
_AS_GREY: Final = ("1",)
_WITH_ALPHA: Final = ("LA", "PA", "RGBA", "La", "RGBa")
_DEEP: Final = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def decode_pictures(rows: Iterable[dict[str, Any]], column: str, where: str) -> npt.NDArray[Any]:
    """Decode the pictures of a split.

    Pictures of one bit become grey values 0 and 255, palettes become colours, and an alpha channel
    without transparency is left out. A picture is turned as its EXIF or XMP data says.

    Args:
        rows: of which `column` holds `bytes` or `path`.
        column: name of the column.
        where: data set and split, for messages.

    Returns:
        uint8 `[n, channels, height, width]`.

    Raises:
        DataError: a picture is missing, broken, of more than 8 bits a channel, transparent, of
            other colours than grey and RGB, moving, or of another shape than the first.
    """
    from PIL import Image

    arrays: list[npt.NDArray[np.uint8]] = []
    for number, row in enumerate(rows):
        picture, at = row[column], f"{where}, row {number}: column {column!r}"
        if picture is None or not (picture["bytes"] or picture["path"]):
            raise DataError(f"{at} has no picture: leave the row out")
        source = io.BytesIO(picture["bytes"]) if picture["bytes"] else picture["path"]
        try:
            with Image.open(source) as opened:
                array = _pixels(opened, at)
        except DataError:
            raise
        except Exception as error:  # what a decoder raises on damaged bytes is its own
            raise DataError(f"{at} has no readable picture ({error}): leave the row out") from error
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                f"{where}: column {column!r} has images of different shapes: row 0 has the shape "
                f"{arrays[0].shape}, row {number} {array.shape}. Resize or convert the images "
                "to one shape"
            )
        arrays.append(array)
    pixels = np.stack(arrays)
    return np.ascontiguousarray(
        pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    )


def _pixels(image: Image, at: str) -> npt.NDArray[np.uint8]:
    """One picture, `[height, width]` grey or `[height, width, 3]` colours."""
    from PIL import ImageOps

    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise DataError(f"{at} has {frames} pictures in one file: keep one picture")
    tiles: list[Any] = getattr(image, "tile", [])  # how the file stores it, such as RGB;16B
    if image.mode in _DEEP or any(";16" in str(tile[3]) for tile in tiles):
        raise DataError(
            f"{at} has more than 8 bits per channel (mode {image.mode}): scale the picture to 8 "
            "bits, for 16 bits with Image.fromarray((np.asarray(picture) // 257).astype('uint8'))"
        )
    image = ImageOps.exif_transpose(image)  # also where XMP or a raw profile says so
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        _refuse_transparent(image, at)
        return np.asarray(image.convert("L" if image.mode in ("L", "LA", "La") else "RGB"))
    if image.mode in _AS_GREY:
        return np.asarray(image.convert("L"))
    if image.mode in _AS_IT_IS:
        return np.asarray(image)
    if image.mode == "P":
        return np.asarray(image.convert("RGB"))
    raise DataError(
        f"{at} has the mode {image.mode}, expected grey or RGB: convert the picture, for example "
        "with picture.convert('RGB'), which ignores colour profiles"
    )


def _refuse_transparent(image: Image, at: str) -> None:
    if np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise DataError(
            f"{at} is transparent in places, and the data has no background: add one with "
            "Image.alpha_composite(Image.new('RGBA', picture.size, 'white'), "
            "picture.convert('RGBA')).convert('RGB')"
        )

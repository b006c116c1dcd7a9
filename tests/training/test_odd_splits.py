"""Splits that do not fit together: refused with what differs, whatever `datasets` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from training.data.tables import load_sentences

datasets = pytest.importorskip("datasets", reason="needs the training extra")


def rows(texts: list[str], labels: list[Any], names: list[str] | None = None) -> Any:
    label = datasets.Value("string") if names is None else datasets.ClassLabel(names=names)
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)


def stored(folder: Path, **splits: Any) -> str:
    for name, split in splits.items():
        split.to_parquet(str(folder / f"{name.replace('_', '-')}.parquet"))
    return str(folder)


TRAIN = rows(["a", "b", "c"], [0, 1, 2], ["neg", "neu", "pos"])
OTHER_NAMES = [
    (["neu", "pos"], r"they alone have 'neg'; class 0 is 'neu' there, 'neg' in the others"),
    (["neu", "neg", "pos"], "class 0 is 'neu' there, 'neg' in the others"),
    (
        ["neg", "neu", "pos", "odd"],
        "numbers 4 classes, other files of the data set 3: it alone has",
    ),
    (["neg", "neu"], "they alone have 'pos'"),
]


@pytest.mark.parametrize(("names", "said"), OTHER_NAMES)
@pytest.mark.parametrize("place", ["test", "shard"])
def test_files_that_number_other_classes_are_refused(
    place: str, names: list[str], said: str, tmp_path: Path
) -> None:
    other = rows(["a", "b"], [0, 1], names)
    if place == "test":
        stored(tmp_path, train=TRAIN, test=other)
    else:
        stored(tmp_path, train_0=TRAIN, train_1=other, test=TRAIN)
    with pytest.raises(ValueError, match=said) as told:
        load_sentences(str(tmp_path))
    assert ("test" if place == "test" else "train-1") + ".parquet" in str(told.value)


def test_the_remedy_for_other_classes_numbers_all_files_alike(tmp_path: Path) -> None:
    label = datasets.ClassLabel(names=["neg", "neu", "pos"])
    splits = {
        "train": rows(["a", "b", "c"], ["neg", "neu", "pos"]).cast_column("label", label),
        "test": rows(["c", "b"], ["pos", "neu"]).cast_column("label", label),
    }
    data = load_sentences(stored(tmp_path, **splits))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 2], [2, 1])

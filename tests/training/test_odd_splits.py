"""Splits that do not fit together: refused with what differs, whatever `datasets` makes of them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.config import merge
from training.data.tables import load_sentences
from training.presets import PRESETS
from training.privhfl.settings import Settings
from training.privhfl.tasks import load_population
from training.section_checks import ConfigError
from training.sections import Partition
from training.tasks.build import build_task

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
    (
        ["neu", "pos"],
        "only other files have 'neg'; class 0 is 'neu' here, and 'neg' in other files",
    ),
    (["neu", "neg", "pos"], "class 0 is 'neu' here, and 'neg' in other files"),
    (
        ["neg", "neu", "pos", "odd"],
        "differ from those of other files .only this file has",
    ),
    (["neg", "neu"], "only other files have 'pos'"),
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


@pytest.mark.parametrize("text", ["string", "large_string"])
def test_labels_as_text_are_refused_and_the_remedy_numbers_all_files_alike(
    text: str, tmp_path: Path
) -> None:
    train, test = rows(["a", "b", "c"], ["neg", "neu", "pos"]), rows(["c", "b"], ["pos", "neu"])
    train, test = (
        split.cast_column("text", datasets.Value(text)).cast_column("label", datasets.Value(text))
        for split in (train, test)
    )
    with pytest.raises(
        ValueError, match=r"and a column of type ClassLabel.* store labels .*class_encode_column"
    ):
        load_sentences(stored(tmp_path, train=train, test=test))
    train = train.class_encode_column("label")
    test = test.cast_column("label", train.features["label"])
    data = load_sentences(stored(tmp_path, train=train, test=test))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 2], [2, 1])
    assert data.train.inputs == ["a", "b", "c"]


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text,label\na,b\n")
    with pytest.raises(
        ValueError, match=r"x\.csv is a file, expected a folder: pass --data with a folder"
    ):
        load_sentences(str(tmp_path / "x.csv"))


def test_a_folder_of_new_content_and_old_times_is_read_anew(tmp_path: Path) -> None:
    for texts in (["old"] * 3, ["new"] * 3):
        source = stored(
            tmp_path, train=rows(texts, [0] * 3, ["a"]), test=rows(texts, [0] * 3, ["a"])
        )
        for file in tmp_path.iterdir():
            os.utime(file, (0, 0))
        assert load_sentences(source).train.inputs == texts


def pictures(size: tuple[int, int], classes: int = 10) -> Any:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(np.zeros(size[::-1], np.uint8)).save(out, "png")
    shot = {"bytes": out.getvalue(), "path": None}
    features = {"shot": datasets.Image(), "label": datasets.ClassLabel(num_classes=classes)}
    return datasets.Dataset.from_dict(
        {"shot": [shot] * 12, "label": [n % classes for n in range(12)]},
        features=datasets.Features(features),
    )


@pytest.mark.parametrize("size", [(30, 30), (27, 28), (32, 32)])
def test_pictures_of_evaluations_of_another_size_are_refused(
    size: tuple[int, int], tmp_path: Path
) -> None:
    source = stored(tmp_path, train=pictures((28, 28)), test=pictures(size))
    said = rf"shape \(1, 28, 28\) .* has \(1, {size[1]}, {size[0]}\) for evaluations"
    with pytest.raises(ConfigError, match=said):
        build_task(merge(PRESETS["cnn-mnist"], {"data": source, "partition": {"clients": 4}}))
    with pytest.raises(ConfigError, match=said):
        load_population(Settings(task="mnist", data=source, clients=3, private=3))


def test_more_classes_than_the_models_of_privhfl_have_are_refused(tmp_path: Path) -> None:
    many = pictures((28, 28), classes=12)
    with pytest.raises(ConfigError, match=r"mnist have 10 classes, but .* has 12 classes"):
        load_population(
            Settings(
                task="mnist", data=stored(tmp_path, train=many, test=many), clients=3, private=3
            )
        )


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_concentrations_that_have_no_mixture_are_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match=r"partition\.alpha is .*: choose a number above 0"):
        Partition(scheme="dirichlet", alpha=alpha)
    if alpha:
        with pytest.raises(ConfigError, match=r"choose a finite alpha"):
            Settings(task="mnist", data="synthetic", alpha=alpha)
    with pytest.raises(ConfigError, match=r"finite temperature above 0"):
        Settings(task="mnist", data="synthetic", temperature=alpha)

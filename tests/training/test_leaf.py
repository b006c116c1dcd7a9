"""FEMNIST's public layout, and the made federated set that stands in for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data.errors import DataError
from training.data.leaf import CLASSES, SIDE, is_leaf, load_leaf
from training.data.synthetic import synthetic_writers
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Partition
from training.tasks.build import build_task


def written(folder: Path, split: str, number: int, counts: dict[str, int]) -> Path:
    """A file of LEAF: writers with so many pictures each."""
    draw = np.random.default_rng(number)
    data = {
        name: {
            "x": draw.integers(0, 256, size=(count, SIDE * SIDE)).astype(float).__truediv__(255)
            .tolist(),
            "y": draw.integers(0, CLASSES, size=count).tolist(),
        }
        for name, count in counts.items()
    }  # fmt: skip
    path = folder / split / f"all_data_{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"users": list(counts), "num_samples": list(counts.values()), "user_data": data}
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    """Five writers in two files, the same ones in the test."""
    written(tmp_path, "train", 0, {"f0001_41": 4, "f0000_14": 3})
    written(tmp_path, "train", 1, {"f0003_02": 5, "f0004_07": 2, "f0002_00": 6})
    written(tmp_path, "test", 2, {"f0000_14": 1, "f0004_07": 2})
    return tmp_path


def test_writers_are_numbered_by_name_over_all_files(femnist: Path) -> None:
    assert is_leaf(str(femnist))
    assert not is_leaf(str(femnist / "train"))
    data = load_leaf(str(femnist))
    assert data.num_classes == CLASSES
    assert data.train.inputs.shape == (20, 1, SIDE, SIDE)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.writers is not None
    assert np.bincount(data.train.writers).tolist() == [3, 4, 6, 5, 2]
    assert data.test.writers is not None
    assert np.bincount(data.test.writers, minlength=5).tolist() == [1, 0, 0, 0, 2]
    raw = json.loads((femnist / "train" / "all_data_0.json").read_text())["user_data"]["f0000_14"]
    own = data.train.inputs[data.train.writers == 0].reshape(3, -1)
    assert np.array_equal(own, np.rint(255 * np.array(raw["x"])))
    assert data.train.labels[data.train.writers == 0].tolist() == raw["y"]


def _without(name: str) -> Any:
    def change(whole: dict[str, Any]) -> None:
        del whole[name]

    return change


def _set(key: str, value: Any) -> Any:
    def change(whole: dict[str, Any]) -> None:
        whole["user_data"]["f0001_41"][key] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without("users"), _without("user_data"), _set("y", [0]), _set("y", [62] * 4),
        _set("y", [-1] * 4), _set("x", [[0.0] * 783] * 4), _set("x", [[1.5] * 784] * 4),
        _set("x", "none"), _set("x", [[float("nan")] * 784] * 4),
    ],
)  # fmt: skip
def test_malformed_files_are_refused(femnist: Path, change: Any) -> None:
    path = femnist / "train" / "all_data_0.json"
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError):
        load_leaf(str(femnist))


def test_a_folder_without_a_test_split_is_refused(femnist: Path) -> None:
    (femnist / "test" / "all_data_2.json").unlink()
    with pytest.raises(DataError, match="does not have a JSON file"):
        load_leaf(str(femnist))


def config(data: str, clients: int) -> Any:
    return dataclasses.replace(
        PRESETS["mlp-mnist-widths"],
        data=data,
        clients_per_round=3,
        partition=Partition(clients=clients, scheme="writers"),
    )


def test_each_client_is_one_writer(femnist: Path) -> None:
    assert build_task(config(str(femnist), 5)).num_clients == 5
    with pytest.raises(ConfigError, match=r"5 writers, fewer than partition\.clients = 6"):
        build_task(config(str(femnist), 6))
    with pytest.raises(ConfigError, match="0 writers"):
        build_task(dataclasses.replace(config("synthetic", 4), preset="textcnn"))


def test_the_made_set_has_writers_of_unlike_hands_and_few_labels() -> None:
    sizes = {"writers": 20, "train": 2000, "test": 200, "classes": 10}
    data = synthetic_writers(3, shape=(1, SIDE, SIDE), **sizes)  # type: ignore[arg-type]
    assert data.train.writers is not None
    assert set(data.train.writers) == set(range(20))
    means = [data.train.inputs[data.train.writers == writer].mean() for writer in range(20)]
    assert np.std(means) > 5
    for writer in range(20):
        assert len(set(data.train.labels[data.train.writers == writer])) <= 3
    assert build_task(config("synthetic", 20)).num_clients == 20

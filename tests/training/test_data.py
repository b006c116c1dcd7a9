from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data import partition
from training.data.errors import DataError
from training.data.interactions import (
    draw_untouched,
    load_interactions,
    rarest_attribute,
    synthetic_interactions,
)
from training.data.prf import Stream
from training.data.synthetic import synthetic_images, synthetic_sentences
from training.data.tables import (
    LabelledData,
    Table,
    Vocabulary,
    for_validation,
    load_images,
    load_sentences,
    tokenise,
)
from training.presets import PRESETS
from training.tasks.build import build_task
from training.tasks.classification import ClassificationTask, ImageExamples, SentenceExamples

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def write_folder(folder: Path, lines: list[str], attributes: dict[str, list[int]]) -> Path:
    with gzip.open(folder / "sequences.txt.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    with gzip.open(folder / "item2attributes.json.gz", "wt") as file:
        json.dump(attributes, file)
    return folder


def test_interactions_build_their_vocabularies_from_the_files(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        ["9 30 10 20", "4 10 20", "7 20 10 30 40"],
        {"10": [5, 6], "20": [5], "30": [5, 8], "99": [6, 6]},
    )
    data = load_interactions(folder)
    assert [sequence.tolist() for sequence in data.sequences] == [[2, 0, 1], [1, 0, 2, 3]]
    # Item 10 has the rare 6, 20 only 5, 30 the rare 8, 40 nothing: categories [-1, 5, 6, 8].
    assert data.category_of.tolist() == [2, 1, 3, 0]
    assert data.num_categories == 4
    assert data.popularity().tolist() == [2, 1, 2, 0]


def test_the_rarest_attribute_is_the_smaller_one_on_a_tie() -> None:
    assert rarest_attribute([1, 2], {1: [4, 3], 2: [4, 3]}) == [3, 3]


def test_missing_or_odd_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"sequences\.txt\.gz"):
        load_interactions(tmp_path)
    write_folder(tmp_path, ["1 two 3 4"], {})
    with pytest.raises(ValueError, match="whole numbers"):
        load_interactions(tmp_path)
    write_folder(tmp_path, ["1 2 3"], {})
    with pytest.raises(ValueError, match="each user has fewer than 3 items"):
        load_interactions(tmp_path)


def test_untouched_items_are_uniform_over_the_complement() -> None:
    touched = np.array([0, 3, 4, 9])
    drawn = draw_untouched(touched, 10, 60_000, Stream(0, "untouched"))
    counts = np.bincount(drawn, minlength=10)
    assert counts[touched].sum() == 0
    assert np.abs(np.delete(counts, touched) - 10_000).max() < 500


def test_synthetic_interactions_are_seeded_and_follow_tastes() -> None:
    def make(seed: int):
        return synthetic_interactions(seed, users=50, items=90, categories=10, length=(5, 9))

    data, again, other = make(1), make(1), make(2)
    assert all(np.array_equal(a, b) for a, b in zip(data.sequences, again.sequences, strict=True))
    assert not all(map(np.array_equal, data.sequences, other.sequences))
    assert {len(sequence) for sequence in data.sequences} <= set(range(5, 10))
    common = [np.sort(np.bincount(data.category_of[s], minlength=10))[-2:].sum() / len(s)
              for s in data.sequences]  # fmt: skip
    assert np.mean(common) > 0.8


def test_tokens_are_words_and_marks() -> None:
    assert tokenise("Who's Mr. X-ray ?") == ["who's", "mr", ".", "x", "-", "ray", "?"]


def test_vocabulary_orders_words_by_frequency_then_alphabet() -> None:
    vocabulary = Vocabulary.build(["b a", "c b"])
    assert vocabulary.ids == {"b": 2, "a": 3, "c": 4}
    assert len(vocabulary) == 5
    assert [ids.tolist() for ids in vocabulary.encode(["a zzz", ""])] == [[3, 1], [1]]


def test_sentences_are_padded_to_the_longest_of_the_batch() -> None:
    examples = SentenceExamples([np.array([2]), np.array([3, 4]), np.array([5])], np.zeros(3, int))
    (words,) = examples.inputs(np.array([0, 1]), None)
    assert words.tolist() == [[2, 0], [3, 4]]


def test_images_are_standardised_one_by_one() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    pixels[2] = 7
    (values,) = ImageExamples(pixels, np.zeros(3, int)).inputs(np.arange(3), None)
    assert values.shape == (3, 1, 8, 8)
    np.testing.assert_allclose(values[:2].mean(dim=(1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(values[:2].std(dim=(1, 2, 3), correction=0), 1, atol=1e-4)
    assert not values[2].any()


def test_crops_are_random_in_training_and_central_in_evaluation() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8).repeat(20, axis=0)
    examples = ImageExamples(pixels, np.zeros(20, int), crop=4, flip=True)
    (central,) = examples.inputs(np.arange(20), None)
    assert (central == central[0]).all()
    (first,) = examples.inputs(np.arange(20), Stream(0, "crop"))
    (again,) = examples.inputs(np.arange(20), Stream(0, "crop"))
    assert first.shape == (20, 1, 4, 4)
    assert (first == again).all()
    assert not (first == first[0]).all()
    unaugmented = dataclasses.replace(examples, random_crop=False, flip=False)
    (still,) = unaugmented.inputs(np.arange(20), Stream(0, "crop"))
    assert (still == central).all()


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_partitions_give_every_sample_to_one_client(scheme: str) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 203)
    if scheme == "iid":
        parts = partition.iid(203, 10, Stream(0, "parts"))
    else:
        parts = partition.label_skewed(labels, 10, 0.3, Stream(0, "parts"))
    assert sorted(np.concatenate(parts).tolist()) == list(range(203))
    assert {len(part) for part in parts} == {20, 21}


def test_small_alpha_skews_labels() -> None:
    labels = np.repeat(np.arange(10), 100)

    def largest_share(alpha: float) -> float:
        parts = partition.label_skewed(labels, 20, alpha, Stream(0, "skew"))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > 0.5 > 0.25 > largest_share(100.0)


def test_two_labels_gives_every_client_two_pieces_of_the_sorted_labels() -> None:
    labels = np.tile(np.arange(10), 60)
    parts = partition.two_labels(labels, 20, Stream(0, "two"))
    assert sorted(np.concatenate(parts).tolist()) == list(range(600))
    assert {len(part) for part in parts} == {30}
    found = [len(set(labels[part])) for part in parts]
    assert max(found) == 2  # pieces of 15 end where labels of 60 do
    assert sum(count == 2 for count in found) > 10
    again = partition.two_labels(labels, 20, Stream(0, "two"))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = partition.two_labels(labels, 20, Stream(1, "two"))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_synthetic_tables_are_seeded() -> None:
    first = synthetic_sentences(3, train=20, test=10, classes=4)
    assert first.train.inputs == synthetic_sentences(3, train=20, test=10, classes=4).train.inputs
    images = synthetic_images(3, train=12, test=6, shape=(1, 28, 28), classes=10)
    assert images.train.inputs.shape == (12, 1, 28, 28)
    assert images.train.inputs.dtype == np.uint8
    assert images.test.labels.max() < 10


def test_columns_are_found_by_feature_type(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "extra": datasets.Value("int64"),
            "shot": datasets.Image(),
            "kind": datasets.ClassLabel(names=["cat", "dog", "eel"]),
            "detail": datasets.ClassLabel(names=["x", "y"]),
            "caption": datasets.Value("string"),
        }
    )
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    rows = {"extra": [1, 2], "shot": [picture, picture[::-1]], "kind": [2, 0], "detail": [0, 1],
            "caption": ["a eel", "a cat"]}  # fmt: skip
    for split in ("train", "test"):
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    images = load_images(str(tmp_path))
    assert np.array_equal(images.train.inputs[0], picture.transpose(2, 0, 1))
    assert (images.train.labels.tolist(), images.num_classes) == ([2, 0], 3)
    sentences = load_sentences(str(tmp_path), label="detail")
    assert sentences.test.inputs == ["a eel", "a cat"]
    assert (sentences.test.labels.tolist(), sentences.num_classes) == ([0, 1], 2)
    with pytest.raises(DataError, match="'nothing' is not a column of type ClassLabel"):
        load_images(str(tmp_path), label="nothing")


def test_an_unreachable_source_names_the_option(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match="--data"):
        load_images(str(tmp_path / "empty"))


@pytest.mark.parametrize("kind", ["sentences", "images"])
def test_validation_takes_a_tenth_of_the_training_split_and_never_the_test(kind: str) -> None:
    labels = np.arange(25)
    inputs: Any = [str(label) for label in labels]
    if kind == "images":
        inputs = labels.astype(np.uint8).reshape(25, 1, 1, 1)
    nobody: Any = None  # a look at the test split would fail
    data = LabelledData(Table(inputs, labels), nobody, 25)
    split = for_validation(data, Stream(3, "validation"))
    held_out, left = split.test.labels.tolist(), split.train.labels.tolist()
    assert (len(held_out), len(left)) == (2, 23)
    assert sorted(held_out + left) == labels.tolist()
    assert left == sorted(left)
    for table in (split.train, split.test):
        assert [int(raw if kind == "sentences" else raw.item()) for raw in table.inputs] == (
            table.labels.tolist()
        )
    others = {tuple(for_validation(data, Stream(s, "validation")).test.labels) for s in range(9)}
    assert len(others) > 1
    few = LabelledData(Table(inputs[:9], labels[:9]), nobody, 25)
    with pytest.raises(DataError, match="9 training examples are too few"):
        for_validation(few, Stream(3, "validation"))


@pytest.mark.parametrize("preset", ["textcnn", "cnn-mnist", "mlp-mnist-widths"])
def test_no_client_trains_on_what_validation_evaluates(preset: str) -> None:
    config = dataclasses.replace(PRESETS[preset], data="synthetic")
    usual = build_task(config)
    task = build_task(dataclasses.replace(config, evaluate="validation"))
    assert isinstance(usual, ClassificationTask)
    assert isinstance(task, ClassificationTask)
    size = len(usual.train.labels)
    assert len(task.test.labels) == size // 10
    assert sum(map(len, task.parts)) == len(task.train.labels) == size - size // 10
    counts = np.bincount(task.train.labels) + np.bincount(task.test.labels)
    assert counts.tolist() == np.bincount(usual.train.labels).tolist()
    again = build_task(dataclasses.replace(config, evaluate="validation"))
    assert isinstance(again, ClassificationTask)
    assert np.array_equal(task.test.labels, again.test.labels)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"real data is not at {DATA}")
def test_real_data_has_its_known_sizes() -> None:
    pytest.importorskip("datasets")
    beauty = load_interactions(DATA / "amazon-beauty")
    assert (beauty.num_users, beauty.num_items) == (22_363, 12_101)
    assert sum(map(len, beauty.sequences)) == 198_502
    trec = load_sentences(str(DATA / "trec"))
    assert (len(trec.train.labels), len(trec.test.labels), trec.num_classes) == (5452, 500, 6)

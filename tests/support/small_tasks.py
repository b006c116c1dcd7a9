"""Experiments of every preset, small enough for the portable backend."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

import models
from training.config import Aggregation, Config
from training.data import partition
from training.data.interactions import synthetic_interactions
from training.data.prf import Stream
from training.data.synthetic import synthetic_images, synthetic_sentences
from training.data.tables import Vocabulary
from training.federation import Federation, build
from training.presets import PRESETS
from training.row_list import frequent_rows
from training.sections import Recommendation, Rest, Sentences
from training.tasks.build import recommender
from training.tasks.classification import (
    ClassificationTask,
    ImageExamples,
    SentenceExamples,
)
from training.tasks.recommendation import RecommendationTask
from training.tasks.task import LocalPlan, Task

SMALL_PRESETS = ("din", "textcnn", "cnn-mnist", "cnn-cifar10")


def small_config(preset: str, aggregation: Aggregation, seed: int = 3) -> Config:
    """Few clients a round, blocks in place of scalars."""
    config = dataclasses.replace(
        PRESETS[preset],
        data="synthetic",
        rounds=3,
        clients_per_round=3 if preset == "din" else 2,
        eval_every=2,
        checkpoint_every=1,
        seed=seed,
        aggregation=aggregation,
        above_break_even="keep",
        recommendation=Recommendation(dim=4, history=4, negatives=1, rows_per_client=24),
        sentences=Sentences(dim=8, maps=4, rows=0.1),
        threads=1,
    )
    if preset.startswith("cnn"):
        config = dataclasses.replace(config, rest=Rest(policy="blocks", amount=0.01, block=512))
    return config


def small_task(config: Config) -> Task:
    """The preset's task on little data."""
    seed = config.seed
    if config.preset in ("din", "din-dp"):
        data = synthetic_interactions(seed, users=30, items=40, categories=5, length=(4, 8))
        task = RecommendationTask(
            data, config.recommendation, network=recommender(config), seed=seed
        )
        if (kept := frequent_rows(config, task.known, data.num_items)) is not None:
            task.keep_rows(kept)
        return task
    local = LocalPlan(batch_size=4, epochs=1, steps=2)
    if config.preset == "textcnn":
        sentences = synthetic_sentences(seed, train=60, test=20, classes=3)
        words = Vocabulary.build(sentences.train.inputs)
        parts = partition.iid(60, 4, Stream(seed, "partition"))
        return ClassificationTask(
            SentenceExamples(words.encode(sentences.train.inputs), sentences.train.labels),
            SentenceExamples(words.encode(sentences.test.inputs), sentences.test.labels),
            parts=parts,
            model=lambda: models.TextCNN(words=len(words), classes=3, dim=8, maps=4),
            local=local,
            seed=seed,
        )
    mnist = config.preset == "cnn-mnist"
    shape = (1, 28, 28) if mnist else (3, 32, 32)
    images = synthetic_images(seed, train=24, test=10, shape=shape, classes=10)
    crop = config.images.crop or None
    return ClassificationTask(
        ImageExamples(images.train.inputs, images.train.labels, crop, config.images.flip),
        ImageExamples(images.test.inputs, images.test.labels, crop),
        parts=partition.iid(24, 4, Stream(seed, "partition")),
        model=models.MnistCNN if mnist else models.CifarCNN,
        local=local,
        seed=seed,
    )


def small_federation(preset: str, aggregation: Aggregation) -> tuple[Config, Task, Federation]:
    """All parts of a small experiment."""
    config = small_config(preset, aggregation)
    task = small_task(config)
    return config, task, build(config, task)


def files_of(folder: Path) -> set[str]:
    """Names of the files in a run's folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def flat(state: dict[str, np.ndarray]) -> np.ndarray:
    """All values of a model, one after the other."""
    return np.concatenate([state[name].reshape(-1) for name in sorted(state)])

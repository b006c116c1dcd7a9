"""From settings to a task: which data, which clients, which model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import models
from models.hankel import in_blocks
from torchfsl.sesa import Sharded
from training.checkpoint import CheckpointFolder
from training.config import READS, Config
from training.data import partition
from training.data.click_tables import load_clicks, synthetic_clicks
from training.data.interaction_tables import load_table
from training.data.interactions import synthetic_interactions
from training.data.leaf import is_leaf, load_leaf
from training.data.prf import Stream
from training.data.rating_folders import load_folder
from training.data.synthetic import synthetic_images, synthetic_sentences, synthetic_writers
from training.data.table_files import SUFFIXES
from training.data.tables import (
    Inputs,
    LabelledData,
    Vocabulary,
    for_validation,
    load_images,
    load_sentences,
)
from training.data.text import Text, load_text, synthetic_text
from training.presets import PRESETS
from training.row_list import frequent_rows
from training.section_checks import ConfigError
from training.tasks.classification import (
    ClassificationTask,
    ImageExamples,
    SentenceExamples,
    ShardedTask,
    check_shape,
)
from training.tasks.clicks import ClicksTask
from training.tasks.language import LanguageTask
from training.tasks.own import own_task
from training.tasks.recommendation import RecommendationTask
from training.tasks.task import Ids, LocalPlan, Task
from training.tasks.widths import Widths

SYNTHETIC = "synthetic"


def build_task(config: Config) -> Task:
    """Load or make the data and set the task up.

    Raises:
        DataError, FileNotFoundError, ValueError: the data cannot be used.
        ConfigError: the settings do not fit the data.
    """
    task = _BUILDERS[config.preset](config)
    if config.clients_per_round > task.num_clients:
        raise ConfigError(
            f"clients_per_round is {config.clients_per_round}, but the data has only "
            f"{task.num_clients} clients: lower clients_per_round"
        )
    return task


def _recommender(config: Config) -> Task:
    settings = config.recommendation
    if config.data == SYNTHETIC:
        is_limited = config.privacy.min_separation > 1
        data = synthetic_interactions(
            config.seed,
            users=max(1000, config.clients_per_round * config.privacy.min_separation * is_limited),
            items=1000,
            categories=20,
            length=(5, 20),
        )
    elif Path(config.data).is_file() or Path(config.data).suffix.lower() in SUFFIXES:
        data = load_table(Path(config.data), settings.columns)
    else:
        data = load_folder(Path(config.data))
    stepping = config.local.optimizer != "gradient" and config.aggregation != "central"
    task = RecommendationTask(
        data,
        settings,
        network=recommender(config),
        seed=config.seed,
        evaluate=config.evaluate,
        steps=config.local.epochs if stepping else 1,
    )
    if (kept := frequent_rows(config, task.known, data.num_items)) is not None:
        task.keep_rows(kept)
    return task


def recommender(config: Config) -> Callable[..., nn.Module]:
    """The function that makes the preset's model from `items`, `categories` and `users`."""
    settings = config.recommendation
    kind = config.preset.partition("-")[0]
    chosen = {name: getattr(settings, name) for name in READS[kind] if name != "user_table"}
    return functools.partial(_NETWORKS[kind], **chosen)


_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "din": models.DIN,
    "mf": models.MatrixFactorisation,
    "ncf": models.NCF,
    "deepfm": models.DeepFM,
    "sasrec": models.SASRec,
}


def _clicks(config: Config) -> Task:
    settings = config.ctr
    if config.data == SYNTHETIC:
        data = synthetic_clicks(config.seed, lines=60_000, clients=settings.clients)
    else:
        data = load_clicks(Path(config.data), settings.columns)
    network = functools.partial(
        models.FieldDeepFM, dim=settings.dim, head=settings.head, dropout=settings.dropout
    )
    return ClicksTask(
        data,
        settings,
        network=network,
        local=_local(config),
        seed=config.seed,
        evaluate=config.evaluate,
    )


def _textcnn(config: Config) -> Task:
    settings = config.sentences
    if config.data == SYNTHETIC:
        data = synthetic_sentences(config.seed, train=1200, test=300, classes=6)
    else:
        data = load_sentences(config.data, label=settings.label or None)
    data = _splits(config, data)
    vocabulary = Vocabulary.build(data.train.inputs)
    model = functools.partial(
        models.TextCNN,
        words=len(vocabulary),
        classes=data.num_classes,
        dim=settings.dim,
        maps=settings.maps,
        dropout=settings.dropout,
    )
    return ClassificationTask(
        SentenceExamples(vocabulary.encode(data.train.inputs), data.train.labels),
        SentenceExamples(vocabulary.encode(data.test.inputs), data.test.labels),
        parts=_parts(config, data.train.labels),
        model=model,
        local=_local(config),
        seed=config.seed,
    )


def _language(config: Config) -> Task:
    most = config.language.vocabulary
    if config.data == SYNTHETIC:
        made_up = synthetic_text(config.seed, train=200_000, valid=8_000, test=8_000, most=most)
        return language_task(config, made_up)
    return language_task(config, load_text(config.data, most))


def language_task(config: Config, text: Text) -> LanguageTask:
    """The task of a preset of language models on a text."""
    settings = config.language
    network: Callable[..., nn.Module] = models.LSTMLanguageModel
    if config.preset == "transformer-wikitext2":
        network = functools.partial(models.TransformerLanguageModel, heads=settings.heads)
    model: Callable[[], nn.Module] = functools.partial(
        network,
        words=len(text.words),
        width=settings.width,
        layers=settings.layers,
        dropout=settings.dropout,
        block=settings.block,
        block_embedding=settings.block_embedding,
        decoder=settings.decoder,
    )
    if settings.start:
        model = functools.partial(_projected, model, Path(settings.start))
    return LanguageTask(
        text,
        clients=settings.clients,
        tokens=settings.tokens,
        valid_tokens=settings.valid_tokens,
        model=model,
        local=_local(config),
        seed=config.seed,
    )


def _projected(build: Callable[[], nn.Module], start: Path) -> nn.Module:
    """A model that begins as the nearest one to that of a finished run with whole matrices."""
    saved = CheckpointFolder(start / "checkpoint").load()
    if saved is None:
        raise ConfigError(
            f"language.start is {start}, expected the folder of a run with a checkpoint: choose "
            "the folder of a finished run"
        )
    model = build()
    whole = {name: torch.from_numpy(value) for name, value in saved.state.items()}
    try:
        model.load_state_dict(in_blocks(whole, model))
    except ValueError as error:
        raise ConfigError(f"language.start is {start}: {error}") from error
    return model


def _images(
    config: Config, network: Callable[..., nn.Module], shape: tuple[int, int, int]
) -> ClassificationTask:
    settings = config.images
    by_writer = config.partition.scheme == "writers"
    if config.data == SYNTHETIC and by_writer:
        sizes = {"writers": config.partition.clients, "train": 2000, "test": 400, "classes": 10}
        data = synthetic_writers(config.seed, shape=shape, **sizes)
    elif config.data == SYNTHETIC:
        data = synthetic_images(config.seed, train=2000, test=400, shape=shape, classes=10)
    elif is_leaf(config.data):
        data = load_leaf(config.data)
    else:
        data = load_images(config.data, label=settings.label or None)
    check_shape(data, shape, config.data, config.preset)
    data = _splits(config, data)
    crop = settings.crop or None
    train, test = (
        ImageExamples(
            np.asarray(table.inputs), table.labels, crop, settings.flip, settings.random_crop
        )
        for table in (data.train, data.test)
    )
    return ClassificationTask(
        train,
        test,
        parts=_written(config, data.train.writers)
        if by_writer
        else _parts(config, data.train.labels),
        model=functools.partial(network, classes=data.num_classes),
        local=_local(config),
        seed=config.seed,
    )


def _image_shards(
    config: Config, network: Callable[..., nn.Module], shape: tuple[int, int, int]
) -> Task:
    """The network in shards, clients of different widths."""
    settings = config.sesa

    def sharded(classes: int) -> Sharded:
        return Sharded(network(classes=classes), shards=settings.shards, scaled=settings.scaled)

    task = _images(config, sharded, shape)
    layout = task.build_model()
    assert isinstance(layout, Sharded)
    widths = Widths(
        settings,
        layout,
        seed=config.seed,
        num_clients=task.num_clients,
        cohort=config.clients_per_round,
    )
    return ShardedTask(task, widths)


def _splits(config: Config, data: LabelledData[Inputs]) -> LabelledData[Inputs]:
    """The data to train on, and those for evaluations."""
    if config.evaluate == "test":
        return data
    return for_validation(data, Stream(config.seed, "validation"))


def _written(config: Config, writers: Ids | None) -> list[Ids]:
    """A writer for each client."""
    clients, known = config.partition.clients, 0 if writers is None else len(np.unique(writers))
    if writers is None or clients > known:
        raise ConfigError(
            f"partition.scheme is writers, but {config.data!r} has {known} writers, fewer than "
            f"partition.clients = {clients}: pass --data with a folder of LEAF's FEMNIST, or lower "
            "partition.clients"
        )
    return partition.by_writer(writers, clients, Stream(config.seed, "partition"))


def _parts(config: Config, labels: Ids) -> list[Ids]:
    stream = Stream(config.seed, "partition")
    if config.partition.scheme == "writers":
        return _written(config, None)
    if not 1 <= config.partition.clients <= len(labels):
        raise ConfigError(
            f"partition.clients is {config.partition.clients}, expected 1 to {len(labels)}, the "
            "number of examples: change partition.clients"
        )
    if config.partition.scheme == "iid":
        return partition.iid(len(labels), config.partition.clients, stream)
    if config.partition.scheme == "two-labels":
        if 2 * config.partition.clients > len(labels):
            raise ConfigError(
                f"partition.clients is {config.partition.clients}, and the scheme two-labels needs "
                f"twice as many examples, but the data has {len(labels)}: lower partition.clients"
            )
        return partition.two_labels(labels, config.partition.clients, stream)
    return partition.label_skewed(labels, config.partition.clients, config.partition.alpha, stream)


def _local(config: Config) -> LocalPlan:
    return LocalPlan(config.local.batch_size, config.local.epochs, config.local.steps or None)


_BUILDERS: dict[str, Callable[[Config], Task]] = {
    **{name: _recommender for name, preset in PRESETS.items() if preset.is_recommender},
    "ctr-deepfm": _clicks,
    "own": own_task,
    "textcnn": _textcnn,
    "lstm-wikitext2": _language,
    "transformer-wikitext2": _language,
    "cnn-mnist": functools.partial(_images, network=models.MnistCNN, shape=(1, 28, 28)),
    "cnn-cifar10": functools.partial(_images, network=models.CifarCNN, shape=(3, 32, 32)),
    "mlp-mnist-widths": functools.partial(_image_shards, network=models.MLP, shape=(1, 28, 28)),
    "cnn-mnist-widths": functools.partial(
        _image_shards, network=models.MnistCNN, shape=(1, 28, 28)
    ),
    "cnn-cifar10-widths": functools.partial(
        _image_shards, network=models.CifarCNN, shape=(3, 32, 32)
    ),
}

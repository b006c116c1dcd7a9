"""Data, architectures and length of training of each task."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import models
from training.data import partition
from training.data.prf import Stream
from training.data.synthetic import synthetic_images
from training.data.tables import Images, LabelledData, Table, load_images
from training.privhfl.settings import Settings, TaskName
from training.section_checks import ConfigError
from training.tasks.classification import ImageExamples, check_shape

SYNTHETIC = "synthetic"
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings that a task fixes.

    For CPUs, baselines train for fewer epochs than the paper's 500. Networks of CIFAR-10 are
    narrower and retrain for 10 epochs instead of 50.

    Attributes:
        hub: name of the data set on the Hugging Face Hub.
        shape: channels, height, width of its pictures.
        crop: side of the central square that the networks see.
        architectures: networks by name; client i has the one numbered i modulo their number.
        lr: rate of the baseline's SGD with momentum 0.9; falls to a tenth after half of the epochs.
        epochs: epochs of the baseline, in batches of `batch`. Further training alone gains nothing
            more (control `local`), so that gains are not those of longer training.
        batch: batch size of the baseline.
        retrain_epochs: epochs of Adam with rate 2e-3, a tenth after half of them, in batches of 64.
    """

    hub: str
    shape: tuple[int, int, int]
    crop: int
    architectures: dict[str, Callable[[], nn.Module]]
    lr: float
    epochs: int
    batch: int
    retrain_epochs: int


def _vgg7() -> nn.Module:
    return models.VGG7(width=8, size=24)


def _resnet8() -> nn.Module:
    return models.resnet8(width=8, size=24, pool=4)


def _resnet10() -> nn.Module:
    return models.resnet10(width=6, size=24, pool=3)


RECIPES: dict[TaskName, Recipe] = {
    "mnist": Recipe(
        hub="ylecun/mnist",
        shape=(1, 28, 28),
        crop=28,
        architectures={
            "MLP": models.MnistMLP,
            "CNN": models.SmallCNN,
            "ResNet": models.SmallResNet,
        },
        lr=0.05,
        epochs=120,
        batch=32,
        retrain_epochs=50,
    ),
    "cifar10": Recipe(
        hub="uoft-cs/cifar10",
        shape=(3, 32, 32),
        crop=24,
        architectures={"VGG-7": _vgg7, "ResNet-8": _resnet8, "ResNet-10": _resnet10},
        lr=0.03,
        epochs=25,
        batch=64,
        retrain_epochs=10,
    ),
}


@dataclass(frozen=True, eq=False)
class Private:
    """A client's own samples: float32 `[n, channels, side, side]`, int64 `[n]`."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class Population:
    """All clients' samples, and the test.

    Attributes:
        clients: by number.
        test: drawn from the test split; no client sees it.
    """

    clients: list[Private]
    test: Private


def load_population(settings: Settings) -> Population:
    """Load or make the data and deal it out; no sample goes to two clients.

    Raises:
        DataError: the data cannot be loaded.
        ConfigError: it is of another shape, or too little.
    """
    recipe = RECIPES[settings.task]
    data = _load(settings, recipe)
    check_shape(data, recipe.shape, settings.data, settings.task)
    if data.num_classes > CLASSES:
        raise ConfigError(
            f"the models of {settings.task} have {CLASSES} classes, but {settings.data!r} has "
            f"{data.num_classes} classes: leave out the rows of the other classes"
        )
    if settings.clients * settings.private > len(data.train.labels):
        raise ConfigError(
            f"{settings.clients} clients need {settings.private} samples each, but the data has "
            f"only {len(data.train.labels)} samples: lower --clients or --private"
        )
    stream = Stream(settings.seed, "privhfl partition")
    if settings.alpha:
        labels = data.train.labels
        parts = partition.label_skewed(labels, settings.clients, settings.alpha, stream)
    else:
        parts = partition.iid(len(data.train.labels), settings.clients, stream)
    train = [
        _examples(data.train, part[stream.choice(len(part), settings.private)], recipe.crop)
        for part in parts
    ]
    shown = min(settings.test, len(data.test.labels))
    chosen = Stream(settings.seed, "privhfl test").choice(len(data.test.labels), shown)
    return Population(train, _examples(data.test, chosen, recipe.crop))


def architecture(settings: Settings, client: int) -> str:
    """The name of a client's architecture."""
    names = list(RECIPES[settings.task].architectures)
    return names[client % len(names)]


def build_model(settings: Settings, client: int) -> nn.Module:
    """A client's model with its own seeded initial weights."""
    torch.manual_seed(Stream(settings.seed, "privhfl model", client).torch_seed())
    return RECIPES[settings.task].architectures[architecture(settings, client)]()


def _load(settings: Settings, recipe: Recipe) -> LabelledData[Images]:
    if settings.data == SYNTHETIC:
        return synthetic_images(
            settings.seed,
            train=max(2000, settings.clients * settings.private),
            test=settings.test,
            shape=recipe.shape,
            classes=CLASSES,
        )
    return _read(settings.data or recipe.hub)


@functools.lru_cache(maxsize=1)
def _read(source: str) -> LabelledData[Images]:
    """Kept, since several runs of one process share it."""
    return load_images(source)


def _examples(table: Table[Images], positions: np.ndarray, crop: int) -> Private:
    """Central crops, each standardised by its own mean and deviation."""
    pictures = ImageExamples(np.asarray(table.inputs), table.labels, crop)
    (images,) = pictures.inputs(positions, None)
    return Private(images, torch.from_numpy(table.labels[positions]))

"""Image and sentence classification, training data spread over clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torchfsl.sesa import Sharded
from training.data.prf import Stream
from training.data.tables import Images, LabelledData
from training.section_checks import ConfigError
from training.tasks import metrics
from training.tasks.task import Batch, Ids, LocalPlan, Task, Work, evaluating, seeded
from training.tasks.widths import Widths

_EVALUATION_BATCH = 500


def check_shape(
    data: LabelledData[Images], shape: tuple[int, int, int], source: str, needed_by: str
) -> None:
    """Compare both splits with what a model takes.

    Raises:
        ConfigError: one holds pictures of another size or mode.
    """
    for of, table in (("training", data.train), ("evaluations", data.test)):
        if table.inputs.shape[1:] != shape:
            raise ConfigError(
                f"{needed_by} needs images of shape {shape} (channels, height, width), but "
                f"{source!r} has {table.inputs.shape[1:]} for {of}: resize or convert the images"
            )


class Examples(Protocol):
    """Inputs of one split, with labels `int64[n]`."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Classes, `[n]`."""

    def inputs(self, positions: Ids, stream: Stream | None) -> tuple[Tensor, ...]:
        """The model's arguments for these examples; `stream` drives augmentation in training."""


@dataclass(frozen=True, eq=False)
class ImageExamples:
    """Images, each standardised by its own mean and deviation; no figure of the whole set is used.

    Attributes:
        pixels: uint8 `[n, channels, height, width]`.
        labels: int64 `[n]`.
        crop: side of the square crop, central in evaluation; None for all.
        flip: whether training mirrors half of the images.
        random_crop: whether training crops at random places; central if not.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    crop: int | None = None
    flip: bool = False
    random_crop: bool = True

    def inputs(self, positions: Ids, stream: Stream | None) -> tuple[Tensor, ...]:
        """Float32 `[B, channels, side, side]`."""
        images = self._cut(self.pixels[positions], stream)
        if self.flip and stream is not None:
            mirrored = stream.integers(2, len(images)) == 1
            images = np.where(mirrored[:, None, None, None], images[..., ::-1], images)
        values = images.reshape(len(images), -1).astype(np.float32) / 255.0
        deviation = np.maximum(values.std(axis=1, keepdims=True), 1.0 / values.shape[1] ** 0.5)
        values = (values - values.mean(axis=1, keepdims=True)) / deviation
        return (torch.from_numpy(values.reshape(images.shape)),)

    def _cut(self, images: npt.NDArray[np.uint8], stream: Stream | None) -> npt.NDArray[np.uint8]:
        if self.crop is None:
            return images
        height, width = images.shape[2] - self.crop, images.shape[3] - self.crop
        if stream is None or not self.random_crop:
            top = np.full(len(images), height // 2)
            left = np.full(len(images), width // 2)
        else:
            top = stream.integers(height + 1, len(images))
            left = stream.integers(width + 1, len(images))
        windows = np.lib.stride_tricks.sliding_window_view(images, (self.crop, self.crop), (2, 3))
        return windows[np.arange(len(images)), :, top, left]


@dataclass(frozen=True, eq=False)
class SentenceExamples:
    """Sentences as word ids.

    Attributes:
        sentences: int64 `[words]` each.
        labels: int64 `[n]`.
    """

    sentences: list[npt.NDArray[np.int64]]
    labels: npt.NDArray[np.int64]

    def inputs(self, positions: Ids, stream: Stream | None) -> tuple[Tensor, ...]:
        """Int64 `[B, words of the longest]`, padded with 0 at the end."""
        chosen = [self.sentences[p] for p in positions]
        lengths = np.array([len(sentence) for sentence in chosen])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros(mask.shape, dtype=np.int64)
        padded[mask] = np.concatenate(chosen)
        return (torch.from_numpy(padded),)


class ClassificationTask(Task):
    """A model that maps examples to classes; clients download all of it.

    Args:
        train: examples of all clients.
        test: held-out examples.
        parts: by client, the positions of its examples in `train`.
        model: builds the model; torch's generator is seeded before.
        local: length of local training.
        seed: of model, batches and augmentation.
    """

    metric = "accuracy"

    def __init__(
        self,
        train: Examples,
        test: Examples,
        *,
        parts: list[Ids],
        model: Callable[[], nn.Module],
        local: LocalPlan,
        seed: int,
    ) -> None:
        self.train, self.test, self.parts = train, test, parts
        self.local, self.seed, self._model = local, seed, model
        self.num_clients = len(parts)

    def build_model(self) -> nn.Module:
        """The model with seeded initial weights."""
        return seeded(self._model, self.seed)

    def work(self, round_number: int, client: int) -> Work:
        """Batches of the client's examples, shuffled anew for every epoch."""
        stream = Stream(self.seed, "work", round_number, client)
        part = self.parts[client]
        batches = []
        for chosen in self.local.batches(lambda: part[stream.permutation(len(part))]):
            labels = torch.from_numpy(self.train.labels[chosen])
            batches.append(Batch(self.train.inputs(chosen, stream), labels))
        return Work({}, tuple(batches))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy and mean cross-entropy on the test split."""
        predictions, losses = [], []
        with evaluating(model) as device:
            for start in range(0, len(self.test.labels), _EVALUATION_BATCH):
                stop = min(start + _EVALUATION_BATCH, len(self.test.labels))
                inputs = self.test.inputs(np.arange(start, stop), None)
                logits = model(*(x.to(device) for x in inputs))
                labels = torch.from_numpy(self.test.labels[start:stop]).to(device)
                losses.append(nn.functional.cross_entropy(logits, labels, reduction="none").cpu())
                predictions.append(logits.argmax(dim=1).cpu().numpy())
        return {
            "accuracy": metrics.accuracy(self.test.labels, np.concatenate(predictions)),
            "loss": float(torch.cat(losses).double().mean()),
        }

    def baselines(self) -> dict[str, float]:
        """Accuracy of the test split's largest class and of the untrained model."""
        counts = np.bincount(self.test.labels)
        return {
            "largest_class_accuracy": float(counts.max() / counts.sum()),
            "untrained_accuracy": self.evaluate(self.build_model())["accuracy"],
        }


class ShardedTask(ClassificationTask):
    """The same, of a network in shards of which each client trains those that its width allows.

    Args:
        task: gives data and model, a `torchfsl.sesa.Sharded`.
        widths: of the clients.
    """

    retrieves = True

    def __init__(self, task: ClassificationTask, widths: Widths) -> None:
        super().__init__(
            task.train,
            task.test,
            parts=task.parts,
            model=task._model,
            local=task.local,
            seed=task.seed,
        )
        self._widths = widths

    @property
    def widths(self) -> Widths:
        """The classes of clients."""
        return self._widths

    def work(self, round_number: int, client: int) -> Work:
        """The batches of the client, and its shards."""
        shards = self._widths.shards(round_number, client)
        batches = super().work(round_number, client).batches
        return Work(self._widths.table_rows(shards), batches, shards)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The figures of the whole network."""
        assert isinstance(model, Sharded)
        model.take(None)
        return super().evaluate(model)

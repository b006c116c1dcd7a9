"""Seeded data of every preset, small and learnable, for demos and tests without any download."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.data.prf import Stream
from training.data.tables import Images, LabelledData, Table

_SIGNAL_WORDS, _NOISE_WORDS = 12, 400


def synthetic_sentences(
    seed: int, *, train: int, test: int, classes: int
) -> LabelledData[list[str]]:
    """Sentences of which a third of the words tell the class; the others are shared by all."""

    def split(name: str, size: int) -> Table[list[str]]:
        stream = Stream(seed, "synthetic sentences", name)
        labels = stream.integers(classes, size)
        lengths = 6 + stream.integers(8, size)
        sentences = []
        for label, length in zip(labels, lengths, strict=True):
            telling = stream.integers(3, int(length)) == 0
            own = stream.integers(_SIGNAL_WORDS, int(length))
            shared = stream.integers(_NOISE_WORDS, int(length))
            words = [
                f"class{label}word{mine}" if tell else f"word{common}"
                for tell, mine, common in zip(telling, own, shared, strict=True)
            ]
            sentences.append(" ".join(words))
        return Table(sentences, labels)

    return LabelledData(split("train", train), split("test", test), classes)


def synthetic_images(
    seed: int, *, train: int, test: int, shape: tuple[int, int, int], classes: int
) -> LabelledData[Images]:
    """Each class is a smooth pattern; images are its shifted copies under noise.

    Args:
        seed: of the generator.
        train: training images.
        test: test images.
        shape: channels, height, width.
        classes: number of classes.
    """
    channels, height, width = shape
    coarse = Stream(seed, "synthetic patterns").normal(classes * channels * 16)
    patterns = coarse.reshape(classes, channels, 4, 4)
    patterns = patterns.repeat(-(-height // 4), axis=2).repeat(-(-width // 4), axis=3)
    patterns = patterns[:, :, :height, :width]

    def split(name: str, size: int) -> Table[Images]:
        stream = Stream(seed, "synthetic images", name)
        labels = stream.integers(classes, size)
        shifts = stream.integers(5, 2 * size).reshape(size, 2) - 2
        noise = stream.normal(size * channels * height * width).reshape(size, *shape)
        images = np.stack(
            [
                np.roll(patterns[label], tuple(shift), axis=(1, 2))
                for label, shift in zip(labels, shifts.tolist(), strict=True)
            ]
        )
        return Table(_to_pixels(images + noise), labels)

    return LabelledData(split("train", train), split("test", test), classes)


def _to_pixels(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return np.clip(128.0 + 40.0 * values, 0.0, 255.0).astype(np.uint8)


def synthetic_writers(
    seed: int, *, writers: int, train: int, test: int, shape: tuple[int, int, int], classes: int
) -> LabelledData[Images]:
    """A made federated set: every writer has a stroke (an offset and a contrast) and few labels.

    Args:
        seed: of the generator.
        writers: number of writers.
        train: training images of all writers.
        test: test images, of writers drawn alike.
        shape: channels, height, width.
        classes: number of classes.
    """
    plain = synthetic_images(seed, train=train, test=test, shape=shape, classes=classes)
    hands = Stream(seed, "synthetic writers")
    contrast = 0.6 + hands.integers(5, writers) / 10
    offset = hands.integers(41, writers) - 20
    favourite = hands.integers(classes, writers)

    def written(table: Table[Images], name: str) -> Table[Images]:
        stream = Stream(seed, "synthetic hands", name)
        close = (table.labels[:, None] - favourite) % classes < max(2, classes // 3)
        drawn = stream.integers(1 << 30, close.size).reshape(close.shape)
        who = np.where(close, drawn, -1).argmax(axis=1)  # a writer who writes this label
        values = table.inputs * contrast[who][:, None, None, None]
        values += offset[who][:, None, None, None]
        return Table(np.clip(np.rint(values), 0, 255).astype(np.uint8), table.labels, who)

    return LabelledData(written(plain.train, "train"), written(plain.test, "test"), classes)

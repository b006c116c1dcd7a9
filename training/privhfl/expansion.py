"""Query pictures from private ones: section 3.2 and appendix B.1 of the PrivHFL paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.data.prf import Stream
from training.privhfl.settings import Expansion

_COEFFICIENTS = 9
"""Of mixup: 0.1, 0.2, ..., 0.9."""


@dataclass(frozen=True, eq=False)
class Pictures:
    """Query pictures of one client.

    Attributes:
        images: float32 `[B, channels, height, width]`, standardised as the private ones.
        own_labels: float32 `[B, classes]`, what the private labels say of them; None where nothing.
    """

    images: Tensor
    own_labels: Tensor | None

    def take(self, positions: Tensor) -> Pictures:
        """Those at int64 positions."""
        own = None if self.own_labels is None else self.own_labels[positions]
        return Pictures(self.images[positions], own)


def expand(
    kind: Expansion,
    images: Tensor,
    labels: Tensor,
    count: int,
    stream: Stream,
    *,
    classes: int,
    lam: float = 0.0,
) -> Pictures:
    """Make up to `count` pictures.

    `private` gives the private pictures themselves and `flip` their mirror images, at most one of
    each; the others as many as are asked for.

    Args:
        kind: of the expansion.
        images: float32 `[n, channels, height, width]`, the private pictures.
        labels: int64 `[n]`.
        count: B, or the size of a pool.
        stream: drives all choices.
        classes: number of classes.
        lam: one coefficient of mixup for all; 0 for one of 0.1 to 0.9 each.
    """
    hot = functional.one_hot(labels, classes).float()
    if kind in ("private", "flip"):
        chosen = _draw(stream.permutation(len(images))[:count])
        shown = images[chosen] if kind == "private" else images[chosen].flip(-1)
        return Pictures(shown, hot[chosen])
    if kind == "noise":
        size = (count, *images.shape[1:])
        values = stream.normal(int(np.prod(size))).astype(np.float32)
        return Pictures(torch.from_numpy(values).reshape(size), None)
    first = _draw(stream.integers(len(images), count))
    if kind == "cutout":
        mask = _boxes(np.full(count, 0.5), images.shape[-2:], stream)
        return Pictures(images[first] * (1 - mask), hot[first])
    second = _draw(stream.integers(len(images), count))
    if kind == "mixup":
        drawn = (1 + stream.integers(_COEFFICIENTS, count)) / (1 + _COEFFICIENTS)
        shares = np.full(count, lam) if lam else drawn
        weight = torch.from_numpy(shares.astype(np.float32))
    else:
        sides = np.sqrt(1 - stream.uniform(count))
        mask = _boxes(sides, images.shape[-2:], stream)
        weight = 1 - mask.mean(dim=(1, 2, 3))
        mixed = images[first] * (1 - mask) + images[second] * mask
        return Pictures(mixed, _mix(hot[first], hot[second], weight))
    return Pictures(
        _mix(images[first], images[second], weight), _mix(hot[first], hot[second], weight)
    )


def _mix(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """`weight[b] one[b] + (1 - weight[b]) other[b]`."""
    share = weight.reshape(-1, *[1] * (one.dim() - 1))
    return share * one + (1 - share) * other


def _boxes(sides: np.ndarray, shape: tuple[int, ...], stream: Stream) -> Tensor:
    """Float32 `[B, 1, height, width]`, 1 in a box of `sides[b]` of each side, cut at borders."""
    height, width = shape
    masks = np.zeros((len(sides), 1, height, width), dtype=np.float32)
    centres = stream.uniform(2 * len(sides)).reshape(-1, 2)
    for mask, side, (y, x) in zip(masks, sides, centres, strict=True):
        top, left = y * height - side * height / 2, x * width - side * width / 2
        rows = slice(max(round(top), 0), max(round(top + side * height), 0))
        columns = slice(max(round(left), 0), max(round(left + side * width), 0))
        mask[0, rows, columns] = 1.0
    return torch.from_numpy(masks)


def _draw(positions: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(positions))

"""Query pictures from private ones: section 3.2, appendices B.1 and C.3 of the PrivHFL paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data.prf import Stream
from training.privhfl.settings import Expansion, Selection

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


POOL = 4
"""Pictures of a pool for each query."""

_CLUSTERS, _STEPS = 10, 10
"""Of `icd`'s k-means."""


def select(
    kind: Selection, pool: Tensor, count: int, *, model: nn.Module, private: Tensor, stream: Stream
) -> Tensor:
    """The positions int64 `[count]` of the queries in the pool, increasing.

    `margin` takes the pictures whose two likeliest classes are closest, `entropy` those of the
    largest entropy, `k-centre` greedily the one farthest from all private and chosen ones in the
    model's features (Sener and Savarese 2018), `icd` the smallest margins with every cluster of the
    features as large a part of the queries as of the pool.

    Args:
        kind: of the selection.
        pool: float32 `[P, channels, height, width]`, P >= count.
        count: B.
        model: the querying client's own, in evaluation mode, with `features` and `classifier`.
        private: its private pictures, which are the centres that `k-centre` starts from.
        stream: of the first centres of the clusters, and of `random`.
    """
    if count >= len(pool):
        return torch.arange(len(pool))
    if kind == "random":
        return torch.from_numpy(stream.choice(len(pool), count))
    features = _features(model, pool)
    with torch.no_grad():
        shares = model.get_submodule("classifier")(features).softmax(dim=1)
    if kind == "entropy":
        entropy = -(shares * shares.clamp_min(1e-12).log()).sum(dim=1)
        return _smallest(-entropy, count)
    if kind == "k-centre":
        return _k_centre(features, _features(model, private), count)
    margin = shares.topk(2, dim=1).values.diff(dim=1).abs().squeeze(1)
    if kind == "margin":
        return _smallest(margin, count)
    return _balanced(margin, _clusters(features, stream), count)


def _features(model: nn.Module, images: Tensor) -> Tensor:
    """Float32 `[n, values]`."""
    layers = model.get_submodule("features")
    with torch.no_grad():
        return torch.cat([layers(part) for part in torch.split(images, 500)])


def _smallest(scores: Tensor, count: int) -> Tensor:
    order = torch.argsort(scores, stable=True)[:count]
    return order.sort().values


def _k_centre(features: Tensor, centres: Tensor, count: int) -> Tensor:
    distance = torch.cdist(features, centres).min(dim=1).values
    chosen = torch.empty(count, dtype=torch.int64)
    for number in range(count):
        farthest = int(distance.argmax())
        chosen[number] = farthest
        away = torch.linalg.vector_norm(features - features[farthest], dim=1)
        distance = torch.minimum(distance, away)
        distance[farthest] = -1.0
    return chosen.sort().values


def _clusters(features: Tensor, stream: Stream) -> Tensor:
    """Int64 `[n]` in [0, _CLUSTERS): Lloyd's steps from centres drawn at random."""
    centres = features[torch.from_numpy(stream.choice(len(features), _CLUSTERS))]
    for _ in range(_STEPS):
        nearest = torch.cdist(features, centres).argmin(dim=1)
        for number in range(_CLUSTERS):
            own = features[nearest == number]
            if len(own):
                centres[number] = own.mean(dim=0)
    return torch.cdist(features, centres).argmin(dim=1)


def _balanced(margin: Tensor, clusters: Tensor, count: int) -> Tensor:
    """The smallest margins of each cluster, clusters by their size; the rest by margin alone."""
    chosen = []
    for number in range(_CLUSTERS):
        own = torch.nonzero(clusters == number).squeeze(1)
        part = len(own) * count // len(margin)
        chosen.append(own[torch.argsort(margin[own], stable=True)[:part]])
    taken = torch.cat(chosen)
    left = margin.clone()
    left[taken] = torch.inf
    return torch.cat([taken, _smallest(left, count - len(taken))]).sort().values

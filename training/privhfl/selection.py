"""Which pictures of a pool to ask about: appendix C.3 of the PrivHFL paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.data.prf import Stream
from training.privhfl.settings import Selection

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

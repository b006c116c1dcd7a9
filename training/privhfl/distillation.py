"""A client's own training, before and after it asked the others."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, Optimizer

from training.data.prf import Stream
from training.privhfl.tasks import CLASSES, Private, Recipe

_MOMENTUM = 0.9
_ADAM_RATE, _ADAM_BATCH = 2e-3, 64
_FALL = 0.1
"""Factor on the rate after half of the epochs."""
_EVALUATION_BATCH = 500
MOST_LOGIT = 64.0
"""Half of what the protocol's plans leave for a logit: other pictures may have larger ones."""


def train_baseline(model: nn.Module, private: Private, recipe: Recipe, stream: Stream) -> None:
    """Train on private samples alone: the baseline that collaboration has to beat.

    The paper's SGD has no momentum and 250 to 500 epochs; momentum does it in fewer.
    """
    optimizer = SGD(model.parameters(), lr=recipe.lr, momentum=_MOMENTUM)
    targets = functional.one_hot(private.labels, CLASSES).float()
    _train(model, optimizer, private.images, targets, recipe.epochs, recipe.batch, stream)


def soft_labels(sums: Tensor, answers: int, temperature: float) -> Tensor:
    """Softmax of mean logits over T.

    Args:
        sums: `[B, classes]`, logits added up over the answering parties.
        answers: how many these are.
        temperature: T.
    """
    return (sums / (answers * temperature)).softmax(dim=1)


def retrained(
    model: nn.Module,
    private: Private,
    queries: Tensor | None,
    labels: Tensor | None,
    recipe: Recipe,
    stream: Stream,
) -> nn.Module:
    """A copy of the model, trained on private samples and on queries with soft labels together.

    Args:
        model: left as it is.
        private: the client's samples, with one-hot labels.
        queries: float32 `[B, channels, side, side]`; None for private samples alone.
        labels: float32 `[B, classes]`, rows add up to 1; None with `queries`.
        recipe: length of training.
        stream: of the order of samples.
    """
    images, targets = private.images, functional.one_hot(private.labels, CLASSES).float()
    if queries is not None and labels is not None:
        images, targets = torch.cat([images, queries]), torch.cat([targets, labels])
    after = copy.deepcopy(model)
    optimizer = Adam(after.parameters(), lr=_ADAM_RATE)
    _train(after, optimizer, images, targets, recipe.retrain_epochs, _ADAM_BATCH, stream)
    return after


def bounded(model: nn.Module, private: Private) -> nn.Module:
    """The model as it answers others: its logits on its own samples are at most `MOST_LOGIT`.

    The paper adds logits up as they are. Then one client whose training went astray, with logits of
    thousands, gives everybody's labels alone, and no ring has room for it. Its last layer is scaled
    down; its classes stay what they are. Others, which are nearly all, answer unchanged.
    """
    largest = float(logits(model, private.images).abs().max())
    if largest <= MOST_LOGIT:
        return model
    answering = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in answering.get_submodule("classifier").parameters():
            parameter.mul_(0.99 * MOST_LOGIT / largest)
    return answering


def logits(model: nn.Module, images: Tensor) -> Tensor:
    """Float32 `[B, classes]`, the model in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(images, _EVALUATION_BATCH)])


def accuracy(model: nn.Module, test: Private) -> float:
    """Share of test pictures whose largest logit is their label's."""
    return float((logits(model, test.images).argmax(dim=1) == test.labels).double().mean())


def _train(
    model: nn.Module,
    optimizer: Optimizer,
    images: Tensor,
    targets: Tensor,
    epochs: int,
    batch: int,
    stream: Stream,
) -> None:
    model.train()
    for epoch in range(epochs):
        if epoch == (epochs + 1) // 2:
            for group in optimizer.param_groups:
                group["lr"] *= _FALL
        for chosen in _batches(len(images), batch, stream):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[chosen]), targets[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    model.eval()


def _batches(count: int, size: int, stream: Stream) -> Iterator[Tensor]:
    """A random order of all, in batches; one left over joins the last batch, for BatchNorm."""
    order = torch.from_numpy(stream.permutation(count))
    starts = list(range(0, count, size))
    if count % size == 1 and len(starts) > 1:
        starts.pop()
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        yield order[start:stop]

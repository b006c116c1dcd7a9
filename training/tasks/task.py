"""Interface of a federated task to the trainer, for any data and model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from training.data.prf import Stream
from training.section_checks import ConfigError
from training.tasks.widths import Shards, Widths

Ids = npt.NDArray[np.int64]
Budget = int | Mapping[str, int]
"""Rows, of tables of one width together, or by table."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Arguments of the model's forward, and int64 `[B]` classes.

    Without labels the model itself returns the losses, one for each example.

    Raises:
        ConfigError: inputs other than a tuple of tensors, or labels of another dtype.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor | None

    def __post_init__(self) -> None:
        given: object = self.inputs
        alone = isinstance(given, Tensor)
        odd = [given] if alone else [one for one in self.inputs if not isinstance(one, Tensor)]
        if odd:
            raise ConfigError(
                f"a Batch has inputs of type {type(odd[0]).__name__}: return a tuple of tensors, "
                "one per argument of the model, also for a model with one argument"
            )
        if self.labels is not None and self.labels.dtype != torch.int64:
            raise ConfigError(
                f"a Batch has labels of dtype {self.labels.dtype}: return int64 classes, or None "
                "with a model that takes the targets and returns the loss of each example"
            )


@dataclass(frozen=True, slots=True)
class Work:
    """Rows and batches of one client in one round.

    Attributes:
        rows: by embedding table (name of its weight), the increasing rows the client needs. A
            client that retrieves privately does not hold any other row.
        batches: local training, in order. May be empty.
        shards: shards that the client trains, with `rows` as their rows; None without shards.
    """

    rows: Mapping[str, Ids]
    batches: tuple[Batch, ...]
    shards: Shards | None = None


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights are a function of the experiment's seed."""
    torch.manual_seed(Stream(seed, "model").torch_seed())
    return build()


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """The model in evaluation mode without gradients; gives its device, and the mode back."""
    training = model.training
    model.eval()
    with torch.no_grad():
        yield next(model.parameters()).device
    model.train(training)


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """How long a client trains in a round.

    Attributes:
        batch_size: examples a batch; the last one of an epoch may be smaller.
        epochs: passes over the client's examples.
        steps: stop after so many batches; None for all of them.
    """

    batch_size: int
    epochs: int
    steps: int | None = None

    def batches(self, shuffled: Callable[[], Ids]) -> Iterator[Ids]:
        """The examples of one batch after the other; `shuffled` gives all, for every epoch anew."""
        left = self.steps
        for _ in range(self.epochs):
            examples = shuffled()
            for start in range(0, len(examples), self.batch_size):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield examples[start : start + self.batch_size]


class Task(Protocol):
    """Clients with data, a model, and a test.

    A custom class that inherits from `Task` may leave out the members that have a value here.
    """

    num_clients: int
    retrieves: bool = False
    """Whether clients fetch only the embedding rows of their `Work`, privately."""
    rows_per_client: Budget = 0
    """Most rows that a client fetches and sends if `retrieves` is true, a public number.

    It is for all tables of a width together, or by table (or segment).
    """
    metric: str
    """The metric that curves show first; larger is better."""

    @property
    def widths(self) -> Widths | None:
        """The classes of clients, where these train parts of the model."""
        return None

    def build_model(self) -> nn.Module:
        """The model with its initial weights, which the task's seed fixes."""

    def work(self, round_number: int, client: int) -> Work:
        """The client's part of a round: a function of (seed, round, client) alone."""

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics on held-out data; leaves the model's mode as it was."""

    def final_test(self, model: nn.Module) -> dict[str, float]:
        """Metrics on data that no evaluation has seen, for the end; empty where there is none."""
        return {}

    def baselines(self) -> dict[str, float]:
        """Figures that a trained model has to beat, by name."""
        return {}

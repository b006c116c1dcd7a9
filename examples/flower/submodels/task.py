"""The task: a classifier of made-up texts, or DIN on purchases.

Both have `build_model`, `batches` (data of a client in a round) and `rows_per_client`. DIN comes
from the clone, see "Try it" in docs/flower.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchfsl

WORDS, CLASSES, TEXTS, LENGTH = 4000, 4, 24, 8

Batches = list[tuple[torch.Tensor, ...]]
"""The arguments of the model, then int64 `[B]` classes."""


class Classifier:
    """Texts whose words mostly come from the quarter of the vocabulary of their class."""

    rows_per_client = TEXTS * LENGTH

    def build_model(self) -> nn.Module:
        """Mean of word vectors, then a layer."""
        torch.manual_seed(0)
        return nn.Sequential(nn.EmbeddingBag(WORDS, 16, mode="mean"), nn.Linear(16, CLASSES))

    def batches(self, round_number: int, client: int) -> Batches:
        """The same texts in every round."""
        g = torch.Generator().manual_seed(client)
        label = torch.randint(0, CLASSES, (TEXTS,), generator=g)
        word = torch.randint(0, WORDS // CLASSES, (TEXTS, LENGTH), generator=g)
        return [(word + (label * (WORDS // CLASSES))[:, None], label)]


class Purchases:
    """DIN on what users bought; one user is one client."""

    def __init__(self, folder: str) -> None:
        """Read the data of a folder, or make some up."""
        from models import DIN
        from training.data.interactions import load_interactions, synthetic_interactions
        from training.sections import Recommendation
        from training.tasks.recommendation import RecommendationTask

        if folder == "synthetic":
            data = synthetic_interactions(0, users=200, items=3000, categories=20, length=(5, 20))
        else:
            data = load_interactions(Path(folder))
        settings = Recommendation(history=20, negatives=1, rows_per_client=100)
        self._task = RecommendationTask(data, settings, network=DIN, seed=0)
        self.rows_per_client = self._task.rows_per_client

    def build_model(self) -> nn.Module:
        """DIN."""
        return self._task.build_model()

    def batches(self, round_number: int, client: int) -> Batches:
        """All samples of the user that fit the row budget."""
        made = self._task.work(round_number, client).batches
        return [(*batch.inputs, batch.labels) for batch in made]


Task = Classifier | Purchases


def make_task(config: Mapping[str, Any]) -> Task:
    """The task that the run configuration names."""
    return Classifier() if config["task"] == "classifier" else Purchases(str(config["data"]))


def federate(
    task: Task, config: Mapping[str, Any]
) -> tuple[torchfsl.Federated, torch.optim.Optimizer]:
    """The federated model with the task's first weights, and the optimizer of a client."""
    model = task.build_model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=int(config["nodes"]), rows_per_client=task.rows_per_client,
        buffers="average",
    )  # fmt: skip
    return fed, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> float:
    """Your own loop."""
    loss = torch.zeros(())
    for *inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
    return loss.item()

"""What is learnt: a classifier of made-up texts, or DIN on users' purchases.

Both have `build_model`, `work` (rows and batches of a client in a round) and `rows_per_client`, as
`training.tasks.task.Task` has. DIN comes from the clone, see "Try it" in docs/flower.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchfsl import SubmodelEngine
from torchfsl.engine import Handle

WORDS, CLASSES, TEXTS, LENGTH = 4000, 4, 24, 8


@dataclass(frozen=True)
class Batch:
    """Arguments of the model, and int64 `[B]` classes."""

    inputs: tuple[torch.Tensor, ...]
    labels: torch.Tensor


@dataclass(frozen=True)
class Work:
    """Ids that a client needs, by table, and what it trains on."""

    rows: dict[str, torch.Tensor]
    batches: tuple[Batch, ...]


class Classifier:
    """Texts whose words mostly come from the quarter of the vocabulary of their class."""

    rows_per_client = TEXTS * LENGTH

    def build_model(self) -> nn.Module:
        """Mean of word vectors, then a layer."""
        torch.manual_seed(0)
        return nn.Sequential(nn.EmbeddingBag(WORDS, 16, mode="mean"), nn.Linear(16, CLASSES))

    def work(self, round_number: int, client: int) -> Work:
        """The same texts in every round."""
        g = torch.Generator().manual_seed(client)
        label = torch.randint(0, CLASSES, (TEXTS,), generator=g)
        word = torch.randint(0, WORDS // CLASSES, (TEXTS, LENGTH), generator=g)
        text = word + (label * (WORDS // CLASSES))[:, None]
        return Work({"0": text.unique()}, (Batch((text,), label),))


def make_task(config: Mapping[str, Any]) -> Any:
    """The task that the run configuration names."""
    if config["task"] == "classifier":
        return Classifier()
    from models import DIN
    from training.data.interactions import load_interactions, synthetic_interactions
    from training.recommendation_section import Recommendation
    from training.tasks.recommendation import RecommendationTask

    if config["data"] == "synthetic":
        data = synthetic_interactions(0, users=200, items=3000, categories=20, length=(5, 20))
    else:
        data = load_interactions(Path(config["data"]))
    settings = Recommendation(history=20, negatives=1, rows_per_client=100)
    return RecommendationTask(data, settings, network=DIN, seed=0)


def attach(task: Any) -> tuple[SubmodelEngine, Handle]:
    """A model with the task's first weights, wrapped."""
    model = task.build_model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    engine = SubmodelEngine(buffers="average")
    return engine, engine.attach(model, optimizer)


def train(handle: Handle, batches: tuple[Batch, ...]) -> float:
    """Your own loop."""
    (optimizer,) = handle.optimizers
    loss = torch.zeros(())
    for batch in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(handle.model(*batch.inputs), batch.labels)
        loss.backward()
        optimizer.step()
    return loss.item()

"""A text classifier on `nn.EmbeddingBag`: clients send the rows of their own words.

    python examples/bag_classifier.py [--rounds 5]

Of the other layers clients send the blocks that changed most. Each client keeps the other changes
in a residual.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from torchfsl import BlockTopK, Federated, simulate

WORDS, CLASSES, CLIENTS, TEXTS, LENGTH = 1600, 4, 4, 24, 8


class Classifier(nn.Module):
    """Mean of word vectors, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 16, mode="mean")
        self.top = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Logits, float [B, CLASSES], of texts laid end to end."""
        return self.top(self.words(text, offsets))


def clients_data(seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """Texts whose words mostly come from the quarter of the vocabulary of their class."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(CLIENTS):
        label = torch.randint(0, CLASSES, (TEXTS,), generator=g)
        word = torch.randint(0, WORDS // CLASSES, (TEXTS, LENGTH), generator=g)
        topic = torch.where(torch.rand(TEXTS, LENGTH, generator=g) < 0.8, label[:, None], 0)
        offsets = torch.arange(0, TEXTS * LENGTH, LENGTH)
        data.append(((word * CLASSES + topic).flatten(), offsets, label))
    return data


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]):
    """The user's own loop: three steps; returns the last loss."""
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*batch[:2]), batch[2])
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    """Train, and print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model, data = Classifier(), clients_data()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    # torchfsl:
    fed = Federated(model, optimizer, max_clients=CLIENTS, rest=BlockTopK(0.25, block=16))
    learn = lambda batch: train(model, optimizer, batch)  # noqa: E731
    simulate(fed, data, learn, batches=lambda batch: [batch], rounds=rounds, progress=print)


if __name__ == "__main__":
    main()

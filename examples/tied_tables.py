"""A recommender with two embedding tables, the item table used twice (target and history).

    python examples/tied_tables.py [--rounds 5]

Clients fetch only the rows of their own items and user, privately; all other rows are NaN in their
model, so reading one could not go unnoticed.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from torchfsl import Federated, simulate

ITEMS, USERS, CLIENTS, SAMPLES, HISTORY = 1000, 200, 5, 64, 10


class Recommender(nn.Module):
    """Score of an item for a user with a history; one table for target and history."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Embedding(ITEMS, 16)
        self.history = nn.Embedding(ITEMS, 16)
        self.history.weight = self.target.weight
        self.user = nn.Embedding(USERS, 8)
        self.top = nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self, user: torch.Tensor, item: torch.Tensor, history: torch.Tensor
    ) -> torch.Tensor:
        """Logits, float [B]."""
        past = self.history(history).mean(1)
        return self.top(torch.cat([self.user(user), self.target(item), past], 1)).squeeze(1)


def clients_data(seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """Each client is one user who likes items of its own parity of id."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for client in range(CLIENTS):
        history = 2 * torch.randint(0, ITEMS // 2, (HISTORY,), generator=g) + client % 2
        item = torch.randint(0, ITEMS, (SAMPLES,), generator=g)
        label = (item % 2 == client % 2).float()
        data.append((torch.full((SAMPLES,), client), item, history.expand(SAMPLES, -1), label))
    return data


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]):
    """The user's own loop: three steps; returns the last loss."""
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(*batch[:3]), batch[3])
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    """Train, and print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model, data = Recommender(), clients_data()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    # torchfsl:
    fed = Federated(model, optimizer, max_clients=CLIENTS)
    learn = lambda batch: train(model, optimizer, batch)  # noqa: E731
    simulate(fed, data, learn, batches=lambda batch: [batch], rounds=rounds, progress=print)


if __name__ == "__main__":
    main()

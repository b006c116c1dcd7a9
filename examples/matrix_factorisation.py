"""Matrix factorisation with sparse gradients: `sparse=True` and `SparseAdam`.

    python examples/matrix_factorisation.py [--rounds 5]

Every parameter is an embedding row, so a client's cost does not depend on the catalogue's size.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from torchfsl import Federated, simulate

ITEMS, USERS, CLIENTS, RATINGS = 2000, 200, 5, 24


class Factors(nn.Module):
    """A rating is the product of a user's and an item's vector, and a bias of each."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, 8, sparse=True)
        self.item = nn.Embedding(ITEMS, 8, sparse=True)
        self.item_bias = nn.Embedding(ITEMS, 1, sparse=True)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Ratings, float [B]."""
        return (self.user(user) * self.item(item)).sum(1) + self.item_bias(item).squeeze(1)


def clients_data(seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """Ratings made of a user's and an item's hidden taste."""
    g = torch.Generator().manual_seed(seed)
    data = []
    for client in range(CLIENTS):
        item = torch.randperm(ITEMS, generator=g)[:RATINGS]
        rating = (item % 5 == client % 5).float() * 2 - 1
        data.append((torch.full((RATINGS,), client), item, rating))
    return data


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...]):
    """The user's own loop: five steps; returns the last loss."""
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(*batch[:2]), batch[2])
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def main() -> None:
    """Train, and print a line a round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    model, data = Factors(), clients_data()
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    # torchfsl:
    fed = Federated(model, optimizer, max_clients=CLIENTS, above_break_even="keep")
    learn = lambda batch: train(model, optimizer, batch)  # noqa: E731
    simulate(fed, data, learn, batches=lambda batch: [batch], rounds=rounds, progress=print)


if __name__ == "__main__":
    main()

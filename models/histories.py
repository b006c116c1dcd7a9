"""Rows that recommenders read for a history, and scores that they give candidates.

Shape legend
    B = samples, U = users, C = candidates per user, L = longest history of the batch, D = row width
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

PAIRS: Final = 4096
"""Users times candidates that are scored at once."""


def rows_of(table: nn.Embedding, history: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Embeddings of a history, zero at masked positions.

    A masked position reads the target's row, which the batch needs anyway. Padding therefore does
    not take a row, and a model that holds only the rows it retrieved does not read other rows.

    Args:
        table: embeddings of D values per row.
        history: int64 `[B, L]`.
        target: int64 `[B]`.
        mask: bool `[B, L]`, true at real items.

    Returns:
        float `[B, L, D]`.
    """
    rows_BLD = table(torch.where(mask, history, target[:, None]))
    return torch.where(mask[..., None], rows_BLD, 0.0)


def mean_of(rows_BLD: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real items of a history: float `[B, D]`, zero for an empty one."""
    return rows_BLD.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def by_pairs(user_UF: Tensor, items: Tensor, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Scores of users with their candidates, `PAIRS` or one user's at once.

    Args:
        user_UF: `[U, ...]`.
        items: `[C, ...]` of candidates that all users share, or `[U, C, ...]`.
        score: of `[B, ...]` rows of users and as many of items, `[B]`.

    Returns:
        `[U, C]`.
    """
    users, form = len(user_UF), user_UF.shape[1:]
    if items.dim() == user_UF.dim():
        items = items.expand(users, *items.shape)
    each, step = items.shape[1], max(1, PAIRS // items.shape[1])
    found = user_UF.new_empty(users, each)
    for start in range(0, users, step):
        own = items[start : start + step]
        named = user_UF[start : start + step, None].expand(-1, each, *form)
        pairs = named.reshape(-1, *form), own.reshape(-1, *own.shape[2:])
        found[start : start + step] = score(*pairs).view(-1, each)
    return found


def as_logits(score_B: Tensor) -> Tensor:
    """Logits `[B, 2]` of (not taken, taken), whose difference is the score."""
    return torch.stack([torch.zeros_like(score_B), score_B], dim=1)


def scaled_table(rows: int, dim: int) -> nn.Embedding:
    """A table of normal values of deviation 0.1."""
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=0.1)
    return table


class Inputs(NamedTuple):
    """The arguments of `models.DIN.forward`, or of its `score_items`."""

    user: Tensor
    target: Tensor
    target_category: Tensor
    history: Tensor
    history_category: Tensor
    mask: Tensor


class UserAndItem(nn.Module):
    """A recommender that scores what it makes of a user and what it makes of an item.

    A model gives `of_user`, `score`, and `of_item` if an item is more than its table's row.
    """

    item_embedding: nn.Embedding

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits `[B, 2]` of (not taken, taken) of `Inputs`."""
        given = Inputs(*inputs)
        item = self.of_item(given)
        return as_logits(self.score(self.of_user(given), item))

    def score_items(self, *inputs: Tensor) -> Tensor:
        """Return the scores `[U, C]` of C candidates a user; see `models.DIN.score_items`."""
        given = Inputs(*inputs)
        zero = torch.zeros_like(given.user)
        user = self.of_user(given._replace(target=zero, target_category=zero))
        return by_pairs(user, self.of_item(given), self.score)

    def of_item(self, given: Inputs) -> Tensor:
        """Values `[..., D]` of candidates."""
        rows: Tensor = self.item_embedding(given.target)
        return rows

    def of_user(self, given: Inputs) -> Tensor:
        """Values `[B, ...]` of users; masked positions of their histories read the target."""
        raise NotImplementedError

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Scores `[B]` of as many users and items."""
        raise NotImplementedError

"""Recommenders that score the vector of a user and that of an item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.din import layers
from models.histories import as_logits, by_pairs, mean_of, rows_of, scaled_table


class _UserAndItem(nn.Module):
    """A table of items and one of users, or the mean of the history's rows for the user.

    Args:
        items: rows of the item table.
        users: rows of the user table; 0 for a model without one.
        dim: values per row, at least 2.
    """

    def __init__(self, items: int, users: int, dim: int) -> None:
        super().__init__()
        self.item_embedding = scaled_table(items, dim)
        self.user_embedding = scaled_table(users, dim) if users else None

    def forward(
        self,
        user: Tensor,
        target: Tensor,
        target_category: Tensor,
        history: Tensor,
        history_category: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the logits `[B, 2]` of (not taken, taken); arguments as of `models.DIN`."""
        item_BD = self.item_embedding(target)
        return as_logits(self.score(self._of_users(user, target, history, mask), item_BD))

    def score_items(
        self,
        user: Tensor,
        target: Tensor,
        target_category: Tensor,
        history: Tensor,
        history_category: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the scores `[U, C]` of C candidates a user; see `models.DIN.score_items`."""
        user_UD = self._of_users(user, torch.zeros_like(user), history, mask)
        return by_pairs(user_UD, self.item_embedding(target), self.score)

    def _of_users(self, user: Tensor, target: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        if self.user_embedding is None:
            return mean_of(rows_of(self.item_embedding, history, target, mask), mask)
        rows_BD: Tensor = self.user_embedding(user)
        return rows_BD

    def score(self, user_BD: Tensor, item_BD: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, D]`."""
        raise NotImplementedError


class MatrixFactorisation(_UserAndItem):
    """The product of both vectors and the sum of their biases (Koren, Bell, Volinsky 2009).

    Without a user table the mean of its history's vectors stands for the user, as in FISM (Kabbur,
    Ning, Karypis 2013). The last value of a row is its bias, so that a row travels as one.

    Args:
        items: rows of the item table.
        categories: taken for the sake of other recommenders; unused.
        users: rows of the user table; 0 for a model without one.
        dim: values per row, at least 2.
    """

    def __init__(self, *, items: int, categories: int, users: int, dim: int = 18) -> None:
        super().__init__(items, users, dim)

    def score(self, user_BD: Tensor, item_BD: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, D]`."""
        products_B = (user_BD[:, :-1] * item_BD[:, :-1]).sum(dim=1)
        return products_B + user_BD[:, -1] + item_BD[:, -1]


class NCF(_UserAndItem):
    """Neural collaborative filtering, NeuMF (He et al., WWW 2017).

    Scores by a product and by a network, joined in the last layer: the first half of a row's values
    is for the product, the other for the network. Without a user table the mean of its history's
    rows stands for the user.

    Args:
        items: rows of the item table.
        categories: taken for the sake of other recommenders; unused.
        users: rows of the user table; 0 for a model without one.
        dim: values per row, at least 2.
        head: widths of the network's hidden layers, at least one.
        dropout: share of the network's input, in [0, 1), that is zero in training.
    """

    def __init__(
        self,
        *,
        items: int,
        categories: int,
        users: int,
        dim: int = 18,
        head: Sequence[int] = (32, 16),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(items, users, dim)
        if not head:
            raise ValueError("NCF's network needs a hidden layer: give head at least one width")
        self.split = dim // 2
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Sequential(*layers([2 * (dim - self.split), *head], nn.PReLU), nn.ReLU())
        self.joined = nn.Linear(self.split + head[-1], 1)

    def score(self, user_BD: Tensor, item_BD: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, D]`."""
        half = self.split
        both = torch.cat([user_BD[:, half:], item_BD[:, half:]], dim=1)
        joined = [user_BD[:, :half] * item_BD[:, :half], self.head(self.dropout(both))]
        score_B: Tensor = self.joined(torch.cat(joined, dim=1)).squeeze(1)
        return score_B

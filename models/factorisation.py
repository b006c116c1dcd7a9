"""Recommenders that score the vector of a user and that of an item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.din import layers
from models.histories import Inputs, UserAndItem, mean_of, rows_of, scaled_table


class _Factors(UserAndItem):
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

    def of_user(self, given: Inputs) -> Tensor:
        """Rows `[B, D]` of users, or means of their histories."""
        if self.user_embedding is None:
            rows_BLD = rows_of(self.item_embedding, given.history, given.target, given.mask)
            return mean_of(rows_BLD, given.mask)
        rows_BD: Tensor = self.user_embedding(given.user)
        return rows_BD


class MatrixFactorisation(_Factors):
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

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, D]`."""
        products_B = (user[:, :-1] * item[:, :-1]).sum(dim=1)
        return products_B + user[:, -1] + item[:, -1]


class NCF(_Factors):
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
            raise ValueError(
                "NCF needs one hidden layer or more, and head is empty: pass head with one width "
                "or more"
            )
        self.split = dim // 2
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Sequential(*layers([2 * (dim - self.split), *head], nn.PReLU), nn.ReLU())
        self.joined = nn.Linear(self.split + head[-1], 1)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, D]`."""
        half = self.split
        both = torch.cat([user[:, half:], item[:, half:]], dim=1)
        joined = [user[:, :half] * item[:, :half], self.head(self.dropout(both))]
        score_B: Tensor = self.joined(torch.cat(joined, dim=1)).squeeze(1)
        return score_B

"""DeepFM (Guo et al., IJCAI 2017): a factorisation machine and a network on the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.din import layers
from models.histories import Inputs, UserAndItem, as_logits, mean_of, rows_of, scaled_table


class FactorisationMachine(nn.Module):
    """The two parts of DeepFM, on rows whose last value is the weight of first order.

    Args:
        fields: number of rows per sample.
        dim: values per row, at least 2.
        head: widths of the network's hidden layers.
        dropout: share of the network's input, in [0, 1), that is zero in training.
    """

    def __init__(self, fields: int, dim: int, head: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.head = layers([fields * (dim - 1), *head, 1], nn.PReLU)

    def forward(self, rows_BFD: Tensor) -> Tensor:
        """Scores `[B]` of float `[B, F, D]`."""
        weights_BF, factors_BFK = rows_BFD[..., -1], rows_BFD[..., :-1]
        squares_BK = factors_BFK.sum(dim=1).square() - factors_BFK.square().sum(dim=1)
        deep_B = self.head(self.dropout(factors_BFK.flatten(1))).squeeze(1)
        score_B: Tensor = weights_BF.sum(dim=1) + squares_BK.sum(dim=1) / 2 + deep_B
        return score_B


class FieldDeepFM(nn.Module):
    """DeepFM as published: a line has one category per field, and one table holds all fields.

    Args:
        rows: number of rows of the table.
        fields: number of fields of a line.
        dim: values per row, at least 2; the last is the weight of first order.
        head: widths of the network's hidden layers.
        dropout: share of the network's input, in [0, 1), that is zero in training.
    """

    def __init__(
        self,
        *,
        rows: int,
        fields: int,
        dim: int = 17,
        head: Sequence[int] = (64, 32),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.field_embedding = scaled_table(rows, dim)
        self.bias = nn.Parameter(torch.zeros(1))
        self.machine = FactorisationMachine(fields, dim, head, dropout)

    def forward(self, ids_BF: Tensor) -> Tensor:
        """Return the logits `[B, 2]` of (no click, click) of int64 rows `[B, F]`."""
        return as_logits(self.machine(self.field_embedding(ids_BF)) + self.bias)


class DeepFM(UserAndItem):
    """DeepFM on the candidate, its category, the history's means of both, and the user.

    Args:
        items: rows of the item table.
        categories: rows of the category table.
        users: rows of the user table; 0 for a model without one.
        dim: values per row, at least 2; the last is the weight of first order.
        head: widths of the network's hidden layers.
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
        super().__init__()
        self.item_embedding = scaled_table(items, dim)
        self.category_embedding = scaled_table(categories, dim)
        self.user_embedding = scaled_table(users, dim) if users else None
        self.machine = FactorisationMachine(5 if users else 4, dim, head, dropout)

    def of_item(self, given: Inputs) -> Tensor:
        """Rows `[..., 2, D]` of candidates."""
        rows = [self.item_embedding(given.target), self.category_embedding(given.target_category)]
        return torch.stack(rows, dim=-2)

    def of_user(self, given: Inputs) -> Tensor:
        """Rows `[B, F, D]` of histories and users."""
        rows = [
            mean_of(rows_of(table, past, candidate, given.mask), given.mask)
            for table, past, candidate in (
                (self.item_embedding, given.history, given.target),
                (self.category_embedding, given.history_category, given.target_category),
            )
        ]
        if self.user_embedding is not None:
            rows.append(self.user_embedding(given.user))
        return torch.stack(rows, dim=1)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Scores `[B]` of rows `[B, F, D]` and `[B, 2, D]`."""
        score_B: Tensor = self.machine(torch.cat([item, user], dim=1))
        return score_B

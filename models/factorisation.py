"""Matrix factorisation with biases (Koren, Bell, Volinsky 2009), and its form without users."""

from __future__ import annotations

from torch import Tensor, nn

from models.histories import as_logits, mean_of, rows_of, scaled_table


class MatrixFactorisation(nn.Module):
    """Score a user and an item by the product of their vectors and the sum of their biases.

    Without a user table the mean of its history's vectors stands for the user, as in FISM (Kabbur,
    Ning, Karypis 2013). The last value of a row is its bias, so that a row travels as one.

    Args:
        items: rows of the item table.
        categories: taken for the sake of other recommenders; unused.
        users: rows of the user table; 0 for a model without one.
        dim: values a row, at least 2.
    """

    def __init__(self, *, items: int, categories: int, users: int, dim: int = 18) -> None:
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
        if self.user_embedding is None:
            user_BD = mean_of(rows_of(self.item_embedding, history, target, mask), mask)
        else:
            user_BD = self.user_embedding(user)
        products_B = (user_BD[:, :-1] * item_BD[:, :-1]).sum(dim=1)
        return as_logits(products_B + user_BD[:, -1] + item_BD[:, -1])

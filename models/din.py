"""Deep Interest Network (Zhou et al., KDD 2018) with item, category and user embeddings.

Shape legend
    B = samples, L = longest history of the batch, D = embedding width, P = 2 D (item and category)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn


class DIN(nn.Module):
    """Predict whether a user takes an item, from the user's past items.

    Every history item is weighted by an attention network that sees the candidate. The features
    are `[user D, target P, history sum P, target * history sum P, attention sum P]`, 9 D in all,
    and 8 D without a user table. With the defaults, the published shape, the dense part has 64,327
    parameters; the embedding tables have `(items + categories + users) * 18`.

    Args:
        items: rows of the item table.
        categories: rows of the category table.
        users: rows of the user table; 0 for a model without one, to which users are their items.
        dim: width D of every embedding.
        attention: widths of the attention network's hidden layers.
        head: widths of the head's hidden layers.
        activation: of the head: `prelu`, or `dice`, the paper's own.
        dropout: share of the head's input, in [0, 1), that is zero in training.
    """

    def __init__(
        self,
        *,
        items: int,
        categories: int,
        users: int,
        dim: int = 18,
        attention: Sequence[int] = (80, 40),
        head: Sequence[int] = (200, 80),
        activation: Literal["prelu", "dice"] = "prelu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(items, dim)
        self.category_embedding = nn.Embedding(categories, dim)
        self.user_embedding = nn.Embedding(users, dim) if users else None
        for table in (self.item_embedding, self.category_embedding, self.user_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=0.1)
        width = (9 if users else 8) * dim
        self.attention = layers([8 * dim, *attention, 1], lambda _: nn.Sigmoid())
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.head = layers([width, *head, 2], Dice if activation == "dice" else nn.PReLU)

    def forward(
        self,
        user: Tensor,
        target: Tensor,
        target_category: Tensor,
        history: Tensor,
        history_category: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Return the logits `[B, 2]` of (not taken, taken).

        Args:
            user: int64 `[B]`; ignored without a user table.
            target: int64 `[B]`, the candidate items.
            target_category: int64 `[B]`.
            history: int64 `[B, L]`; what stands at masked positions is ignored.
            history_category: int64 `[B, L]`.
            mask: bool `[B, L]`, true at real history items; a row may be all false.
        """
        # A masked position reads the target's rows, which the batch needs anyway: no table row is
        # spent on padding, and a model that holds only the rows it retrieved reads no other.
        history = torch.where(mask, history, target[:, None])
        history_category = torch.where(mask, history_category, target_category[:, None])
        target_BP = torch.cat(
            [self.item_embedding(target), self.category_embedding(target_category)], dim=-1
        )
        history_BLP = torch.cat(
            [self.item_embedding(history), self.category_embedding(history_category)], dim=-1
        )
        history_BLP = torch.where(mask[..., None], history_BLP, 0.0)
        sum_BP = history_BLP.sum(dim=1)
        attention_BP = self.attend(target_BP, history_BLP, mask)
        parts = [target_BP, sum_BP, target_BP * sum_BP, attention_BP]
        if self.user_embedding is not None:
            parts.insert(0, self.user_embedding(user))
        logits: Tensor = self.head(self.dropout(self.norm(torch.cat(parts, dim=-1))))
        return logits

    def attend(self, target_BP: Tensor, history_BLP: Tensor, mask: Tensor) -> Tensor:
        """Sum the history by its relevance to the target, a softmax over the real positions.

        Args:
            target_BP: float `[B, P]`.
            history_BLP: float `[B, L, P]`, zero at masked positions.
            mask: bool `[B, L]`.

        Returns:
            float `[B, P]`; zero for an empty history.
        """
        target_BLP = target_BP[:, None, :].expand_as(history_BLP)
        pairs = [target_BLP, history_BLP, target_BLP - history_BLP, target_BLP * history_BLP]
        score_BL = self.attention(torch.cat(pairs, dim=-1)).squeeze(-1)
        score_BL = torch.where(mask, score_BL, torch.finfo(score_BL.dtype).min)
        weight_BL = torch.softmax(score_BL, dim=1)
        return (weight_BL[..., None] * history_BLP).sum(dim=1)


class Dice(nn.Module):
    """f(s) = p(s) s + (1 - p(s)) alpha s, p the sigmoid of s normalised over the batch (eq. 3).

    Where batch statistics are off, as in federated training, the running ones normalise.

    Args:
        width: number of units, each with an alpha of its own, which begins at 0.25 as PReLU's.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.alpha = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, values_BW: Tensor) -> Tensor:
        """Of float `[B, W]`, the same shape."""
        gate_BW = torch.sigmoid(self.norm(values_BW))
        return gate_BW * values_BW + (1.0 - gate_BW) * self.alpha * values_BW


def layers(widths: Sequence[int], activation: Callable[[int], nn.Module]) -> nn.Sequential:
    """Linear layers, each but the last followed by an activation of its width."""
    made: list[nn.Module] = []
    for size, width in itertools.pairwise(widths):
        made += [nn.Linear(size, width), activation(width)]
    return nn.Sequential(*made[:-1])

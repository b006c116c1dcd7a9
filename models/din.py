"""Deep Interest Network (Zhou et al., KDD 2018) with item, category and user embeddings.

Shape legend
    B = samples, L = longest history of the batch, D = embedding width, P = 2 D (item and category)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DIN(nn.Module):
    """Predict whether a user takes an item, from the user's past items.

    Every history item is weighted by an attention network that sees the candidate. The features
    are `[user D, target P, history sum P, target * history sum P, attention sum P]`, 9 D in all.
    With `dim=18` the dense part has 64,327 parameters; the embedding tables have
    `(items + categories + users) * 18`.

    Args:
        items: rows of the item table.
        categories: rows of the category table.
        users: rows of the user table.
        dim: width D of every embedding.
    """

    def __init__(self, *, items: int, categories: int, users: int, dim: int = 18) -> None:
        super().__init__()
        self.item_embedding = nn.Embedding(items, dim)
        self.category_embedding = nn.Embedding(categories, dim)
        self.user_embedding = nn.Embedding(users, dim)
        for table in (self.item_embedding, self.category_embedding, self.user_embedding):
            nn.init.normal_(table.weight, std=0.1)
        self.attention = nn.Sequential(
            nn.Linear(8 * dim, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )
        self.norm = nn.BatchNorm1d(9 * dim)
        self.head = nn.Sequential(
            nn.Linear(9 * dim, 200),
            nn.PReLU(200),
            nn.Linear(200, 80),
            nn.PReLU(80),
            nn.Linear(80, 2),
        )

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
            user: int64 `[B]`.
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
        user_BD = self.user_embedding(user)
        target_BP = torch.cat(
            [self.item_embedding(target), self.category_embedding(target_category)], dim=-1
        )
        history_BLP = torch.cat(
            [self.item_embedding(history), self.category_embedding(history_category)], dim=-1
        )
        history_BLP = torch.where(mask[..., None], history_BLP, 0.0)
        sum_BP = history_BLP.sum(dim=1)
        attention_BP = self.attend(target_BP, history_BLP, mask)
        features = torch.cat([user_BD, target_BP, sum_BP, target_BP * sum_BP, attention_BP], dim=-1)
        logits: Tensor = self.head(self.norm(features))
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

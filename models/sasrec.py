"""SASRec (Kang and McAuley, ICDM 2018): self-attention over the history, no user table.

Shape legend
    B = samples, L = longest history of the batch, D = embedding width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.histories import Inputs, UserAndItem, rows_of, scaled_table


class SASRec(UserAndItem):
    """Score an item by its product with what attention makes of the history.

    Positions count from the latest item backwards, so that histories of any length end alike. An
    empty history scores every item zero.

    Args:
        items: rows of the item table.
        categories: taken for the sake of other recommenders; unused.
        users: as `categories`.
        dim: width D of the embeddings.
        history: longest history.
        blocks: of attention and a network each.
        dropout: in [0, 1), of the embeddings and of both parts of a block.
    """

    def __init__(
        self,
        *,
        items: int,
        categories: int,
        users: int,
        dim: int = 18,
        history: int = 50,
        blocks: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.item_embedding = scaled_table(items, dim)
        self.positions = nn.Parameter(0.1 * torch.randn(history, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(dim, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)

    def of_user(self, given: Inputs) -> Tensor:
        """What attention makes of histories, `[B, D]`; zero of an empty one.

        The real items of a row of `history` stand first, the latest of them last.
        """
        _, target, _, history, _, mask = given
        length_B, width = mask.sum(dim=1), self.item_embedding.embedding_dim
        if not history.shape[1]:
            rows_BD: Tensor = self.item_embedding(target)
            return 0.0 * rows_BD
        place = torch.arange(history.shape[1], device=mask.device)
        back_BL = (length_B[:, None] - 1 - place).clamp(min=0)
        # Rows are as large as positions, so that neither drowns the other.
        rows_BLD = rows_of(self.item_embedding, history, target, mask) * width**0.5
        values_BLD = self.dropout(rows_BLD + self.positions[back_BL])
        allowed = mask[:, None, :] & (place[:, None] >= place)  # [B, L, L]: of earlier ones only
        allowed = allowed | torch.eye(len(place), dtype=torch.bool, device=mask.device)
        for block in self.blocks:
            values_BLD = block(values_BLD, allowed)
        last_B1D = (length_B - 1).clamp(min=0)[:, None, None].expand(-1, 1, width)
        latest_BD = self.norm(values_BLD.gather(1, last_B1D).squeeze(1))
        return torch.where(length_B[:, None] > 0, latest_BD, 0.0)

    def score(self, user: Tensor, item: Tensor) -> Tensor:
        """Products `[B]` of rows `[B, D]`."""
        return (user * item).sum(dim=1)


class _Block(nn.Module):
    """Attention of one head, then a network of two layers, both added to what they get."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.network = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, values_BLD: Tensor, allowed: Tensor) -> Tensor:
        """Of float `[B, L, D]` and bool `[B, L, L]`, float `[B, L, D]`."""
        seen = self.norms[0](values_BLD)
        mixed = functional.scaled_dot_product_attention(
            self.query(seen), self.key(values_BLD), self.value(values_BLD), attn_mask=allowed
        )
        values_BLD = values_BLD + self.dropout(mixed)
        changed: Tensor = self.network(self.norms[1](values_BLD))
        result: Tensor = values_BLD + self.dropout(changed)
        return result

"""A word-level Transformer language model (Vaswani et al., 2017), normalised before each part.

Shape legend
    B = texts, T = words of each, D = width, H = heads
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.decoder import Decoder, Kind
from models.hankel import HankelEmbedding, HankelLinear


class TransformerLanguageModel(nn.Module):
    """Predict each word from those before it.

    Args:
        words: of the vocabulary.
        width: D, of embeddings, hidden states and inner layers alike.
        layers: number of layers.
        heads: of the attention; they share D.
        dropout: probability of dropping embeddings and outputs of every part in training.
        block: side of the Hankel blocks of the layers' matrices; 1 for whole matrices.
        block_embedding: the same of the embedding and of an untied decoder.
        decoder: see `models.decoder`.
    """

    def __init__(
        self,
        *,
        words: int,
        width: int = 64,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.2,
        block: int = 1,
        block_embedding: int = 1,
        decoder: Kind = "tied",
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(
                f"the width is {width}, which is not a multiple of {heads} heads: choose a "
                f"multiple of {heads}"
            )
        self.width = width
        self.embedding = HankelEmbedding(words, width, block=block_embedding)
        nn.init.uniform_(self.embedding.table.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(_Layer(width, heads, dropout, block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.decoder = Decoder(self.embedding, decoder, block=block_embedding)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        """Negative log-likelihood, float `[B * T]`, of the words that follow.

        Args:
            words: int64 `[B, T]`.
            following: int64 `[B, T]`: for each position the word after it.
        """
        embedded = self.embedding(words) * math.sqrt(self.width)
        hidden = self.dropout(embedded + positions(words.shape[1], self.width, words.device))
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.norm(hidden)
        loss: Tensor = self.decoder(hidden.flatten(0, 1), following.flatten(), self.embedding)
        return loss


class _Layer(nn.Module):
    """Attention to earlier words, then a network for each word separately."""

    def __init__(self, width: int, heads: int, dropout: float, block: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = HankelLinear(width, 3 * width, block=block)
        self.joined = HankelLinear(width, width, block=block)
        self.inner = HankelLinear(width, width, block=block)
        self.outer = HankelLinear(width, width, block=block)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        attended: Tensor = x_BTD + self.dropout(self._attend(self.attention_norm(x_BTD)))
        inner = functional.relu(self.inner(self.inner_norm(attended)))
        output: Tensor = attended + self.dropout(self.outer(self.dropout(inner)))
        return output

    def _attend(self, x_BTD: Tensor) -> Tensor:
        projected: Tensor = self.projections(x_BTD)
        parts = projected.view(*x_BTD.shape[:2], 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, H, T, D / H]
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.joined(found.transpose(1, 2).flatten(2))
        return joined


def positions(length: int, width: int, device: torch.device) -> Tensor:
    """Sines and cosines by position, float `[length, width]`, section 3.5 of the paper."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]

"""Convolutional network for sentence classification (Kim, EMNLP 2014), randomly initialised words.

Shape legend
    B = sentences, T = words of the longest sentence, D = embedding width, F = feature maps
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TextCNN(nn.Module):
    """Classify a sentence by the strongest response of each convolution over its words.

    Args:
        words: rows of the word table.
        classes: number of classes.
        dim: embedding width D.
        maps: feature maps F for every window width.
        widths: window widths in words.
        dropout: probability of dropping a pooled feature in training.
        padding_id: the word id of padding; its embedding stays zero.
    """

    def __init__(
        self,
        *,
        words: int,
        classes: int,
        dim: int = 300,
        maps: int = 100,
        widths: tuple[int, ...] = (3, 4, 5),
        dropout: float = 0.5,
        padding_id: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dim, padding_idx=padding_id)
        nn.init.uniform_(self.embedding.weight, -0.25, 0.25)  # section 3.1 of the paper
        with torch.no_grad():
            self.embedding.weight[padding_id].zero_()
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, maps, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(maps * len(widths), classes)
        self.longest_window = max(widths)
        self.padding_id = padding_id

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits `[B, classes]` of int64 word ids `[B, T]`, padded at the end.

        Windows of padding count in the maximum, so that logits depend on T.
        """
        missing = self.longest_window - words.shape[1]
        if missing > 0:
            words = functional.pad(words, (0, missing), value=self.padding_id)
        embedded_BDT = self.embedding(words).transpose(1, 2)
        pooled_BF = [
            functional.relu(convolution(embedded_BDT)).amax(dim=2)
            for convolution in self.convolutions
        ]
        logits: Tensor = self.output(self.dropout(torch.cat(pooled_BF, dim=1)))
        return logits

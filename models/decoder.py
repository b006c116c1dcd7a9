"""From hidden states to the likelihood of the next words: tied, untied or adaptive.

Shape legend
    N = words to predict, D = width, V = words of the vocabulary
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.hankel import HankelEmbedding, HankelLinear

Kind = Literal["tied", "untied", "adaptive"]


class Decoder(nn.Module):
    """Negative log-likelihood of words, given hidden states.

    `tied` scores a word by its row of the input table (Press and Wolf, 2017), `untied` by a
    separate matrix; both have a bias. `adaptive` (Grave et al., 2017) gives rare words narrow
    vectors in clusters. It computes exact likelihoods with far fewer operations. Its words must be
    numbered by falling frequency.

    Args:
        embedding: input table, V x D. The caller keeps it, and the decoder does not.
        kind: one of the three kinds above.
        block: side of the blocks of an untied matrix; `adaptive` does not have such blocks.
    """

    def __init__(self, embedding: HankelEmbedding, kind: Kind, *, block: int = 1) -> None:
        super().__init__()
        words, width = embedding.words, embedding.width
        self.kind = kind
        if kind == "adaptive":
            cutoffs = [words // 16, words // 4]
            self.clusters = nn.AdaptiveLogSoftmaxWithLoss(width, words, cutoffs)
        elif kind == "untied":
            self.scores = HankelLinear(width, words, block=block)
            nn.init.zeros_(self.scores.bias)
        else:
            self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, hidden: Tensor, words: Tensor, embedding: HankelEmbedding) -> Tensor:
        """Float `[N]` from hidden states `[N, D]` and the int64 ids `[N]` that came."""
        if self.kind == "adaptive":
            likelihood: Tensor = self.clusters(hidden, words).output
            return -likelihood
        if self.kind == "untied":
            logits = self.scores(hidden)
        else:
            logits = functional.linear(hidden, embedding.weight, self.bias)
        return functional.cross_entropy(logits.float(), words, reduction="none")

"""A word-level LSTM language model.

Shape legend
    B = texts, T = words of each, D = width
"""

from __future__ import annotations

from torch import Tensor, nn

from models.decoder import Decoder, Kind
from models.hankel import HankelEmbedding, HankelLSTM


class LSTMLanguageModel(nn.Module):
    """Predict each word from those before it.

    With 33,278 words, width 200, two layers and an untied decoder it has 13,987,678 parameters; in
    blocks of 32, the tables too, 997,858.

    Args:
        words: of the vocabulary.
        width: D, of embeddings and hidden states alike.
        layers: of the LSTM.
        dropout: probability of dropping embeddings, outputs of layers and of the LSTM in training.
        block: side of the Hankel blocks of the recurrent matrices; 1 for whole matrices.
        block_embedding: the same of the embedding and of an untied decoder.
        decoder: see `models.decoder`.
    """

    def __init__(
        self,
        *,
        words: int,
        width: int = 64,
        layers: int = 2,
        dropout: float = 0.2,
        block: int = 1,
        block_embedding: int = 1,
        decoder: Kind = "tied",
    ) -> None:
        super().__init__()
        self.embedding = HankelEmbedding(words, width, block=block_embedding)
        nn.init.uniform_(self.embedding.table.weight, -0.1, 0.1)
        self.lstm = HankelLSTM(width, width, layers=layers, block=block, dropout=dropout)
        self.decoder = Decoder(self.embedding, decoder, block=block_embedding)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        """Negative log-likelihood, float `[B * T]`, of the words that follow.

        Args:
            words: int64 `[B, T]`.
            following: int64 `[B, T]`: for each position the word after it.
        """
        hidden = self.dropout(self.lstm(self.dropout(self.embedding(words))))
        loss: Tensor = self.decoder(hidden.flatten(0, 1), following.flatten(), self.embedding)
        return loss

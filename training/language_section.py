"""The section of an experiment's settings on text and language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.sections import ConfigError


@dataclass(frozen=True, slots=True)
class Language:
    """Text and model of `lstm-wikitext2` and `transformer-wikitext2`.

    Attributes:
        vocabulary: longest list of words; rarer ones are unknown. 0 for all words.
        width: of embeddings and layers.
        layers: of the LSTM or the Transformer.
        heads: of the Transformer's attention.
        dropout: in training.
        block: side of the block-Hankel blocks of the layers' matrices; 1 for whole matrices.
        block_embedding: the same of the embedding, and of an untied decoder.
        decoder: `tied` scores words by the input table, `untied` by a matrix of its own,
            `adaptive` by clusters of rare words: far fewer operations with many words.
        rows: of the input table of a decoder that is not tied: the fraction of its rows that a
            client sends, those whose change has the largest L1 norm (`fsl` and `plain`).
        tokens: words of a window, which the model sees at once.
        clients: the training text is cut into so many blocks, in order.
        valid_tokens: evaluations read so many words of the validation text; 0 for all.
        start: folder of a finished run with whole matrices, whose model is projected to blocks
            once and goes on from there; empty to start anew.
    """

    vocabulary: int = 8192
    width: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.2
    block: int = 1
    block_embedding: int = 1
    decoder: Literal["tied", "untied", "adaptive"] = "tied"
    rows: float = 1.0
    tokens: int = 32
    clients: int = 100
    valid_tokens: int = 0
    start: str = ""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "block", "block_embedding", "tokens", "clients"):
            if getattr(self, name) < 1:
                raise ConfigError(f"language.{name} is {getattr(self, name)}; choose at least 1")
        if self.vocabulary and self.vocabulary < 32:
            raise ConfigError(f"language.vocabulary is {self.vocabulary}; choose 0, or 32 or more")
        if self.valid_tokens < 0:
            raise ConfigError(f"language.valid_tokens is {self.valid_tokens}; choose 0 or more")
        if self.width % self.heads:
            raise ConfigError(
                f"language.width is {self.width}, which {self.heads} heads cannot share: choose a "
                "multiple of language.heads"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"language.dropout is {self.dropout}; choose one in [0, 1)")
        if not 0 < self.rows <= 1:
            raise ConfigError(f"language.rows is {self.rows}; choose a fraction in (0, 1]")
        if self.decoder == "adaptive" and self.width < 16:
            raise ConfigError(
                f"language.width is {self.width}; the adaptive decoder, whose rarest words have "
                "vectors of a sixteenth, needs at least 16"
            )
        if self.decoder == "adaptive" and self.block_embedding > 1:
            raise ConfigError(
                f"language.block_embedding is {self.block_embedding}, and the adaptive decoder has "
                "no such form: choose a tied or untied one, or block_embedding = 1"
            )

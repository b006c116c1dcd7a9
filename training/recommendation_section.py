"""The section of an experiment's settings on recommenders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.sections import ConfigError


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Model and samples of the recommenders.

    Attributes:
        dim: width of the embeddings.
        history: most items of a history.
        negatives: sampled items for every positive one.
        rows_per_client: public budget k_max of embedding rows a client fetches and sends.
        columns: of a CSV or Parquet file as data, `user=NAME,item=NAME,time=NAME,category=NAME`,
            the last two if there.
        user_table: whether users have embeddings of their own. Without, a user is its items: what
            it uploads names no row that is its own, and users who take part once or twice lose
            nothing.
        head: widths of the head's hidden layers.
        attention: widths of the hidden layers of DIN's attention.
        activation: of DIN's head, as published: `prelu` or `dice`.
        dropout: share of the head's input that is zero in training, in [0, 1); of SASRec's
            embeddings and blocks.
        blocks: of SASRec.
        ranked_users: how many seeded users' held-out item is ranked among 99 negatives at the end
            of a run; 0 for none, any large number for all.
        catalogue_users: how many seeded users' held-out item is ranked in the whole catalogue.
    """

    dim: int = 18
    history: int = 50
    negatives: int = 4
    rows_per_client: int = 256
    columns: str = ""
    user_table: bool = True
    head: tuple[int, ...] = (200, 80)
    attention: tuple[int, ...] = (80, 40)
    activation: Literal["prelu", "dice"] = "prelu"
    dropout: float = 0.0
    blocks: int = 2
    ranked_users: int = 0
    catalogue_users: int = 0

    def __post_init__(self) -> None:
        for name in ("history", "negatives", "rows_per_client", "blocks"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"recommendation.{name} is {getattr(self, name)}; choose at least 1"
                )
        if self.dim < 2:
            raise ConfigError(f"recommendation.dim is {self.dim}; choose at least 2")
        for name in ("ranked_users", "catalogue_users"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"recommendation.{name} is {getattr(self, name)}; choose 0 or more"
                )
        for name in ("head", "attention"):
            if any(width < 1 for width in getattr(self, name)):
                raise ConfigError(
                    f"recommendation.{name} is {list(getattr(self, name))}; choose widths of at "
                    "least 1, or [] for no hidden layer"
                )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"recommendation.dropout is {self.dropout}; choose one in [0, 1)")

"""The section of an experiment's settings on click-through rates."""

from __future__ import annotations

from dataclasses import dataclass

from training.sections import ConfigError


@dataclass(frozen=True, slots=True)
class Ctr:
    """Model and samples of `ctr-deepfm`.

    Attributes:
        columns: of a CSV, TSV or Parquet file as data:
            `label=NAME,fields=A+B,numeric=C+D,client=NAME,time=NAME`, the last three if there;
            `fields=*` takes all others. Empty for Criteo's TSV of 40 columns without names.
        clients: over so many clients lines are spread at random, where no column names the client.
        dim: width of the embeddings, the weight of first order included.
        head: widths of the network's hidden layers.
        dropout: share of the network's input that is zero in training, in [0, 1).
        least: how often a value must be in the training lines to have a row of its own.
        lines: most lines that a client trains on in a round.
        rows_per_client: public budget k_max of embedding rows a client fetches and sends; lines
            beyond it wait for another round.
    """

    columns: str = ""
    clients: int = 1000
    dim: int = 17
    head: tuple[int, ...] = (64, 32)
    dropout: float = 0.0
    least: int = 10
    lines: int = 64
    rows_per_client: int = 512

    def __post_init__(self) -> None:
        for name in ("clients", "least", "lines", "rows_per_client"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ctr.{name} is {getattr(self, name)}; choose at least 1")
        if self.dim < 2:
            raise ConfigError(f"ctr.dim is {self.dim}; choose at least 2")
        if any(width < 1 for width in self.head):
            raise ConfigError(f"ctr.head is {list(self.head)}; choose widths of at least 1, or []")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"ctr.dropout is {self.dropout}; choose one in [0, 1)")

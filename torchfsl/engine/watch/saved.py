"""The rows of a table when a round began, and what is kept of their gradients.

The initial value of a row is known from one of three places: a copy of the whole table (only where
the optimizer moves rows that no batch touched, see `optimizers.moves_all`), the anchors (rows
saved at the start: retrieved ones, the fixed row set, rows that still carry momentum), or the rows
saved when they were first touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from torchfsl.engine.watch.touched import TouchedRows


@dataclass(slots=True)
class SavedRows:
    """Rows and what they held: ids int64 [r] increasing, values [r, tau]."""

    ids: torch.Tensor
    values: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Memory they take."""
        return self.ids.nbytes + self.values.nbytes

    def override(self, other: SavedRows) -> SavedRows:
        """Both row sets; where both have a row, `other` counts."""
        keep = ~torch.isin(self.ids, other.ids)
        ids, order = torch.cat([self.ids[keep], other.ids]).sort()
        return SavedRows(ids, torch.cat([self.values[keep], other.values])[order])

    def plus(self, other: SavedRows | None) -> SavedRows:
        """The sum of both row sets."""
        if other is None:
            return self
        ids, where = torch.unique(torch.cat([self.ids, other.ids]), return_inverse=True)
        values = self.values.new_zeros(ids.numel(), self.values.shape[1])
        values.index_add_(0, where, torch.cat([self.values, other.values]))
        return SavedRows(ids, values)


class StartOfRound:
    """A table as it was when the round began."""

    def __init__(
        self, weight: nn.Parameter, touched: TouchedRows, anchors: torch.Tensor, *, whole: bool
    ) -> None:
        """Save the anchors.

        Args:
            weight: [m, tau].
            touched: saves rows of `weight` from now on.
            anchors: ids of rows to save now: int64, increasing.
            whole: also keep a copy of the whole table.
        """
        self._weight, self._touched = weight, touched
        now = weight.detach()
        self._copy = now.clone() if whole else None
        self._anchors = SavedRows(anchors, now.index_select(0, anchors))

    def known(self) -> SavedRows:
        """The rows saved one by one so far: anchors and touched rows."""
        return SavedRows(*self._touched.rows()).override(self._anchors)

    def of(self, ids: torch.Tensor, known: SavedRows) -> torch.Tensor:
        """The old values of rows `ids`: [k, tau]. Without a table copy they are among `known`."""
        if self._copy is not None:
            return self._copy.index_select(0, ids)
        return known.values.index_select(0, torch.searchsorted(known.ids, ids))

    def put_back(self, known: SavedRows) -> None:
        """Write to the table what it held."""
        now = self._weight.detach()  # not that of the start: its storage may be another one
        if self._copy is not None:
            now.copy_(self._copy)
        else:
            now.index_copy_(0, known.ids, known.values)

    @property
    def num_bytes(self) -> int:
        """Memory of anchors and copy; touched rows count for themselves."""
        return self._anchors.num_bytes + (0 if self._copy is None else self._copy.nbytes)


def gradient_rows(
    gradient: torch.Tensor, ids: torch.Tensor, factor: torch.Tensor | None
) -> SavedRows:
    """The rows `ids` of a step's gradient [m, tau], in float64; of a sparse one, those it has.

    Args:
        gradient: dense or sparse.
        ids: int64 [k], increasing.
        factor: undoes a loss scale; 0 ignores the step, None means 1.
    """
    if gradient.is_sparse:
        dense = gradient.coalesce()
        keep = torch.isin(dense.indices()[0], ids)
        ids, values = dense.indices()[0][keep], dense.values()[keep]
    else:
        values = gradient.index_select(0, ids)
    values = values.to(torch.float64)
    if factor is not None:
        values = torch.where(factor == 0, 0.0, values * factor)
    return SavedRows(ids, values)


def nonzero_rows(gradient: torch.Tensor) -> torch.Tensor:
    """Ids of the rows of a gradient [m, tau] that are not zero: int64, increasing."""
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return gradient.indices()[0][(gradient.values() != 0).any(dim=1)]
    return torch.nonzero((gradient != 0).any(dim=1)).flatten()

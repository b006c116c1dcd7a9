"""Rows of a table that the client does not hold, after a private retrieval.

Such rows are NaN, or zero under `Rows(absent="zero")`. Looking one up is refused where it happens
on the CPU. On accelerators lookups do not wait for the device: there it is noticed when the round
ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from torchfsl.engine.inventory import Table
from torchfsl.errors import ParameterError

_SHOWN: Final = 5
"""Ids that a message gives as examples."""

_READS_ALL: Final = (
    "the loss has a gradient in rows that were not retrieved, so it reads the whole table "
    "(a regulariser over all weights, a softmax over all rows), most of which this client does not "
    "hold: "
)
_REGULARISER: Final = (
    "a regulariser such as L2 trains with Rows(absent='zero'), under which it covers the retrieved "
    "rows; a softmax over all rows needs the whole table at the client: "
)
_NOT_ZERO: Final = (
    "Rows(absent='zero') is for regularisers whose gradient at zero is zero, such as L2; a softmax "
    "over all rows needs the whole table at the client: "
)
_WHOLE: Final = "Rows(top=..., find='scan'), or rows=None"


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a round for the segment that a table is in.

    Attributes:
        segment: its name.
        named: distinct rows that the caller named.
        k_max: the plan's budget, above which rows were not fetched.
    """

    segment: str
    named: int
    k_max: int


class PresentRows:
    """The rows of one table that hold numbers in this round.

    Attributes:
        ids: int64 [k], increasing.
        whole: these are all rows.
        num_missed: lookups of other rows that were noticed.
    """

    def __init__(self, table: Table, ids: torch.Tensor, asked: Asked | None) -> None:
        """Mark them: a byte per table row. Messages say what was `asked`, where that is known."""
        self._table, self.ids = table, ids.to(table.weight.device)
        self._asked = asked
        self.whole = ids.numel() == table.num_rows
        self._mark = torch.zeros(table.num_rows, dtype=torch.bool, device=self.ids.device)
        self._mark[self.ids] = True
        if table.padding >= 0:
            self._mark[table.padding] = True
        self._missed = torch.zeros((), dtype=torch.int64, device=self.ids.device)

    @property
    def num_missed(self) -> int:
        """Waits for the device."""
        return int(self._missed)

    @torch.no_grad()
    def note_lookup(self, ids: torch.Tensor) -> None:
        """Count ids of absent rows; refuse them on the CPU.

        Raises:
            ParameterError: with the table, how many rows, and some of their ids.
        """
        if self.whole or ids.is_floating_point() or ids.device != self._mark.device:
            return
        flat = ids.reshape(-1).to(torch.int64)
        last = self._table.num_rows - 1
        known = self._mark[flat.clamp(0, last)] | (flat < 0) | (flat > last)
        self._missed += (~known).sum()
        if flat.device.type == "cpu" and not bool(known.all()):
            raise self.missing(flat[~known])

    def missing(self, ids: torch.Tensor) -> ParameterError:
        """What to say of lookups of the absent rows `ids`, int64 [n]."""
        distinct = torch.unique(ids)
        some = ", ".join(str(i) for i in distinct[:_SHOWN].tolist())
        more = ", ..." if distinct.numel() > _SHOWN else ""
        return ParameterError(
            f"{self._table.name}: the model looked up {distinct.numel()} rows ({some}{more}) that "
            f"are not among the {self.ids.numel()} that the client retrieved: "
            f"{self._remedy()}"
        )

    def _remedy(self) -> str:
        asked = self._asked
        if asked is not None and asked.named > asked.k_max:
            return (
                f"rows= had {asked.named} rows of segment {asked.segment!r}, and rows_per_client "
                f"is {asked.k_max}, so the client retrieved only {asked.k_max}: make a plan with "
                f"rows_per_client={asked.named} or more, or train on fewer rows per round"
            )
        most = "rows_per_client" if asked is None else f"rows_per_client = {asked.k_max}"
        return (
            f"pass all training batches as batches=, or the ids of all their rows as rows= ({most} "
            "is the limit)"
        )

    @torch.no_grad()
    def check_gradient(self, gradient: torch.Tensor, *, zero: bool) -> None:
        """Refuse a gradient [m, tau] with values, or NaN, in absent rows.

        Raises:
            ParameterError: the loss reads the whole table.
        """
        if self.whole:
            return
        if gradient.is_sparse:
            parts = gradient.coalesce()
            used = parts.indices()[0][(parts.values() != 0).any(dim=1)]
            outside = not bool(self._mark[used].all())
        else:
            held = torch.nonzero(self._mark).flatten()
            inside = torch.count_nonzero(gradient.index_select(0, held))
            outside = bool(torch.count_nonzero(gradient) != inside)
        if outside:
            raise self._reads_all(zero)

    @torch.no_grad()
    def check_still_zero(self, carried: torch.Tensor) -> None:
        """At the end of a round of zeros: absent rows are zero, except those with momentum.

        Args:
            carried: ids of rows that the optimizer moves without a gradient.

        Raises:
            ParameterError: one has moved.
        """
        if self.whole:
            return
        moved = (self._table.weight.detach() != 0).any(dim=1) & ~self._mark
        moved[carried] = False
        if bool(moved.any()):
            raise self._reads_all(zero=True)

    def _reads_all(self, zero: bool) -> ParameterError:
        remedy = _NOT_ZERO if zero else _REGULARISER
        return ParameterError(f"{self._table.name}: {_READS_ALL}{remedy}{_WHOLE}")

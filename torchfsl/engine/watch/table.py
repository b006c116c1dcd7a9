"""One embedding table during a round: which rows were touched, what they held, how they changed.

The initial value of a row is known from one of three places: a copy of the whole table (only where
the optimizer moves rows that no batch touched, see `optimizers.moves_all`), the anchors (rows
saved at the start: retrieved ones, the fixed row set, rows that still carry momentum), or the rows
saved when they were first touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Table
from torchfsl.engine.policies import Fixed, Rows
from torchfsl.engine.watch.guards import still_message
from torchfsl.engine.watch.optimizers import broken_state, carried_rows, moves_all
from torchfsl.engine.watch.touched import touched_rows
from torchfsl.engine.watch.untouched import (
    ChecksumCheck,
    SampleCheck,
    differs,
    has_gradient_outside,
)
from torchfsl.errors import ParameterError

Source = Literal["delta", "gradient"]
Check = Literal["checksum", "sample", "off"]

_ESCAPED: Final = (
    "a row changed that no lookup touched in this round: the table is also used outside its "
    "embedding module (F.embedding, module.forward, table.weight, a write to the weight), or "
    "gradients were left from before the round, or the model is a traced one or ran compiled "
    "before attach: look rows up through the module, by calling it, call zero_grad() first, call "
    "torch.compiler.reset() after attach, or find rows with Rows(find='scan'), or send the table "
    "with rows=None"
)


@dataclass(slots=True)
class SavedRows:
    """Rows and what they held: ids int64 [r] increasing, values [r, tau]."""

    ids: torch.Tensor
    values: torch.Tensor

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


@dataclass(slots=True)
class TableChange:
    """How a table's rows changed: local ids int64 [c] increasing, values float64 [c, tau]."""

    ids: torch.Tensor
    values: torch.Tensor


class TableWatch:
    """Follows one table from `begin` to `finish`."""

    def __init__(
        self,
        table: Table,
        rows: Rows,
        optimizer: Optimizer,
        *,
        source: Source,
        check: Check,
        noised: bool,
    ) -> None:
        """Nothing is recorded before `begin`."""
        self.table, self.rows = table, rows
        self._optimizer, self._source = optimizer, source
        self._check_kind, self._noised = check, noised
        self._touched, self._device = touched_rows(table.weight), table.weight.device
        self._recording = False
        self._open = False

    @property
    def weight(self) -> torch.Tensor:
        """The table's values, outside autograd."""
        return self.table.weight.detach()

    @property
    def copies_table(self) -> bool:
        """Whether rounds without retrieval keep a copy of the whole table."""
        return self._source == "delta" and moves_all(self._optimizer, self.table, self._noised)

    # --- the round ----------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, present: torch.Tensor | None) -> None:
        """Start recording.

        Args:
            present: int64, increasing: the only rows the client holds, after a retrieval.
        """
        weight, delta = self.weight, self._source == "delta"
        if self._device != weight.device:
            self._touched, self._device = touched_rows(self.table.weight), weight.device
        self._touched.clear()
        self._present = None if present is None else present.to(weight.device)
        self._gradient: SavedRows | None = None
        self._all_moves = self.copies_table
        self._copy = weight.clone() if self._all_moves and present is None else None
        self._carried = (
            carried_rows(self._optimizer, self.table.weight)
            if delta and not self._all_moves
            else torch.empty(0, dtype=torch.int64, device=weight.device)
        )
        anchors = [self._carried] if self._present is None else [self._present]
        fixed = self._fixed_ids()
        if fixed is not None:
            anchors.append(fixed)
        ids = torch.unique(torch.cat(anchors))
        self._anchors = SavedRows(ids, weight.index_select(0, ids))
        self._untouched: ChecksumCheck | SampleCheck | None = None
        if delta and self._present is None and not self._all_moves:
            if self._check_kind == "checksum":
                self._untouched = ChecksumCheck(weight)
            elif self._check_kind == "sample":
                self._untouched = SampleCheck(weight)
        self._recording = self._open = True
        self._first_step = True

    def note_lookup(self, module: nn.Module, ids: torch.Tensor) -> None:
        """Called before each lookup."""
        if not self._recording or self.rows.find == "scan":
            return
        if not torch.is_grad_enabled() and getattr(module, "max_norm", None) is None:
            return
        if ids.is_nested:
            ids = ids.values()
        padding = getattr(module, "padding_idx", None)
        self._touched.note(ids, -1 if padding is None else padding)

    @property
    def looks_at_gradient(self) -> bool:
        """Whether the next step's gradient is needed, so `before_step` must be called."""
        return self.rows.find == "scan" or self._checks_gradient or self._source == "gradient"

    @property
    def _checks_gradient(self) -> bool:
        """In a round that moves every row by a `delta`, the first gradient stands for all."""
        if self._check_kind == "off" or self._noised or self.rows.find == "scan":
            return False
        return self._source == "gradient" or (self._all_moves and self._first_step)

    @torch.no_grad()
    def before_step(self, factor: torch.Tensor | None) -> None:
        """Called when the gradients of a step are ready; `factor` undoes a loss scale."""
        gradient = self.table.weight.grad
        if not self._recording or gradient is None:
            return
        if self.rows.find == "scan":
            self._touched.note(_nonzero(gradient))
        if self._checks_gradient:
            self._check_gradient(gradient)
        self._first_step = False
        if self._source == "gradient":
            self._capture(gradient, factor)

    def _check_gradient(self, gradient: torch.Tensor) -> None:
        ids, _ = self._touched.rows()
        if has_gradient_outside(gradient, ids):
            raise ParameterError(f"{self.table.name}: {_ESCAPED}")

    def _capture(self, gradient: torch.Tensor, factor: torch.Tensor | None) -> None:
        fixed = self._fixed_ids()
        ids = self._touched.rows()[0] if fixed is None else fixed
        if gradient.is_sparse:
            dense = gradient.coalesce()
            keep = torch.isin(dense.indices()[0], ids)
            ids, values = dense.indices()[0][keep], dense.values()[keep]
        else:
            values = gradient.index_select(0, ids)
        values = values.to(torch.float64)
        if factor is not None:
            values = torch.where(factor == 0, 0.0, values * factor)
        self._gradient = SavedRows(ids, values).plus(self._gradient)

    @torch.no_grad()
    def finish(self) -> TableChange:
        """Stop recording; check untouched rows and deal with them as the policy says.

        Raises:
            ParameterError: rows changed that are not part of the update, under `reject`.
        """
        self._recording = False
        known = self._known()
        touched, _ = self._touched.rows()
        if self._present is not None and not bool(torch.isin(touched, self._present).all()):
            raise ParameterError(
                f"{self.table.name}: rows were looked up that had not been retrieved: pass every "
                "row the batches use as rows= to engine.round, at most the plan's k_max of them"
            )
        fixed = self._fixed_ids()
        outside = touched[:0] if fixed is None else touched[~torch.isin(touched, fixed)]
        if outside.numel() and self.rows.untouched == "reject":
            raise ParameterError(
                f"{self.table.name}: lookups touched rows outside the fixed row set: add them to "
                "it, or say what becomes of them with Rows(untouched='restrict')"
            )
        if self._source == "gradient":
            self._check_still(known)
            return self._gradient_change()
        self._check_untouched(known, touched)
        ids = self._candidates(known, touched)
        if self.rows.untouched == "restrict":
            self._put_back(known, ids)
        before = self._initial(known, ids).to(torch.float64)
        return TableChange(ids, self.weight.index_select(0, ids).to(torch.float64) - before)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the table back to the start of the round."""
        if not self._open:
            return
        if self._copy is not None:
            self.weight.copy_(self._copy)
        else:
            known = self._known()
            self.weight.index_copy_(0, known.ids, known.values)

    def close(self) -> None:
        """End the round: drop everything that was saved."""
        if self._open:
            self._mend_state()
        self._recording = self._open = False
        self._touched.clear()
        self._copy, self._untouched, self._gradient = None, None, None

    def _mend_state(self) -> None:
        """Weight decay reads rows that are NaN and writes NaN into their optimizer state."""
        if self._present is None or not self._all_moves:
            return
        shape = self.table.weight.shape
        for value in self._optimizer.state.get(self.table.weight, {}).values():
            if isinstance(value, torch.Tensor) and value.shape == shape and not value.is_sparse:
                rows = torch.nonzero(value.isnan().any(dim=1)).flatten()
                value.index_fill_(0, rows[~torch.isin(rows, self._present)], 0.0)

    # --- parts --------------------------------------------------------------------------------

    @property
    def num_saved(self) -> int:
        """Rows saved so far."""
        return int(self._known().ids.numel()) if self._open else 0

    @property
    def num_bytes(self) -> int:
        """Memory held for this round."""
        if not self._open:
            return 0
        anchors = self._anchors.ids.nbytes + self._anchors.values.nbytes
        copy = 0 if self._copy is None else self._copy.nbytes
        gradient = self._gradient
        captured = 0 if gradient is None else gradient.ids.nbytes + gradient.values.nbytes
        return self._touched.num_bytes + anchors + copy + captured

    def _known(self) -> SavedRows:
        return SavedRows(*self._touched.rows()).override(self._anchors)

    def _fixed_ids(self) -> torch.Tensor | None:
        choose = self.rows.choose
        if not isinstance(choose, Fixed):
            return None
        ids = choose.ids(self.table.name).to(self.weight.device)
        return ids if self._present is None else ids[torch.isin(ids, self._present)]

    def _initial(self, known: SavedRows, ids: torch.Tensor) -> torch.Tensor:
        if self._copy is not None:
            return self._copy.index_select(0, ids)
        return known.values.index_select(0, torch.searchsorted(known.ids, ids))

    def _candidates(self, known: SavedRows, touched: torch.Tensor) -> torch.Tensor:
        fixed = self._fixed_ids()
        if fixed is not None:
            return fixed
        if self.rows.untouched != "reject" or self._carried.numel() == 0:
            return touched
        rest = self._carried[~torch.isin(self._carried, touched)]
        if self._present is not None:
            rest = rest[torch.isin(rest, self._present)]
        moved = differs(self._initial(known, rest), self.weight.index_select(0, rest))
        return torch.cat([touched, rest[moved]]).sort().values

    def _check_untouched(self, known: SavedRows, touched: torch.Tensor) -> None:
        if self._untouched is not None:
            moved = self._untouched.moved(known.ids, known.values)
        elif self._present is not None and not self._all_moves and self._check_kind != "off":
            ids = known.ids[~torch.isin(known.ids, torch.cat([touched, self._carried]))]
            moved = bool(differs(self._initial(known, ids), self.weight.index_select(0, ids)).any())
        else:
            return
        if not moved:
            return
        broken = broken_state(self._optimizer, self.table.weight)
        if broken is not None:
            raise ParameterError(
                f"{self.table.name}: the optimizer's state {broken!r} is NaN or infinite and has "
                "moved rows that no lookup touched: load it from an earlier checkpoint, or start "
                "the optimizer anew"
            )
        raise ParameterError(f"{self.table.name}: {_ESCAPED}")

    def _check_still(self, known: SavedRows) -> None:
        if any(getattr(module, "max_norm", None) is not None for module in self.table.modules):
            return  # looking a row up may shorten it
        if bool(differs(known.values, self.weight.index_select(0, known.ids)).any()):
            raise ParameterError(still_message(self.table.name))

    def _put_back(self, known: SavedRows, ids: torch.Tensor) -> None:
        weight = self.weight
        now = weight.index_select(0, ids)
        if self._copy is not None:
            weight.copy_(self._copy)
        else:
            weight.index_copy_(0, known.ids, known.values)
        weight.index_copy_(0, ids, now)

    def _gradient_change(self) -> TableChange:
        if self._gradient is None:
            return TableChange(self._anchors.ids[:0], self.weight[:0].to(torch.float64))
        return TableChange(self._gradient.ids, self._gradient.values)


def _nonzero(gradient: torch.Tensor) -> torch.Tensor:
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return gradient.indices()[0][(gradient.values() != 0).any(dim=1)]
    return torch.nonzero((gradient != 0).any(dim=1)).flatten()

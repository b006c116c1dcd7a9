"""One embedding table during a round: which rows were touched, and how they changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Table
from torchfsl.engine.policies import Rows
from torchfsl.engine.watch.absent import Asked, PresentRows
from torchfsl.engine.watch.guards import still_message
from torchfsl.engine.watch.optimizers import (
    broken_state,
    carried_rows,
    mend_state,
    moves_all,
    start_afresh,
)
from torchfsl.engine.watch.snapshot import HeldRows
from torchfsl.engine.watch.touched import (
    ChecksumCheck,
    SampleCheck,
    SavedRows,
    StartOfRound,
    differs,
    gradient_rows,
    has_gradient_outside,
    nonzero_rows,
    touched_rows,
)
from torchfsl.errors import ParameterError

Source = Literal["delta", "gradient"]
Check = Literal["checksum", "sample", "off"]

_ESCAPED: Final = (
    "a row changed that no lookup touched in this round: the table is also used outside its "
    "embedding module (F.embedding, module.forward, table.weight, a regulariser over all of it, a "
    "write to the weight), or "
    "gradients were left from before the round, or the model is a traced one or ran compiled "
    "before Federated: look rows up through the module, by calling it, call zero_grad() first, "
    "call torch.compiler.reset() after Federated, or find rows with Rows(find='scan'), or send the "
    "table with rows=None"
)


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
        held: HeldRows,
    ) -> None:
        """Nothing is recorded before `begin`."""
        self.table, self.rows, self._held = table, rows, held
        self._optimizer, self._source = optimizer, source
        self._check_kind, self._noised = check, noised
        self._touched, self._device = touched_rows(table.weight), table.weight.device
        self._recording = False
        self._start: StartOfRound | None = None  # of the open round
        self.present: PresentRows | None = None
        self._last_present: torch.Tensor | None = None

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
    def begin(self, present: torch.Tensor | None, asked: Asked | None = None) -> None:
        """Start recording.

        Args:
            present: int64, increasing: the only rows the client holds, after a retrieval.
            asked: what the retrieval asked for, for messages.
        """
        weight, delta = self.weight, self._source == "delta"
        if self._device != weight.device:
            self._touched, self._device = touched_rows(self.table.weight), weight.device
        self._touched.clear()
        self.present = None if present is None else PresentRows(self.table, present, asked)
        if self.present is not None:
            ids = self.present.ids
            start_afresh(self._optimizer, self.table.weight, ids, but=self._last_present)
        self._last_present = None if self.present is None else self.present.ids
        self._gradient: SavedRows | None = None
        self._all_moves = self.copies_table
        self._carried = (
            carried_rows(self._optimizer, self.table.weight)
            if delta and not self._all_moves
            else torch.empty(0, dtype=torch.int64, device=weight.device)
        )
        anchors = [self._carried if self.present is None else self.present.ids]
        fixed = self._fixed_ids()
        if fixed is not None:
            anchors.append(fixed)
        ids, whole = torch.unique(torch.cat(anchors)), self._all_moves and present is None
        self._start = StartOfRound(self.table.weight, self._touched, ids, whole=whole)
        self._untouched: ChecksumCheck | SampleCheck | None = None
        if delta and self.present is None and not self._all_moves:
            if self._check_kind == "checksum":
                self._untouched = ChecksumCheck(weight)
            elif self._check_kind == "sample":
                self._untouched = SampleCheck(weight)
        self._recording = self._first_step = True

    def note_lookup(self, module: nn.Module, ids: torch.Tensor) -> None:
        """Called before each lookup.

        Raises:
            ParameterError: of a row that the client does not hold.
        """
        if ids.is_nested:
            ids = ids.values()
        if not self._recording:
            self._held.warn_of_lookup(self.table, ids)
            return
        if self.present is not None:
            self.present.note_lookup(ids)
        if not torch.is_grad_enabled() and getattr(module, "max_norm", None) is None:
            return
        padding = getattr(module, "padding_idx", None)
        self._touched.note(ids, -1 if padding is None else padding)

    @property
    def looks_at_gradient(self) -> bool:
        """Whether the next step's gradient is needed, so `before_step` must be called."""
        return self.rows.find == "scan" or self._checks_gradient or self._source == "gradient"

    @property
    def _checks_gradient(self) -> bool:
        """Where every row moves by a `delta`, and after a retrieval, the first one is enough."""
        if self._check_kind == "off" or self._noised or self.rows.find == "scan":
            return False
        if self._source == "gradient":
            return True
        return self._first_step and (self._all_moves or self.present is not None)

    @property
    def _sends_all_present(self) -> bool:
        """Whether all rows at hand may move, as under a regulariser, not only those looked up."""
        return self.present is not None and self.rows.absent == "zero"

    @torch.no_grad()
    def before_step(self, factor: torch.Tensor | None) -> None:
        """Called when the gradients of a step are ready; `factor` undoes a loss scale."""
        gradient = self.table.weight.grad
        if not self._recording or gradient is None:
            return
        if self.rows.find == "scan":
            self._touched.note(nonzero_rows(gradient))
        if self._checks_gradient:
            self._check_gradient(gradient)
        self._first_step = False
        if self._source == "gradient":
            fixed = self._fixed_ids()
            if fixed is not None:
                ids = fixed
            elif self.present is not None and self._sends_all_present:
                ids = self.present.ids
            else:
                ids = self._touched.rows()[0]
            self._gradient = gradient_rows(gradient, ids, factor).plus(self._gradient)

    def _check_gradient(self, gradient: torch.Tensor) -> None:
        if self.present is not None:
            self.present.check_gradient(gradient, zero=self._sends_all_present)
        if self._sends_all_present or (self._source == "delta" and not self._all_moves):
            return
        if has_gradient_outside(gradient, self._touched.rows()[0]):
            raise ParameterError(f"{self.table.name}: {_ESCAPED}")

    @torch.no_grad()
    def finish(self) -> TableChange:
        """Stop recording; check untouched rows and deal with them as the policy says.

        Raises:
            ParameterError: rows changed that are not part of the update, under `reject`.
        """
        assert self._start is not None
        self._recording = False
        start, known = self._start, self._start.known()
        touched, _ = self._touched.rows()
        if self.present is not None:
            self._check_present(self.present, touched)
        fixed = self._fixed_ids()
        outside = touched[:0] if fixed is None else touched[~torch.isin(touched, fixed)]
        if outside.numel() and self.rows.untouched == "reject":
            raise ParameterError(
                f"{self.table.name}: the model looked up rows outside the fixed ids: add these "
                "rows to Fixed, or set Rows(untouched='restrict') to restore them"
            )
        if self._source == "gradient":
            self._check_still(known)
            if self._gradient is None:
                return TableChange(known.ids[:0], known.values[:0].to(torch.float64))
            return TableChange(self._gradient.ids, self._gradient.values)
        self._check_untouched(start, known, touched)
        ids = self._candidates(start, known, touched)
        now = self.weight.index_select(0, ids)
        if self.rows.untouched == "restrict":
            start.put_back(known)
            self.weight.index_copy_(0, ids, now)
        return TableChange(ids, now.to(torch.float64) - start.of(ids, known).to(torch.float64))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the table back to the start of the round."""
        if self._start is not None:
            self._start.put_back(self._start.known())

    def close(self) -> None:
        """End the round: drop everything that was saved."""
        if self._start is not None and self.present is not None and self._all_moves:
            mend_state(self._optimizer, self.table.weight, self.present.ids)
        self._recording = False
        self._touched.clear()
        self._start, self._untouched, self._gradient = None, None, None

    @property
    def num_saved(self) -> int:
        """Rows saved so far."""
        return 0 if self._start is None else int(self._start.known().ids.numel())

    @property
    def num_bytes(self) -> int:
        """Memory held for this round."""
        if self._start is None:
            return 0
        captured = 0 if self._gradient is None else self._gradient.num_bytes
        return self._touched.num_bytes + self._start.num_bytes + captured

    def _fixed_ids(self) -> torch.Tensor | None:
        if self.rows.fixed is None:
            return None
        ids = self.rows.fixed.ids(self.table.name).to(self.weight.device)
        return ids if self.present is None else ids[torch.isin(ids, self.present.ids)]

    def _check_present(self, present: PresentRows, touched: torch.Tensor) -> None:
        absent = touched[~torch.isin(touched, present.ids)]
        if absent.numel() or present.num_missed:
            raise present.missing(absent)
        checked = self._check_kind != "off" and self.rows.find == "hooks"
        if self._sends_all_present and self._source == "delta" and checked and not self._noised:
            present.check_still_zero(self._carried)

    def _candidates(
        self, start: StartOfRound, known: SavedRows, touched: torch.Tensor
    ) -> torch.Tensor:
        """The rows that the update is about: int64, increasing."""
        fixed = self._fixed_ids()
        if fixed is not None:
            return fixed
        others = self._carried
        if self.present is not None and self._sends_all_present:
            others = self.present.ids
        elif self.present is not None:
            others = others[torch.isin(others, self.present.ids)]
        if self.rows.untouched != "reject" or others.numel() == 0:
            return touched
        rest = others[~torch.isin(others, touched)]
        moved = differs(start.of(rest, known), self.weight.index_select(0, rest))
        return torch.cat([touched, rest[moved]]).sort().values

    def _check_untouched(
        self, start: StartOfRound, known: SavedRows, touched: torch.Tensor
    ) -> None:
        if self._untouched is not None:
            moved = self._untouched.moved(known.ids, known.values)
        elif self._sends_all_present:
            return
        elif self.present is not None and not self._all_moves and self._check_kind != "off":
            ids = known.ids[~torch.isin(known.ids, torch.cat([touched, self._carried]))]
            moved = bool(differs(start.of(ids, known), self.weight.index_select(0, ids)).any())
        else:
            return
        if not moved:
            return
        held = None if self.present is None else self.present.ids
        broken = broken_state(self._optimizer, self.table.weight, held)
        if broken is not None:
            raise ParameterError(
                f"{self.table.name}: the optimizer state {broken!r} is NaN or infinite and "
                "changed rows that the model did not look up: load the optimizer state from an "
                "earlier checkpoint, or make a new optimizer"
            )
        raise ParameterError(f"{self.table.name}: {_ESCAPED}")

    def _check_still(self, known: SavedRows) -> None:
        if any(getattr(module, "max_norm", None) is not None for module in self.table.modules):
            return  # looking a row up may shorten it
        if bool(differs(known.values, self.weight.index_select(0, known.ids)).any()):
            raise ParameterError(still_message(self.table.name))

"""The rows that lookups touched in a round, what they held before, and their gradients.

Two implementations of one interface. `MarkedRows` (CPU) keeps memory in proportion to the touched
rows. `SlottedRows` (accelerators) never waits for the device while it takes notes: it keeps one
32-bit slot a table row and only reads its counter back when its buffer might be full.

The initial value of a row is known from one of three places: a copy of the whole table (only where
the optimizer moves rows that no batch touched, see `optimizers.moves_all`), the anchors (rows
saved at the start: retrieved ones, the fixed row set, rows that still carry momentum), or the rows
saved when they were first touched.

Did rows move that no lookup touched? Lookups outside `nn.Embedding` modules (`F.embedding(ids,
table.weight)`, `table.weight @ x`, writing to `table.weight`) escape forward hooks, and what they
change would be lost. The checksum reads the table twice a round, once at the start and once at the
end (about 2 ms each for 200,000 x 18 floats on one core), keeps one number, and sees any changed
bit in an untouched row unless two 64-bit sums collide. The sample compares a few random rows and
keeps copies of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_SPARE_BATCHES = 8
"""Room for this many batches more when the buffer of `SlottedRows` grows."""


class TouchedRows(Protocol):
    """Takes note of row ids, saves each row when it is first named."""

    def note(self, ids: torch.Tensor, skip: int = -1) -> None:
        """Save the rows `ids` (any shape, any integer dtype) that are new, except row `skip`."""

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids noted so far, int64 [r] increasing, and what the rows held, [r, tau]."""

    def clear(self) -> None:
        """Forget everything: a new round."""

    @property
    def num_bytes(self) -> int:
        """Memory held: saved rows, their ids, and what finds them."""


def touched_rows(weight: torch.Tensor) -> TouchedRows:
    """The implementation that suits the device of `weight` [m, tau]."""
    return MarkedRows(weight) if weight.device.type == "cpu" else SlottedRows(weight)


class MarkedRows:
    """Chunks of saved rows, and a mark for every table row that says whether it is among them.

    Marks cost a byte per table row. While that is more than half of what the saved rows cost, and
    more than 8 bytes for each of them, their sorted ids stand in. So all that it holds besides the
    saved rows is in proportion to them.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self.clear()

    def clear(self) -> None:
        """See `TouchedRows`."""
        self._sorted: Ids = np.empty(0, dtype=np.int64)
        self._is_new: Flags | None = None
        self._chunks: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def num_bytes(self) -> int:
        """See `TouchedRows`."""
        chunks = sum(tensor.nbytes for chunk in self._chunks for tensor in chunk)
        return chunks + self._sorted.nbytes + (0 if self._is_new is None else self._is_new.nbytes)

    def note(self, ids: torch.Tensor, skip: int = -1) -> None:
        """See `TouchedRows`. Ids that no table can have are left for the lookup to refuse."""
        if ids.is_floating_point() or ids.device.type != "cpu":
            return
        new = ids.numpy().reshape(-1)
        if self._is_new is not None:
            new = new[self._is_new.take(new, mode="clip")]
            if not new.size:
                return
        new = _distinct(new if skip < 0 else new[new != skip])
        if self._is_new is None and self._sorted.size:
            nearest = self._sorted.searchsorted(new)
            new = new[self._sorted.take(nearest, mode="clip") != new]
        if new.size and new[0] >= 0 and new[-1] < self._weight.shape[0]:
            self._save(new)

    def _save(self, new: Ids) -> None:
        """Save rows `new`, increasing, none of them known."""
        where = torch.from_numpy(new)
        self._chunks.append((where, self._weight.detach().index_select(0, where)))
        if self._is_new is not None:
            self._is_new[new] = False
            return
        self._sorted = np.sort(np.concatenate([self._sorted, new]), kind="stable")
        rows, width = self._weight.shape
        if rows <= max(8, width * self._weight.element_size() // 2) * self._sorted.size:
            self._is_new = np.ones(rows, bool)
            self._is_new[self._sorted] = False
            self._sorted = self._sorted[:0].copy()

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TouchedRows`."""
        if not self._chunks:
            return torch.empty(0, dtype=torch.int64), self._weight.detach()[:0].clone()
        if len(self._chunks) > 1:
            ids = torch.cat([chunk[0] for chunk in self._chunks])
            saved = torch.cat([chunk[1] for chunk in self._chunks])
            order = torch.from_numpy(np.argsort(ids.numpy()))
            self._chunks = [(ids[order], saved.index_select(0, order))]
        return self._chunks[0]


def _distinct(ids: npt.NDArray[np.integer[Any]]) -> Ids:
    """Increasing, each once; NumPy sorts integers on a CPU several times faster than torch."""
    ordered = np.sort(ids).astype(np.int64, copy=False)
    if ordered.size < 2:
        return ordered
    first = np.empty(ordered.size, bool)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


class SlottedRows:
    """A slot number for every table row; notes without waiting for the device.

    Invariant between notes: `_slot[i]` is the place of row i in `_saved`, or -1. The last entry of
    `_slot`, `_ids` and `_saved` catches writes that mean nothing.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """Nothing noted yet; allocates 4 bytes per table row."""
        self._weight = weight
        rows = weight.shape[0]
        self._slot = torch.full((rows + 1,), -1, dtype=torch.int32, device=weight.device)
        self._allocate(0)
        self._at_most = 0

    def _allocate(self, capacity: int) -> None:
        device = self._weight.device
        self._ids = torch.empty(capacity + 1, dtype=torch.int64, device=device)
        self._saved = self._weight.detach().new_empty(capacity + 1, self._weight.shape[1])
        self._used = torch.zeros((), dtype=torch.int64, device=device)

    def clear(self) -> None:
        """See `TouchedRows`."""
        self._slot.fill_(-1)
        self._used.zero_()
        self._at_most = 0

    @property
    def num_bytes(self) -> int:
        """See `TouchedRows`."""
        return self._slot.nbytes + self._ids.nbytes + self._saved.nbytes

    @torch.no_grad()
    def note(self, ids: torch.Tensor, skip: int = -1) -> None:
        """See `TouchedRows`."""
        ids = ids.detach().reshape(-1).to(torch.int64)
        self._make_room(ids.numel())
        last, end = self._weight.shape[0], self._ids.numel() - 1
        # Every occurrence of an unknown id bids for its slot with a mark of its own; one wins.
        old = self._slot[ids]
        old = torch.where(ids == skip, 0, old)
        mark = -2 - torch.arange(ids.numel(), dtype=torch.int32, device=ids.device)
        self._slot[torch.where(old < 0, ids, last)] = mark
        wins = (old < 0) & (self._slot[ids] == mark)
        place = torch.where(wins, self._used + wins.cumsum(0) - 1, end)
        self._slot[torch.where(wins, ids, last)] = place.to(torch.int32)
        self._slot[last] = -1
        self._ids[place] = ids
        self._saved[place] = self._weight.detach().index_select(0, ids)
        self._used += wins.sum()

    def _make_room(self, batch: int) -> None:
        capacity = self._ids.numel() - 1
        self._at_most = min(self._at_most + batch, self._weight.shape[0])
        if self._at_most <= capacity:
            return
        used = int(self._used)  # the only wait for the device
        self._at_most = min(used + batch, self._weight.shape[0])
        if self._at_most <= capacity:
            return
        ids, saved = self._ids[:used], self._saved[:used]
        self._allocate(min(2 * used + _SPARE_BATCHES * batch, self._weight.shape[0]))
        self._ids[:used], self._saved[:used] = ids, saved
        self._used += used

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TouchedRows`."""
        used = int(self._used)
        ids, order = self._ids[:used].sort()
        return ids, self._saved[:used][order]


_CHUNK = 1 << 14
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(weight: torch.Tensor) -> torch.Tensor:
    """Sum over all rows of a mix of row number and bits: int64 scalar, modulo 2**64."""
    total = torch.zeros((), dtype=torch.int64, device=weight.device)
    for start in range(0, weight.shape[0], _CHUNK):
        part = weight[start : start + _CHUNK]
        ids = torch.arange(start, start + part.shape[0], device=weight.device)
        total += rows_checksum(ids, part)
    return total


def rows_checksum(ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The part of `checksum` that the rows `ids` [r] with contents [r, tau] make up."""
    # + 0 makes one zero of both: an optimizer may turn -0.0 into 0.0 without a gradient.
    bits = (rows.detach() + 0).contiguous().view(_BITS[rows.element_size()]).to(torch.int64)
    columns = _mix(torch.arange(bits.shape[1], device=rows.device) + (1 << 40))
    codes = bits @ columns if bits.device.type == "cpu" else (bits * columns).sum(dim=1)
    return (codes * _mix(ids)).sum()


def _mix(numbers: torch.Tensor) -> torch.Tensor:
    """Odd 64-bit integers without linear relations (two rounds of a multiplicative mix)."""
    mixed = (numbers + 1) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    mixed = (mixed ^ (mixed >> 32)) * 0x14D049BB133111EB
    return mixed | 1


class ChecksumCheck:
    """Compares checksums of everything but the touched rows."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self._before = checksum(weight.detach())

    def moved(self, ids: torch.Tensor, saved: torch.Tensor) -> bool:
        """Whether any row but `ids` (which held `saved`) differs from the start of the round."""
        now = self._weight.detach()
        expected = (
            self._before - rows_checksum(ids, saved) + rows_checksum(ids, now.index_select(0, ids))
        )
        return bool(checksum(now) != expected)


class SampleCheck:
    """Compares `size` random rows; finds a fraction f of moved rows with 1 - (1 - f)**size."""

    def __init__(self, weight: torch.Tensor, size: int = 256) -> None:
        self._weight = weight
        self._ids = torch.randperm(weight.shape[0], generator=torch.Generator())[:size].to(
            weight.device
        )
        self._saved = weight.detach().index_select(0, self._ids)

    def moved(self, ids: torch.Tensor, saved: torch.Tensor) -> bool:
        """Whether a sampled row outside `ids` differs from the start of the round."""
        now = self._weight.detach().index_select(0, self._ids)
        return bool(((differs(now, self._saved)) & ~torch.isin(self._ids, ids)).any())


def differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Rows of [r, tau] with different values, bool [r]; two NaNs are the same."""
    return ((one != other) & ~(one.isnan() & other.isnan())).any(dim=1)


def has_gradient_outside(gradient: torch.Tensor, ids: torch.Tensor) -> bool:
    """Whether a gradient [m, tau] has values other than zero in rows outside `ids`."""
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        used = gradient.indices()[0][(gradient.values() != 0).any(dim=1)]
        return not bool(torch.isin(used, ids).all())
    inside = torch.count_nonzero(gradient.index_select(0, ids))
    return bool(torch.count_nonzero(gradient) != inside)


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

"""The rows that lookups touched in a round, and what they held before.

Two implementations of one interface. `SortedRows` (CPU) keeps memory in proportion to the touched
rows. `SlottedRows` (accelerators) never waits for the device while it takes notes: it keeps one
32-bit slot a table row and only reads its counter back when its buffer might be full.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

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
    return SortedRows(weight) if weight.device.type == "cpu" else SlottedRows(weight)


class SortedRows:
    """Sorted ids and chunks of saved rows; a byte a table row once an eighth is touched.

    So what it holds besides the saved rows is never more than their ids: 8 bytes a touched row.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """Nothing noted yet."""
        self._weight = weight
        self.clear()

    def clear(self) -> None:
        """See `TouchedRows`."""
        self._ids = torch.empty(0, dtype=torch.int64, device=self._weight.device)
        self._mask: torch.Tensor | None = None
        self._chunks: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def num_bytes(self) -> int:
        """See `TouchedRows`."""
        chunks = sum(tensor.nbytes for chunk in self._chunks for tensor in chunk)
        return chunks + self._ids.nbytes + (0 if self._mask is None else self._mask.nbytes)

    @torch.no_grad()
    def note(self, ids: torch.Tensor, skip: int = -1) -> None:
        """See `TouchedRows`. Ids outside the table are left for the lookup itself to refuse."""
        ids = ids.detach().reshape(-1).to(self._ids)
        if self._mask is not None:
            # Ids outside the table raise the IndexError here that the lookup would raise.
            ids = ids[~self._mask.index_select(0, ids)]
        elif self._ids.numel():
            nearest = torch.searchsorted(self._ids, ids).clamp_(max=self._ids.numel() - 1)
            ids = ids[self._ids.index_select(0, nearest) != ids]
        if ids.numel() == 0:
            return
        new = torch.unique_consecutive(_sorted(ids))
        if int(new[0]) < 0 or int(new[-1]) >= self._weight.shape[0]:
            return
        if skip >= 0:
            new = new[new != skip]
        self._save(new)

    def _save(self, new: torch.Tensor) -> None:
        """Save rows `new`, int64, increasing, none of them known."""
        rows = self._weight.shape[0]
        self._chunks.append((new, self._weight.detach().index_select(0, new)))
        if self._mask is not None:
            self._mask.index_fill_(0, new, True)
            return
        self._ids = _sorted(torch.cat([self._ids, new]))
        if 8 * self._ids.numel() >= rows:
            self._mask = torch.zeros(rows, dtype=torch.bool, device=self._weight.device)
            self._mask.index_fill_(0, self._ids, True)
            self._ids = self._ids[:0]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TouchedRows`."""
        if not self._chunks:
            return self._ids, self._weight.detach()[:0].clone()
        if len(self._chunks) == 1:
            return self._chunks[0]
        ids = torch.cat([chunk[0] for chunk in self._chunks])
        saved = torch.cat([chunk[1] for chunk in self._chunks])
        order = torch.argsort(ids)
        self._chunks = [(ids[order], saved[order])]
        return self._chunks[0]


def _sorted(ids: torch.Tensor) -> torch.Tensor:
    """Increasing; NumPy sorts integers on a CPU several times faster than torch."""
    return torch.from_numpy(np.sort(ids.numpy()))


class SlottedRows:
    """A slot number for every table row; notes without waiting for the device.

    Invariant between notes: `_slot[i]` is the place of row i in `_saved`, or -1; the last entry of
    `_slot`, `_ids` and `_saved` catches writes that mean nothing.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        """Nothing noted yet; allocates 4 bytes a table row."""
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

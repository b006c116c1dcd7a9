"""Did rows move that no lookup touched? A cheap check at the end of a round.

Lookups outside `nn.Embedding` modules (`F.embedding(ids, table.weight)`, `table.weight @ x`,
writing to `table.weight`) escape forward hooks, and what they change would be lost. The checksum
reads the table twice a round, once at the start and once at the end (about 2 ms each for
200,000 x 18 floats on one core), keeps one number, and sees any changed bit in an untouched row
unless two 64-bit sums collide. The sample compares a few random rows and keeps copies of them.
"""

from __future__ import annotations

import torch

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
        """Read the table once."""
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
        """Copy the sample."""
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

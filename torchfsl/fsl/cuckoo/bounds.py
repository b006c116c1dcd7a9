"""How many bins a cuckoo table needs, so that placement fails with probability 2**-40 at most.

The rule is a union bound over Hall violators, evaluated by `scripts/generate/cuckoo_bound.py` into
`bounds_table.json`. `docs/specification/cuckoo-bound.md` derives it and compares it with the
paper's Table 3, whose factors 1.25 to 1.28 miss 2**-40 by far for small k. It holds for
exact matching and the layout of `cuckoo.py`: three sub-tables, each a public permutation cut into
bins of theta positions.
"""

from __future__ import annotations

import bisect
import json
from pathlib import Path
from typing import Final

from torchfsl.errors import ParameterError
from torchfsl.submodel.segments import ceil_div

ITEMS: Final = (
    *range(1, 513),
    *(k << octave for octave in range(16) for k in range(528, 1025, 16)),
)
"""Numbers of items in the table: every one up to 512, then 32 an octave."""

MIN_CUCKOO_ITEMS: Final = 64
"""Below this many items plain full-domain trees are used unless a stash is asked for."""

MAX_CUCKOO_ITEMS: Final = ITEMS[-1]
"""The table ends here."""

MAX_STASH: Final = 2
"""Largest stash that the table covers."""

ALWAYS_SAFE_THETA: Final = 3
"""Bins of at most three positions never fail: an item has three bins and a bin at most three items,
so s items always touch at least s bins, which is all that Hall's theorem asks."""

_TABLE: Final = json.loads(Path(__file__).with_name("bounds_table.json").read_text("ascii"))
BINS: Final[tuple[tuple[int, ...], ...]] = tuple(tuple(_TABLE[str(s)]) for s in range(3))
"""By stash, for each of `ITEMS` the least full bins of a sub-table."""


def stash_for(k: int) -> int:
    """Number of trees over the whole index space, kept for items that find no bin.

    The number is 0 from 1024 items on, because a stash would save hardly a bin there. Below, it is
    1, because a stash replaces many bins: 64 items need 42 full bins per sub-table instead of 97.
    Below `MIN_CUCKOO_ITEMS` the number is 2, for callers who still want a table there.

    Args:
        k: number of selected items, at least 1.
    """
    if k >= 1024:
        return 0
    return 1 if k >= MIN_CUCKOO_ITEMS else 2


def min_bins(k: int, stash: int) -> int | None:
    """Least number of full bins of each sub-table; a full bin holds exactly theta positions.

    Between two entries of the table the next larger one holds: every term of the bound grows with
    k, so bins that suffice for more items suffice for fewer. That costs at most 1/32.

    Args:
        k: number of selected items, at least 1.
        stash: items that may stay unplaced, 0 to `MAX_STASH`.

    Returns:
        The number, or None above `MAX_CUCKOO_ITEMS`.

    Raises:
        ParameterError: k or stash out of range.
    """
    if k < 1:
        raise ParameterError(f"k must be at least 1, got {k}: pass the number of items")
    if not 0 <= stash <= MAX_STASH:
        raise ParameterError(f"stash must be in 0..{MAX_STASH}, got {stash}")
    entry = bisect.bisect_left(ITEMS, k)
    return BINS[stash][entry] if entry < len(ITEMS) else None


def is_within_bound(m: int, k: int, theta: int, stash: int) -> bool:
    """Whether k of m positions find bins of `theta` positions, but with probability 2**-40.

    Args:
        m: positions of the index space.
        k: most positions a client selects, at least 1.
        theta: positions a bin, at least 1.
        stash: items that may stay unplaced; of more than `MAX_STASH` only so many count.
    """
    if k <= stash or theta <= ALWAYS_SAFE_THETA:
        return True
    needed = min_bins(k, min(stash, MAX_STASH))
    return needed is not None and m // theta >= needed


def choose_layout(m: int, k: int, *, stash: int | None = None) -> tuple[int, int] | None:
    """Bins of a sub-table and positions a bin for k of m positions.

    theta is the largest size that leaves at least `min_bins(k, stash)` full bins, or 3 where that
    is larger, since bins of three never fail. Every smaller theta is safe too.

    Args:
        m: positions of the index space.
        k: most positions a client selects, 1 to m.
        stash: items that may stay unplaced; `stash_for(k)` when None.

    Returns:
        (bins, theta) with bins = ceil(m / theta), the last bin possibly shorter; or None where
        full-domain trees, one for each item, are the better choice: below `MIN_CUCKOO_ITEMS` items
        when `stash` is None, and whenever they evaluate no more leaves than the table (k <= 3 +
        stash).

    Raises:
        ParameterError: k outside 1..m, k above `MAX_CUCKOO_ITEMS`, or stash out of range.
    """
    if not 1 <= k <= m:
        raise ParameterError(f"k must be in 1..m = {m}, got {k}")
    if stash is None:
        if k < MIN_CUCKOO_ITEMS:
            return None
        stash = stash_for(k)
    full_bins = min_bins(k, stash)
    if full_bins is None:
        raise ParameterError(
            f"k is {k}, and a cuckoo table holds at most {MAX_CUCKOO_ITEMS} rows of a client: "
            "split the segment"
        )
    if k <= 3 + stash:
        return None
    theta = max(m // full_bins, min(ALWAYS_SAFE_THETA, m))
    return ceil_div(m, theta), theta

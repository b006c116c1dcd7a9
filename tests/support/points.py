"""At how many points a test fails a write or kills a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

STRIDE: Final = 1 if os.environ.get("TORCHFSL_LONG") else 3
"""Each point with TORCHFSL_LONG=1, as `scripts/checks/long.sh` sets it, else one of three."""


def points_of(writes: Sequence[str]) -> list[int]:
    """Numbers of the writes to fail: the first of each kind, and one of each `STRIDE`."""
    return sorted({*map(writes.index, writes), *range(0, len(writes), STRIDE)})

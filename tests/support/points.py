"""What a test leaves to `scripts/checks/long.sh`, which sets TORCHFSL_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pytest

IS_LONG: Final = bool(os.environ.get("TORCHFSL_LONG"))
STRIDE: Final = 1 if IS_LONG else 3
"""Tests fail a write or kill a process at each point in the long run, else at one of three."""

only_long: Final = pytest.mark.skipif(not IS_LONG, reason="scripts/checks/long.sh runs it")
"""Mark of tests that take half a minute and test what rarely changes."""


def points_of(writes: Sequence[str]) -> list[int]:
    """Numbers of the writes to fail: the first of each kind, and one of each `STRIDE`."""
    return sorted({*map(writes.index, writes), *range(0, len(writes), STRIDE)})

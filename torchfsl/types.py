"""The array types that all files use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of whatever dtype."""

Bytes = npt.NDArray[np.uint8]
"""Bytes: ring elements, tree states, raw rows."""

Float64 = npt.NDArray[np.float64]
"""Real values."""

Indices = npt.NDArray[np.int64]
"""Positions in an index space."""

Whole = npt.NDArray[np.int64]
"""Quantised values."""

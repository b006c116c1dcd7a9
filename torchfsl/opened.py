"""The opened result of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Opened:
    """Exact sums over the agreed clients; all that a round reveals.

    Attributes:
        sums: by segment, `int64[m, tau]`.
        lanes: by tree segment, `int64[m]`: clients (or weight) a position; empty without a lane.
        num_clients: reports in the sums.
        total_weight: sum of the clients' weights; `num_clients` without a weight lane.
        clients: their numbers, sorted.
    """

    sums: dict[str, npt.NDArray[np.int64]]
    lanes: dict[str, npt.NDArray[np.int64]]
    num_clients: int
    total_weight: int
    clients: tuple[int, ...]

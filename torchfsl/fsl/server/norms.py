"""Whether accepted reports can add up to an aggregate at all, if their norm is proven.

Of a report whose proof holds, the values over all slots have norm `w l2_bound`, w its weight. One
row can stand in R slots, so over rows it has sqrt(R) times that. n reports and both servers' noise
make up a norm of

    n W B sqrt(R) + sqrt(2 s**2 (N + 2 sqrt(N t) + 2 t))          see `submodel.sum_bound`

at most. A sum with a larger one holds what a server has added. The ring reduces values toward zero,
so that wraps lower a norm only.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.errors import ProtocolError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import row_trees
from torchfsl.submodel import sum_bound
from torchfsl.submodel.norm_bound import norm_squared
from torchfsl.submodel.segments import Segment
from torchfsl.types import Whole

LIED: Final = "a server lied about its share"
"""In the reason of that halt."""

_NO_NUMBER: Final = 1 << 256
"""Square of the norm of what does not fit 64 bits: above every bound."""


def most_squared(plan: Plan, segments: tuple[Segment, ...], bound: int, num_clients: int) -> int:
    """Square of the largest norm of a sum of proven reports, each within the bound, with noise."""
    trees = [plan.segment(s.name) for s in segments if not s.is_dense]
    reach = (num_clients * plan.max_weight * bound) ** 2 * max(map(row_trees, trees), default=1)
    tail = sum_bound.tail_squared(plan, segments)
    return reach + tail + sum_bound.root_up(4 * reach * tail)


class Norms:
    """Squares of the norms of a sum's segments, before `ranges` changes any value."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is added up where the plan has no proven bound."""
        statement = plan.statement
        self._plan = plan
        self._counts = plan.sum_bound and statement is not None and statement.norm > 0
        self._squares: Counter[str] = Counter()

    def add(self, segment: TreeSegment, values: Whole, fits: npt.NDArray[np.bool_]) -> None:
        """Count some values of a segment, and whether each fits 64 bits; lanes are none."""
        if self._counts:
            square = norm_squared({"": values}) if fits.all() else _NO_NUMBER
            self._squares[segment.name] += square

    def check(self, num_clients: int) -> None:
        """Compare what was counted with what so many accepted reports make up.

        Raises:
            ProtocolError: they do not.
        """
        for segments, bound in sum_bound.groups(self._plan) if self._counts else ():
            most = most_squared(self._plan, segments, bound, num_clients)
            norm = sum(self._squares[s.name] for s in segments)
            if norm > most:
                names = ", ".join(repr(s.name) for s in segments)
                times = math.sqrt(norm / most)
                raise ProtocolError(
                    f"{LIED}: the aggregate of {names} has {times:.3g} times the largest norm that "
                    f"{num_clients} proven reports allow. The task halts: start a new task",
                    code="sum-beyond-bound",
                )

"""Adam of servers for large tables: a row and its moments move when somebody sent the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from torchfsl.submodel.server_optimizers import ServerAdam, check_rate
from torchfsl.types import Float64, Indices


class ServerLazyAdam(ServerAdam):
    """Adam on the rows that the round touched; all others and their moments stay as they are.

    As torch's SparseAdam: bias is corrected by the number of rounds, not of a row's steps. A row
    of a tensor is all that shares its first index; in a vector it is one value. It was touched if
    its sum is not all zero or, under a count lane, if anybody sent it. A round costs one pass over
    the sums, to find these rows, and arithmetic in them alone.

    Bits are equal at both servers, for the reasons that `server_optimizers` gives.

    Args:
        lr: rate of tensors that `rates` does not name.
        betas: of the moments, both in [0, 1).
        eps: above 0.
        rates: by name of a tensor its own rate, such as that of embedding tables.
    """

    lazy: ClassVar[bool] = True

    def __init__(
        self,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        """Set the rates; no state until the first step.

        Raises:
            ParameterError: a setting is no number or out of range.
        """
        super().__init__(lr, betas=betas, eps=eps)
        self.rates = dict(rates or {})
        for rate in self.rates.values():
            check_rate(rate)

    def step_rows(
        self, name: str, rows: Indices, num_rows: int, parameter: Float64, gradient: Float64
    ) -> None:
        """See `ServerOptimizer`."""
        if name not in self._moments:
            size = num_rows * parameter.shape[1]
            self._moments[name] = (np.zeros(size), np.zeros(size))
        tables = [moment.reshape(num_rows, -1) for moment in self._moments[name]]
        first, second = (table[rows] for table in tables)
        self._move(first, second, parameter, gradient, self.rates.get(name, self.lr))
        tables[0][rows], tables[1][rows] = first, second

"""Optimizers of servers with a rate for every value or row: FTRL and row-wise Adagrad.

Both leave a position alone whose aggregate is zero, so that rows that nobody sends stay where they
are. Bits are equal at both servers as those of `server_optimizers` are, for the same reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.submodel.server_optimizers import ServerOptimizer, check_rate, is_number
from torchfsl.types import Array, Float64


class ServerFTRL(ServerOptimizer):
    """FTRL-Proximal (McMahan et al. 2013, Algorithm 1), for sparse models of clicks.

    Two deviations. `linear` starts where the closed form gives the parameter that is there, not at
    0, which would drop the random start of an embedding at its first step. And a value whose
    aggregate is exactly 0 is not computed anew: in exact arithmetic it would stay, too.

    Args:
        lr: alpha of the paper.
        beta: of the paper, above 0.
        l1: makes values exactly 0 that carry little, from 0 on.
        l2: from 0 on.
    """

    def __init__(
        self, lr: float = 0.1, *, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        """Set the rates; no state until the first step.

        Raises:
            ParameterError: a setting is no number or out of range.
        """
        check_rate(lr)
        if not lr > 0:
            raise ParameterError(
                f"the servers' rate of FTRL is {lr!r}: choose one above 0", code="out-of-range"
            )
        if not (is_number(beta) and 0 < beta < math.inf):
            raise ParameterError(
                f"the servers' beta is {beta!r}: choose a number above 0", code="out-of-range"
            )
        for name, value in (("l1", l1), ("l2", l2)):
            if not (is_number(value) and 0 <= value < math.inf):
                raise ParameterError(
                    f"the servers' {name} is {value!r}: choose one from 0 on", code="out-of-range"
                )
        self.lr, self.beta, self.l1, self.l2 = lr, beta, l1, l2
        self._states: dict[str, tuple[Float64, Float64]] = {}
        self._filled: dict[str, int] = {}  # values, from the first, whose `linear` has begun

    def advance(self) -> None:
        """Rounds are not counted."""

    def beginning(self, parameter: Float64) -> Float64:
        """`linear` of values that were never stepped."""
        return -(parameter * (self.beta / self.lr + self.l2) + np.sign(parameter) * self.l1)

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if name not in self._states:
            self._states[name], self._filled[name] = (np.zeros(size), np.zeros(size)), 0
        linear, squares = (s[start : start + len(gradient)] for s in self._states[name])
        if start >= self._filled[name]:
            linear += self.beginning(parameter)
            self._filled[name] = start + len(gradient)
        more = squares + gradient * gradient
        rate = (np.sqrt(more) - np.sqrt(squares)) / self.lr
        now = (linear + gradient) - rate * parameter
        strength = (self.beta + np.sqrt(more)) / self.lr + self.l2
        value = (np.sign(now) * self.l1 - now) / strength
        value = np.where(np.abs(now) <= self.l1, 0.0, value)
        moved = gradient != 0
        np.copyto(linear, now, where=moved)
        np.copyto(squares, more, where=moved)
        np.copyto(parameter, value, where=moved)

    def state(self) -> dict[str, Array]:
        """Both sums by parameter."""
        state: dict[str, Array] = {}
        for name, (linear, squares) in self._states.items():
            state[f"linear/{name}"], state[f"squares/{name}"] = linear.copy(), squares.copy()
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        names = [key.split("/", 1)[1] for key in state if key.startswith("linear/")]
        self._states = {
            name: (np.array(state[f"linear/{name}"]), np.array(state[f"squares/{name}"]))
            for name in names
        }
        self._filled = {name: len(linear) for name, (linear, _) in self._states.items()}


class ServerRowAdagrad(ServerOptimizer):
    """Adagrad with one sum a row: p <- p - lr * g / (sqrt(s) + eps), s <- s + mean(g * g).

    As for embedding tables in recommenders: 8 bytes of state a row instead of a value. A row of a
    tensor is all that shares its first index; in a vector it is one value.
    """

    by_row: ClassVar[bool] = True

    def __init__(self, lr: float = 0.1, *, eps: float = 1e-8) -> None:
        """Set the rate; no state until the first step.

        Raises:
            ParameterError: a setting is no number or out of range.
        """
        check_rate(lr)
        if not (is_number(eps) and 0 < eps < math.inf):
            raise ParameterError(
                f"the servers' eps is {eps!r}: choose a number above 0, which keeps rows that "
                "nobody ever sent from 0 / 0",
                code="out-of-range",
            )
        self.lr, self.eps = lr, eps
        self._sums: dict[str, Float64] = {}
        self._widths: dict[str, int] = {}

    def advance(self) -> None:
        """Rounds are not counted."""

    def rows_of(self, name: str, width: int) -> None:
        """See `ServerOptimizer`."""
        self._widths[name] = width

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`; slices are made of whole rows."""
        width = self._widths.get(name, 1)
        sums = self._sums.setdefault(name, np.zeros(size // width))
        rows = gradient.reshape(-1, width)
        squares = np.zeros(len(rows))
        for column in range(width):  # one addition after the other: NumPy's sum may regroup them
            squares += rows[:, column] * rows[:, column]
        mine = sums[start // width : start // width + len(rows)]
        mine += squares / float(width)
        rate = self.lr / (np.sqrt(mine) + self.eps)
        parameter -= (rows * rate[:, None]).reshape(-1)

    def state(self) -> dict[str, Array]:
        """One sum a row, by parameter."""
        return {f"rows/{name}": value.copy() for name, value in self._sums.items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        self._sums = {key.split("/", 1)[1]: np.array(value) for key, value in state.items()}

"""What a server does with an aggregate: SGD and Adam, with the same bits at both servers.

One correctly rounded IEEE operation at a time (+, -, *, /, sqrt on float64), which NumPy never
fuses; see `server_model`. More of them are in `server_adaptive`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from torchfsl.errors import ParameterError, expect_able, refuse
from torchfsl.types import Array, Float64, Indices


class ServerOptimizer(Protocol):
    """Turns an aggregated gradient (or minus an aggregated delta) into a step.

    Attributes:
        by_row: slices that `step` gets are made of whole rows, whose width `rows_of` told.
        lazy: `step_rows` is called with the rows that a round touched, `step` never.
    """

    by_row: ClassVar[bool] = False
    lazy: ClassVar[bool] = False

    def rows_of(self, name: str, width: int) -> None:
        """Parameter `name` has rows of `width` values; called before its steps if `by_row`."""
        return

    def make_room(self, name: str, size: int) -> None:
        """Get memory for what is kept of parameter `name`, of `size`; never called if `lazy`.

        Called when a server is made, so that its first round does not wait for memory that is new
        to the process. `state` does not show it.
        """
        return

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """Change a flat slice `[start, start + len)` of parameter `name` (of `size`) in place."""

    def step_rows(
        self, name: str, rows: Indices, num_rows: int, parameter: Float64, gradient: Float64
    ) -> None:
        """Change `[k, width]` of these rows of `name` in place; only if `lazy`."""
        return

    def advance(self) -> None:
        """Called once a round, before the steps."""

    def state(self) -> dict[str, Array]:
        """Everything a checkpoint needs, copied."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""


def check_server_optimizer(optimizer: object) -> None:
    """Refuse what does not step a server's model; None stands for the default.

    Raises:
        ParameterError: with what to pass instead.
    """
    if isinstance(optimizer, type):
        refuse("the server's optimizer", optimizer, f"make one, {optimizer.__name__}()")
    if optimizer is not None:
        expect_able(
            ("advance", "step", "make_room", "lazy", "state", "load_state"), optimizer,
            "the server's optimizer", "pass ServerSGD(lr=...), ServerAdam(lr=...), or torch's own "
            "in torchfsl.engine.torch_optimizer.TorchOptimizer(lambda p: torch.optim.SGD(p, lr=1))",
        )  # fmt: skip


class ServerSGD(ServerOptimizer):
    """p <- p - lr * g, with optional momentum. Averaging deltas is rate 1 without momentum.

    With momentum (FedAvgM, Hsu et al. 2019) v <- momentum * v + g takes the place of g, so that a
    change counts 1 / (1 - momentum) times in the long run, in rounds in which nobody sends its
    position, too. A server then keeps 8 bytes more for every parameter.

    Args:
        lr: rate of the first rounds.
        momentum: in [0, 1); 0 for none.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: see above, at least 1.
    """

    def __init__(
        self,
        lr: float = 1.0,
        *,
        momentum: float = 0.0,
        lr_decay: float = 1.0,
        lr_decay_rounds: int = 10,
    ) -> None:
        """Set the rate; no state until the first step.

        Raises:
            ParameterError: a setting is no number or out of range.
        """
        check_rate(lr)
        if not (is_number(momentum) and 0 <= momentum < 1):
            raise ParameterError(
                f"the servers' momentum is {momentum!r}: choose one in [0, 1)", code="out-of-range"
            )
        if not (is_number(lr_decay) and 0 < lr_decay <= 1):
            raise ParameterError(
                f"the servers' rate is multiplied by {lr_decay!r}: choose a factor in (0, 1]",
                code="out-of-range",
            )
        if not (is_number(lr_decay_rounds, numbers.Integral) and lr_decay_rounds >= 1):
            raise ParameterError(
                f"the servers' rate falls after every {lr_decay_rounds!r} rounds: choose a "
                "whole number from 1 on",
                code="out-of-range",
            )
        self.lr, self.momentum = lr, float(momentum)
        self.lr_decay, self.lr_decay_rounds = float(lr_decay), int(lr_decay_rounds)
        self._round = 0
        self._velocity: dict[str, Float64] = {}

    def advance(self) -> None:
        """Count the round for the decay of the rate."""
        self._round += 1

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if self.momentum:
            velocity = self._velocity.setdefault(name, np.zeros(size))
            part = velocity[start : start + len(gradient)]
            part *= self.momentum
            part += gradient
            gradient = part
        falls = max(self._round - 1, 0) // self.lr_decay_rounds
        parameter -= (self.lr * power(self.lr_decay, falls)) * gradient

    def state(self) -> dict[str, Array]:
        """Velocities by parameter, and the round count where the rate falls."""
        state: dict[str, Array] = {
            f"velocity/{name}": value.copy() for name, value in self._velocity.items()
        }
        if self.lr_decay != 1:
            state["round"] = np.array(self._round, dtype=np.int64)
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`.

        Raises:
            ParameterError: the rate falls, and the state is of an optimizer whose rate does not.
        """
        if self.lr_decay != 1:
            if "round" not in state:
                raise ParameterError(
                    "the state does not count rounds: it is of servers whose rate stays; go on "
                    "with lr_decay=1",
                    code="optimizer-state",
                )
            self._round = int(state["round"])
        velocities = {key: value for key, value in state.items() if key != "round"}
        self._velocity = {key.split("/", 1)[1]: np.array(v) for key, v in velocities.items()}


class ServerAdam(ServerOptimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1) on the aggregate, moments in float64."""

    def __init__(
        self, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """Set the rates; no state until the first step.

        Raises:
            ParameterError: a setting is no number or out of range.
        """
        check_rate(lr)
        if not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
            raise ParameterError(
                f"the servers' betas are {betas!r}: choose both in [0, 1)", code="out-of-range"
            )
        if not (is_number(eps) and 0 < eps < math.inf):
            raise ParameterError(
                f"the servers' eps is {eps!r}: choose a number above 0, which keeps positions that "
                "nobody ever sent from 0 / 0",
                code="out-of-range",
            )
        self.lr, self.betas, self.eps = lr, betas, eps
        self._round = 0
        self._moments: dict[str, tuple[Float64, Float64]] = {}
        self._room: dict[str, tuple[Float64, Float64]] = {}

    def make_room(self, name: str, size: int) -> None:
        """See `ServerOptimizer`."""
        if name not in self._moments:
            self._room[name] = _zeros(size), _zeros(size)

    def advance(self) -> None:
        """Count the round for bias correction."""
        self._round += 1

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if name not in self._moments:
            here = self._room.pop(name) if name in self._room else None
            self._moments[name] = here or (np.zeros(size), np.zeros(size))
        first, second = (m[start : start + len(gradient)] for m in self._moments[name])
        self._move(first, second, parameter, gradient, self.lr)

    def _move(
        self, first: Float64, second: Float64, parameter: Float64, gradient: Float64, lr: float
    ) -> None:
        """One step of values with their moments, all changed in place."""
        beta1, beta2 = self.betas
        first *= beta1
        first += (1.0 - beta1) * gradient
        second *= beta2
        second += (1.0 - beta2) * (gradient * gradient)
        # Plain products, not pow(), whose last bit depends on the C library.
        scale1, scale2 = 1.0 - power(beta1, self._round), 1.0 - power(beta2, self._round)
        parameter -= lr * ((first / scale1) / (np.sqrt(second / scale2) + self.eps))

    def state(self) -> dict[str, Array]:
        """Moments by parameter, and the round count."""
        state: dict[str, Array] = {"round": np.array(self._round, dtype=np.int64)}
        for name, (first, second) in self._moments.items():
            state[f"first/{name}"], state[f"second/{name}"] = first.copy(), second.copy()
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        self._round, self._room = int(state["round"]), {}
        names = [key.split("/", 1)[1] for key in state if key.startswith("first/")]
        self._moments = {
            name: (np.array(state[f"first/{name}"]), np.array(state[f"second/{name}"]))
            for name in names
        }


def _zeros(size: int) -> Float64:
    """Zeros that are written, so that their memory is here."""
    array = np.empty(size)
    array.fill(0.0)
    return array


def is_number(value: object, kind: type = numbers.Real) -> bool:
    """Whether `value` is a number of that kind and no bool."""
    return isinstance(value, kind) and not isinstance(value, bool)


def check_rate(lr: float) -> None:
    """Refuse a rate that is no finite number."""
    if not (is_number(lr) and -math.inf < lr < math.inf):
        raise ParameterError(
            f"the servers' rate is {lr!r}: choose a finite number", code="out-of-range"
        )


def power(base: float, exponent: int) -> float:
    """base**exponent by repeated squaring: the same bits on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result

"""What a server does with an aggregate: SGD or Adam, with the same bits at both servers.

One correctly rounded IEEE operation at a time (+, -, *, /, sqrt on float64), which NumPy never
fuses; see `server_model`.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.types import Array, Float64


class ServerOptimizer(Protocol):
    """Turns an aggregated gradient (or minus an aggregated delta) into a step."""

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """Change a flat slice `[start, start + len)` of parameter `name` (of `size`) in place."""

    def advance(self) -> None:
        """Called once a round, before the steps."""

    def state(self) -> dict[str, Array]:
        """Everything a checkpoint needs, copied."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""


class ServerSGD:
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
            ParameterError: momentum or decay is out of range.
        """
        if not (_is_number(momentum) and 0 <= momentum < 1):
            raise ParameterError(f"the servers' momentum is {momentum!r}: choose one in [0, 1)")
        if not (_is_number(lr_decay) and 0 < lr_decay <= 1):
            raise ParameterError(
                f"the servers' rate is multiplied by {lr_decay!r}: choose a factor in (0, 1]"
            )
        if not (_is_number(lr_decay_rounds, numbers.Integral) and lr_decay_rounds >= 1):
            raise ParameterError(
                f"the servers' rate falls after every {lr_decay_rounds!r} rounds: choose a "
                "whole number from 1 on"
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
        parameter -= (self.lr * _power(self.lr_decay, falls)) * gradient

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
                    "with lr_decay=1"
                )
            self._round = int(state["round"])
        velocities = {key: value for key, value in state.items() if key != "round"}
        self._velocity = {key.split("/", 1)[1]: np.array(v) for key, v in velocities.items()}


class ServerAdam:
    """Adam (Kingma and Ba 2015, Algorithm 1) on the aggregate, moments in float64."""

    def __init__(
        self, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """Set the rates; no state until the first step."""
        self.lr, self.betas, self.eps = lr, betas, eps
        self._round = 0
        self._moments: dict[str, tuple[Float64, Float64]] = {}

    def advance(self) -> None:
        """Count the round for bias correction."""
        self._round += 1

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if name not in self._moments:
            self._moments[name] = (np.zeros(size), np.zeros(size))
        first, second = (m[start : start + len(gradient)] for m in self._moments[name])
        beta1, beta2 = self.betas
        first *= beta1
        first += (1.0 - beta1) * gradient
        second *= beta2
        second += (1.0 - beta2) * (gradient * gradient)
        # Plain products, not pow(), whose last bit depends on the C library.
        scale1, scale2 = 1.0 - _power(beta1, self._round), 1.0 - _power(beta2, self._round)
        parameter -= self.lr * ((first / scale1) / (np.sqrt(second / scale2) + self.eps))

    def state(self) -> dict[str, Array]:
        """Moments by parameter, and the round count."""
        state: dict[str, Array] = {"round": np.array(self._round, dtype=np.int64)}
        for name, (first, second) in self._moments.items():
            state[f"first/{name}"], state[f"second/{name}"] = first.copy(), second.copy()
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        self._round = int(state["round"])
        names = [key.split("/", 1)[1] for key in state if key.startswith("first/")]
        self._moments = {
            name: (np.array(state[f"first/{name}"]), np.array(state[f"second/{name}"]))
            for name in names
        }


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """The servers' optimizer: `sgd` (lr, its decay, momentum) or `adam` (lr, beta1, beta2, eps)."""

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    lr_decay: float = 1.0
    lr_decay_rounds: int = 10

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adam"):
            raise ParameterError(f"server optimizer {self.name!r} is unknown; use sgd or adam")
        for field_ in dataclasses.fields(self)[1:]:
            if not isinstance(getattr(self, field_.name), (int, float)):
                raise ParameterError(f"{field_.name} of the server optimizer is not a number")
        if self.name == "adam" and (self.momentum != 0 or self.lr_decay != 1):
            raise ParameterError("momentum and lr_decay are settings of sgd: adam takes neither")

    def build(self) -> ServerOptimizer:
        """A fresh optimizer."""
        if self.name == "adam":
            return ServerAdam(self.lr, betas=(self.beta1, self.beta2), eps=self.eps)
        return ServerSGD(
            self.lr,
            momentum=self.momentum,
            lr_decay=self.lr_decay,
            lr_decay_rounds=self.lr_decay_rounds,
        )


def _is_number(value: object, kind: type = numbers.Real) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _power(base: float, exponent: int) -> float:
    """base**exponent by repeated squaring: the same bits on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result

"""Optimizers of a server, which take aggregates: bit-identical at both servers.

One correctly rounded IEEE operation at a time (+, -, *, /, sqrt on float64), which NumPy never
fuses; see `server_model`. `ServerLazyAdam`, `ServerFTRL` and `ServerRowAdagrad` leave rows alone
that no client sends.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

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
        """Change a flat slice `[start, start + len)` of a parameter in place.

        Args:
            name: of the parameter.
            start: position of the slice's first value.
            size: number of values of the whole parameter.
            parameter: float64 `[len]`, the slice, which is changed.
            gradient: float64 `[len]`, of the slice.
        """

    def step_rows(
        self, name: str, rows: Indices, num_rows: int, parameter: Float64, gradient: Float64
    ) -> None:
        """Change rows of a parameter in place; only if `lazy`.

        Args:
            name: of the parameter.
            rows: int64 `[k]`, the rows.
            num_rows: rows of the whole parameter.
            parameter: float64 `[k, width]`, these rows, which are changed.
            gradient: float64 `[k, width]`, of these rows.
        """
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
        refuse("the server's optimizer", optimizer, f"pass an instance, {optimizer.__name__}()")
    if optimizer is not None:
        expect_able(
            ("advance", "step", "make_room", "lazy", "state", "load_state"),
            optimizer,
            "the server's optimizer",
            "pass ServerSGD(lr=...), ServerAdam(lr=...), or torch's own "
            "in torchfsl.engine.torch_optimizer.TorchOptimizer(lambda p: torch.optim.SGD(p, lr=1))",
        )


class _Stateful(ServerOptimizer):
    """Keeps arrays of every parameter, one for each of `kinds`, and counts no rounds."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Float64, ...]] = {}

    def advance(self) -> None:
        """Rounds are not counted."""

    def _arrays(self, name: str, size: int) -> tuple[Float64, ...]:
        """The state of a parameter; zeros at first."""
        if name not in self._kept:
            self._kept[name] = tuple(np.zeros(size) for _ in self.kinds)
        return self._kept[name]

    def state(self) -> dict[str, Array]:
        """See `ServerOptimizer`."""
        return {
            f"{kind}/{name}": array.copy()
            for name, arrays in self._kept.items()
            for kind, array in zip(self.kinds, arrays, strict=True)
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """See `ServerOptimizer`."""
        first = f"{self.kinds[0]}/"
        names = [key.removeprefix(first) for key in state if key.startswith(first)]
        self._kept = {
            name: tuple(np.array(state[f"{kind}/{name}"]) for kind in self.kinds) for name in names
        }


class ServerSGD(_Stateful):
    """p <- p - lr * g, with optional momentum. Averaging deltas is rate 1 without momentum.

    With momentum (FedAvgM, Hsu et al. 2019) v <- momentum * v + g takes the place of g. So a change
    counts 1 / (1 - momentum) times in the long run, also in rounds in which no client sends its
    position. A server then keeps 8 bytes more for every parameter.

    Args:
        lr: rate of the first rounds.
        momentum: in [0, 1); 0 for none.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: see above, at least 1.
    """

    kinds = ("velocity",)

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
            ParameterError: a setting is not a number, or out of range.
        """
        super().__init__()
        _check_rate(lr)
        _check("momentum", momentum, lambda x: 0 <= x < 1, "one in [0, 1)")
        _check("lr_decay", lr_decay, lambda x: 0 < x <= 1, "a factor in (0, 1]")
        _check("lr_decay_rounds", lr_decay_rounds, _is_count, "a whole number of 1 or more")
        self.lr, self.momentum = lr, float(momentum)
        self.lr_decay, self.lr_decay_rounds = float(lr_decay), int(lr_decay_rounds)
        self._round = 0

    def advance(self) -> None:
        """Count the round for the decay of the rate."""
        self._round += 1

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if self.momentum:
            (velocity,) = self._arrays(name, size)
            part = velocity[start : start + len(gradient)]
            part *= self.momentum
            part += gradient
            gradient = part
        falls = max(self._round - 1, 0) // self.lr_decay_rounds
        parameter -= (self.lr * power(self.lr_decay, falls)) * gradient

    def state(self) -> dict[str, Array]:
        """Velocities by parameter, and the round count where the rate falls."""
        state = super().state()
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
                    "the state has no count of rounds, because the servers' rate was constant: "
                    "continue with lr_decay=1",
                    code="optimizer-state",
                )
            self._round = int(state["round"])
        super().load_state(state)


class ServerAdam(_Stateful):
    """Adam (Kingma and Ba 2015, Algorithm 1) on the aggregate, moments in float64."""

    kinds = ("first", "second")

    def __init__(
        self, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        """Set the rates; no state until the first step.

        Args:
            lr: rate.
            betas: of the two moments, both in [0, 1).
            eps: added to the root of the second moment.

        Raises:
            ParameterError: if a setting is not a number, or out of range.
        """
        super().__init__()
        _check_rate(lr)
        for beta in betas:
            _check("beta", beta, lambda x: 0 <= x < 1, "both in [0, 1)")
        _check_eps(eps)
        self.lr, self.betas, self.eps = lr, betas, eps
        self._round = 0
        self._room: dict[str, tuple[Float64, ...]] = {}

    def make_room(self, name: str, size: int) -> None:
        """See `ServerOptimizer`."""
        if name not in self._kept:
            self._room[name] = _zeros(size), _zeros(size)

    def advance(self) -> None:
        """Count the round for bias correction."""
        self._round += 1

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        if name in self._room:
            self._kept[name] = self._room.pop(name)
        first, second = (m[start : start + len(gradient)] for m in self._arrays(name, size))
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
        return {"round": np.array(self._round, dtype=np.int64), **super().state()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        self._round, self._room = int(state["round"]), {}
        super().load_state(state)


class ServerLazyAdam(ServerAdam):
    """Adam on the rows that the round touched; all others and their moments stay as they are.

    As torch's SparseAdam: bias is corrected by the number of rounds, not of a row's steps. A row
    of a tensor is all that shares its first index; in a vector it is one value. It was touched if
    its sum is not all zero or, under a count lane, if anybody sent it. A round costs one pass over
    the sums, to find these rows, and arithmetic in them alone.

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
            ParameterError: a setting is not a number, or out of range.
        """
        super().__init__(lr, betas=betas, eps=eps)
        self.rates = dict(rates or {})
        for rate in self.rates.values():
            _check_rate(rate)

    def step_rows(
        self, name: str, rows: Indices, num_rows: int, parameter: Float64, gradient: Float64
    ) -> None:
        """See `ServerOptimizer`."""
        moments = self._arrays(name, num_rows * parameter.shape[1])
        tables = [moment.reshape(num_rows, -1) for moment in moments]
        first, second = (table[rows] for table in tables)
        self._move(first, second, parameter, gradient, self.rates.get(name, self.lr))
        tables[0][rows], tables[1][rows] = first, second


class ServerFTRL(_Stateful):
    """FTRL-Proximal (McMahan et al. 2013, Algorithm 1), for sparse models of clicks.

    Two deviations. `linear` starts where the closed form gives the parameter that is there, not at
    0, which would drop the random start of an embedding at its first step. And a value whose
    aggregate is exactly 0 is not computed anew: in exact arithmetic it would also stay.

    Args:
        lr: alpha of the paper.
        beta: of the paper, above 0.
        l1: makes values exactly 0 that carry little, from 0 on.
        l2: from 0 on.
    """

    kinds = ("linear", "squares")

    def __init__(
        self, lr: float = 0.1, *, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0
    ) -> None:
        """Set the rates; no state until the first step.

        Raises:
            ParameterError: a setting is not a number, or out of range.
        """
        super().__init__()
        for name, value in (("rate of FTRL", lr), ("beta", beta)):
            _check(name, value, lambda x: 0 < x < math.inf, "a number above 0")
        for name, value in (("l1", l1), ("l2", l2)):
            _check(name, value, lambda x: 0 <= x < math.inf, "a number of 0 or more")
        self.lr, self.beta, self.l1, self.l2 = lr, beta, l1, l2
        self._filled: dict[str, int] = {}  # values, from the first, whose `linear` has begun

    def beginning(self, parameter: Float64) -> Float64:
        """`linear` of values that were never stepped, `parameter`; same shape."""
        return -(parameter * (self.beta / self.lr + self.l2) + np.sign(parameter) * self.l1)

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        linear, squares = (s[start : start + len(gradient)] for s in self._arrays(name, size))
        if start >= self._filled.get(name, 0):
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

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        super().load_state(state)
        self._filled = {name: len(linear) for name, (linear, _) in self._kept.items()}


class ServerRowAdagrad(_Stateful):
    """Adagrad with one sum a row: p <- p - lr * g / (sqrt(s) + eps), s <- s + mean(g * g).

    As for embedding tables in recommenders: 8 bytes of state a row instead of a value. A row of a
    tensor is all that shares its first index; in a vector it is one value.
    """

    by_row: ClassVar[bool] = True
    kinds = ("rows",)

    def __init__(self, lr: float = 0.1, *, eps: float = 1e-8) -> None:
        """Set the rate; no state until the first step.

        Raises:
            ParameterError: a setting is not a number, or out of range.
        """
        super().__init__()
        _check_rate(lr)
        _check_eps(eps)
        self.lr, self.eps = lr, eps
        self._widths: dict[str, int] = {}

    def rows_of(self, name: str, width: int) -> None:
        """See `ServerOptimizer`."""
        self._widths[name] = width

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`; slices are made of whole rows."""
        width = self._widths.get(name, 1)
        (sums,) = self._arrays(name, size // width)
        rows = gradient.reshape(-1, width)
        squares = np.zeros(len(rows))
        for column in range(width):  # one addition after the other: NumPy's sum may regroup them
            squares += rows[:, column] * rows[:, column]
        mine = sums[start // width : start // width + len(rows)]
        mine += squares / float(width)
        rate = self.lr / (np.sqrt(mine) + self.eps)
        parameter -= (rows * rate[:, None]).reshape(-1)


def _zeros(size: int) -> Float64:
    """Zeros that are written, so that their memory is here."""
    array = np.empty(size)
    array.fill(0.0)
    return array


def is_number(value: object) -> bool:
    """Whether `value` is a real number and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and int(value) >= 1


def _check(what: str, value: Any, holds: Callable[[Any], bool], choose: str) -> None:
    """Refuse a setting that is not a number, or for which `holds` is false."""
    if not (is_number(value) and holds(value)):
        raise ParameterError(
            f"the servers' {what} is {value!r}: choose {choose}", code="out-of-range"
        )


def _check_rate(lr: float) -> None:
    _check("rate", lr, lambda x: -math.inf < x < math.inf, "a finite number")


def _check_eps(eps: float) -> None:
    text = "a number above 0, so that positions that no client sent do not become 0 / 0"
    _check("eps", eps, lambda x: 0 < x < math.inf, text)


def power(base: float, exponent: int) -> float:
    """base**exponent by repeated squaring, bit-identical on every machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result

"""The model at a server: state, deterministic update, digest. NumPy only, no torch.

Both servers apply the same opened sums and must end with the same bits, on any processor and with
any number of threads: one differing bit would turn retrieved rows into garbage. So every step is
one correctly rounded IEEE operation at a time (+, -, *, /, sqrt on float64), which NumPy never
fuses, and the result is rounded once to the parameter's dtype.
"""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from torchfsl import kdf
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.opened import Opened
from torchfsl.plan import Plan, Segment, TensorSpec
from torchfsl.segments import subset_array

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
_CHUNK = 1 << 16
_OVERFLOW = (
    "{name}: the aggregate would make {count} of its values infinite, as float16 ends at 65504; "
    "nothing was applied: lower the server's learning rate or FixedPoint(clip=), use "
    "reduce='mean', or train the parameter in float32 or bfloat16"
)


def state_digest(state: Mapping[str, Array]) -> bytes:
    """SHA-256 over sorted names, dtypes, shapes and little-endian bytes: 32 bytes."""
    hasher = hashlib.sha256()
    for name in sorted(state):
        value = np.ascontiguousarray(state[name])
        value = value.astype(value.dtype.newbyteorder("<"), copy=False)
        shape = ",".join(str(n) for n in value.shape)
        hasher.update(kdf.frame(name.encode(), value.dtype.name.encode(), shape.encode()))
        hasher.update(value.tobytes())
    return hasher.digest()


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


class ServerModel:
    """State of the model at one server.

    Args:
        state: name to array, as a torch state_dict in NumPy; copied, tied tensors stay tied.
        optimizer: applied to the aggregate.
        source: `delta` (reports hold changes of the model) or `gradient` (they hold gradients).
        reduce: `mean` over the cohort, by weight under a weight lane, by row count under a count
            lane; or `sum`.
    """

    def __init__(
        self,
        state: Mapping[str, Array],
        optimizer: ServerOptimizer | None = None,
        *,
        source: Literal["delta", "gradient"] = "delta",
        reduce: Literal["mean", "sum"] = "mean",
    ) -> None:
        """Copy the state.

        Raises:
            ParameterError: no mapping, or a setting is unknown.
        """
        if not isinstance(state, Mapping):
            raise ParameterError(
                f"the model's state is of type {type(state).__name__}: pass a mapping from names "
                "to arrays, as handle.server_state() gives it"
            )
        given = {name: np.asarray(value) for name, value in state.items()}
        copies: dict[tuple[Any, ...], Array] = {}
        self.state: dict[str, Array] = {}
        for name, value in given.items():  # all alive, so that one address is one memory
            key = (*value.__array_interface__["data"], value.dtype, value.shape, value.strides)
            if key not in copies or not value.size:
                native = value.dtype.newbyteorder("=")
                copies[key] = np.array(value, dtype=native, order="C")
            self.state[name] = copies[key]
        self.optimizer: ServerOptimizer = ServerSGD() if optimizer is None else optimizer
        if source not in ("delta", "gradient") or reduce not in ("mean", "sum"):
            raise ParameterError("source is delta or gradient, reduce is mean or sum")
        self.source, self.reduce = source, reduce

    def check(self, plan: Plan) -> None:
        """Check that every tensor of the plan is here with its shape and dtype.

        Raises:
            ParameterError: one is not.
        """
        for tensor in (t for s in plan.segments for t in s.tensors):
            value = self.state.get(tensor.name)
            if value is None or value.shape != tensor.shape or value.dtype.name != tensor.dtype:
                found = "nothing" if value is None else f"{value.dtype.name}{value.shape}"
                raise ParameterError(
                    f"the plan has {tensor.name} as {tensor.dtype}{tensor.shape}, the model {found}"
                )

    def rows(self, segment: Segment) -> npt.NDArray[np.uint8]:
        """Raw bytes of a rows segment as its trees count them: `[m, row_bytes]`."""
        parts = [self.state[t.name].reshape(t.shape[0], segment.tau) for t in segment.tensors]
        table = np.ascontiguousarray(np.concatenate(parts))
        if segment.subset:
            table = table[subset_array(segment.subset)]
        little = table.astype(table.dtype.newbyteorder("<"), copy=False)
        return little.view(np.uint8).reshape(segment.m, segment.row_bytes)

    def apply(self, plan: Plan, opened: Opened) -> None:
        """Apply the opened sums of a round.

        float16 tensors, whose numbers end at 65504, are stepped on copies, before all others.

        Raises:
            ProtocolError: a float16 parameter would overflow. Neither the model nor the
                optimizer has changed then.
        """
        narrow = {t.name for s in plan.segments for t in s.tensors if t.dtype == "float16"}
        before = self.optimizer.state() if narrow else {}
        staged = {name: self.state[name].copy() for name in narrow}
        self.optimizer.advance()
        self._steps(plan, opened, staged)
        for name, value in staged.items():
            num_lost = np.count_nonzero(~np.isfinite(value) & np.isfinite(self.state[name]))
            if num_lost:
                self.optimizer.load_state(before)
                raise ProtocolError(_OVERFLOW.format(name=name, count=num_lost))
        self._steps(plan, opened, {n: v for n, v in self.state.items() if n not in narrow})
        for name, value in staged.items():
            self.state[name][...] = value

    def _steps(self, plan: Plan, opened: Opened, state: Mapping[str, Array]) -> None:
        """One step of every tensor of the plan that `state` holds, changed there."""
        for segment in plan.segments:
            spans = [(t, span) for t, span in tensor_spans(segment) if t.name in state]
            if spans:
                mean = self._reduce(plan, segment, opened)
            for tensor, span in spans:
                change = mean[span].reshape(-1)[: tensor.numel]
                self._step(tensor, state[tensor.name].reshape(-1), change)

    def _reduce(self, plan: Plan, segment: Segment, opened: Opened) -> Float64:
        total = plan.encoding.dequantise(opened.sums[segment.name])
        if self.reduce == "sum":
            return total
        lane = opened.lanes.get(segment.name)
        if segment.policy == "dense":
            return total / float(max(opened.total_weight, 1))
        if lane is None:
            return total / float(opened.num_clients)
        return total / np.maximum(lane, 1).astype(np.float64)[:, None]

    def _step(self, tensor: TensorSpec, flat: Array, change: Float64) -> None:
        for start in range(0, tensor.numel, _CHUNK):
            stop = min(start + _CHUNK, tensor.numel)
            part = flat[start:stop].astype(np.float64)
            gradient = change[start:stop] if self.source == "gradient" else -change[start:stop]
            self.optimizer.step(tensor.name, start, tensor.numel, part, gradient)
            with np.errstate(over="ignore"):  # `apply` looks for what became infinite
                flat[start:stop] = part

    def digest(self) -> bytes:
        """`state_digest` of the state."""
        return state_digest(self.state)


def tensor_spans(segment: Segment) -> Iterator[tuple[TensorSpec, slice]]:
    """The segment's tensors, each with its range of positions in the index space."""
    start = 0
    for tensor in segment.tensors:
        count = tensor.shape[0] if segment.policy == "rows" else -(-tensor.numel // segment.tau)
        yield tensor, slice(start, start + count)
        start += count

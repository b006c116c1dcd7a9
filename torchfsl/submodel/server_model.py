"""The model at a server: state, deterministic update, digest. NumPy only, no torch.

Both servers apply the same aggregate, and their models must stay bit-identical, on any processor
and with any number of threads. One differing bit would turn retrieved rows into garbage. So every
step is one correctly rounded IEEE operation at a time (+, -, *, /, sqrt on float64), which NumPy
never fuses. The result is rounded once to the parameter's dtype.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.submodel.halves import narrow
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.segments import (
    BUFFERS,
    Segment,
    TensorSpec,
    in_the_clear,
    subset_array,
    tensor_spans,
)
from torchfsl.submodel.server_optimizers import ServerOptimizer, ServerSGD, check_server_optimizer
from torchfsl.types import Array, Float64, Indices

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
            ParameterError: no mapping, no optimizer of servers, or a setting is unknown.
        """
        if not isinstance(state, Mapping):
            raise ParameterError(
                f"the model's state is of type {type(state).__name__}: pass a mapping from names "
                "to arrays, as fed.server_state() gives it",
                code="wrong-type",
            )
        check_server_optimizer(optimizer)
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
            raise ParameterError(
                f"source is {source!r} and reduce is {reduce!r}: choose source='delta' or "
                "'gradient', reduce='mean' or 'sum'",
                code="unknown-option",
            )
        self.source, self.reduce = source, reduce

    def __repr__(self) -> str:
        values = sum(value.size for value in self.state.values())
        return (
            f"ServerModel({len(self.state)} tensors of {values} values, "
            f"{type(self.optimizer).__name__}, source={self.source!r})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Copies of the tensors as torch's, for `model.load_state_dict` and `torch.save`.

        torch is loaded here alone, for callers who ask for its tensors; servers do not.
        """
        torch = importlib.import_module("torch")
        return {name: torch.from_numpy(value.copy()) for name, value in self.state.items()}

    def check(self, plan: SubmodelPlan) -> None:
        """Check that every tensor of the plan is here with its shape and dtype.

        Raises:
            ParameterError: one is not.
        """
        for tensor in (t for s in plan.segments for t in s.tensors):
            value = self.state.get(tensor.name)
            if value is None or value.shape != tensor.shape or value.dtype.name != tensor.dtype:
                held = "lacks it" if value is None else f"has {value.dtype.name}{value.shape}"
                raise ParameterError(
                    f"the plan has {tensor.name} as {tensor.dtype}{tensor.shape}, and the model "
                    f"{held}: pass the state of this plan's model, as fed.server_state() gives it",
                    code="model-does-not-fit",
                )

    def make_room(self, plan: SubmodelPlan) -> None:
        """Let the optimizer get its memory for the plan's tensors before the first round."""
        for tensor in (t for s in plan.segments for t in s.tensors if s.name != BUFFERS):
            if not self.optimizer.lazy:
                self.optimizer.make_room(tensor.name, tensor.numel)

    def row_bytes(self, plan: SubmodelPlan) -> bytes:
        """The rows of `plan` that can be retrieved, segment by segment, as clients get them.

        After them, of segments that clients get rounded, the tensors as they are, so that models
        differ in a digest of this that clients could not tell apart.
        """
        rounded = (s for s in plan.segments if s.download != "full")
        own = [self.state[t.name].tobytes() for s in rounded for t in s.tensors]
        return b"".join([*(self.rows(s).data for s in plan.segments if s.retrieve), *own])

    def clear_bytes(self, plan: SubmodelPlan) -> bytes:
        """All other tensors as clients get them, in the order of the plan."""
        parts = ((s, self.state[t.name]) for s in in_the_clear(plan.segments) for t in s.tensors)
        return b"".join(_sent(segment, tensor).tobytes() for segment, tensor in parts)

    def rows(self, segment: Segment) -> npt.NDArray[np.uint8]:
        """A rows segment as clients get it, in the order of its trees: `[m, row_bytes]`.

        Raw bytes; may be a view.
        """
        parts = [self.state[t.name].reshape(t.shape[0], segment.tau) for t in segment.tensors]
        table = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if segment.subset:
            table = table[subset_array(segment.subset)]
        sent = _sent(segment, table)
        little = sent.astype(sent.dtype.newbyteorder("<"), copy=False)
        return little.view(np.uint8).reshape(segment.m, segment.row_bytes)

    def apply(self, plan: SubmodelPlan, opened: Opened) -> None:
        """Apply the aggregates of a round.

        float16 tensors, whose numbers end at 65504, are stepped on copies, before all others.

        Args:
            plan: the plan of the round.
            opened: its aggregates.

        Raises:
            ProtocolError: if a float16 parameter would overflow. Neither the model nor the
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
                raise ProtocolError(
                    _OVERFLOW.format(name=name, count=num_lost), code="model-overflow"
                )
        self._steps(plan, opened, {n: v for n, v in self.state.items() if n not in narrow})
        for name, value in staged.items():
            self.state[name][...] = value

    def _steps(self, plan: SubmodelPlan, opened: Opened, state: Mapping[str, Array]) -> None:
        """One step of every tensor of the plan that `state` holds, changed there."""
        for segment in plan.segments:
            for tensor, span in tensor_spans(segment):
                if tensor.name in state:
                    change = _Change(plan, segment, opened, self.reduce, span.start)
                    optimizer = ServerSGD() if segment.name == BUFFERS else self.optimizer
                    self._step(optimizer, tensor, state[tensor.name].reshape(-1), change)

    def _step(
        self, optimizer: ServerOptimizer, tensor: TensorSpec, flat: Array, change: _Change
    ) -> None:
        width = max(1, tensor.numel // max(1, tensor.shape[0])) if tensor.shape else 1
        if optimizer.lazy:
            self._step_rows(tensor, flat.reshape(-1, width), change)
            return
        chunk = _CHUNK
        if optimizer.by_row:
            chunk = max(1, chunk // width) * width
            optimizer.rows_of(tensor.name, width)
        for start in range(0, tensor.numel, chunk):
            stop = min(start + chunk, tensor.numel)
            part = flat[start:stop].astype(np.float64)
            gradient = change.values(start, stop)
            if self.source == "delta":
                gradient = -gradient
            optimizer.step(tensor.name, start, tensor.numel, part, gradient)
            with np.errstate(over="ignore"):  # `apply` looks for what became infinite
                flat[start:stop] = part

    def _step_rows(self, tensor: TensorSpec, table: Array, change: _Change) -> None:
        """A step of the rows that the round touched, so many at a time as a chunk holds."""
        num_rows, width = table.shape
        touched = change.touched(num_rows, width)
        for start in range(0, len(touched), most := max(1, _CHUNK // width)):
            rows = touched[start : start + most]
            part = table[rows].astype(np.float64)
            gradient = change.of_rows(rows, width)
            if self.source == "delta":
                gradient = -gradient
            self.optimizer.step_rows(tensor.name, rows, num_rows, part, gradient)
            with np.errstate(over="ignore"):  # `apply` looks for what became infinite
                table[rows] = part

    def digest(self) -> bytes:
        """`state_digest` of the state."""
        return state_digest(self.state)


def _sent(segment: Segment, values: Array) -> Array:
    """Values of a segment's tensor as they go to clients."""
    return values if segment.download == "full" else narrow(values, segment.download)


class _Change:
    """The change of one tensor by the sums of a round, made as it is asked for."""

    def __init__(
        self, plan: SubmodelPlan, segment: Segment, opened: Opened, reduce: str, first: int
    ) -> None:
        """The tensor begins at position `first` of the segment."""
        self._encoding, self._segment = plan.encoding_of(segment), segment
        self._opened = opened
        self._sums, self._first = opened.sums[segment.name], first
        self._reduce = reduce

    def values(self, start: int, stop: int) -> Float64:
        """Of the tensor's values `[start, stop)`, flat."""
        tau = self._segment.tau
        low, high = start // tau, -(-stop // tau)
        rows = self._rows(slice(self._first + low, self._first + high))
        return rows.reshape(-1)[start - low * tau : stop - low * tau]

    def touched(self, num_rows: int, width: int) -> Indices:
        """The tensor's rows, of `width` values each, that anybody moved, increasing."""
        tau, size = self._segment.tau, num_rows * width
        here = slice(self._first, self._first + -(-size // tau))
        moved = self._sums[here] != 0
        if (lane := self._opened.lanes.get(self._segment.name)) is not None:
            moved |= (lane[here] > 0)[:, None]
        return np.flatnonzero(moved.reshape(-1)[:size].reshape(num_rows, width).any(axis=1))

    def of_rows(self, rows: Indices, width: int) -> Float64:
        """Of the tensor's rows, of `width` values each: `[k, width]`."""
        places = rows[:, None] * width + np.arange(width)
        positions = self._first + places // self._segment.tau
        total = self._encoding.dequantise(self._sums[positions, places % self._segment.tau])
        return total / self._divisor(positions)

    def _rows(self, rows: slice) -> Float64:
        total = self._encoding.dequantise(self._sums[rows])
        divisor = self._divisor(rows)
        return total / (divisor if isinstance(divisor, float) else divisor[:, None])

    def _divisor(self, positions: slice | Indices) -> float | Float64:
        """The divisor of sums: one number, or one per position."""
        if self._reduce == "sum":
            return 1.0
        if self._segment.is_dense:
            return float(max(self._opened.total_weight, 1))
        lane = self._opened.lanes.get(self._segment.name)
        if lane is None:
            return float(self._opened.num_clients)
        return np.maximum(lane[positions], 1).astype(np.float64)

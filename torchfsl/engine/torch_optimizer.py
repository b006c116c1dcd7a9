"""A torch optimizer as the servers' optimizer, for rounds of gradients (FedSGD).

    ServerModel(state, TorchOptimizer(lambda p: torch.optim.Adagrad(p, lr=0.1)), source="gradient")

Both servers must end bit-identically. torch promises this only between equal builds on equal
processors; where servers differ, take `ServerSGD` or `ServerAdam`, which promise it anywhere.
A difference is noticed before the next round, which does not begin then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch
from torch.optim import Optimizer

from torchfsl.errors import ParameterError
from torchfsl.submodel.server_optimizers import ServerOptimizer
from torchfsl.types import Array, Float64

_ELEMENTWISE: Final = (
    "SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "Rprop",
    "ASGD",
)  # fmt: skip


class TorchOptimizer(ServerOptimizer):
    """Steps torch's own optimizer. Parameters are float64 slices while they are stepped."""

    def __init__(self, make: Callable[[list[torch.Tensor]], Optimizer]) -> None:
        """`make` builds the optimizer for a list of tensors.

        Raises:
            ParameterError: if it does not treat each element of a tensor separately.
        """
        self._make = make
        name = type(make([torch.zeros(1, requires_grad=True)])).__name__
        if name not in _ELEMENTWISE:
            raise ParameterError(
                f"{name} does not update each element of a parameter separately, and servers "
                f"update slices of parameters: choose from {', '.join(_ELEMENTWISE)}"
            )
        self._states: dict[tuple[str, int], dict[str, torch.Tensor]] = {}

    def advance(self) -> None:
        """Optimizers count their own steps."""

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """See `ServerOptimizer`."""
        tensor = torch.from_numpy(parameter).requires_grad_()
        tensor.grad = torch.from_numpy(np.array(gradient))
        optimizer = self._make([tensor])
        if (name, start) in self._states:
            optimizer.state[tensor] = dict(self._states[name, start])
        optimizer.step()
        kept = {k: v for k, v in optimizer.state[tensor].items() if isinstance(v, torch.Tensor)}
        self._states[name, start] = kept

    def state(self) -> dict[str, Array]:
        """By `key/start/parameter`, copies of what the optimizer keeps of every slice."""
        return {
            f"{key}/{start}/{name}": value.numpy().copy()
            for (name, start), state in self._states.items()
            for key, value in state.items()
        }

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        self._states = {}
        for path, value in state.items():
            key, start, name = path.split("/", 2)
            slot = self._states.setdefault((name, int(start)), {})
            slot[key] = torch.from_numpy(np.array(value))

"""The servers' optimizer by name and settings, as tasks and configuration files hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from torchfsl.errors import DecodeError, ParameterError
from torchfsl.submodel.server_optimizers import (
    ServerAdam,
    ServerFTRL,
    ServerLazyAdam,
    ServerOptimizer,
    ServerRowAdagrad,
    ServerSGD,
    is_number,
)
from torchfsl.types import Array

_STATES: Final = {
    "sgd": ServerSGD.kinds,
    "adam": ServerAdam.kinds,
    "lazy-adam": ServerLazyAdam.kinds,
    "ftrl": ServerFTRL.kinds,
    "row-adagrad": ServerRowAdagrad.kinds,
}
"""By name of the optimizer what it keeps of every tensor."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """The servers' optimizer, and those of these settings that it takes.

    `sgd` (lr, momentum, lr_decay, lr_decay_rounds), `adam` (lr, beta1, beta2, eps),
    `lazy-adam` (the same, and rates by name of a tensor), `ftrl` (lr, beta, l1, l2) or
    `row-adagrad` (lr, eps). The one description of it, in tasks and configuration
    files; ranges are those of the classes.
    """

    name: Literal["sgd", "adam", "lazy-adam", "ftrl", "row-adagrad"] = "sgd"
    lr: float = 1.0
    momentum: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    lr_decay: float = 1.0
    lr_decay_rounds: int = 10
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _STATES:
            raise ParameterError(
                f"the server optimizer {self.name!r} is unknown: choose one of "
                f"{', '.join(_STATES)}",
                code="unknown-option",
            )
        for field_ in dataclasses.fields(self)[1:]:
            if field_.name != "rates" and not is_number(getattr(self, field_.name)):
                raise ParameterError(
                    f"{field_.name} of the server optimizer is not a number: pass a float"
                )
        rates = self.rates
        if not isinstance(rates, Mapping) or not all(isinstance(name, str) for name in rates):
            raise ParameterError(
                "expected rates of the server optimizer as a mapping from names of tensors to "
                "rates: pass a dict"
            )
        if self.name != "lazy-adam" and rates:
            raise ParameterError(
                f"rates is a setting of lazy-adam, and the server optimizer is {self.name}: leave "
                "out rates",
                code="unused-option",
            )
        if self.name != "sgd" and (self.momentum != 0 or self.lr_decay != 1):
            raise ParameterError(
                "momentum and lr_decay are settings of sgd, and the server optimizer is "
                f"{self.name}: leave out both",
                code="unused-option",
            )
        if self.name != "ftrl" and (self.beta, self.l1, self.l2) != (1, 0, 0):
            raise ParameterError(
                f"beta, l1 and l2 are settings of ftrl, and the server optimizer is {self.name}: "
                "leave out all three",
                code="unused-option",
            )
        self.build()

    def build(self) -> ServerOptimizer:
        """A fresh optimizer."""
        if self.name == "adam":
            return ServerAdam(self.lr, betas=(self.beta1, self.beta2), eps=self.eps)
        if self.name == "lazy-adam":
            betas = (self.beta1, self.beta2)
            return ServerLazyAdam(self.lr, betas=betas, eps=self.eps, rates=self.rates)
        if self.name == "ftrl":
            return ServerFTRL(self.lr, beta=self.beta, l1=self.l1, l2=self.l2)
        if self.name == "row-adagrad":
            return ServerRowAdagrad(self.lr, eps=self.eps)
        return ServerSGD(
            self.lr,
            momentum=self.momentum,
            lr_decay=self.lr_decay,
            lr_decay_rounds=self.lr_decay_rounds,
        )

    def resume(self, moments: Mapping[str, Array], tensors: Mapping[str, Array]) -> ServerOptimizer:
        """An optimizer that goes on from what `ServerOptimizer.state` gave.

        Args:
            moments: the state; it may come from a peer or from disk.
            tensors: the model's, by name.

        Raises:
            DecodeError: not the state of such an optimizer on these tensors.
        """
        kinds = _STATES[self.name]
        names = {name.partition("/")[2] for name in moments if name != "round"}
        wanted = {f"{kind}/{name}" for kind in kinds for name in names}
        optimizer = self.build()
        wanted |= set(optimizer.state())  # of a fresh one: what belongs to no tensor
        if set(moments) != wanted or not names <= set(tensors):
            raise DecodeError(
                f"the state does not fit the server optimizer {self.name} and this model: load the "
                "state of servers with this optimizer and this model",
                code="optimizer-state",
            )
        for name, value in moments.items():
            is_count = name == "round"
            shape = () if is_count else self._shape(tensors[name.partition("/")[2]])
            kind = np.int64 if is_count else np.float64
            valid = value.shape == shape and value.dtype == kind and bool(np.isfinite(value).all())
            if not valid or (is_count and not 0 <= value < 1 << 32):
                raise DecodeError(
                    f"{name!r} in the server optimizer's state does not fit this model in shape, "
                    "dtype or value: load a state that servers of this model saved",
                    code="optimizer-state",
                )
        optimizer.load_state(moments)
        return optimizer

    def _shape(self, tensor: Array) -> tuple[int, ...]:
        """Of a tensor's state."""
        return (len(tensor) if self.name == "row-adagrad" and tensor.ndim else tensor.size,)

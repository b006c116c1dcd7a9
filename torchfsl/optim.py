"""The servers' optimizers: what both servers do with the average of a round.

`fed.local_servers(server_optimizer=torchfsl.optim.Adam(0.01))`. Each function describes an
optimizer; every server builds its own. All except `from_torch` give bit-identical models on any
machine. Ranges are those of the classes in `torchfsl.submodel`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchfsl.faces import public
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_optimizers import ServerOptimizer

__all__ = [
    "FTRL",
    "SGD",
    "Adam",
    "FromTorch",
    "LazyAdam",
    "OptimizerSettings",
    "RowAdagrad",
    "from_torch",
]


@public
def SGD(
    lr: float = 1.0, *, momentum: float = 0.0, lr_decay: float = 1.0, lr_decay_rounds: int = 10
) -> OptimizerSettings:
    """Step by the average; with momentum FedAvgM (Hsu et al. 2019).

    Args:
        lr: rate; 1 without momentum makes the model the average of the clients' models.
        momentum: in [0, 1). A server then keeps 8 bytes more per parameter.
        lr_decay: factor on the rate after every `lr_decay_rounds` rounds, in (0, 1].
        lr_decay_rounds: at least 1.
    """
    return OptimizerSettings(
        lr=lr, momentum=momentum, lr_decay=lr_decay, lr_decay_rounds=lr_decay_rounds
    )


@public
def Adam(
    lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> OptimizerSettings:
    """FedAdam (Reddi et al. 2021): Adam on the average, which moves rows that no client sent.

    Args:
        lr: rate.
        betas: of the moments, in [0, 1).
        eps: added to the root of the second moment.

    Returns:
        Settings, to pass as the servers' optimizer.
    """
    return OptimizerSettings("adam", lr=lr, beta1=betas[0], beta2=betas[1], eps=eps)


@public
def LazyAdam(
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    rates: Mapping[str, float] | None = None,
) -> OptimizerSettings:
    """Adam that steps only rows that a client changed in the round, with their moments.

    Args:
        lr: rate.
        betas: of the moments, in [0, 1).
        eps: added to the root of the second moment.
        rates: other rates, by name of a tensor.
    """
    return OptimizerSettings(
        "lazy-adam", lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, rates=dict(rates or {})
    )


@public
def FTRL(
    lr: float = 0.1, *, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0
) -> OptimizerSettings:
    """FTRL-proximal (McMahan et al. 2013), with which `l1` makes rows exactly zero.

    Args:
        lr: rate.
        beta: added to the root of the sum of squares.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.

    Returns:
        Settings, to pass as the servers' optimizer.
    """
    return OptimizerSettings("ftrl", lr=lr, beta=beta, l1=l1, l2=l2)


@public
def RowAdagrad(lr: float = 0.1, *, eps: float = 1e-8) -> OptimizerSettings:
    """Adagrad with one sum of squares per row.

    Args:
        lr: rate.
        eps: added to the root of the sum.
    """
    return OptimizerSettings("row-adagrad", lr=lr, eps=eps)


@dataclass(frozen=True)
class FromTorch:
    """An optimizer of torch at the servers; made by `from_torch`."""

    make: Callable[[list[Any]], Any]

    def build(self) -> ServerOptimizer:
        """A new one.

        Raises:
            ParameterError: it does not step every element separately.
        """
        module = importlib.import_module("torchfsl.engine.torch_optimizer")
        built: ServerOptimizer = module.TorchOptimizer(self.make)
        return built


@public
def from_torch(make: Callable[[list[Any]], Any]) -> FromTorch:
    """An optimizer of torch, for servers in this process.

    Both servers end bit-identical only on equal builds of torch and equal processors.

    Args:
        make: builds the optimizer for a list of tensors, as
            `lambda p: torch.optim.Adagrad(p, lr=0.1)`.
    """
    return FromTorch(make)

"""Everything outside the row tables during a round: other parameters, gradients, buffers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.watch.guards import still_message
from torchfsl.errors import ParameterError


class RestWatch:
    """Follows the parameters outside row tables: one copy each at the start of the round."""

    _before: dict[str, torch.Tensor]
    _gradients: dict[str, torch.Tensor]

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """`parameters` by name, in the segment's order."""
        self._parameters = parameters
        self.close()

    def begin(self) -> None:
        """Copy the parameters."""
        self._before = {n: p.detach().clone() for n, p in self._parameters.items()}
        self._gradients = {}

    def capture(self, optimizer: Optimizer, factor: torch.Tensor | None) -> None:
        """Add up the gradients of the optimizer's parameters, times `factor`."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self._parameters.items():
            if id(parameter) not in mine or parameter.grad is None:
                continue
            gradient = parameter.grad
            gradient = gradient.coalesce().to_dense() if gradient.is_sparse else gradient
            value = gradient.to(torch.float64, copy=True)
            if factor is not None:
                value = torch.where(factor == 0, 0.0, value * factor)
            if name in self._gradients:
                value += self._gradients[name]
            self._gradients[name] = value

    def deltas(self) -> list[torch.Tensor]:
        """How each parameter changed since `begin`: float64."""
        return [
            p.detach().to(torch.float64) - self._before[n].to(torch.float64)
            for n, p in self._parameters.items()
        ]

    def check_still(self) -> None:
        """Refuse any change since `begin`.

        Raises:
            ParameterError: a parameter moved.
        """
        for name, parameter in self._parameters.items():
            if not torch.equal(parameter.detach(), self._before[name]):
                raise ParameterError(still_message(name))

    def gradients(self) -> list[torch.Tensor]:
        """What `capture` added up, zero where there was no gradient: float64."""
        return [
            self._gradients.get(n, torch.zeros_like(p, dtype=torch.float64))
            for n, p in self._parameters.items()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the parameters back."""
        for name, before in self._before.items():
            self._parameters[name].detach().copy_(before)

    def close(self) -> None:
        """Drop all copies."""
        self._before, self._gradients = {}, {}


class BufferWatch:
    """Follows all buffers of a model, whatever their dtype."""

    _before: list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]

    def __init__(self, model: nn.Module) -> None:
        """Look at no buffer before `begin`."""
        self._model = model
        self.close()

    def begin(self) -> None:
        """Copy the buffers."""
        self._before = [
            (module, key, value, value.detach().clone())
            for module in self._model.modules()
            for key, value in module._buffers.items()
            if value is not None
        ]

    def delta(self, name: str, buffer: torch.Tensor) -> torch.Tensor:
        """How `buffer` changed since `begin`: float64.

        Raises:
            ParameterError: it is not the tensor that was there at `begin`.
        """
        for module, key, value, before in self._before:
            if value is buffer and module._buffers.get(key) is buffer:
                return buffer.detach().to(torch.float64) - before.to(torch.float64)
        raise ParameterError(
            f"another tensor replaced the buffer {name}: change buffers in place, or use "
            "buffers='local'"
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Put the buffers back."""
        for module, key, value, before in self._before:
            value.copy_(before)
            module._buffers[key] = value

    def close(self) -> None:
        """Drop all copies."""
        self._before = []


class HiddenGradients:
    """Gradients taken away for the length of a step, so that the step changes nothing."""

    def __init__(self) -> None:
        self._hidden: dict[int, list[tuple[nn.Parameter, torch.Tensor]]] = {}

    def hide(self, optimizer: Optimizer) -> None:
        """Without gradients a step changes neither parameters nor optimizer state."""
        hidden = self._hidden.setdefault(id(optimizer), [])
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    hidden.append((parameter, parameter.grad))
                    parameter.grad = None

    def show(self, optimizer: Optimizer | None = None) -> None:
        """Give the gradients back (of all optimizers: None)."""
        for key in list(self._hidden) if optimizer is None else [id(optimizer)]:
            for parameter, gradient in self._hidden.pop(key, []):
                parameter.grad = gradient


def unscale_factor(optimizer: Optimizer) -> torch.Tensor | None:
    """The inverse of the loss scale that GradScaler leaves to fused optimizers; 0 on overflow."""
    scale = getattr(optimizer, "grad_scale", None)
    overflow = getattr(optimizer, "found_inf", None)
    if scale is None and overflow is None:
        return None
    factor = torch.ones(()) if scale is None else scale.reciprocal()
    return factor if overflow is None else torch.where(overflow > 0, 0.0, factor.to(overflow))

"""A network of fully connected layers."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


class MLP(nn.Module):
    """Hidden layers with ReLU between flattened inputs and the classes.

    `MLP()` is the network of the SESA paper's experiments, with 159,010 parameters.

    Args:
        inputs: values of an example.
        hidden: units of each hidden layer.
        classes: number of classes.
    """

    def __init__(
        self, *, inputs: int = 784, hidden: tuple[int, ...] = (200,), classes: int = 10
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in itertools.pairwise((inputs, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear((inputs, *hidden)[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits `[B, classes]` of examples `[B, ...]`."""
        logits: Tensor = self.layers(inputs)
        return logits

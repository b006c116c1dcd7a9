"""The public graph of a network: what is computed, with which shapes, but not with which weights.

A value of the graph is one of two kinds, which tell how the parties hold it (see `gates`):

    wire     activations with f fractional bits: the input, what a ReLU gives, and sums over these
    product  results of linear layers with f + f_w fractional bits, their sums and maxima
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from torchfsl.errors import ParameterError

Op = Literal["input", "conv", "linear", "add", "relu", "max", "sum", "flatten"]

LINEAR = ("conv", "linear")
"""Operations with weights."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation.

    Attributes:
        op: `sum` adds up a window, as average pooling does before it divides; `max` is pooling.
        inputs: earlier nodes. A linear layer may have a second input, a wire (a shortcut) that is
            added to its output.
        shape: of the output of one sample.
        weight_shape: of a linear layer's weights.
        stride, padding: of a convolution, (height, width); also the stride of a pooling.
        groups: of a convolution.
        window: of a pooling.
        scale: a wire's value divided by the network's own value. A sum over a window is the average
            times the window's size.
    """

    op: Op
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    weight_shape: tuple[int, ...] = ()
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    window: tuple[int, int] = (1, 1)
    scale: int = 1

    @property
    def numel(self) -> int:
        """Values of one sample."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each stands behind its inputs; the last one gives the logits.

    Raises:
        ParameterError: the operations do not fit together.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        nodes = self.nodes
        if not nodes or nodes[0].op != "input" or nodes[-1].op not in LINEAR:
            raise ParameterError(
                "the network does not use its input, or does not end with a linear layer: use the "
                "input in forward(), and end with nn.Linear"
            )
        if len(nodes[-1].shape) != 1 or len(nodes[-1].inputs) != 1:
            raise ParameterError(
                f"the last layer gives values of shape {nodes[-1].shape} from "
                f"{len(nodes[-1].inputs)} inputs: end the network with nn.Flatten() and nn.Linear, "
                "without a shortcut around them"
            )
        for number, node in enumerate(nodes):
            if any(source >= number for source in node.inputs):
                raise ParameterError(
                    "a node of the graph precedes its input: put each node after its inputs"
                )
            held = [self.is_wire(source) for source in node.inputs]
            if node.op in LINEAR and not all(held):
                raise ParameterError(
                    "two linear layers follow each other without a ReLU: merge the layers, or add "
                    "a ReLU between them"
                )
            if node.op in ("relu", "max") and any(held):
                raise ParameterError(
                    f"{node.op} follows a ReLU, expected {node.op} after a linear layer or an "
                    f"addition: remove {node.op}, or put {node.op} before the ReLU"
                )
            if node.op == "add" and len(set(held)) != 1:
                raise ParameterError(
                    "the network adds the output of a linear layer to an activation: apply a ReLU "
                    "to the output first"
                )

    def is_wire(self, number: int) -> bool:
        """Whether a node's value is a wire."""
        return self._wires[number]

    @functools.cached_property
    def _wires(self) -> tuple[bool, ...]:
        wires: list[bool] = []
        for node in self.nodes:
            if node.op in ("input", "relu"):
                wires.append(True)
            elif node.op in (*LINEAR, "max"):
                wires.append(False)
            else:
                wires.append(wires[node.inputs[0]])
        return tuple(wires)

    @property
    def linears(self) -> tuple[int, ...]:
        """Numbers of the nodes with weights."""
        return tuple(i for i, node in enumerate(self.nodes) if node.op in LINEAR)

    @property
    def num_weights(self) -> int:
        """Weights of all layers, without biases."""
        return sum(math.prod(self.nodes[i].weight_shape) for i in self.linears)

    @property
    def num_classes(self) -> int:
        """Logits of one sample."""
        return self.nodes[-1].shape[0]

    def canonical(self) -> list[dict[str, Any]]:
        """The nodes in the form that enters a plan's digest."""
        return [dataclasses.asdict(node) for node in self.nodes]

    def __hash__(self) -> int:
        return hash(json.dumps(self.canonical()))


def max_levels(node: Node) -> list[tuple[int, int]]:
    """By level of a maximum over a window: how many values are compared in pairs, how many wait."""
    left, levels = math.prod(node.window), []
    while left > 1:
        levels.append((left // 2, left % 2))
        left = left // 2 + left % 2
    return levels

"""From a torch module to a public graph and private weights.

`torch.fx` reads the module. Batch norm goes into the layer before it, a ReLU before a maximum moves
behind it (the same function on fewer values), a shortcut into the layer that it is added to,
and dropout vanishes. Everything else is refused with what to write instead.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from torchfsl.errors import ParameterError
from torchfsl.privhfl.graph import LINEAR, Graph, Node

_REMEDY = "use Conv2d, Linear, BatchNorm, ReLU, MaxPool2d, AvgPool2d, additions and Flatten"


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, which is public, and its float weights, which are not.

    Attributes:
        graph: the operations.
        weights: by number of a linear node its weights and biases, float64; batch norm and the
            division of average pooling are in them.
    """

    graph: Graph
    weights: dict[int, tuple[torch.Tensor, torch.Tensor]]

    def __repr__(self) -> str:
        return f"Network({len(self.graph.nodes)} nodes, {self.graph.num_weights} weights)"


@dataclass(eq=False)
class _Value:
    """A node that is not numbered yet."""

    node: Node
    inputs: list[_Value] = field(default_factory=list)
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def is_wire(self) -> bool:
        if self.node.op in ("sum", "flatten", "add"):
            return self.inputs[0].is_wire
        return self.node.op in ("input", "relu")


def read_network(module: nn.Module, input_shape: tuple[int, ...]) -> Network:
    """The network of a module in evaluation mode, for samples of `input_shape` (C, H, W).

    Raises:
        ParameterError: it cannot be traced, or holds an operation that the protocol lacks.
    """
    model = copy.deepcopy(module).cpu().double().eval()
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # whatever the module's own forward raises under tracing
        raise ParameterError(
            f"cannot follow forward() of {type(module).__name__} ({_reason(error)}): {_REMEDY}",
            code="unsupported-module",
        ) from error
    reader = _Reader(traced)
    try:
        reader.run(torch.zeros(1, *input_shape, dtype=torch.float64))
    except ParameterError as error:
        error.args = (_reason(error, 400),)
        raise
    except Exception as error:  # of the module's own layers
        raise ParameterError(
            f"{type(module).__name__} does not take inputs of shape {tuple(input_shape)} "
            f"({_reason(error)}): pass the shape of one sample, (C, H, W)",
            code="wrong-shape",
        ) from error
    assert reader.result is not None
    return _numbered(reader.result)


def _reason(error: Exception, most: int = 80) -> str:
    """The first line of an error, without what torch.fx adds about its graph."""
    text = str(error.args[0] if error.args else error).partition("While executing")[0].strip()
    return (text.splitlines() or [type(error).__name__])[0][:most]


def _numbered(last: _Value) -> Network:
    """The values that the last one needs, in order."""
    order: list[_Value] = []

    def visit(value: _Value) -> None:
        for source in value.inputs:
            if source not in order:
                visit(source)
        if value not in order:
            order.append(value)

    visit(last)
    number = {id(value): i for i, value in enumerate(order)}
    nodes = [
        replace(value.node, inputs=tuple(number[id(source)] for source in value.inputs))
        for value in order
    ]
    weights = {
        i: (value.weight, value.bias)
        for i, value in enumerate(order)
        if value.weight is not None and value.bias is not None
    }
    return Network(Graph(tuple(nodes)), weights)


class _Reader(fx.Interpreter):
    """Runs the traced module on zeros, which gives shapes, and notes a value for each step."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.values: dict[fx.Node, _Value] = {}
        self.result: _Value | None = None

    def run_node(self, n: fx.Node) -> Any:
        """The usual result; the value on the side."""
        with torch.no_grad():
            out = super().run_node(n)
        if n.op == "output":
            argument = n.args[0]
            if not isinstance(argument, fx.Node):
                raise ParameterError(
                    "the network returns several values, expected one tensor of logits: return "
                    "one tensor from forward()"
                )
            self.result = self.values[argument]
            return out
        shape = tuple(out.shape[1:]) if isinstance(out, torch.Tensor) else ()
        self.values[n] = self._value(n, shape)
        return out

    def _value(self, n: fx.Node, shape: tuple[int, ...]) -> _Value:
        if n.op == "placeholder":
            if any(value.node.op == "input" for value in self.values.values()):
                raise ParameterError(
                    "forward() takes several arguments, expected one tensor of images: remove the "
                    "other arguments"
                )
            return _Value(Node("input", (), shape))
        sources = [self.values[a] for a in n.args if isinstance(a, fx.Node)]
        name = getattr(n.target, "__name__", str(n.target))
        if not sources:
            raise ParameterError(
                f"the first argument of {name} does not depend on the network's input: {_REMEDY}"
            )
        if n.op == "call_module":
            return _of_module(self.fetch_attr(str(n.target)), sources[0], shape)
        handler = _FUNCTIONS.get(n.target if callable(n.target) else str(n.target))
        if handler is None:
            raise ParameterError(
                f"the protocol does not support {name}: {_REMEDY}", code="unsupported-module"
            )
        return handler(sources, n, shape)


def _of_module(module: nn.Module, x: _Value, shape: tuple[int, ...]) -> _Value:
    match module:
        case nn.Conv2d():
            return _conv(module, x, shape)
        case nn.Linear():
            return _linear(x, "linear", module.weight, module.bias, Node("linear", (), shape))
        case nn.BatchNorm2d() | nn.BatchNorm1d():
            return _batch_norm(module, x)
        case nn.ReLU():
            return _relu(x)
        case nn.MaxPool2d():
            _plain_pool(module, module.dilation)
            return _max(x, _pair(module.kernel_size), _pair(module.stride), shape)
        case nn.AvgPool2d():
            _plain_pool(module, 1)
            if module.divisor_override is not None:
                raise ParameterError(
                    "AvgPool2d has divisor_override, which the protocol does not support: leave "
                    "out divisor_override"
                )
            return _sum(x, _pair(module.kernel_size), _pair(module.stride), shape)
        case nn.AdaptiveAvgPool2d():
            return _adaptive(x, shape)
        case nn.Flatten():
            if module.start_dim != 1 or module.end_dim != -1:
                raise ParameterError(
                    "expected nn.Flatten(start_dim=1, end_dim=-1), got other dimensions: use "
                    "nn.Flatten()"
                )
            return _flatten(x, shape)
        case nn.Dropout() | nn.Dropout2d() | nn.Identity():
            return x
    raise ParameterError(
        f"the protocol does not support {type(module).__name__}: {_REMEDY}",
        code="unsupported-module",
    )


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _plain_pool(module: Any, dilation: Any) -> None:
    if _pair(module.padding) != (0, 0) or module.ceil_mode or _pair(dilation) != (1, 1):
        raise ParameterError(
            "a pooling layer has padding, dilation or ceil_mode, which the protocol does not "
            "support: use padding=0, dilation=1 and ceil_mode=False"
        )


def _conv(module: nn.Conv2d, x: _Value, shape: tuple[int, ...]) -> _Value:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        raise ParameterError(
            "expected Conv2d with numeric padding and padding_mode='zeros': replace 'same' or "
            "'valid' by a number, for example padding=1"
        )
    if _pair(module.dilation) != (1, 1):
        raise ParameterError(
            "a Conv2d has a dilation, which torch does not support for integers: use dilation=1"
        )
    node = Node(
        "conv",
        (),
        shape,
        stride=_pair(module.stride),
        padding=_pair(module.padding),
        groups=module.groups,
    )
    return _linear(x, "conv", module.weight, module.bias, node)


def _linear(
    x: _Value, what: str, weight: torch.Tensor, bias: torch.Tensor | None, node: Node
) -> _Value:
    if not x.is_wire:
        raise ParameterError(
            f"a {what} layer follows a linear layer without a ReLU: put a ReLU between the two "
            "layers"
        )
    own = weight.detach().double() / x.node.scale
    zero = torch.zeros(len(own), dtype=torch.float64)
    shift = zero if bias is None else bias.detach().double()
    return _Value(replace(node, weight_shape=tuple(own.shape)), [x], own, shift)


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, x: _Value) -> _Value:
    if x.weight is None or x.bias is None or len(x.inputs) != 1:
        raise ParameterError(
            "expected batch norm directly after a convolution or linear layer: move the batch "
            "norm there"
        )
    if module.running_mean is None or module.running_var is None:
        raise ParameterError("batch norm has no running statistics: use track_running_stats=True")
    factor = 1 / torch.sqrt(module.running_var.double() + module.eps)
    shift = -module.running_mean.double() * factor
    if module.weight is not None:
        factor = factor * module.weight.detach()
        shift = shift * module.weight.detach() + module.bias.detach()
    weight = x.weight * factor.reshape(-1, *(1,) * (x.weight.dim() - 1))
    return _Value(x.node, x.inputs, weight, x.bias * factor + shift)


def _relu(x: _Value) -> _Value:
    return x if x.node.op == "relu" else _Value(Node("relu", (), x.node.shape), [x])


def _max(
    x: _Value, window: tuple[int, int], stride: tuple[int, int], shape: tuple[int, ...]
) -> _Value:
    behind = x.node.op == "relu"  # max and ReLU commute; a maximum first leaves fewer ReLUs
    source = x.inputs[0] if behind else x
    if source.is_wire:
        raise ParameterError(
            "expected max pooling directly before or after a ReLU: move the pooling there"
        )
    pooled = _Value(Node("max", (), shape, window=window, stride=stride), [source])
    return _relu(pooled) if behind else pooled


def _sum(
    x: _Value, window: tuple[int, int], stride: tuple[int, int], shape: tuple[int, ...]
) -> _Value:
    if not x.is_wire:
        raise ParameterError("expected average pooling after a ReLU: put a ReLU before the pooling")
    size = window[0] * window[1] * x.node.scale
    return _Value(Node("sum", (), shape, window=window, stride=stride, scale=size), [x])


def _adaptive(x: _Value, shape: tuple[int, ...]) -> _Value:
    high, wide = x.node.shape[1:]
    if high % shape[1] or wide % shape[2]:
        raise ParameterError(
            "adaptive pooling has an output size that does not divide its input size: choose a "
            f"divisor of {high} x {wide}"
        )
    window = (high // shape[1], wide // shape[2])
    return _sum(x, window, window, shape)


def _flatten(x: _Value, shape: tuple[int, ...]) -> _Value:
    return _Value(Node("flatten", (), shape, scale=x.node.scale), [x])


def _add(x: _Value, y: _Value) -> _Value:
    if x.node.shape != y.node.shape or x.node.scale != y.node.scale:
        raise ParameterError(
            "the network adds activations of different shapes, or after average pooling: make the "
            "shapes equal, and pool after the addition"
        )
    if x.is_wire == y.is_wire:
        return _Value(Node("add", (), x.node.shape, scale=x.node.scale), [x, y])
    product, wire = (y, x) if x.is_wire else (x, y)
    attached = _attach(product, wire)
    if attached is None:
        raise ParameterError(
            "a linear layer has two shortcuts added to its output, expected one: remove a shortcut"
        )
    return attached


def _attach(product: _Value, wire: _Value) -> _Value | None:
    """The product with the wire added to one of its linear layers."""
    if product.node.op in LINEAR and len(product.inputs) == 1:
        return _Value(product.node, [*product.inputs, wire], product.weight, product.bias)
    if product.node.op == "add":
        left, right = product.inputs
        if (attached := _attach(left, wire)) is not None:
            return _Value(product.node, [attached, right])
        if (attached := _attach(right, wire)) is not None:
            return _Value(product.node, [left, attached])
    return None


def _pool_arguments(n: fx.Node) -> tuple[tuple[int, int], tuple[int, int]]:
    known = {"kernel_size", "stride", "input"}
    if len(n.args) > 3 or not set(n.kwargs) <= known:
        raise ParameterError(
            "expected functional pooling with kernel_size and stride, got other arguments: remove "
            "the other arguments"
        )
    window = n.args[1] if len(n.args) > 1 else n.kwargs.get("kernel_size")
    if window is None:
        raise ParameterError("functional pooling has no kernel_size: pass kernel_size=")
    stride = n.args[2] if len(n.args) > 2 else n.kwargs.get("stride")
    return _pair(window), _pair(window if stride is None else stride)


def _two(sources: list[_Value], n: fx.Node) -> _Value:
    if len(sources) != 2 or n.kwargs:
        raise ParameterError(
            "expected an addition of two activations: remove constants and keyword arguments, "
            "such as alpha="
        )
    return _add(*sources)


def _flat(sources: list[_Value], n: fx.Node, shape: tuple[int, ...]) -> _Value:
    start = n.args[1] if len(n.args) > 1 else n.kwargs.get("start_dim", 0)
    if start != 1 or len(n.args) > 2 or "end_dim" in n.kwargs:
        raise ParameterError(
            "expected torch.flatten(x, 1), got other dimensions: use torch.flatten(x, 1)"
        )
    return _flatten(sources[0], shape)


_Handler = Callable[[list[_Value], fx.Node, tuple[int, ...]], _Value]

_RELU: _Handler = lambda s, n, shape: _relu(s[0])  # noqa: E731
_ADD: _Handler = lambda s, n, shape: _two(s, n)  # noqa: E731
_MAX: _Handler = lambda s, n, shape: _max(s[0], *_pool_arguments(n), shape)  # noqa: E731
_AVERAGE: _Handler = lambda s, n, shape: _sum(s[0], *_pool_arguments(n), shape)  # noqa: E731
_ADAPTIVE: _Handler = lambda s, n, shape: _adaptive(s[0], shape)  # noqa: E731

_FUNCTIONS: dict[Any, _Handler] = {
    torch.relu: _RELU, functional.relu: _RELU, "relu": _RELU,
    operator.add: _ADD, operator.iadd: _ADD, torch.add: _ADD, "add": _ADD,
    functional.max_pool2d: _MAX, functional.avg_pool2d: _AVERAGE,
    functional.adaptive_avg_pool2d: _ADAPTIVE, torch.flatten: _flat, "flatten": _flat,
}  # fmt: skip
"""Handlers of functions and of tensors' methods."""

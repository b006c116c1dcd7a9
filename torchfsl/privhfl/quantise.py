"""A network's weights as ring elements, rescaled so that nothing wraps and little is lost.

ReLU, maxima and sums commute with positive factors. If a layer is multiplied by s and the next one
is divided by s, the function stays the same. A party chooses these factors from its own data, and
no other party learns them. A bad choice gives wrong logits, never a leak.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from torchfsl.errors import ParameterError
from torchfsl.privhfl.graph import LINEAR, Graph
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, windows, with_bias
from torchfsl.privhfl.network import Network
from torchfsl.privhfl.ring_tensors import Ring

SPARE = 4.0
"""Products of the calibration data stay this factor below what the ring holds."""

_COARSEST = 10
"""Bits that the largest activation keeps at least, whatever the next weights want."""


@dataclass(frozen=True, slots=True)
class Quantised:
    """A network over the ring.

    Attributes:
        graph: public.
        weights: by linear node its weights (f_w bits after the point) and biases (f + f_w). Secret.
    """

    graph: Graph
    weights: dict[int, tuple[torch.Tensor, torch.Tensor]]

    def __repr__(self) -> str:
        return f"Quantised({self.graph.num_weights} weights)"

    def equals(self, other: Quantised) -> bool:
        """Whether the ring elements are the same."""
        return self.graph == other.graph and all(
            torch.equal(a, b)
            for i in self.weights
            for a, b in zip(self.weights[i], other.weights[i], strict=True)
        )


def quantise(
    network: Network,
    ring: Ring,
    samples: torch.Tensor,
    *,
    output_scale: float = 1.0,
    logit_bound: float = math.inf,
    largest: float | None = None,
) -> Quantised:
    """Round a network to the ring.

    Args:
        network: with float weights.
        ring: public.
        samples: `[M, C, H, W]` of the party's own data, to see how large activations become.
        output_scale: public factor of the logits.
        logit_bound: public; the samples' logits stay below half of it.
        largest: magnitude that products of the samples may reach; by default `SPARE` below the
            ring's limit.

    Raises:
        ParameterError: weights are not finite, or activations or logits do not fit.
    """
    graph = network.graph
    seen = _activations(network, samples.double())
    if 2 * seen.top[len(graph.nodes) - 1] > logit_bound:
        raise ParameterError(
            "logits of the calibration samples exceed half of the plan's logit_bound "
            f"({logit_bound:g}): train with weight decay, or make a plan with a larger logit_bound"
        )
    most = ring.limit / SPARE if largest is None else largest
    scales = _scales(network, ring, seen, most, output_scale)
    weights = {}
    for i, (weight, bias) in network.weights.items():
        entering, leaving = scales[graph.nodes[i].inputs[0]], scales[i]
        weights[i] = (
            ring.encode(weight * (leaving / entering), ring.weight_frac_bits),
            ring.encode(bias * leaving, ring.product_bits),
        )
    return Quantised(graph, weights)


@dataclass(slots=True)
class _Seen:
    """By node the largest magnitude and the root of the mean square of its values."""

    top: list[float]
    rms: list[float]


def run_float(network: Network, samples: torch.Tensor) -> list[torch.Tensor]:
    """Every node's value of a batch, in the type of the samples."""
    values: list[torch.Tensor] = []
    for i, node in enumerate(network.graph.nodes):
        given = [values[source] for source in node.inputs]
        if node.op == "input":
            values.append(samples)
        elif node.op in LINEAR:
            weight, bias = (part.to(samples.dtype) for part in network.weights[i])
            out = apply_linear(node, weight, given[0]) + with_bias(node, bias)
            values.append(out + given[1] if len(given) > 1 else out)
        elif node.op == "add":
            values.append(given[0] + given[1])
        elif node.op == "relu":
            values.append(given[0].relu())
        elif node.op == "max":
            values.append(windows(node, given[0]).amax(0))
        else:
            values.append(apply_shape(node, given[0]))
    return values


def _activations(network: Network, samples: torch.Tensor) -> _Seen:
    if samples.dim() != 1 + len(network.graph.nodes[0].shape) or not len(samples):
        raise ParameterError(
            f"the samples have shape {tuple(samples.shape)}, expected one or more samples, each of "
            f"shape {network.graph.nodes[0].shape}: pass them as [M, C, H, W]"
        )
    values = run_float(network, samples)
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise ParameterError(
            "an activation of the network is NaN or infinite: train with a lower learning rate"
        )
    return _Seen(
        [float(value.abs().max()) for value in values],
        [float(value.square().mean().sqrt()) for value in values],
    )


def _groups(graph: Graph) -> list[int]:
    """Nodes that must share one factor have one number, that of the group's first node."""
    parent = list(range(len(graph.nodes)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i, node in enumerate(graph.nodes):
        tied = node.inputs[1:] if node.op in LINEAR else node.inputs
        for source in tied:
            low, high = sorted((root(source), root(i)))
            parent[high] = low
    return [root(i) for i in range(len(graph.nodes))]


def _scales(
    network: Network, ring: Ring, seen: _Seen, most: float, output_scale: float
) -> list[float]:
    """By node the factor of its values."""
    graph = network.graph
    group = _groups(graph)
    last = len(graph.nodes) - 1
    top: dict[int, float] = {}
    for i in range(len(graph.nodes)):  # sums over windows have as much room as products
        top[group[i]] = max(top.get(group[i], 0.0), seen.top[i])
    products = [i for i in range(last + 1) if not graph.is_wire(i) and group[i] == group[0]]
    beside = max((seen.top[i] for i in products), default=0.0)
    if group[last] == group[0] or beside > most:
        raise ParameterError(
            f"a layer adds the network's input to values of up to {beside:.3g}, but the ring holds "
            f"at most {most:.3g}: scale the images down, or use a ring of 64 bits"
        )
    scale = {g: most / max(value, most * 2.0**-20) for g, value in top.items()}
    scale[group[0]], scale[group[last]] = 1.0, output_scale
    for i in reversed(graph.linears):
        entering = group[graph.nodes[i].inputs[0]]
        if entering not in (group[0], group[i]):
            wanted = _entering(network, i, seen, scale[group[i]])
            coarsest = math.ldexp(1.0, _COARSEST - ring.frac_bits) / max(top[entering], 1e-9)
            scale[entering] = min(scale[entering], max(wanted, coarsest))
    return [scale[g] for g in group]


def _entering(network: Network, number: int, seen: _Seen, leaving: float) -> float:
    """The largest factor of a layer's input that leaves its weights fine enough.

    The product of all layers' factors is given by the public one of the logits: what activations
    gain, weights lose. Weights may lose three bits at no regard to that, and more as long as their
    rounding costs about as much as that of the activations, which adds up over layers and is
    weighed twice (the choice that was best of 1, 2 and 4 on trained networks).
    """
    source = network.graph.nodes[number].inputs[0]
    window = network.graph.nodes[source].scale
    weight = max(float(network.weights[number][0].square().mean().sqrt()), 1e-9)
    mean = max(seen.rms[source] / window, 1e-9)
    return max(2 * math.sqrt(leaving * weight / mean), 8 * leaving * weight)

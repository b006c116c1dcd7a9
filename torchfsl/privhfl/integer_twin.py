"""The same network on plain ring integers, without any protection; `secure` must equal it.

Rounding in the protocol adds a dither in [0, 2**f_w) and then cuts off f_w bits. With the dithers
of the dealer's masks, the result is bit-identical to that of `secure`. Without dithers, `run_twin`
rounds down.
"""

from __future__ import annotations

import torch

from torchfsl.privhfl.dealer import Dithers
from torchfsl.privhfl.graph import Node, max_levels
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, lifted, windows, with_bias
from torchfsl.privhfl.quantise import Quantised
from torchfsl.privhfl.ring_tensors import Ring, Words


def run_twin(
    network: Quantised, ring: Ring, images: torch.Tensor, dithers: Dithers | None = None
) -> torch.Tensor:
    """Logits as ring elements with f + f_w fractional bits, `[B, classes]`.

    Args:
        network: over the same ring.
        ring: public.
        images: ring elements with f fractional bits, `[B, C, H, W]`.
        dithers: of one batch and answering party; None rounds down.
    """
    values: list[torch.Tensor] = []
    for number, node in enumerate(network.graph.nodes):
        given = [values[source] for source in node.inputs]
        if node.op == "input":
            values.append(images)
        elif number in network.weights:
            weight, bias = network.weights[number]
            y = apply_linear(node, weight, given[0]) + with_bias(node, bias)
            values.append(y + lifted(ring, given[1]) if len(given) > 1 else y)
        elif node.op == "add":
            values.append(given[0] + given[1])
        elif node.op == "relu":
            dither = dithers[number, "0"] if dithers else None
            values.append(_rounded(ring, given[0], dither).clamp_min(0))
        elif node.op == "max":
            values.append(_maximum(number, node, ring, given[0], dithers))
        else:
            values.append(apply_shape(node, given[0]))
    return values[-1]


def _rounded(ring: Ring, y: torch.Tensor, dither: Words | None) -> torch.Tensor:
    """floor((y + dither) / 2**f_w); y stays away from the ring's ends by as much."""
    if dither is not None:
        y = y + ring.tensor(dither, tuple(y.shape))
    return y >> ring.weight_frac_bits


def _maximum(
    number: int, node: Node, ring: Ring, y: torch.Tensor, dithers: Dithers | None
) -> torch.Tensor:
    cut = windows(node, y)
    values = cut.reshape(len(cut), -1)
    for level, (pairs, _) in enumerate(max_levels(node)):
        u, v = values[:pairs].reshape(-1), values[pairs : 2 * pairs].reshape(-1)
        dither = dithers[number, str(level)] if dithers else None
        best = torch.where(_rounded(ring, u - v, dither) >= 0, u, v).reshape(pairs, -1)
        values = torch.cat([best, values[2 * pairs :]])
    return values[0].reshape(len(y), *node.shape)

"""Linear layers: what P_A and S hold less the dealer's mask is the layer's output, exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.privhfl.small import RINGS, SEED
from torchfsl.privhfl import Querying, QueryPlan
from torchfsl.privhfl.dealer import Dealer
from torchfsl.privhfl.graph import Graph, Node
from torchfsl.privhfl.online import Half
from torchfsl.privhfl.quantise import Quantised
from torchfsl.privhfl.ring_tensors import Ring

INPUT = Node("input", (), (4, 7, 7))


def conv(out: int, side: int, kernel: int, inputs: tuple[int, ...] = (0,), **more: object) -> Node:
    groups = int(more.get("groups", 1))  # type: ignore[call-overload]
    shape = (out, 4 // groups, kernel, kernel)
    return Node("conv", inputs, (out, side, side), shape, **more)  # type: ignore[arg-type]


LAYERS = {
    "plain": [conv(5, 5, 3)],
    "padded": [conv(5, 7, 3, padding=(1, 1))],
    "strided": [conv(5, 4, 3, padding=(1, 1), stride=(2, 2))],
    "strided 1x1": [conv(5, 4, 1, stride=(2, 2))],
    "grouped": [conv(4, 7, 3, padding=(1, 1), groups=2)],
    "identity shortcut": [conv(4, 7, 3, (0, 0), padding=(1, 1))],
    "fully connected": [Node("flatten", (0,), (196,)), Node("linear", (1,), (9,), (9, 196))],
}


def whole_ring(ring: Ring, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    end = 1 << (ring.bits - 1)
    random = torch.Generator().manual_seed(seed)
    return torch.randint(-end, end - 1, shape, generator=random, dtype=torch.int64).to(ring.dtype)


def expected(nodes: list[Node], ring: Ring, weight: torch.Tensor, bias: torch.Tensor,
             x: torch.Tensor) -> torch.Tensor:  # fmt: skip
    """By torch's int64, cut to the ring."""
    node, w, b, x = nodes[-1], weight.long(), bias.long(), x.long()
    if node.op == "linear":
        y = x.flatten(1) @ w.T + b
    else:
        y = functional.conv2d(x, w, b, node.stride, node.padding, 1, node.groups)
    if len(node.inputs) > 1:
        y = y + (x << ring.weight_frac_bits)
    return y.to(ring.dtype)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_exact_over_the_whole_ring(
    layer: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, nodes = RINGS[bits], LAYERS[layer]
    number = len(nodes)
    shape = nodes[-1].shape
    size = torch.Size(shape).numel()
    behind = [Node("relu", (number,), shape)]
    if len(shape) > 1:
        behind.append(Node("flatten", (number + 1,), (size,)))
    last = number + len(behind)
    graph = Graph((INPUT, *nodes, *behind, Node("linear", (last,), (3,), (3, size))))
    weights = {
        i: (
            whole_ring(ring, graph.nodes[i].weight_shape, i),
            whole_ring(ring, (graph.nodes[i].weight_shape[0],), 50 + i),
        )
        for i in graph.linears
    }
    held: dict[object, torch.Tensor] = {}
    relu, deal = Half.relu, Dealer._relu

    def note_relu(self: Half, unit: object, masked: torch.Tensor):  # type: ignore[no-untyped-def]
        held[self._leading] = masked.clone()
        return relu(self, unit, masked)  # type: ignore[arg-type]

    def note_mask(self: Dealer, unit: object, mask: torch.Tensor) -> None:
        held["mask"] = mask.clone()
        deal(self, unit, mask)  # type: ignore[arg-type]

    monkeypatch.setattr(Half, "relu", note_relu)
    monkeypatch.setattr(Dealer, "_relu", note_mask)
    plan = QueryPlan({0: graph, 1: graph}, batch=3, ring=ring, min_answering=1, session="linear")
    querying = Querying(plan, seed=SEED)
    querying.load_quantised(1, Quantised(graph, weights))
    x = whole_ring(ring, (3, *INPUT.shape), 99)
    monkeypatch.setattr(Ring, "encode", lambda *_: x)
    querying.ask(0, [1], torch.zeros(3, *INPUT.shape))
    assert torch.equal(held[True], held[False])
    y = expected(nodes, ring, *weights[number], x)
    assert torch.equal(held[True] - held["mask"], y)
    assert not torch.equal(held[True], y)

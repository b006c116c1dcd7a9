"""The querying party as dealer: everything random that one batch with one answering party needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchfsl.crypto import kdf
from torchfsl.privhfl.draws import Draws
from torchfsl.privhfl.gates import deal_max, deal_relu, split
from torchfsl.privhfl.graph import Graph
from torchfsl.privhfl.linear_maps import apply_linear, apply_shape, windows
from torchfsl.privhfl.plan import QueryPlan, Unit
from torchfsl.privhfl.ring_tensors import Words
from torchfsl.types import Bytes

Dithers = dict[tuple[int, str], Words]
"""By node and step what rounding adds below the activations' last place, in [0, 2**f_w)."""


@dataclass(slots=True)
class Dealt:
    """What dealing leaves: the dealer's secrets, and the body of DEALING.

    Attributes:
        body: the server's shares, unit by unit, as bytes or contiguous arrays.
        query_mask: r of the query, known to P_A, `[B, *input]`.
        logit_mask: what the sum of logits holds too much of, `[B, classes]`.
        dithers: for the integer twin; secret, as they are parts of masks.
    """

    body: list[Any] = field(default_factory=list)
    query_mask: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    logit_mask: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    dithers: Dithers = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Dealt({len(self.body)} parts)"


class Dealer:
    """One batch with one answering party.

    Args:
        plan: public.
        graph: the answering party's, public.
        weight_masks: a, by linear node.
        qa: draws shared with P_A.
        sq: draws shared with S.
    """

    def __init__(
        self,
        plan: QueryPlan,
        graph: Graph,
        weight_masks: dict[int, torch.Tensor],
        qa: Draws,
        sq: Draws,
    ) -> None:
        self._plan, self._graph, self._a, self._qa, self._sq = plan, graph, weight_masks, qa, sq
        self._units: dict[int, list[Unit]] = {}
        for unit in plan.units(graph):
            self._units.setdefault(unit.node, []).append(unit)
        self._dealt = Dealt()

    def deal(self) -> Dealt:
        """Follow the graph with masks in place of values."""
        plan, graph, dealt = self._plan, self._graph, self._dealt
        masks: list[torch.Tensor] = []
        for number, node in enumerate(graph.nodes):
            shape = (plan.batch, *node.shape)
            given = [masks[source] for source in node.inputs]
            if node.op == "input":
                dealt.query_mask = plan.ring.uniform(self._qa.key(number, "input"), shape)
                masks.append(plan.ring.uniform(self._sq.key(number, "wire"), shape))
            elif number in self._a:
                masks.append(self._linear(number, given[0], shape))
            elif node.op == "add":
                masks.append(given[0] + given[1])
            elif node.op == "relu":
                self._relu(self._units[number][0], given[0])
                masks.append(plan.ring.uniform(self._sq.key(number, "wire"), shape))
            elif node.op == "max":
                masks.append(self._maximum(number, given[0], shape))
            else:
                masks.append(apply_shape(node, given[0]))
        dealt.logit_mask = masks[-1]
        return dealt

    def _linear(self, number: int, b: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        """The mask r = a * b + rho + kappa; the last layer has no kappa."""
        ring = self._plan.ring
        r = apply_linear(self._graph.nodes[number], self._a[number], b)
        r += ring.uniform(self._qa.key(number, "rho"), shape)
        if number != self._graph.linears[-1]:
            r += ring.uniform(self._sq.key(number, "kappa"), shape)
        return r

    def _relu(self, unit: Unit, mask: torch.Tensor) -> None:
        words = self._plan.ring.words(mask)
        bits = self._compare(unit, words)
        self._share(unit, deal_relu(self._plan.ring, words, bits))

    def _maximum(self, number: int, mask: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        ring = self._plan.ring
        cut = windows(self._graph.nodes[number], mask)
        values = ring.words(cut).reshape(len(cut), -1)
        for unit in self._units[number]:
            pairs = len(values) // 2
            u, v = values[:pairs].reshape(-1), values[pairs : 2 * pairs].reshape(-1)
            bits = self._compare(unit, u - v)
            self._share(unit, deal_max(ring, u, v, bits))
            fresh = remask(self._plan, self._qa, unit, "rho")
            fresh = fresh + remask(self._plan, self._sq, unit, "kappa")
            values = np.concatenate([fresh.reshape(pairs, -1), values[2 * pairs :]])
        return ring.tensor(values[0], shape)

    def _compare(self, unit: Unit, mask: Words) -> Bytes:
        """Deal the comparison with a mask's upper bits; note its lower ones."""
        ring = self._plan.ring
        low = ring.word.type((1 << ring.weight_frac_bits) - 1)
        self._dealt.dithers[unit.node, unit.step] = mask & low
        secret = split(ring, mask)[2]
        parts, bits = self._plan.backend.deal(secret, self._qa, self._sq, unit.node, unit.step)
        self._dealt.body += parts
        return bits

    def _share(self, unit: Unit, elements: list[Words]) -> None:
        """Share ring elements: P_A's share comes from its seed, S's is sent."""
        own = answering_shares(self._plan, self._qa, unit)
        for element, pad in zip(elements, own, strict=True):
            self._dealt.body.append(element - pad)


def answering_shares(plan: QueryPlan, qa: Draws, unit: Unit) -> Words:
    """P_A's shares of a unit's ring elements, `[shares, count]`."""
    drawn = kdf.stream(qa.key(unit.node, f"shares {unit.step}"), plan.share_bytes(unit))
    words: Words = drawn.view(plan.ring.word).reshape(unit.shares, unit.count)
    return words


def remask(plan: QueryPlan, draws: Draws, unit: Unit, name: str) -> Words:
    """One party's fresh mask of a level of maxima."""
    key = draws.key(unit.node, f"{name} {unit.step}")
    words: Words = kdf.stream(key, unit.count * plan.ring.item_bytes).view(plan.ring.word)
    return words


def weight_masks(plan: QueryPlan, graph: Graph, qa: Draws) -> dict[int, torch.Tensor]:
    """a: by linear node the masks of one version of the weights."""
    return {
        i: plan.ring.uniform(qa.key(i, "weights"), graph.nodes[i].weight_shape)
        for i in graph.linears
    }

"""The online half of gates that P_A and S have in common: compare, take the share, mask again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import torch

from torchfsl.privhfl.gates import max_share, relu_share, split
from torchfsl.privhfl.graph import Node
from torchfsl.privhfl.lane import Lane
from torchfsl.privhfl.linear_maps import windows
from torchfsl.privhfl.plan import QueryPlan, Unit
from torchfsl.privhfl.ring_tensors import Words

Dealt = tuple[Any, list[Words]]
"""One party's share of a unit: for the comparison, and ring elements."""


def cut_shares(plan: QueryPlan, unit: Unit, data: Any) -> list[Words]:
    """The shared ring elements of a unit, one array a kind."""
    words = np.frombuffer(data, plan.ring.word)
    return list(words.reshape(unit.shares, unit.count))


class Half:
    """One party's side of comparisons.

    Args:
        plan: public.
        lane: its end of the line.
        leading: whether it is P_A.
        dealt: by unit the party's share.
        mask: by unit of a maximum a fresh uniform mask that the other party does not know.
    """

    def __init__(
        self,
        plan: QueryPlan,
        lane: Lane,
        *,
        leading: bool,
        dealt: Callable[[Unit], Dealt],
        mask: Callable[[Unit], Words],
    ) -> None:
        self._plan, self._lane, self._leading = plan, lane, leading
        self._dealt, self._mask = dealt, mask

    def relu(self, unit: Unit, masked: torch.Tensor) -> Generator[bytes, memoryview, Words]:
        """This party's share of the ReLUs of masked products."""
        ring = self._plan.ring
        words = ring.words(masked)
        share, elements = self._dealt(unit)
        opened = yield from self._plan.backend.run(share, split(ring, words)[2], self._lane)
        return relu_share(ring, words, opened, elements, self._leading)

    def maximum(
        self, node: Node, units: Sequence[Unit], masked: torch.Tensor
    ) -> Generator[bytes, memoryview, torch.Tensor]:
        """The maxima over windows of masked products, masked anew."""
        ring = self._plan.ring
        cut = windows(node, masked)
        values = ring.words(cut).reshape(len(cut), -1)
        for unit in units:
            pairs = len(values) // 2
            u, v = values[:pairs].reshape(-1), values[pairs : 2 * pairs].reshape(-1)
            share, elements = self._dealt(unit)
            public = split(ring, u - v)[2]
            opened = yield from self._plan.backend.run(share, public, self._lane)
            own = max_share(ring, u, v, opened, elements, self._leading) + self._mask(unit)
            self._lane.send(own)
            other = np.frombuffer((yield from self._lane.receive(own.nbytes)), ring.word)
            merged = (own + other).reshape(pairs, -1)
            values = np.concatenate([merged, values[2 * pairs :]])
        return ring.tensor(values[0], (len(masked), *node.shape))

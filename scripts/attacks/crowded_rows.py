"""Rows that find no bin, and what the dense sum shows of them.

Whoever chose the hash seed can choose one under which a guessed row of a client finds no bin (here
the row is taken out of the placement). With the defence off the client trains on a row of NaN, its
update cannot be encoded, it sends dummies, and the dense sum lacks it: the guess was right. With it
on it trains with zeros there, and only that row's update is missing, in the residual.
"""

from __future__ import annotations

import contextlib
from typing import Final
from unittest import mock

import numpy as np
import torch

import torchfsl
from scripts.attacks.result import AttackResult
from torchfsl.engine import fetched
from torchfsl.errors import ParameterError
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Placement, Slots
from torchfsl.types import Indices

GUESS: Final = 3
HOLDING, NOT_HOLDING = (1, GUESS, 8), (1, 4, 8)


class _Model(torch.nn.Module):
    """A table and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(30, 2)
        self.out = torch.nn.Linear(2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """One number an id."""
        return self.out(self.table(ids))


_place = cuckoo.place


def _place_but_the_guess(
    table: Slots | None, indices: Indices, num_bins: int, theta: int, stash: int
) -> Placement:
    """`cuckoo.place` under a hash seed for which the guessed row finds no bin."""
    placed = _place(table, indices, num_bins, theta, stash)
    lost = np.flatnonzero(indices == GUESS)
    item = np.where(np.isin(placed.item, lost), -1, placed.item)
    return Placement(item, placed.position, np.union1d(placed.unmatched, lost))


def dense_sum_shows(rows: tuple[int, ...], *, on: bool) -> bool:
    """Whether the client's part is missing from the dense sum of a round."""
    model = _Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=2, min_clients=1, rows_per_client=8, above_break_even="keep"
    )
    servers = fed.local_servers()
    with contextlib.ExitStack() as patched, servers.round() as result:
        patched.enter_context(mock.patch.object(cuckoo, "place", _place_but_the_guess))
        if not on:
            off = mock.patch.object(fetched, "zeros_for_missing", lambda _, *found: found)
            patched.enter_context(off)
        with contextlib.suppress(ParameterError):
            ids = torch.tensor(rows)
            with fed.round(servers, 0, rows={"table": ids}):
                model(ids).square().sum().backward()
                optimizer.step()
    return not np.any(result.sums["rest"])


def run() -> AttackResult:
    """Tell a client that holds the guessed row from one that does not, by the dense sum."""
    told = {
        on: dense_sum_shows(HOLDING, on=on) and not dense_sum_shows(NOT_HOLDING, on=on)
        for on in (False, True)
    }
    return AttackResult(
        name="a row without a bin voids the report",
        off="whether the client holds the guessed row, from the dense sum",
        on="the dense sum has the client's part either way",
        worked_off=told[False],
        worked_on=told[True],
        cost="a rule: the row trains as zero",
    )

"""What is predicted of shards, beside what is counted while they work."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.integrations.ray.test_shards import play, twins
from tests.support.sharded import twin_servers
from torchfsl.errors import ParameterError
from torchfsl.fsl.estimates.measuring import Rates, rows_plan
from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.estimate import EngineRates, estimate_shards
from torchfsl.integrations.ray.grid import Grid, InProcessGrid

RATES = Rates(0.003, 1e-6, 0.004, 2e-6, 7e8, 5e7)


class Counting(InProcessGrid):
    """Counts bytes: put, from shard to shard, and taken by the front."""

    def __init__(self, plan: Plan, party: int, size: int) -> None:
        super().__init__(plan, party, size)
        self.put_bytes = self.exchanged = self.taken = self.calls = 0

    def put(self, value: Any) -> object:
        self.put_bytes += value.nbytes
        return value

    def send(self, shard: int, method: str, *arguments: Any) -> object:
        self.calls += 1
        if method == "put_rows" and shard:
            self.put_bytes += arguments[-1].nbytes  # one object, and a copy for every machine
        found: Any = super().send(shard, method, *arguments)
        if method == "partial":
            assert arguments[3] != shard  # its own part does not leave it
            self.exchanged += sum(part.nbytes for part in found.values())
        if method == "finish":
            self.taken += sum(part.nbytes for part in found.values())
        if method == "fold":
            self.taken += len(found)
        if method == "answer":
            self.taken += sum(len(p) for one in found for parts in one.values() for p in parts)
        return found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_bytes_and_calls_are_those_of_a_round(size: int) -> None:
    grids: list[Counting] = []

    def open_grid(plan: Plan, party: int) -> Grid:
        grids.append(Counting(plan, party, size))
        return grids[-1]

    plan = rows_plan(3000, 8, 16, 5)
    servers = twin_servers(plan, open_grid, checkpoint_windows=0)
    play(servers, 1)
    told = estimate_shards(plan, size, rates=RATES)
    for server in servers:
        grid: Any = twins(server).sharded.shards.grid
        assert grid.exchanged == told.exchanged_bytes
        assert grid.put_bytes == told.sent_bytes
        assert grid.taken == told.returned_bytes
    assert len(grids) == 2


def test_memory_is_that_of_the_largest_shard_and_falls_with_their_number() -> None:
    plan = rows_plan(1 << 14, 8, 64, 4)
    segment, told = plan.segments[0], [estimate_shards(plan, n, rates=RATES) for n in (1, 2, 4)]
    for one in told:
        grid = InProcessGrid(plan, 0, one.shards)
        held = []
        for shard in grid.shards:
            shard.put_rows(0, b"m", segment.name, 0, np.zeros((segment.m, 32), dtype=np.uint8))
            tables, sums = shard._tables[segment.name], shard._sum(segment.name)
            arrays = [*tables._tables, *tables._digests, *sums.arrays]
            places = shard._places[segment.name]._tables
            held.append(sum(a.nbytes for a in arrays) + sum(a.nbytes for p in places for a in p))
        assert abs(max(held) - (one.shard_memory_bytes - one.fixed_memory_bytes)) <= 64
    falling = [one.shard_memory_bytes - one.fixed_memory_bytes for one in told]
    a_part = segment.groups[0].num_leaves * (64 + 32 + segment.tag_bytes + 8)
    for one, left in zip(told, falling, strict=True):
        assert left <= falling[0] / one.shards + 3 * a_part


def test_work_goes_to_the_shards_and_what_a_framework_takes_on_top() -> None:
    plan = rows_plan(1 << 16, 8, 64, 40)
    free = EngineRates(0.0, 1e18)
    one, two = (estimate_shards(plan, n, rates=RATES, engine=free) for n in (1, 2))
    assert one.front_core_seconds == pytest.approx(two.front_core_seconds)
    assert one.shard_core_seconds == pytest.approx(2 * two.shard_core_seconds)
    whole = one.front_core_seconds + one.shard_core_seconds
    assert whole == pytest.approx(RATES.server(plan, 40))
    dear = dataclasses.replace(free, call_seconds=1.0)
    assert estimate_shards(plan, 2, rates=RATES, engine=dear).front_core_seconds > 5
    assert "over 2 shards" in str(two)


@pytest.mark.parametrize(("shards", "clients"), [(0, 4), (2, 0), (2, 41)])
def test_numbers_out_of_range_are_refused(shards: int, clients: int) -> None:
    with pytest.raises(ParameterError, match=r"1 shard or more|whole number"):
        estimate_shards(rows_plan(1 << 12, 8, 16, 40), shards, clients=clients, rates=RATES)

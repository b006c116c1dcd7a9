"""Blocks drawn in secret: their mean over draws is the change, and none exceeds its part."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

import torchfsl
from tests.support.engine_setup import plan_of
from torchfsl.engine.choosing import sample_blocks
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import BlockSample, Rows
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.submodel import norm_bound, stretches
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import RawSegment, quantise

M, K, TAU = 7, 3, 2
SIZES = (2, 2, 3)


def blocks_plan(m: int = M, k: int = K, tau: int = TAU, **changes: Any) -> Plan:
    tensor = TensorSpec("weights", (m * tau,), "float32")
    spec = SegmentSpec("rest", "blocks", (tensor,), k, tau)
    plan = build_plan([spec], max_clients=2, above_break_even="keep",
                      encoding=torchfsl.FixedPoint(frac_bits=16, clip=64.0))  # fmt: skip
    return dataclasses.replace(plan, **changes)


def drawn(
    places: tuple[int, ...], change: torch.Tensor, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> RawSegment:
    """What is sent if the generator gives these places within the stretches."""
    words = b"".join(place.to_bytes(16, "little") for place in places)
    monkeypatch.setattr(stretches, "random_bytes", lambda size: words[:size])
    return sample_blocks(plan, plan.segments[0], change, None)


def test_the_mean_over_all_draws_is_the_whole_change_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = torch.arange(M * TAU, dtype=torch.float64).reshape(M, TAU) / 8 - 0.5
    total, plan = torch.zeros(M, TAU, dtype=torch.float64), blocks_plan()
    chosen = set()
    for places in itertools.product(*(range(size) for size in SIZES)):
        raw = drawn(places, change, monkeypatch, plan)
        assert len(raw.positions) == K
        chosen.add(tuple(raw.positions))
        total[torch.from_numpy(raw.positions)] += torch.from_numpy(raw.values)
    assert len(chosen) == 2 * 2 * 3
    assert torch.equal(total, 2 * 2 * 3 * change)


def test_words_of_the_generator_fall_on_every_block_of_a_stretch_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = np.zeros(M, dtype=int)
    for word in range(6):  # lcm of the sizes
        raw = drawn(
            (word,) * K, torch.ones(M, TAU, dtype=torch.float64), monkeypatch, blocks_plan()
        )
        counts[raw.positions] += 1
    assert counts.tolist() == [3, 3, 3, 3, 2, 2, 2]


@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 7), (10, 3), (1000, 37)])
def test_each_stretch_gives_one_block_and_the_system_decides(m: int, k: int) -> None:
    blocks, sizes = stretches.draw(m, k, None)
    starts = [stretch * m // k for stretch in range(k + 1)]
    for place, block in enumerate(blocks.tolist()):
        assert starts[place] <= block < starts[place + 1]
    assert sizes.tolist() == np.diff(starts).tolist()
    if m == 1000:
        assert not np.array_equal(stretches.draw(m, k, None)[0], blocks)
        seeded = [stretches.draw(m, k, seed)[0] for seed in (bytes(16), bytes(16), bytes([1] * 16))]
        assert np.array_equal(seeded[0], seeded[1])
        assert not np.array_equal(seeded[0], seeded[2])


def test_a_bound_falls_on_each_block_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = blocks_plan(l2_bound=3 << 16)
    most = norm_bound.part_norm(plan.l2_bound, K, TAU) / (1 << 16)
    change = torch.zeros(M, TAU, dtype=torch.float64)
    change[0], change[2], change[4] = 100.0, 0.001, torch.tensor([3.0, -4.0])
    raw = drawn((0, 0, 0), change, monkeypatch, plan)
    assert raw.positions.tolist() == [0, 2, 4]
    norms = np.linalg.norm(raw.values, axis=1)
    assert norms[0] == pytest.approx(most)
    assert norms[2] == pytest.approx(most)
    assert raw.values[1].tolist() == [0.002, 0.002]  # twice, whatever the others are
    assert raw.values[2, 1] / raw.values[2, 0] == pytest.approx(-4 / 3)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("bound", "k", "tau"), [(300, 3, 2), (20, 4, 4), (9, 1, 64), (2, 1, 1)])
def test_rounding_never_meets_the_bound_of_the_whole(
    bound: int, k: int, tau: int, rounding: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is sent of one block would depend on the others."""
    encoding = torchfsl.FixedPoint(frac_bits=4, clip=64.0, rounding=rounding)
    plan = blocks_plan(2 * k, k, tau, l2_bound=bound, encoding=encoding)
    most = norm_bound.part_norm(bound, k, tau) / 16
    rng = np.random.default_rng(0)
    monkeypatch.setattr(norm_bound, "TRIES", 1)
    for seed in range(50):
        values = rng.standard_normal((k, tau))
        values *= most / np.linalg.norm(values, axis=1, keepdims=True)
        raw = {"rest": RawSegment(np.arange(k), values)}
        coins = seed.to_bytes(16, "little") if rounding == "stochastic" else None
        update, errors, _ = quantise(plan, raw, rounding_seed=coins)
        assert np.abs(errors["rest"]).max() < 1 / 16  # rounded, not scaled down
        assert norm_bound.norm_squared({"rest": update["rest"].values}) <= bound**2


def test_a_bound_without_room_and_one_over_other_segments_are_refused() -> None:
    change = torch.zeros(M, TAU, dtype=torch.float64)
    plan = blocks_plan(8, 4, 4, l2_bound=4)
    wide = torch.zeros(8, 4, dtype=torch.float64)
    with pytest.raises(ParameterError, match="can need more than 4 units"):
        sample_blocks(plan, plan.segments[0], wide, None)
    spec = SegmentSpec("rest", "blocks", (TensorSpec("w", (M * TAU,), "float32"),), K, TAU)
    other = SegmentSpec("buffers", "dense", (TensorSpec("b", (3,), "float32"),))
    plan = build_plan([spec, other], max_clients=2, above_break_even="keep",
                      encoding=torchfsl.FixedPoint(clip=4.0))  # fmt: skip
    plan = dataclasses.replace(plan, l2_bound=1 << 20)
    with pytest.raises(ParameterError, match="with l2_bound needs one segment"):
        sample_blocks(plan, plan.segments[0], change, None)


@pytest.mark.parametrize("arguments", [(0.0,), (1.5,), (0,), (True,), (0.5, 0)])
def test_nonsense_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ParameterError):
        BlockSample(*arguments)


def test_values_that_are_not_finite_are_refused() -> None:
    change = torch.full((M, TAU), torch.nan, dtype=torch.float64)
    plan = blocks_plan()
    with pytest.raises(ParameterError, match="NaN or infinite"):
        sample_blocks(plan, plan.segments[0], change, None)


def test_a_round_of_drawn_blocks_is_exact_and_owes_nothing() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=2, rest=BlockSample(0.2, block=8),
        encoding=torchfsl.FixedPoint(clip=64.0), above_break_even="keep",
    )  # fmt: skip

    def train(inputs: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    clients = [torch.randn(5, 40), torch.randn(5, 40)]
    result = torchfsl.simulate(fed, clients, train, rounds=3, progress=False)
    assert all(done.matches_plain for done in result.rounds)
    assert fed.hooks.residuals.num_bytes == 0
    assert fed.plan.segments[0].k_max == -(-52 // 5)


def test_a_plan_in_which_blocks_could_not_keep_the_bound_is_refused_when_it_is_made() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(50, 4), torch.nn.Linear(4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options: Any = {"max_clients": 3, "above_break_even": "keep"}
    for rows, bound, message in (
        (Rows(), 1 << 12, "l2_bound covers 2 segments.*rows=None.*or a plan without l2_bound"),
        (None, 8, "can need more than .* a larger l2_bound, or fewer blocks"),
    ):
        settings = Settings(rows=rows, rest=BlockSample(4, block=16))
        hooks = Hooks(model, optimizer, settings)
        budget = {} if rows is None else {"rows_per_client": 5}
        with pytest.raises(ParameterError, match=message):
            plan_of(hooks, l2_bound=bound, **options, **budget)
        assert plan_of(hooks, **options, **budget).l2_bound == 0
        hooks.remove()
    settings = Settings(rows=None, rest=BlockSample(8, block=16))
    plan = plan_of(Hooks(model, optimizer, settings), l2_bound=1 << 12, **options)
    assert plan.l2_bound == 1 << 12

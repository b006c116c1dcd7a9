"""Real values that the core quantises: as Python does, and within the plan's bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.client_core.test_tape import on_tape, open_wire
from tests.support.client_core import REPORT, Core, CoreClient
from tests.support.federation import mixed_plan, mixed_rings, random_update, wanted_rows
from torchfsl.crypto import entropy
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round
from torchfsl.submodel.clipping import with_shares
from torchfsl.submodel.norm_bound import norm_squared
from torchfsl.submodel.update import RawSegment, quantise

BOUNDED = dataclasses.replace(mixed_plan(), l2_bound=4096)


def raw_update(plan: Plan, seed: int, scale: float, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: RawSegment(part.indices, rng.normal(0, scale, part.values.shape).astype(dtype))
        for name, part in random_update(plan, rng).items()
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("rings", ["one", "several"])
def test_values_are_quantised_as_python_quantises_them(
    core: Core, dtype: Any, rounding: Any, rings: str
) -> None:
    plan = mixed_plan()
    plan = dataclasses.replace(plan, encoding=dataclasses.replace(plan.encoding, rounding=rounding))
    plan = mixed_rings(plan) if rings == "several" else plan
    wires = [open_wire(plan) for _ in range(2)]
    raw = raw_update(plan, 3, 2.0, dtype)
    wanted = wanted_rows(plan, raw)
    with pytest.MonkeyPatch.context() as patch:
        tape = on_tape(patch, 5)
        theirs = Client(plan, wires[0], client_id=3).start_round(1, indices=wanted)
        theirs.download(), theirs.retrieve()
        seed = entropy.random_bytes(16) if rounding == "stochastic" else None
        theirs.submit(quantise(plan, raw, rounding_seed=seed)[0])
    ours = CoreClient(core, plan, wires[1], 3, tape.data).start_round(1, indices=wanted)
    assert ours.submit(raw) == REPORT
    assert [event.data for event in wires[0].events] == [event.data for event in wires[1].events]


def opened_alone(core: Core, plan: Plan, raw: dict[str, Any]) -> dict[str, Any]:
    wire = open_wire(plan)
    tape = bytes(1 << 14)  # so that both round with the same coins
    client = CoreClient(core, plan, wire, 1, tape).start_round(1, indices=wanted_rows(plan, raw))
    assert client.submit(raw) == REPORT
    return dict(finish_round(wire.servers).sums)


@pytest.mark.parametrize("clip", ["whole", "clip", "normalise"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("scale", [1e-3, 0.05, 3.0])
def test_updates_keep_the_plans_norm_and_are_near_pythons(
    core: Core, clip: Any, rounding: Any, scale: float
) -> None:
    encoding = dataclasses.replace(BOUNDED.encoding, rounding=rounding)
    own = [dataclasses.replace(BOUNDED.segments[0], l2_bound=900), *BOUNDED.segments[1:]]
    plan = dataclasses.replace(BOUNDED, encoding=encoding, clip=clip, segments=tuple(own))
    raw = raw_update(plan, 7, scale)
    sums = opened_alone(core, plan, raw)
    assert norm_squared(sums) <= plan.l2_bound**2
    assert norm_squared({"table": sums["table"]}) <= 900**2
    seed = bytes(16) if rounding == "stochastic" else None
    for name, part in quantise(plan, raw, rounding_seed=seed)[0].items():
        values = sums[name] if part.indices is None else sums[name][part.indices]
        assert np.abs(values - part.values).max(initial=0) <= 2


@pytest.mark.parametrize("clip", ["clip", "normalise"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_core_proves_the_shares_of_groups(core: Core, clip: Any, rounding: Any) -> None:
    plan = mixed_plan()
    plan = dataclasses.replace(
        plan, encoding=dataclasses.replace(plan.encoding, rounding=rounding), proofs="norm",
        l2_bound=2000, clip=clip, segments=with_shares(plan.segments, 2000, clip),
    )  # fmt: skip
    assert all(0 < s.l2_bound < 2000 for s in plan.segments)
    sums = opened_alone(core, plan, raw_update(plan, 7, 3.0))
    for s in plan.segments:
        assert 0 < norm_squared({s.name: sums[s.name]}) <= s.l2_bound**2


def test_an_update_at_the_norm_that_rounding_would_exceed_is_shrunk(core: Core) -> None:
    plan = dataclasses.replace(BOUNDED, l2_bound=6)
    raw = raw_update(plan, 1, 2.0)
    assert norm_squared(opened_alone(core, plan, raw)) <= 36

"""Norms of updates as a client keeps them, against the library at their ends."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest

from tests.specification import pages, rounds
from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment
from torchfsl.crypto.fixed_point import ClipReport, FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel import update as library
from torchfsl.submodel.update import RawSegment, SegmentUpdate


@pytest.fixture(scope="module")
def spec() -> ModuleType:
    return pages.run()


def dense_plan(count: int, **fields: Any) -> Plan:
    plan = make_plan(make_segment("s", "dense", (count,)), encoding=FixedPoint(32, 0, 99.0))
    return dataclasses.replace(plan, **fields)


def both(spec: ModuleType, plan: Plan, reals: dict[str, RawSegment], seed: Any = None) -> Any:
    """The update that both make of these values, as the specification has it."""
    theirs = rounds.as_own(library.quantise(plan, reals, rounding_seed=seed)[0])
    ours = spec.quantise_update(spec.read_plan(plan.to_json()), rounds.as_own(reals), seed)
    assert ours == theirs
    return ours


def test_rounding_begins_again_until_it_is_within(spec: ModuleType) -> None:
    plan = dense_plan(400, l2_bound=20)
    own, attempts = spec.read_plan(plan.to_json()), []
    honest = vars(spec)["rounded"]

    def noted(*said: Any) -> Any:
        attempts.append(said[3])
        return honest(*said)

    with mock.patch.dict(vars(spec), {"rounded": noted}):
        for size in (43, 102, 110, 119):
            values = np.zeros(400)
            values[:size] = 9 + np.random.default_rng(size).random(size) / 50
            update = both(spec, plan, {"s": RawSegment(None, values)})
            assert spec.is_within(own, update)
    assert max(attempts) > 3


def test_values_are_cut_if_no_rounding_is_within(spec: ModuleType) -> None:
    plan = dense_plan(9, l2_bound=3)
    far = {"s": SegmentUpdate(None, np.full((9, 1), 7))}
    said = {"s": far["s"].values}, ClipReport(0, 0, 0)
    ours = mock.patch.dict(vars(spec), {"rounded": lambda *_: rounds.as_own(far)})
    with mock.patch.object(library, "_round", return_value=said), ours:
        for values in ([2.9, -2.9, 0.2] * 3, [1.0, -3.5] + [0.5] * 7, [50.0] * 9):
            both(spec, plan, {"s": RawSegment(None, np.array(values))})


@pytest.mark.parametrize("clip", ["clip", "normalise"])
@pytest.mark.parametrize("odd", [0.0, np.inf, np.nan, 1e200, 1e-100])
def test_groups_that_are_zero_or_not_finite_become_zero(
    spec: ModuleType, clip: Literal["clip", "normalise"], odd: float
) -> None:
    plan = make_plan(
        make_segment("table", "rows", (5, 2), (3, 2), k_max=4, tau=2),
        make_segment("few", "blocks", (9,), k_max=3, tau=3),
        make_segment("bias", "dense", (3,)),
        make_segment("more", "dense", (2,)),
    )
    plan = dataclasses.replace(plan, l2_bound=100_000, clip=clip)
    values = np.array([[1.0, -2], [3, 4], [odd, odd]])
    reals = {
        "table": RawSegment(np.array([0, 4, 6]), values),
        "few": RawSegment(np.array([1]), np.array([[0.25, odd, 8]])),
        "bias": RawSegment(None, np.array([0.01, -0.02, 0])),
        "more": RawSegment(None, np.array([odd, 5])),
    }
    update = both(spec, plan, reals)
    assert (update["table"][6] == [0, 0]) == (odd != 1e-100 or clip == "clip")
    assert any(update["table"][0])


def test_bounds_of_updates_are_exact_at_both(spec: ModuleType) -> None:
    wide = FixedPoint(64, 0, 2.0**40)
    plan = make_plan(
        *(make_segment(n, "dense", (k,)) for n, k in (("s", 2), ("t", 1))), encoding=wide
    )
    segments = dataclasses.replace(plan.segments[0], l2_bound=5), plan.segments[1]
    plan = dataclasses.replace(plan, segments=segments, l2_bound=1 << 40)
    own, most = spec.read_plan(plan.to_json()), (1 << 40) ** 2
    for s, t in (([3, 4], 9), ([3, 5], 0), ([0, 0], 1 << 40), ([1, 0], 1 << 40)):
        update = {
            "s": SegmentUpdate(None, np.array(s)[:, None]),
            "t": SegmentUpdate(None, np.array([[t]])),
        }
        fits = spec.is_within(own, rounds.as_own(update))
        assert fits == (s[0] ** 2 + s[1] ** 2 <= min(25, most - t * t))
        if fits:
            library.check_update(plan, update)
        else:
            with raises(ParameterError, "norm-too-large"):
                library.check_update(plan, update)

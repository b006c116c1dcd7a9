"""The norm bound of an update holds for the integers that leave the client."""

from __future__ import annotations

import dataclasses
import math
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel import norm_bound
from torchfsl.submodel.update import RawSegment, SegmentUpdate, check_update, quantise

Whole = npt.NDArray[np.int64]


def dense_plan(**options: Any) -> Plan:
    return dataclasses.replace(make_plan(make_segment("bias", "dense", (50,))), **options)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40))
def test_the_norm_of_any_integers_is_exact(values: list[int]) -> None:
    parts = {"a": np.array(values[::2], np.int64), "b": np.array(values[1::2], np.int64)}
    assert norm_bound.norm_squared(parts) == sum(value * value for value in values)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("scale", "bound"), [(0.001, 40), (1.0, 40), (3.9, 40), (1.0, 65536)])
def test_rounded_updates_keep_the_norm_bound(rounding: Any, scale: float, bound: int) -> None:
    encoding = FixedPoint(32, 16, 4.0, rounding)
    plan = make_plan(
        make_segment("bias", "dense", (1000,)),
        make_segment("few", "scalars", (300,), k_max=20, theta=5),
        encoding=encoding,
    )
    plan = dataclasses.replace(plan, l2_bound=bound)
    rng = np.random.default_rng(0)
    raw = {
        "bias": RawSegment(None, rng.normal(scale=scale, size=1000)),
        "few": RawSegment(np.arange(20), rng.normal(scale=scale, size=(20, 1))),
    }
    seed = secrets.token_bytes(16) if rounding == "stochastic" else None
    update, errors, _ = quantise(plan, raw, rounding_seed=seed)
    check_update(plan, update)
    norm = math.sqrt(norm_bound.norm_squared({n: part.values for n, part in update.items()}))
    assert norm <= bound
    real = math.sqrt(sum(float((part.values**2).sum()) for part in raw.values())) * 2**16
    assert norm > 0.6 * min(bound, real)  # and not far below what was possible
    for name, part in raw.items():
        decoded = encoding.dequantise(update[name].values)
        assert np.array_equal(errors[name], part.values.reshape(decoded.shape) - decoded)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_segments_keep_bounds_of_their_own_within_that_of_all(rounding: Any) -> None:
    plan = make_plan(
        make_segment("bias", "dense", (1000,)),
        make_segment("few", "scalars", (300,), k_max=20, theta=5),
        encoding=FixedPoint(32, 16, 4.0, rounding),
    )
    bias, few = plan.segments
    own = dataclasses.replace(bias, l2_bound=1000), few
    plan = dataclasses.replace(plan, l2_bound=5000, segments=own)
    rng = np.random.default_rng(0)
    raw = {
        "bias": RawSegment(None, rng.normal(size=1000)),
        "few": RawSegment(np.arange(20), rng.normal(scale=0.03, size=(20, 1))),
    }
    seed = secrets.token_bytes(16) if rounding == "stochastic" else None
    update, _, _ = quantise(plan, raw, rounding_seed=seed)
    check_update(plan, update)
    parts = {name: norm_bound.norm_squared({"": part.values}) for name, part in update.items()}
    assert 400**2 < parts["bias"] <= 1000**2
    assert 4900**2 < sum(parts.values()) <= 5000**2
    update["few"].values[:] = 0
    update["bias"].values[0, 0] += 1000
    with raises(ParameterError, "norm-too-large"):
        check_update(plan, update)


def test_small_updates_are_rounded_as_without_a_bound() -> None:
    raw = {"bias": RawSegment(None, np.linspace(-0.01, 0.01, 50))}
    bounded, _, _ = quantise(dense_plan(l2_bound=1 << 20), raw)
    free, _, _ = quantise(dense_plan(), raw)
    assert np.array_equal(bounded["bias"].values, free["bias"].values)


def test_values_are_cut_towards_zero_when_no_rounding_keeps_the_bound() -> None:
    def always_up(values: Any, attempt: int) -> dict[str, Whole]:
        return {name: np.ceil(part).astype(np.int64) + 1 for name, part in values.items()}

    scaled = {"a": np.full((100, 1), 0.4), "b": np.full((100, 1), -1.5)}
    whole = norm_bound.round_within(16, 200, scaled, always_up)
    assert norm_bound.norm_squared(whole) <= 256
    assert not whole["a"].any()


def test_rounding_retries_use_fresh_coins() -> None:
    plan = make_plan(
        make_segment("bias", "dense", (50,)), encoding=FixedPoint(32, 0, 100.0, "stochastic")
    )
    plan = dataclasses.replace(plan, l2_bound=8)
    raw = {"bias": RawSegment(None, np.full(50, 0.5))}
    seeds = [bytes([i]) * 16 for i in range(20)]
    outcomes = [quantise(plan, raw, rounding_seed=seed)[0]["bias"].values for seed in seeds]
    assert all(int((values**2).sum()) <= 64 for values in outcomes)
    assert len({values.tobytes() for values in outcomes}) == len(seeds)


def test_a_client_refuses_an_update_beyond_the_bound() -> None:
    plan = dense_plan(l2_bound=10)
    values = np.zeros((50, 1), dtype=np.int64)
    values[:2] = 7  # norm sqrt(98)
    check_update(plan, {"bias": SegmentUpdate(None, values)})
    values[2] = 2
    with raises(ParameterError, "norm-too-large"):
        check_update(plan, {"bias": SegmentUpdate(None, values)})


def test_four_squares_add_up_to_every_number() -> None:
    numbers = [*range(20000), *(7 * 4**a for a in range(20)), *((1 << k) - 1 for k in range(95))]
    numbers += [int(x) for x in np.random.default_rng(0).integers(0, 1 << 62, 200)]
    numbers += [int(x) ** 2 - 5 for x in np.random.default_rng(1).integers(9, 1 << 46, 200)]
    for number in numbers:
        found = norm_bound.four_squares(number)
        assert sum(x * x for x in found) == number
        assert list(found) == sorted(found, reverse=True)
        assert found[3] >= 0


def test_a_plan_refuses_a_bound_that_was_computed_in_another_unit() -> None:
    """16 units of 2**-12 would be 16 units of 2**-16 without a word."""
    plan = make_plan(make_segment("bias", "dense", (50,)), encoding=FixedPoint(32, 16, 4.0))
    same = norm_bound.l2_bound(FixedPoint(48, 16, 1.0), 1.0)
    assert dataclasses.replace(plan, l2_bound=same).l2_bound == 1 << 16
    other = norm_bound.l2_bound(FixedPoint(32, 12, 4.0), 1.0)
    with raises(ParameterError, "encodings-differ") as caught:
        dataclasses.replace(plan, l2_bound=other)
    assert "l2_bound was made for frac_bits=12, and the plan's encoding has frac_bits=16" in str(
        caught.value
    )
    assert dataclasses.replace(plan, l2_bound=int(other)).l2_bound == 1 << 12  # as it is written

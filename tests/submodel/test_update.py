"""Sparse updates: quantisation segment by segment, and each hostile input with its error."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment, mixed_plan, random_update
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.submodel.update import (
    RawSegment,
    SegmentUpdate,
    check_indices,
    check_update,
    quantise,
)

PLAN = make_plan(
    make_segment("rows", "rows", (9, 3), (4, 3), k_max=4, tau=3),
    make_segment("scalars", "scalars", (20,), k_max=5),
    make_segment("bias", "dense", (4,), (2, 2)),
)


def raw(**changes: Any) -> dict[str, RawSegment]:
    rng = np.random.default_rng(0)
    parts = {
        "rows": RawSegment(np.array([0, 8, 9, 12]), rng.normal(size=(4, 3))),
        "scalars": RawSegment(np.array([2, 19]), rng.normal(size=(2, 1)).astype(np.float32)),
        "bias": RawSegment(None, rng.normal(size=(8, 1))),
    }
    return {**parts, **changes}


def test_every_segment_is_quantised_and_what_is_lost_is_returned() -> None:
    parts = raw()
    update, errors, report = quantise(PLAN, parts)
    check_update(PLAN, update)
    assert set(update) == set(errors) == set(parts)
    for name, part in parts.items():
        whole = update[name].values
        assert whole.dtype == np.int64
        assert np.array_equal(whole, np.rint(np.float64(part.values) * 2**16))
        lost = np.float64(part.values) - whole / 2**16
        assert np.array_equal(errors[name], lost)
        assert np.all(np.abs(errors[name]) <= 2.0**-17)
        if part.indices is None:
            assert update[name].indices is None
        else:
            assert np.array_equal(update[name].indices, part.indices)  # type: ignore[arg-type]
    assert report.num_values == 12 + 2 + 8
    assert report.num_clipped == 0


def test_what_clipping_takes_away_is_in_the_errors_and_in_the_report() -> None:
    values = np.array([[7.0], [-9.5]])
    update, errors, report = quantise(PLAN, raw(scalars=RawSegment(np.array([2, 19]), values)))
    assert update["scalars"].values.tolist() == [[4 << 16], [-4 << 16]]
    assert errors["scalars"].tolist() == [[3.0], [-5.5]]
    assert (report.num_clipped, report.largest) == (2, 9.5)


def test_single_values_may_come_without_their_last_axis() -> None:
    flat = raw(
        bias=RawSegment(None, np.arange(8.0) / 8), scalars=RawSegment(np.array([1]), np.ones(1))
    )
    update, errors, _ = quantise(PLAN, flat)
    assert update["bias"].values.shape == errors["bias"].shape == (8, 1)
    assert update["scalars"].values.tolist() == [[1 << 16]]


def test_an_update_may_be_empty() -> None:
    nothing = np.empty(0, dtype=np.int64)
    update, _, _ = quantise(
        PLAN,
        raw(
            rows=RawSegment(nothing, np.empty((0, 3))),
            scalars=RawSegment(nothing, np.empty((0, 1))),
        ),
    )
    assert update["rows"].values.shape == (0, 3)
    check_update(PLAN, update)


def test_stochastic_rounding_repeats_under_one_seed_and_differs_between_segments() -> None:
    plan = make_plan(
        make_segment("a", "dense", (200,)),
        make_segment("b", "dense", (200,)),
        encoding=FixedPoint(32, 8, 4.0, "stochastic"),
    )
    values = np.full((200, 1), 0.3)
    parts = {name: RawSegment(None, values) for name in ("a", "b")}
    one, _, _ = quantise(plan, parts, rounding_seed=bytes(16))
    two, _, _ = quantise(plan, parts, rounding_seed=bytes(16))
    other, _, _ = quantise(plan, parts, rounding_seed=bytes(range(16)))
    for name in ("a", "b"):
        assert np.array_equal(one[name].values, two[name].values)
        assert not np.array_equal(one[name].values, other[name].values)
    assert not np.array_equal(one["a"].values, one["b"].values)


@pytest.mark.parametrize("seed", [b"", bytes(15)])
def test_a_short_rounding_seed_is_refused(seed: bytes) -> None:
    with raises(ParameterError, "seed-too-short"):
        quantise(PLAN, raw(), rounding_seed=seed)


def test_a_rounding_seed_is_wanted_exactly_for_stochastic_rounding() -> None:
    with pytest.raises(ParameterError, match="random bytes"):
        quantise(PLAN, raw(), rounding_seed=bytes(16))


SEVEN = np.arange(7)
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "nan": (
        {"rows": RawSegment(np.array([1]), np.array([[0.0, np.nan, 1.0]]))},
        "value-not-finite",
    ),
    "infinity": ({"bias": RawSegment(None, np.full((8, 1), np.inf))}, "value-not-finite"),
    "duplicates": (
        {"rows": RawSegment(np.array([3, 3]), np.zeros((2, 3)))},
        "invalid-rows",
    ),
    "falling": ({"rows": RawSegment(np.array([3, 2]), np.zeros((2, 3)))}, "invalid-rows"),
    "negative": ({"rows": RawSegment(np.array([-1]), np.zeros((1, 3)))}, "row-out-of-range"),
    "out of range": ({"rows": RawSegment(np.array([13]), np.zeros((1, 3)))}, "row-out-of-range"),
    "out of range and order": (
        {"rows": RawSegment(np.array([2, -1, 3]), np.zeros((3, 3)))},
        "row-out-of-range",
    ),
    "far out": (
        {"rows": RawSegment(np.array([2**64 - 1], np.uint64), np.zeros((1, 3)))},
        "row-out-of-range",
    ),
    "too many": ({"scalars": RawSegment(SEVEN, np.zeros((7, 1)))}, "too-many-rows"),
    "no indices": ({"rows": RawSegment(None, np.zeros((13, 3)))}, "rows-missing"),
    "float indices": (
        {"rows": RawSegment(np.array([1.0]), np.zeros((1, 3)))},  # type: ignore[arg-type]
        "invalid-rows",
    ),
    "boolean mask": (
        {"rows": RawSegment(np.array([True, False]), np.zeros((2, 3)))},  # type: ignore[arg-type]
        "invalid-rows",
    ),
    "two axes": ({"rows": RawSegment(np.array([[1]]), np.zeros((1, 3)))}, "invalid-rows"),
    "wrong width": ({"rows": RawSegment(np.array([1, 2]), np.zeros((2, 2)))}, "wrong-shape"),
    "wrong count": ({"rows": RawSegment(np.array([1, 2]), np.zeros((3, 3)))}, "wrong-shape"),
    "transposed": ({"rows": RawSegment(np.array([1, 2]), np.zeros((3, 2)))}, "wrong-shape"),
    "flattened": ({"rows": RawSegment(np.array([1, 2]), np.zeros(6))}, "wrong-shape"),
    "dense too short": ({"bias": RawSegment(None, np.zeros((7, 1)))}, "wrong-shape"),
    "dense transposed": ({"bias": RawSegment(None, np.zeros((1, 8)))}, "wrong-shape"),
    "unknown segment": ({"more": RawSegment(None, np.zeros(1))}, "segments-differ"),
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_a_hostile_update_is_refused_with_its_code(what: str) -> None:
    changes, code = HOSTILE[what]
    with raises(ParameterError, code):
        quantise(PLAN, raw(**changes))


def test_a_missing_segment_is_refused() -> None:
    parts = raw()
    del parts["bias"]
    with raises(ParameterError, "segments-differ"):
        quantise(PLAN, parts)


def test_errors_name_limits_and_never_private_numbers() -> None:
    for indices in ([1234567, 1234567], [7654321]):
        with pytest.raises(ParameterError) as caught:
            check_indices(PLAN.segments[0], np.array(indices))
        assert "1234567" not in str(caught.value)
        assert "7654321" not in str(caught.value)


@given(st.lists(st.integers(-3, 16), max_size=7))
def test_indices_pass_exactly_if_they_rise_within_the_segment(indices: list[int]) -> None:
    segment = PLAN.segments[0]
    legal = (
        len(indices) <= 4
        and all(0 <= i < 13 for i in indices)
        and all(a < b for a, b in itertools.pairwise(indices))
    )
    if legal:
        checked = check_indices(segment, indices)
        assert checked.dtype == np.int64
        assert checked.tolist() == indices
    else:
        with pytest.raises(ParameterError):
            check_indices(segment, indices)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_any_integer_type_of_indices_will_do(dtype: type) -> None:
    checked = check_indices(PLAN.segments[0], np.array([1, 5], dtype=dtype))
    assert checked.dtype == np.int64


def test_a_quantised_update_is_checked_before_it_is_sent() -> None:
    plan = mixed_plan()
    update = random_update(plan, np.random.default_rng(0), rows=2)
    check_update(plan, update)
    rows = update["table"].indices
    assert rows is not None
    limit = plan.encoding.q_max
    spoiled = [
        SegmentUpdate(None, update["table"].values),
        SegmentUpdate(rows, update["table"].values.astype(np.int32)),
        SegmentUpdate(rows, update["table"].values[:1]),
        SegmentUpdate(rows, update["table"].values[:, :2]),
        SegmentUpdate(rows[::-1].copy(), update["table"].values),
        SegmentUpdate(rows.astype(np.int32), update["table"].values),  # type: ignore[arg-type]
        SegmentUpdate(rows, np.full((2, 3), limit + 1)),
        SegmentUpdate(rows, np.full((2, 3), -limit - 1)),
        SegmentUpdate(rows, np.full((2, 3), -(2**63))),
    ]
    for part in spoiled:
        with pytest.raises(ParameterError, match="'table'"):
            check_update(plan, {**update, "table": part})
    check_update(plan, {**update, "table": SegmentUpdate(rows, np.full((2, 3), -limit))})
    with raises(ParameterError, "invalid-rows"):
        check_update(plan, {**update, "bias": SegmentUpdate(np.arange(7), update["bias"].values)})

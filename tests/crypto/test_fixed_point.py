"""Fixed-point encoding against exact fractions, and the rule that no honest sum wraps."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from torchfsl.crypto.fixed_point import ClipReport, FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.kernels import ring
from torchfsl.kernels.ring import RING_BITS


@st.composite
def encodings(draw: st.DrawFn) -> FixedPoint:
    bits = draw(st.sampled_from(RING_BITS))
    frac_bits = draw(st.integers(0, 52))
    clip = draw(st.floats(2.0**-20, 2.0**40))
    try:
        return FixedPoint(ring_bits=bits, frac_bits=frac_bits, clip=clip)
    except ParameterError:
        assume(False)
        raise


def round_half_even(value: Fraction) -> int:
    return round(value)  # Python's rule for fractions


def stochastic(encoding: FixedPoint) -> FixedPoint:
    return FixedPoint(encoding.ring_bits, encoding.frac_bits, encoding.clip, "stochastic")


def test_values_beyond_the_clip_are_counted_and_cut() -> None:
    encoding = FixedPoint(ring_bits=32, frac_bits=2, clip=4.0)
    for reals, whole, clipped in (
        ([3.9, 4.0, -4.0], [16, 16, -16], 0),
        ([3.9, 4.0, 4.1, -7.9], [16, 16, 16, -16], 2),
    ):
        found, report = encoding.quantise(reals)
        assert found.tolist() == whole
        assert report.num_clipped == clipped


@given(encodings(), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_nearest_rounding_is_that_of_exact_fractions(
    encoding: FixedPoint, reals: list[float]
) -> None:
    whole, report = encoding.quantise(reals)
    clip, scale = Fraction(encoding.clip), 1 << encoding.frac_bits
    for q, x in zip(whole.tolist(), reals, strict=True):
        wanted = round_half_even(max(-clip, min(clip, Fraction(x))) * scale)
        assert q == max(-encoding.q_max, min(encoding.q_max, wanted))
    assert report.num_values == len(reals)
    assert report.num_clipped == sum(abs(x) > encoding.clip for x in reals)
    assert report.largest == max((abs(x) for x in reals), default=0.0)


@given(encodings(), st.lists(st.floats(-64, 64), min_size=1, max_size=8), st.binary(min_size=16))
def test_stochastic_rounding_takes_a_neighbour_and_repeats_under_one_key(
    encoding: FixedPoint, reals: list[float], key: bytes
) -> None:
    encoding = stochastic(encoding)
    whole, _ = encoding.quantise(reals, rounding_key=key[:16])
    again, _ = encoding.quantise(reals, rounding_key=key[:16])
    assert np.array_equal(whole, again)
    clip, scale = Fraction(encoding.clip), 1 << encoding.frac_bits
    for q, x in zip(whole.tolist(), reals, strict=True):
        exact = max(-clip, min(clip, Fraction(x))) * scale
        low = max(-encoding.q_max, min(encoding.q_max, math.floor(exact)))
        high = max(-encoding.q_max, min(encoding.q_max, math.ceil(exact)))
        assert low <= q <= high


def test_stochastic_rounding_has_the_mean_of_its_input() -> None:
    encoding = FixedPoint(32, 4, 4.0, "stochastic")
    for real in (0.3, -0.3, 1.01, -2.49):
        whole, _ = encoding.quantise(np.full(40_000, real), rounding_key=bytes(range(16)))
        deviation = abs(float(whole.mean()) - real * 16)
        assert deviation < 6 * 0.5 / math.sqrt(40_000)


def test_float32_values_are_taken_exactly() -> None:
    values = np.array([0.1, -0.7, 3.9999998], dtype=np.float32)
    whole, _ = FixedPoint(64, 40, 4.0).quantise(values)
    assert whole.tolist() == [int(Fraction(float(v)) * 2**40) for v in values]


def test_ties_go_to_the_even_neighbour_on_both_sides_of_zero() -> None:
    whole, _ = FixedPoint(32, 0, 8.0).quantise([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert whole.tolist() == [0, 2, 2, 0, -2, -2]


def test_clipping_is_reported_and_reports_merge() -> None:
    encoding = FixedPoint(32, 16, 2.0)
    whole, report = encoding.quantise([[5.0, -2.0], [2.0, -9.0]])
    assert whole.tolist() == [[2 << 16, -2 << 16], [2 << 16, -2 << 16]]
    assert report == ClipReport(4, 2, 9.0)
    assert report.merge(ClipReport(1, 1, 11.0)) == ClipReport(5, 3, 11.0)


def test_a_clip_between_two_steps_never_lets_more_than_q_max_through() -> None:
    encoding = FixedPoint(32, 2, 1.2)  # 1.2 * 4 = 4.8: rounding alone would give 5
    assert encoding.q_max == 4
    assert encoding.quantise([1.2, 9.0, -9.0])[0].tolist() == [4, 4, -4]


@given(encodings(), st.lists(st.integers(-(2**52), 2**52), min_size=1, max_size=6))
def test_decoding_inverts_encoding_up_to_the_rounding(
    encoding: FixedPoint, numbers: list[int]
) -> None:
    whole = np.clip(np.array(numbers), -encoding.q_max, encoding.q_max)
    again, report = encoding.quantise(encoding.dequantise(whole))
    assert np.array_equal(again, whole)
    assert report.num_clipped == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_and_infinity_are_refused_with_a_remedy(value: float, dtype: type) -> None:
    with pytest.raises(
        ParameterError, match=r"1 of 3 values of the update are NaN or infinite.*learning rate"
    ):
        FixedPoint().quantise(np.array([0.0, value, 1.0], dtype=dtype))


def test_the_rounding_key_is_wanted_exactly_for_stochastic_rounding() -> None:
    with pytest.raises(ParameterError, match="rounding_key"):
        FixedPoint().quantise([0.0], rounding_key=bytes(16))
    with pytest.raises(ParameterError, match="rounding_key"):
        FixedPoint(rounding="stochastic").quantise([0.0])


@pytest.mark.parametrize(
    "fields",
    [
        {"ring_bits": 20},
        {"ring_bits": 0},
        {"frac_bits": -1},
        {"frac_bits": 53},
        {"clip": 0.0},
        {"clip": -1.0},
        {"clip": math.nan},
        {"clip": math.inf},
        {"clip": 1e308},
        {"clip": 2.0**-30},
        {"clip": 40_000.0},
        {"rounding": "up"},
        {"ring_bits": 16, "frac_bits": 16, "clip": 1.0},
    ],
)
def test_an_encoding_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        FixedPoint(**fields)  # type: ignore[arg-type]


def test_a_clip_given_as_an_integer_is_the_same_encoding() -> None:
    assert repr(FixedPoint(clip=4)) == repr(FixedPoint(clip=4.0))


@pytest.mark.parametrize("bits", RING_BITS)
def test_the_largest_cohort_that_fits_fits_and_one_more_is_refused(bits: int) -> None:
    encoding = FixedPoint(bits, 4, 2.0)
    limit = 2 ** (min(bits, 64) - 1) - 1
    most = limit // encoding.q_max
    encoding.check_headroom(most, 1)
    with pytest.raises(ParameterError, match=rf"use .* or max_clients={most}$"):
        encoding.check_headroom(most + 1, 1)
    encoding.check_headroom(most // 3, 3)
    with pytest.raises(ParameterError):
        encoding.check_headroom(most // 3 + 1, 3)


@pytest.mark.parametrize(("clients", "weight"), [(1000, 1), (5, 400), (30_000, 3)])
def test_each_value_that_the_message_names_makes_room(clients: int, weight: int) -> None:
    fields: dict[str, Any] = {"ring_bits": 16, "frac_bits": 12, "clip": 1.0}
    with pytest.raises(ParameterError) as info:
        FixedPoint(**fields).check_headroom(clients, weight)
    named = re.findall(r"(\w+)=([\d.e-]+)", str(info.value).partition(": ")[2])
    assert "ring_bits" in dict(named)
    for name, value in named:
        cohort = {"max_clients": clients, "max_weight": weight}
        number = float(value) if name == "clip" else int(value)
        encoding = FixedPoint(**{**fields, **({} if name in cohort else {name: number})})
        encoding.check_headroom(*({**cohort, name: number}[key] for key in cohort))


def test_encodings_without_room_name_the_ring_that_has_it() -> None:
    with pytest.raises(ParameterError, match="use ring_bits=32 or a smaller clip"):
        FixedPoint.finest(16, 100, max_clients=100_000)
    with pytest.raises(ParameterError, match=r"use ring_bits=24$"):
        FixedPoint.filling(16, 8, max_clients=100_000)
    assert FixedPoint.finest(32, 100, max_clients=100_000).clip >= 100
    assert FixedPoint.filling(24, 8, max_clients=100_000).q_max >= 1
    with pytest.raises(ParameterError, match=r"use fewer clients$"):
        FixedPoint.filling(16, 8, max_clients=1 << 63)


@pytest.mark.parametrize("bits", RING_BITS)
def test_the_worst_sum_of_a_full_cohort_does_not_wrap(bits: int) -> None:
    most = min((2 ** (bits - 1) - 1) // 3, 50)
    FixedPoint(bits, 0, 3.0).check_headroom(most, 1)
    total = ring.from_int64(np.zeros(2, dtype=np.int64), bits)
    for _ in range(most):
        total = ring.add(total, ring.from_int64(np.array([3, -3]), bits))
    assert ring.to_int64(total).tolist() == [3 * most, -3 * most]


@pytest.mark.parametrize("name", ["max_clients", "max_weight", "noise"])
@pytest.mark.parametrize("value", [0, -1, 10.0, "3", None, True])
def test_cohorts_that_no_plan_has_are_refused_by_name(name: str, value: object) -> None:
    cohort: dict[str, object] = {"max_clients": 10, name: value}
    if (name, value) == ("noise", 0):
        return
    for make in (lambda **c: FixedPoint.finest(16, 1.0, **c),
                 lambda **c: FixedPoint.filling(16, 8, **c)):  # fmt: skip
        with pytest.raises(ParameterError, match=f"{name} is {value!r}: choose a whole number of"):
            make(**cohort)


def test_a_quoted_ring_is_shown_as_one() -> None:
    with pytest.raises(ParameterError, match="ring_bits is '32', not an integer"):
        FixedPoint(ring_bits="32")  # type: ignore[arg-type]

"""Updates scaled by group: the dense part and each table have equal shares of one bound."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.federation import make_plan, make_segment
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.update import RawSegment, check_update, quantise

BOUND, BITS = 1 << 14, 10
Raw = dict[str, RawSegment]


def plan_of(clip: Any) -> Plan:
    """Two tables of one segment, a segment of blocks, and two dense segments: four groups."""
    made = make_plan(
        make_segment("table", "rows", (9, 2), (5, 2), k_max=6, tau=2, theta=3),
        make_segment("blocks", "blocks", (40,), k_max=2, tau=4, theta=3),
        make_segment("bias", "dense", (7,)),
        make_segment("more", "dense", (3,)),
        encoding=FixedPoint(32, BITS, 32.0),
    )
    return dataclasses.replace(made, l2_bound=BOUND, clip=clip)


def raw_of(scale: float = 1.0) -> Raw:
    rng = np.random.default_rng(0)
    return {
        "table": RawSegment(np.array([0, 3, 8, 9, 13]), scale * rng.normal(size=(5, 2))),
        "blocks": RawSegment(np.array([1, 7]), scale * 100 * rng.normal(size=(2, 4))),
        "bias": RawSegment(None, scale * 0.01 * rng.normal(size=7)),
        "more": RawSegment(None, scale * 0.01 * rng.normal(size=3)),
    }


def groups_of(update: Any) -> list[float]:
    """Norms of the first table, the second, the blocks and the dense part, in units."""
    table = update["table"].values
    parts: list[npt.NDArray[Any]] = [
        table[:3], table[3:], update["blocks"].values,
        np.concatenate([update["bias"].values, update["more"].values]),
    ]  # fmt: skip
    return [float(np.linalg.norm(part)) for part in parts]


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e5])
def test_every_group_has_an_equal_share_whatever_its_size(scale: float) -> None:
    plan = plan_of("normalise")
    update, errors, report = quantise(plan, raw_of(scale))
    check_update(plan, update)
    for norm in groups_of(update):
        assert norm == pytest.approx(BOUND / 2, rel=2e-3)  # four groups: the root of a quarter
    assert report.num_clipped == 0
    assert report.norm_kept == pytest.approx(1.0)
    assert {name: part.shape for name, part in errors.items()} == {
        name: part.values.shape for name, part in update.items()
    }


def test_directions_are_those_of_the_update() -> None:
    raw, update = raw_of(), quantise(plan_of("normalise"), raw_of())[0]
    for rows in (slice(0, 3), slice(3, 5)):
        given, sent = (np.asarray(x["table"].values)[rows].reshape(-1) for x in (raw, update))
        cosine = given @ sent / np.linalg.norm(given) / np.linalg.norm(sent)
        assert cosine == pytest.approx(1.0, abs=1e-6)


def test_clipping_scales_down_only() -> None:
    update, _, report = quantise(plan_of("clip"), raw_of())
    whole = groups_of(update)
    units = [float(np.linalg.norm(np.ldexp(part, BITS))) for part in (
        np.asarray(raw_of()["table"].values)[:3], np.asarray(raw_of()["table"].values)[3:],
    )]  # fmt: skip
    assert whole[:2] == pytest.approx(units, rel=1e-3)
    assert whole[2] == pytest.approx(BOUND / 2, rel=2e-3)
    assert report.norm_kept < 0.1


@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf])
def test_a_group_that_is_zero_or_not_finite_sends_zeros_and_spares_the_others(odd: float) -> None:
    raw = raw_of()
    values = np.asarray(raw["table"].values).copy()
    values[3:] = odd
    raw["table"] = RawSegment(raw["table"].indices, values)
    norms = groups_of(quantise(plan_of("normalise"), raw)[0])
    assert norms[1] == 0
    assert min(norms[0], *norms[2:]) > BOUND * 0.49


def test_the_bound_is_kept_on_integers_where_rounding_is_coarse() -> None:
    plan = dataclasses.replace(plan_of("normalise"), l2_bound=12)
    for seed in range(20):
        update = quantise(plan, raw_of(1 + seed))[0]
        check_update(plan, update)

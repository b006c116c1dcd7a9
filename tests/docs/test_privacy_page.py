"""docs/privacy.md: figures that follow from the accounting are what the accounting gives."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.federation import make_plan, make_segment
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import privacy
from torchfsl.fsl.plan.plan import Plan

pytest.importorskip("dp_accounting", reason="needs the extra privacy")

DELTA = 1e-6
PAGE = re.sub(
    r"\s+", " ", (Path(__file__).resolve().parents[2] / "docs" / "privacy.md").read_text()
)


def test_the_list_of_the_page_holds_the_most_frequent_rows_within_the_whole_budget() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "privacy.md").read_text()
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0].partition("fed.plan")[0], names)  # noqa: S102 (the page's program)
    (listing,) = [block for block in blocks if "histogram" in block]
    exec(listing.replace("22_363", "12").replace("epsilon=2.0", "epsilon=400.0"), names)  # noqa: S102
    counting = names["counting"]
    servers = counting.local_servers()
    with servers.round():
        for client in range(12):
            rows = torch.tensor([4, 9, 100 + client])
            with counting.round(servers, client, rows=rows):
                names["count"](rows)
    counting.load(servers)
    assert sorted(names["most_frequent"](2).tolist()) == [4, 9]
    both = {"epsilon": 400.0, "delta": DELTA, "rounds": 89, "other_plan": names["listing"]}
    plan = privacy.calibrate(names["plan"], max_participations=4, min_separation=22, **both)
    found = privacy.guarantee(plan, delta=DELTA, other_plan=names["listing"])
    assert 399 < found.epsilon_server <= 400
    alone = privacy.guarantee(names["listing"], delta=DELTA)
    assert alone.multiplier_server**-2 / found.multiplier_server**-2 == pytest.approx(
        1 / 9, rel=0.02
    )


def calibrated(epsilon: float) -> Plan:
    """The setting of the page's figures: 89 rounds, four reports of a client, 22 rounds apart."""
    plan = make_plan(
        make_segment("bias", "dense", (50,)),
        encoding=FixedPoint(ring_bits=48, frac_bits=16, clip=4.0),
    )
    return privacy.calibrate(
        dataclasses.replace(plan, l2_bound=1 << 16), epsilon=epsilon, delta=DELTA,
        rounds=89, max_participations=4, min_separation=22,
    )  # fmt: skip


def epsilon_of(plan: Plan, reports: list[int]) -> float:
    """Epsilon for a client in the rounds of these indices, whatever the plan allows."""
    taps = np.array(plan.noise_taps) / plan.noise_taps[0]
    column = np.zeros(plan.max_rounds + len(taps))
    for index in reports:
        column[index : index + len(taps)] += taps
    sensitivity = float(np.linalg.norm(column[: plan.max_rounds])) * plan.l2_bound
    accounting = pytest.importorskip("dp_accounting")
    return float(accounting.get_epsilon_gaussian(plan.noise_sigma / sensitivity, DELTA))


def test_epsilon_for_other_data_in_place_of_zeros_is_that_of_the_page() -> None:
    told = re.search(
        r"At epsilon 8 it is ([\d.]+), at epsilon 2 it is ([\d.]+), with delta 1e-6", PAGE
    )
    assert told is not None
    for epsilon, figure in zip((8, 2), told.groups(), strict=True):
        found = privacy.guarantee(calibrated(epsilon), delta=DELTA).epsilon_replaced
        assert f"{found:.2f}" == figure


def test_a_fifth_report_costs_what_the_page_says() -> None:
    told = re.search(r"costs epsilon ([\d.]+) to ([\d.]+) where 8 is stated", PAGE)
    assert told is not None
    plan = calibrated(8)
    allowed = [0, 22, 44, 66]
    assert math.isclose(epsilon_of(plan, allowed), 8, abs_tol=0.01)
    apart, beside = epsilon_of(plan, [*allowed, 88]), epsilon_of(plan, [*allowed, 67])
    assert told.groups() == (f"{apart:.1f}", f"{beside:.1f}")


def test_the_accuracy_at_each_epsilon_is_that_of_the_results() -> None:
    results = (Path(__file__).resolve().parents[2] / "docs/results/recommenders.md").read_text()
    (table,) = re.findall(r"<!-- privacy: begin -->(.*?)<!--", results, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    told = re.search(
        r"has AUC ([\d.]+) without noise, ([\d.]+) at epsilon 8 and ([\d.]+) at epsilon 2", PAGE
    )
    assert told is not None
    for epsilon, reports, figure in zip(("none", "8", "2"), "448", told.groups(), strict=True):
        (first, *_) = (row[7] for row in rows if row[:2] == [epsilon, reports])
        found = [float(auc) for auc in re.findall(r"([\d.]+) \(\d\)", first)]
        assert f"{sum(found) / len(found):.3f}" == figure

"""Attack 16, small: nothing shows which position a tree selects or which bins are occupied.

Keys come from the operating system, so every p here is drawn anew. A test fails by chance when one
of its p falls below its bound; with 34 and 3 of them the chance is below 1e-6 for each test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.attacks import distinguish
from scripts.attacks.distinguish import planted
from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    random_update,
    submit,
)
from torchfsl.fsl.round import begin_round

TRIALS = 1500


def test_no_distinguisher_finds_anything_in_the_bytes_of_our_client() -> None:
    for party in (0, 1):
        for name, p in distinguish.try_bytes(TRIALS, 0, party).items():
            assert p > 1e-8, (name, party)


@pytest.mark.parametrize("faults", list(distinguish.PLANTED), ids=" + ".join)
def test_a_planted_fault_is_found(faults: tuple[str, ...]) -> None:
    with planted(*faults):
        found = distinguish.try_bytes(TRIALS, 0, 0)
    for name in distinguish.PLANTED[faults]:
        assert found[name] < 1e-9, name


def test_dummies_at_position_zero_alone_show_nothing_to_one_server() -> None:
    with planted("dummies at position 0"):
        found = distinguish.try_bytes(TRIALS, 0, 0)
    assert min(found.values()) > 1e-8


def test_full_and_empty_reports_have_equal_lengths_everywhere() -> None:
    plan = make_plan(
        make_segment("t", "rows", (40, 3), k_max=6, tau=3, theta=5, stash=1, retrieve=True),
        make_segment("s", "scalars", (30,), k_max=4, theta=6, nu=1),
        make_segment("d", "dense", (7,)),
    )
    shapes = []
    for rows in (0, 1, 6):
        servers = make_servers(plan)
        begin_round(servers, 1)
        wire = Wire(servers)
        submit(wire, 0, 1, random_update(plan, np.random.default_rng(rows), rows=rows))
        shapes.append(wire.shape())
    assert shapes[0] == shapes[1] == shapes[2]


# --- the tests of significance themselves ---------------------------------------------------------


@pytest.mark.parametrize("total", [1, 2, 7, 40])
def test_the_binomial_p_is_exact(total: int) -> None:
    for right in range(total + 1):
        tail = sum(math.comb(total, k) for k in range(min(right, total - right) + 1))
        wanted = min(1.0, 2 * tail / 2**total)
        assert distinguish.binomial_p(right, total) == pytest.approx(wanted, rel=1e-9)


def test_the_rank_sum_p_is_uniform_on_equal_groups_and_small_on_shifted_ones() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        labels = rng.random(200) < 0.3
        found.append(distinguish.rank_sum_p(rng.integers(5, size=200).astype(float), labels))
    assert 0.4 < np.mean(found) < 0.6
    assert 0.05 < np.mean(np.array(found) < 0.1) < 0.15
    labels = np.arange(200) % 2 == 0
    assert distinguish.rank_sum_p(np.where(labels, 1.0, 0.0), labels) < 1e-30
    assert distinguish.rank_sum_p(np.zeros(200), labels) == 1.0
    # 1 to 5 against 6 to 10: z = (15 - 27.5) / sqrt(25 * 11 / 12)
    z = 12.5 / math.sqrt(25 * 11 / 12)
    p = distinguish.rank_sum_p(np.arange(10.0), np.arange(10) < 5)
    assert p == pytest.approx(math.erfc(z / math.sqrt(2)))


def test_the_script_ends_with_an_error_when_a_distinguisher_finds_something() -> None:
    with planted("unmasked control bits"):
        assert distinguish.main(["--trials", "200", "--time-trials", "0"]) == 1

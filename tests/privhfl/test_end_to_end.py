"""Whole networks: the protocol equals the integer twin bit for bit, and the module nearly."""

from __future__ import annotations

import pytest
import torch

from tests.privhfl.small import RINGS, federation, images, networks


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("comparison", ["tables", "trees"])
def test_secure_equals_the_dithered_twin_bit_for_bit(bits: int, comparison: str) -> None:
    modules = networks()
    asked = images(5, seed=9)
    answers = {
        mode: federation(modules, mode=mode, ring=RINGS[bits], comparison=comparison)
        for mode in ("fixed", "secure")
    }
    for client in modules:
        others = [c for c in modules if c != client]
        for group in ([others[0]], others):
            fixed, secure = (q.ask(client, group, asked).logits for q in answers.values())
            assert torch.equal(fixed, secure)


@pytest.mark.slow
def test_a_hundred_batches_differ_nowhere() -> None:
    modules = networks(seed=3)
    asked = images(200, seed=4) * 3 - 1
    fixed = federation(modules, mode="fixed").ask(0, [1, 2], asked)
    secure = federation(modules, mode="secure").ask(0, [1, 2], asked)
    assert len(secure.answered) == 100
    assert torch.equal(fixed.logits, secure.logits)


@pytest.mark.parametrize(("bits", "largest"), [(32, 0.02), (64, 1e-5)])
def test_logits_are_those_of_the_modules_up_to_rounding(bits: int, largest: float) -> None:
    modules = networks(seed=5)
    asked = images(20, seed=6)
    answer = federation(modules, ring=RINGS[bits]).ask(0, [1, 2], asked)
    with torch.no_grad():
        plain = sum(modules[c].double()(asked.double()) for c in (1, 2))
    assert float((answer.logits - plain).abs().max()) < largest
    assert answer.answered == ((1, 2),) * 10


@pytest.mark.parametrize("comparison", ["tables", "trees"])
def test_bytes_counted_are_those_that_the_plan_predicts(comparison: str) -> None:
    modules = networks()
    querying = federation(modules, comparison=comparison)
    plan = querying.plan
    cost = querying.ask(0, [1, 2], images(4)).cost
    expected = {
        phase: sum(plan.phase_bytes(client)[phase] for client in (1, 2))
        for phase in ("setup", "offline", "online")
    }
    sums = 64 + plan.sum_bytes()
    assert cost.phase_bytes("setup") == expected["setup"]
    assert cost.phase_bytes("offline") == 2 * expected["offline"]
    assert cost.phase_bytes("online") == 2 * (expected["online"] + sums)
    assert cost.messages["server-querying", "online"] == 2


def test_fixed_without_dithers_rounds_down_and_stays_close() -> None:
    modules = networks()
    plain = federation(modules, mode="fixed")
    plain._dithers = False
    asked = images(6, seed=2)
    dithered = federation(modules, mode="fixed").ask(0, [1], asked).logits
    assert float((plain.ask(0, [1], asked).logits - dithered).abs().max()) < 0.05

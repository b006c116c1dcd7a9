"""Whole rounds of aggregator and key holder: exact sums, dropouts, weights, noise, costs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tests.sefl.small import (
    constant_update,
    make_draft,
    make_servers,
    plain_sums,
    random_update,
    same_sums,
)
from torchfsl.crypto.bfv_parameters import RINGS, least_modulus
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sefl import AggregatorAndKeyHolder, Client, SeflPlan, run_round
from torchfsl.sefl.explain import cost, explain
from torchfsl.sefl.packing import centred
from torchfsl.sefl.round import InProcess
from torchfsl.submodel.server_model import ServerModel

pytest.importorskip("tenseal", reason="needs the extra homomorphic")


@pytest.mark.parametrize("slots", [2048, 4096])
def test_sums_are_exact_with_weights_and_dropouts(slots: int) -> None:
    draft = make_draft(sizes=(3000, 1500), slots=slots, lane="weight", max_weight=5)
    aggregator, key_holder, plan = make_servers(draft)
    for number in range(2):
        updates = {n: random_update(plan, 10 * number + n) for n in (3, 7, 9)}
        weights = {3: 5, 7: 2}
        opened = run_round(
            aggregator, key_holder, {**updates, 11: None}, round_number=number, weights=weights
        )
        assert same_sums(opened.sums, plain_sums(plan, updates, weights))
        assert (opened.num_clients, opened.total_weight) == (3, 8)
        assert opened.clients == (3, 7, 9)


@pytest.mark.parametrize("cases", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_random_plans_give_exact_sums(cases: int) -> None:
    """Up to 200 clients and 10,000 values, in a third of the cases all at the largest value."""
    choose = random.Random(1)
    sizes = [(200, 10_000), (200, 1), (2, 10_000)]
    sizes += [(round(2 * 100 ** choose.random()), round(10_000 ** choose.random()))
              for _ in range(cases - len(sizes))]  # fmt: skip
    for case, (clients, values) in enumerate(sizes):
        most = choose.choice([1, 1, 2, 7])
        encoding = FixedPoint(ring_bits=64, frac_bits=choose.randint(4, 24), clip=2.0)
        draft = make_draft(
            sizes=(values,), encoding=encoding, max_clients=clients, lane="weight", max_weight=most,
        )  # fmt: skip
        aggregator, key_holder, plan = make_servers(draft)
        weights = {n: choose.randint(1, most) for n in range(clients)}
        updates = {n: random_update(plan, 1000 * case + n) for n in range(clients)}
        if case % 3 == 0:
            largest = choose.choice([1, -1]) * plan.encoding.q_max
            updates = {n: constant_update(plan, largest) for n in range(clients)}
            weights = dict.fromkeys(range(clients), most)
        opened = run_round(aggregator, key_holder, updates, round_number=0, weights=weights)
        assert same_sums(opened.sums, plain_sums(plan, updates, weights))
        assert opened.total_weight == sum(weights.values())


def test_all_clients_at_the_largest_value_do_not_wrap() -> None:
    draft = make_draft()
    for sign in (1, -1):
        aggregator, key_holder, plan = make_servers(draft)
        most = sign * plan.encoding.q_max
        updates = {n: constant_update(plan, most) for n in range(4)}
        opened = run_round(aggregator, key_holder, updates, round_number=0)
        assert all((values == 4 * most).all() for values in opened.sums.values())


def test_headroom_one_above_is_refused() -> None:
    """The largest cohort that the noise rule admits is found by the plan and by hand alike."""
    encoding = FixedPoint(ring_bits=64, frac_bits=16, clip=4.0)
    fresh = math.sqrt(10.5 * (4 * 2048 / 3 + 1))

    def admitted(clients: int) -> bool:
        modulus = least_modulus(2048, clients * encoding.q_max)
        return (
            12 * fresh * math.sqrt(clients + 1) + clients + 1 <= RINGS[2048].modulus / 2 / modulus
        )

    low, high = 1, 1 << 17
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admitted(middle) else (low, middle)
    plan = make_draft(encoding=encoding, max_clients=low)
    assert plan.scheme.noise <= plan.scheme.room
    with pytest.raises(ParameterError, match="4096 slots"):
        make_draft(encoding=encoding, max_clients=low + 1)
    assert make_draft(encoding=encoding, max_clients=low + 1, slots=4096).scheme.noise > 0


def test_values_weights_and_sums_one_above_the_plan_are_refused() -> None:
    draft = make_draft(lane="weight", max_weight=3)
    aggregator, _, plan = make_servers(draft)
    aggregator.open_round(0)
    session = Client(plan, InProcess(aggregator), client_id=1).start_round(0)
    with pytest.raises(ParameterError, match="exceeds q_max"):
        session.submit(constant_update(plan, plan.encoding.q_max + 1))
    with pytest.raises(ParameterError, match="a whole number from 1 to max_weight=3"):
        session.submit(constant_update(plan, 1), weight=4)
    assert aggregator.clients == ()
    half, modulus = plan.scheme.modulus // 2, plan.scheme.modulus
    assert plan.bound <= half
    # Around the end of the range: the last number that is read right, the first that wraps.
    read = centred(plan, np.array([half, half + 1, modulus - 1], dtype=np.uint64))
    assert read.tolist() == [half, -half, -1]


def test_opened_sums_hold_both_servers_noise() -> None:
    draft = make_draft(sizes=(40,), l2_bound=1 << 20, noise_sigma=1000, max_clients=3)
    mine = lambda sigma, count: np.arange(count) + sigma  # noqa: E731
    theirs = lambda sigma, count: -7 * np.arange(count)  # noqa: E731
    aggregator, key_holder, plan = make_servers(draft, aggregator_draw=mine, key_holder_draw=theirs)
    updates = {n: constant_update(plan, n) for n in (1, 2)}
    opened = run_round(aggregator, key_holder, updates, round_number=0)
    assert np.array_equal(opened.sums["part0"][:, 0], 3 + 1000 - 6 * np.arange(40))


def test_too_few_updates_are_not_opened_and_the_next_round_goes_on() -> None:
    aggregator, key_holder, plan = make_servers(make_draft())
    updates = {n: random_update(plan, n) for n in range(3)}
    with pytest.raises(ProtocolError, match="1 clients"):
        run_round(aggregator, key_holder, {0: updates[0], 1: None}, round_number=0)
    opened = run_round(aggregator, key_holder, updates, round_number=1)
    assert same_sums(opened.sums, plain_sums(plan, updates))


def test_counted_bytes_are_those_of_the_plan() -> None:
    draft = make_draft(sizes=(2500,))
    model = ServerModel({"w0": np.zeros(2500, np.float32)})
    aggregation = AggregatorAndKeyHolder(draft, model)
    plan = aggregation.plan
    for number in range(2):
        aggregation.open_round(number, [1, 2, 4])
        for client in (1, 2, 4):
            session = aggregation.participant(client).start_round(number)
            session.download()
            if client != 4:
                session.submit(constant_update(plan, client))
        closed = aggregation.close_round()
        costs = cost(plan, 2)
        up, down = costs["update"], costs["model"] + costs["receipt"]
        key = 0 if number else costs["key"]
        for client in (1, 2):
            receipt = closed.receipts[client]
            assert (receipt.upload_bytes, receipt.download_bytes) == (up, down + key)
            assert sum(receipt.phases.values()) == up + down + key
        assert closed.receipts[4].upload_bytes == 0
        assert aggregation.between_bytes == costs["sum"] + costs["value"]
    assert f"{up:,} bytes" in explain(plan)


def test_a_plan_is_read_back_as_it_was_written() -> None:
    _, _, plan = make_servers(make_draft(lane="weight", max_weight=3))
    assert SeflPlan.from_json(plan.to_json()) == plan
    assert plan.draft.is_draft
    assert plan.draft != plan

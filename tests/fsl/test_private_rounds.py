"""Rounds with correlated noise and participation limits, through both servers in this process."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.distributions import seeded
from tests.support.errors import raises
from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_state,
    mixed_plan,
    play_round,
    random_update,
    submit,
)
from tests.support.reference import correlated_noise as reference
from tests.support.reference import plaintext
from torchfsl.crypto import discrete_gaussian
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.noise import BothServers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.correlated_noise import Draw
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.server_model import ServerModel

Whole = npt.NDArray[np.int64]
TAPS = (64, 40, -9, 17)


def private(plan: Plan, **changes: Any) -> Plan:
    terms: dict[str, Any] = {
        "l2_bound": 1 << 30, "noise_sigma": 1000, "max_rounds": 60, "min_separation": 4,
        "lane_sigma": 20 if plan.lane_values else 0, "noise_taps": TAPS,
    }  # fmt: skip
    return dataclasses.replace(plan, **{**terms, **changes})


class Keeper:
    """Noise that is seeded, of which copies are kept by round."""

    def __init__(self, seed: int) -> None:
        self.words = seeded(seed)
        self.rounds: list[list[Whole]] = []

    def __call__(self, sigma: int, count: int) -> Whole:
        drawn = discrete_gaussian.sample(sigma, count, self.words)
        self.rounds[-1].append(drawn.copy())
        return drawn

    def next(self) -> None:
        self.rounds.append([])

    def table(self) -> Whole:
        return np.array([np.concatenate(parts) for parts in self.rounds])


def servers_of(plan: Plan, *draws: Draw) -> tuple[Server, Server]:
    def one(party: int) -> Server:
        model = ServerModel(make_state(plan))
        return Server(party, plan=plan, model=model, draw_noise=draws[party] if draws else None)

    return one(0), one(1)


def added(server: Server) -> Whole:
    """What the server added as its first noise."""
    assert server.noise is not None
    return server.noise.slots[0].astype(np.int64)


def in_order(plan: Plan, opened: dict[str, Whole], lanes: dict[str, Whole]) -> Whole:
    """Values of a round in the order of the draws: by segment, values and then lanes."""
    parts = []
    for segment in (*plan.with_trees, *plan.dense):
        parts.append(opened[segment.name].reshape(-1))
        if segment.name in lanes:
            parts.append(lanes[segment.name].reshape(-1))
    return np.concatenate(parts)


@pytest.mark.parametrize("lane", ["none", "count"])
def test_sixty_rounds_open_the_exact_sums_and_the_known_combination_of_draws(lane: Any) -> None:
    plan = private(mixed_plan(lane=lane))
    keepers = Keeper(1), Keeper(2)
    servers = servers_of(plan, *keepers)
    rng, differences = np.random.default_rng(0), []
    for number in range(60):
        for keeper in keepers:
            keeper.next()
        updates = {4 * client + number % 4: random_update(plan, rng) for client in (1, 2)}
        opened, contributions = play_round(servers, number, updates)
        sums = plaintext.sums(plan, contributions)
        counts = plaintext.lanes(plan, contributions) if plan.lane_values else {}
        differences.append(in_order(plan, opened.sums, opened.lanes) - in_order(plan, sums, counts))
    added = [reference.noises(keeper.table(), TAPS, 6) for keeper in keepers]
    assert np.array_equal(np.array(differences), added[0] + added[1])
    assert servers[0].model.digest() == servers[1].model.digest()


def test_a_round_abandoned_after_one_commitment_has_fresh_noise_when_it_is_tried_again() -> None:
    plan = private(make_plan(make_segment("bias", "dense", (50,))))
    keepers = Keeper(1), Keeper(2)
    servers = servers_of(plan, *keepers)
    rng, shares = np.random.default_rng(0), []
    for number in range(2):
        for keeper in keepers:
            keeper.next()
        begin_round(servers, number)
        wire = Wire(servers)
        submit(wire, 4 + number, number, random_update(plan, rng))
        submit(wire, 6 + number, number, random_update(plan, rng))
        if number == 1:
            finish_round(servers)
            continue
        lists = servers[0].close_round(), servers[1].close_round()
        folds = servers[0].agree(lists[1]), servers[1].agree(lists[0])
        servers[0].verify(folds[1])
        servers[0].commit()
        shares.append(added(servers[0]))
        for server in servers:
            server.abandon_round()
    assert [server.rounds_opened for server in servers] == [1, 1]
    assert not np.array_equal(shares[0], added(servers[0]))
    second = reference.noises(keepers[0].table()[1:], TAPS, 6)  # as if the first had never been
    assert np.array_equal(added(servers[0]), second[0])
    assert not servers[0].participation.counts.keys() & {4, 6}


@pytest.mark.parametrize("taps", [TAPS, ()])
@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_the_plain_path_adds_what_both_servers_add(lane: Any, taps: tuple[int, ...]) -> None:
    least = 2 if lane == "count" and not taps else 1
    plan = private(mixed_plan(lane=lane), noise_taps=taps, min_contributors=least)

    def draws() -> tuple[Draw, Draw]:
        one, other = (functools.partial(discrete_gaussian.sample, words=seeded(s)) for s in (1, 2))
        return one, other

    def model() -> ServerModel:
        return ServerModel(make_state(plan))

    homes = (
        TwoServers(plan, (model(), model()), draws()),
        Plain(plan, model(), BothServers(plan, draws())),
    )
    for number in range(6):
        sums = []
        for home in homes:
            home.open_round(number, ())
            for client in (8 + number % 4, 12 + number % 4):
                update = random_update(plan, np.random.default_rng(client))
                wanted = {s.name: update[s.name].positions for s in plan.retrieving}
                session = home.participant(client).start_round(number, indices=wanted)
                session.download()
                session.retrieve()
                session.submit(update)
            sums.append(home.close_round().opened)
        for name, total in sums[0].sums.items():
            assert np.array_equal(total, sums[1].sums[name].reshape(total.shape)), name
        for name, counts in sums[0].lanes.items():
            assert np.array_equal(counts, sums[1].lanes[name])
        assert sums[0].total_weight == sums[1].total_weight
        assert sums[0].withheld == sums[1].withheld
        first, second = homes[0].noise_sums(), homes[1].noise_sums()
        assert all(np.array_equal(first[name], second[name]) for name in first)
    assert homes[0].model.digest() == homes[1].model.digest()


# --- participation ----------------------------------------------------------------------------


def limited(**changes: Any) -> Plan:
    terms = {"max_participations": 2, "min_separation": 3, "noise_taps": (), **changes}
    return private(make_plan(make_segment("bias", "dense", (50,))), **terms)


def play(servers: tuple[Server, Server], number: int, *clients: int) -> tuple[int, ...]:
    """Who was in the sum; reports of others were refused."""
    plan = servers[0].plan
    begin_round(servers, number)
    wire = Wire(servers)
    for client in clients:
        try:
            submit(wire, client, number, random_update(plan, np.random.default_rng(client)))
        except RejectedSubmission:
            continue
    return finish_round(servers).clients


def test_a_client_that_comes_too_early_or_too_often_is_in_no_sum() -> None:
    servers, others = servers_of(limited()), [10, 11, 12, 13, 14, 15, 16]
    accepted = [play(servers, n, 1, others[n]) for n in range(7)]
    assert [1 in clients for clients in accepted] == [True, False, False, True] + [False] * 3
    assert servers[0].participation.counts[1] == 2


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(("number", "code"), [(2, "too-early"), (6, "participations-spent")])
def test_each_server_refuses_alone(party: int, number: int, code: str) -> None:
    servers = servers_of(limited())
    for n in range(number):
        play(servers, n, *([1] if n % 3 == 0 else []), 20 + n, 30 + n)
    servers[1 - party].participation.counts.clear()  # the other one has forgotten
    servers[1 - party].participation.last.clear()
    begin_round(servers, number)
    with raises(RejectedSubmission, code):
        submit(Wire(servers), 1, number, random_update(limited(), np.random.default_rng(1)))
    submit(Wire(servers), 50, number, random_update(limited(), np.random.default_rng(1)))
    assert finish_round(servers).clients == (50,)


def test_a_report_is_checked_again_when_the_set_is_settled() -> None:
    servers = servers_of(limited())
    begin_round(servers, 0)
    wire = Wire(servers)
    for client in (1, 2, 3):
        submit(wire, client, 0, random_update(limited(), np.random.default_rng(client)))
    servers[1].participation.counts[2] = 2  # meanwhile
    assert finish_round(servers).clients == (1, 3)
    assert servers[0].participation.counts == {1: 1, 3: 1}


def test_a_round_that_opens_nothing_charges_nobody() -> None:
    servers = servers_of(dataclasses.replace(limited(), min_clients=2, max_clients=4))
    for number in range(4):
        with raises(ProtocolError, "too-few-reports"):
            play(servers, number, 1)
    assert play(servers, 4, 1, 2) == (1, 2)
    assert servers[0].participation.last == {1: 0, 2: 0}


def test_the_error_says_how_many_rounds_to_wait() -> None:
    servers = servers_of(limited(min_separation=9))
    play(servers, 0, 1, 2)
    with pytest.raises(RejectedSubmission, match="until 8 more rounds have ended with"):
        servers[0].participation.check(1, servers[0].rounds_opened)


# --- plans ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"noise_sigma": 0}, "noise-without-bound"),
        ({"l2_bound": 0, "noise_sigma": 0}, "noise-without-bound"),
        ({"l2_bound": 0, "noise_sigma": 0, "noise_taps": (), "min_separation": 1,
          "max_participations": 3}, "noise-without-bound"),
        ({"min_separation": 3}, "participation-limit"),
        ({"max_rounds": 0}, "participation-limit"),
        ({"max_rounds": 0, "noise_taps": (), "min_separation": 1, "max_participations": 2},
         "participation-limit"),
        ({"max_participations": -1}, "participation-limit"),
        ({"min_separation": 0, "noise_taps": ()}, "participation-limit"),
        ({"min_separation": 61}, "participation-limit"),
        ({"noise_taps": (63, 4)}, "invalid-taps"),
        ({"noise_taps": (64,)}, "invalid-taps"),
        ({"noise_sigma": 1 << 26}, "invalid-taps"),
        ({"max_rounds": 1 << 50}, "invalid-taps"),
        ({"max_epochs": 2, "noise_taps": TAPS}, "not-accounted"),
        ({"l2_bound": 0, "noise_sigma": 0, "noise_taps": (), "min_separation": 1,
          "clip": "normalise"}, "noise-without-bound"),
        ({"clip": "both"}, "unknown-option"),
    ],
)  # fmt: skip
def test_a_plan_refuses_limits_and_taps_that_mean_nothing(
    changes: dict[str, Any], code: str
) -> None:
    table = make_segment("table", "rows", (9, 2), k_max=2, tau=2, theta=3)
    private(make_plan(table))
    with raises(ParameterError, code):
        private(make_plan(table), **changes)


def test_contributors_and_correlated_noise_are_not_accounted_together() -> None:
    with raises(ParameterError, "not-accounted"):
        private(mixed_plan(lane="count"), min_contributors=2)
    assert private(mixed_plan(lane="count"), min_contributors=2, noise_taps=())


def test_the_new_fields_stand_in_the_json_only_where_they_are_not_the_default() -> None:
    plan = private(mixed_plan(), max_participations=3, clip="normalise")
    assert Plan.from_json(plan.to_json()) == plan
    for field in ("max_participations", "min_separation", "noise_taps", "clip"):
        assert field in json.loads(plan.to_json())
        assert field not in json.loads(mixed_plan().to_json())
    changes: list[dict[str, Any]] = [
        {"max_participations": 2}, {"min_separation": 5}, {"noise_taps": (64, 39)},
        {"clip": "clip"},
    ]  # fmt: skip
    digests = {dataclasses.replace(plan, **change).digest for change in changes}
    assert len(digests | {plan.digest}) == 5


def test_headroom_counts_how_correlated_noise_grows() -> None:
    small = make_plan(make_segment("bias", "dense", (50,)), encoding=FixedPoint(24, 12, 1.0))
    plan = private(small, noise_taps=(16, -12))
    assert plan.noise_growth == pytest.approx(1 / math.sqrt(1 - 0.75**2), rel=1e-6)
    room = plan.encoding.capacity // 16
    assert dataclasses.replace(plan, noise_taps=(), noise_sigma=room).noise_sigma
    assert dataclasses.replace(plan, noise_sigma=room // 2).noise_sigma
    with raises(ParameterError, "ring-overflow"):
        dataclasses.replace(plan, noise_sigma=room)

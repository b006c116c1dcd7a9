"""What the owner alone could decide: attacks work without floors of the parties, not with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from scripts.attacks.owner_plans import (
    chosen_coin,
    crowded_layout,
    many_rounds,
    unverified_plan,
)
from scripts.attacks.result import AttackResult
from tests.support.federation import (
    assert_exact,
    dense_plan,
    make_servers,
    mixed_plan,
    play_round,
    random_update,
)
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.round import begin_round, finish_round


@pytest.mark.parametrize(
    "attack", [unverified_plan, crowded_layout, many_rounds], ids=lambda attack: attack.__name__
)
def test_an_attack_works_without_its_floor_and_not_with_it(
    attack: Callable[[], AttackResult],
) -> None:
    result = attack()
    assert result.worked_off, result
    assert not result.worked_on, result


def test_who_speaks_last_chooses_the_seed_unless_both_commit_first() -> None:
    pytest.importorskip("grpc")
    result = chosen_coin()
    assert result.worked_off, result
    assert not result.worked_on, result


def test_a_client_that_refuses_the_plan_costs_the_others_nothing() -> None:
    plan = mixed_plan()
    servers = make_servers(plan)
    floors = ClientPolicy(joint_coin=False, sealed=False, min_clients=1)
    with pytest.raises(ParameterError, match="floor 'max_k'"):
        Client(plan, servers, client_id=9, require=dataclasses.replace(floors, max_k=1))
    rng = np.random.default_rng(0)
    opened, made = play_round(servers, 1, {c: random_update(plan, rng) for c in range(3)})
    assert_exact(plan, opened, made)


def test_max_rounds_counts_opened_rounds_and_no_others() -> None:
    plan = dataclasses.replace(dense_plan(), max_rounds=2)
    servers = make_servers(plan)
    rng = np.random.default_rng(0)
    for number in (1, 2):
        begin_round(servers, 10 * number)
        with pytest.raises(ProtocolError, match="acceptable reports: 0"):
            finish_round(servers)
        opened, made = play_round(servers, 10 * number + 1, {0: random_update(plan, rng)})
        assert_exact(plan, opened, made)
    with pytest.raises(ProtocolError, match="max_rounds = 2 rounds of the plan were opened"):
        begin_round(servers, 30)
    assert [server.rounds_opened for server in servers] == [2, 2]


def test_a_round_whose_share_has_left_counts_even_if_it_was_not_opened_here() -> None:
    plan = dataclasses.replace(dense_plan(), max_rounds=1)
    servers = make_servers(plan)
    begin_round(servers, 1)
    update = random_update(plan, np.random.default_rng(0))
    Client(plan, servers, client_id=0).start_round(1).submit(update)
    first, second = servers
    lists = first.close_round(), second.close_round()
    folds = first.agree(lists[1]), second.agree(lists[0])
    first.verify(folds[1]), second.verify(folds[0])
    commitments = first.commit(), second.commit()
    first.reveal(commitments[1])
    for server in servers:
        server.abandon_round()
    with pytest.raises(ProtocolError, match="max_rounds = 1 rounds of the plan were opened"):
        first.open_round(2)
    second.open_round(2)

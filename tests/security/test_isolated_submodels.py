"""A submodel that one client alone trained gives its sample; plans that leave one are refused."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.attacks import isolated_submodels as attack
from scripts.attacks.isolated_submodels import NO_LIMIT, Network
from scripts.parties import zeros
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sesa import OneServer, Server, SesaPlan, Width, build_plan, run_round
from torchfsl.sesa.explain import explain
from torchfsl.submodel import SegmentSpec, SegmentUpdate, ServerModel, TensorSpec, Update
from training.data.synthetic import synthetic_images


@pytest.fixture(scope="module")
def network() -> Network:
    images = synthetic_images(0, train=400, test=1, shape=(1, 8, 8), classes=10)
    return Network.around(images.train, hidden=80)


@pytest.mark.parametrize("positions_known", [True, False])
def test_sums_of_two_clients_give_both_samples_whether_positions_are_known_or_not(
    network: Network, positions_known: bool
) -> None:
    wide, narrow = attack.pairs(network, 20, positions_known=positions_known)
    assert wide >= 19
    assert narrow >= 19


def test_sums_of_a_few_clients_give_samples_and_of_those_that_a_plan_accepts_do_not() -> None:
    result = attack.isolated_submodels()
    assert result.worked_off
    assert not result.worked_on


def test_plans_of_too_few_clients_are_refused(network: Network) -> None:
    for clients in (6, 20):
        with pytest.raises(ParameterError, match="max_isolation"):
            network.plan(clients, SesaPlan.max_isolation)
    with pytest.raises(ParameterError, match="answers"):
        network.plan(2, NO_LIMIT)


def test_a_shard_of_two_clients_is_not_taken_for_one(network: Network) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        samples = [network.sample(draw) for _ in range(2)]
        alone = [network.gradient(sample, (1,)) for sample in samples]
        for sample, update in zip(samples, alone, strict=True):
            found = network.lone_sample(attack.plain_sum([update])[1])
            assert found is not None
            assert attack.same(found, sample.image)
        assert network.lone_sample(attack.plain_sum(alone)[1]) is None


# --- rows that a client's data choose ------------------------------------------------------------

ROWS, CLIENTS = 6, range(8)


def embedding(max_isolation: float) -> SesaPlan:
    """A table that every client owns whole, so that the plan expects no isolated row."""
    specs = [
        SegmentSpec("items", "rows", (TensorSpec("items", (ROWS, 3)),), k_max=ROWS, tau=3),
        SegmentSpec("rest", "dense", (TensorSpec("bias", (2,)),)),
    ]
    plan = build_plan(
        specs, encoding=attack.ENCODING, widths=[Width((ROWS, 1), len(CLIENTS))], collusion=1,
        max_isolation=max_isolation,
    )  # fmt: skip
    assert plan.isolation([len(CLIENTS)]) == 0
    return plan


def looked_up(client: int) -> list[int]:
    """Everybody has rows 0 and 1 in its data; row 4 stands in client 3's alone."""
    return [0, 1, 4] if client == 3 else [0, 1]


def touched(client: int, form: str) -> tuple[list[int], Update]:
    """The rows that a client asks for, and its update of those in its data."""
    rows, dense = looked_up(client), np.ones((2, 1), dtype=np.int64)
    values = np.full((len(rows), 3), 10 + client)
    asked = rows if form == "fewer asked for" else list(range(ROWS))
    if form == "zeros":
        whole = np.zeros((ROWS, 3), dtype=np.int64)
        whole[rows] = values
        rows, values = asked, whole
    elif form in ("all", "nothing dense"):
        rows, values = asked, np.full((ROWS, 3), 10 + client)
        dense = dense if form == "all" else 0 * dense
    return asked, {
        "items": SegmentUpdate(np.array(rows), values), "rest": SegmentUpdate(None, dense),
    }  # fmt: skip


def hand_in(home: OneServer, client: int, form: str) -> None:
    asked, update = touched(client, form)
    session = home.participant(client).start_round(1, indices={"items": asked})
    with session:
        session.submit(update)


FORMS = ["fewer asked for", "fewer sent", "zeros"]


@pytest.mark.parametrize("form", FORMS)
def test_a_row_in_one_clients_data_opens_where_the_limit_is_lifted(form: str) -> None:
    plan = embedding(NO_LIMIT)
    home = OneServer(plan, ServerModel(zeros(plan)), dict.fromkeys(CLIENTS, 0))
    home.open_round(1, CLIENTS)
    for client in CLIENTS:
        hand_in(home, client, form)
    assert home.close_round().opened.sums["items"][4].tolist() == [13, 13, 13]
    assert "may be one client's alone" in explain(plan)


@pytest.mark.parametrize("form", [*FORMS, "nothing dense"])
def test_a_client_that_contributes_to_less_than_it_owns_is_refused_and_not_counted(
    form: str,
) -> None:
    plan = embedding(SesaPlan.max_isolation)
    home = OneServer(plan, ServerModel(zeros(plan)), dict.fromkeys(CLIENTS, 0))
    home.open_round(1, CLIENTS)
    with pytest.raises(ParameterError, match=r"it sent no update: plan a smaller Width"):
        hand_in(home, 3, form)
    for client in CLIENTS[4:]:  # whoever goes on without it is alone with those that do contribute
        hand_in(home, client, "all")
    with pytest.raises(ProtocolError, match="4 of 8 clients dropped out"):
        home.close_round()
    assert "each client changes all submodels of its width, or drops out" in explain(plan)


def test_run_round_ends_unopened_where_data_choose_the_rows() -> None:
    plan = embedding(SesaPlan.max_isolation)
    server = Server(plan=plan, model=ServerModel(zeros(plan)))
    widths = dict.fromkeys(CLIENTS, 0)
    updates = {client: touched(client, "fewer asked for")[1] for client in CLIENTS}
    with pytest.raises(ParameterError, match="contributes to 2 submodels, expected all 6"):
        run_round(server, updates, widths, round_number=1)
    whole = {client: touched(client, "all")[1] for client in CLIENTS}
    sums = run_round(server, whole, widths, round_number=2).sums
    assert (sums["items"] == sum(10 + client for client in CLIENTS)).all()

"""Settings that change what is averaged, hidden or resumed do so with a word, or are refused."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import warnings
from typing import Any

import pytest
import torch

import torchfsl
from tests.support.errors import raises
from torchfsl import privacy
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.federation.results import RoundResult

ENCODING = torchfsl.FixedPoint(32, 14, 1.0)
DATA = {
    client: [(torch.randint(0, 60, (4, 3), generator=torch.Generator().manual_seed(client)),)]
    for client in range(6)
}
SIZES: dict[str, Any] = {"max_clients": 2, "rows_per_client": 12}


def start(**options: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(60, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batches: Any) -> float:
        optimizer.zero_grad()
        loss = model(batches[0][0]).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return torchfsl.Federated(model, optimizer, encoding=ENCODING, **options), train


def simulate(fed: Any, train: Any, rounds: int = 1, **options: Any) -> Any:
    usual: dict[str, Any] = {"clients_per_round": 2, "protocol": "plain", "progress": False}
    return torchfsl.simulate(fed, DATA, train, rounds=rounds, **{**usual, **options})


def bounded() -> tuple[Any, Any]:
    bound = privacy.l2_bound(ENCODING, 1.0)
    return start(**SIZES, clip="normalise", l2_bound=bound)


def noisy(plan: Any, **wishes: Any) -> Any:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    return privacy.calibrate(plan, epsilon=8.0, delta=1e-3, rounds=3, **wishes)


def one_round(fed: Any, train: Any, servers: Any, clients: tuple[int, ...] = (0, 1)) -> None:
    with servers.round(clients):
        for client in clients:
            with fed.round(servers, client, batches=DATA[client]):
                train(DATA[client])
    fed.load(servers)


def messages_of(found: pytest.WarningsRecorder) -> str:
    return "\n".join(str(one.message) for one in found)


# --- averages ---------------------------------------------------------------------------------


def test_weights_change_the_default_average_with_a_warning_that_says_how_to_ask() -> None:
    with pytest.warns(UserWarning, match="average='weight', max_weight=6 to Federated"):
        simulate(*start(), weight=lambda batches: 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(*start(average="weight", max_weight=6), weight=lambda batches: 6)


def test_weights_do_not_replace_an_average_by_rows() -> None:
    with raises(ParameterError, "wrong-weight") as caught:
        simulate(*start(average="rows"), weight=lambda batches: 6)
    assert "average='weight', max_weight=6" in str(caught.value)


def test_a_simulation_of_one_client_says_that_servers_see_its_update() -> None:
    fed, train = start()
    with pytest.warns(UserWarning, match="lowered to 1.* a single client's update"):
        result = simulate(fed, train, clients_per_round=1)
    assert "1 client, alone in its sum" in str(result.rounds[0])
    assert "  2 clients  " in str(RoundResult(0, (0, 1), 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(*start(min_clients=1), clients_per_round=1)


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_a_result_names_the_clients_that_added_zeros(protocol: str) -> None:
    fed, train = start(max_clients=4, rows_per_client=12)
    servers = fed.local_servers(protocol=protocol)
    with servers.round() as result:
        for client in range(4):
            with (
                contextlib.suppress(ZeroDivisionError),
                fed.round(servers, client, batches=DATA[client]) as rnd,
            ):
                rnd.loss = train(DATA[client])
                if client == 1:
                    rnd.withdraw()
                elif client == 3:
                    raise ZeroDivisionError
    assert (result.clients, result.failed) == ((0, 1, 2, 3), (1, 3))
    assert "  4 clients, 2 failed  loss " in str(result)
    with servers.round() as result:
        for client in range(2):
            with fed.round(servers, client, batches=DATA[client]):
                train(DATA[client])
    assert result.failed == ()
    assert "  2 clients  " in str(result)


def test_the_model_of_servers_in_an_open_round_is_not_loaded() -> None:
    fed, train = start(**SIZES)
    servers = fed.local_servers()
    with servers.round():
        for client in range(2):
            with fed.round(servers, client, batches=DATA[client]):
                train(DATA[client])
        with pytest.raises(ProtocolError, match=r"after the block of servers\.round\(\)"):
            fed.load(servers)
    fed.load(servers)


def test_nothing_of_a_report_is_set_after_it_was_sent() -> None:
    fed, train = start(max_clients=2, rows_per_client=12, average="weight", max_weight=4)
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(2):
            with fed.round(servers, client, batches=DATA[client]) as rnd:
                rnd.loss = train(DATA[client])
                rnd.weight = 3
            with pytest.raises(ProtocolError, match=r"set rnd\.weight inside the block"):
                rnd.weight = 4
            with pytest.raises(ProtocolError, match=r"set rnd\.loss inside the block"):
                rnd.loss = 0.0
    assert set(result.counts["rows4"].tolist()) <= {0, 3, 6}
    assert result.loss


def test_a_state_is_not_loaded_in_a_block() -> None:
    fed, train = start(**SIZES)
    servers, state = fed.local_servers(), fed.state_dict()
    with servers.round():
        for client in range(2):
            with fed.round(servers, client, batches=DATA[client]):
                train(DATA[client])
                with pytest.raises(ProtocolError, match="a round is open"):
                    fed.load_state_dict(state)
    fed.load_state_dict(state)


def test_a_report_that_a_second_start_removes_is_not_compared() -> None:
    fed, train = start(max_clients=4, rows_per_client=12)
    servers = fed.local_servers()
    with servers.round() as result:
        for client in range(3):
            with fed.round(servers, client, batches=DATA[client]):
                train(DATA[client])
        with (
            pytest.raises(RejectedSubmission, match="so it is out of the round"),
            fed.round(servers, 0, batches=DATA[0]),
        ):
            pass
    assert (result.clients, result.matches_plain) == ((1, 2), None)


# --- noise ------------------------------------------------------------------------------------


def test_a_calibrated_plan_that_is_not_assigned_is_warned_of() -> None:
    fed, train = bounded()
    noisy(fed.plan)
    with pytest.warns(UserWarning, match=r"add no noise.*fed.plan = privacy.calibrate\(fed.plan"):
        simulate(fed, train)
    with pytest.warns(UserWarning, match="add no noise"):
        fed.local_servers()


def test_rounds_under_the_calibrated_plan_and_without_any_warn_of_nothing() -> None:
    for calibrates in (True, False):
        fed, train = bounded()
        if calibrates:
            fed.plan = noisy(fed.plan)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            simulate(fed, train)


def test_a_new_plan_that_drops_the_noise_is_warned_of() -> None:
    fed, _ = bounded()
    fed.plan = noisy(fed.plan)
    with pytest.warns(UserWarning, match="the new plan adds no noise"):
        fed.make_plan(rows_per_client=13)


def test_new_servers_do_not_begin_the_budget_again() -> None:
    fed, train = bounded()
    fed.plan = noisy(fed.plan)
    first = fed.local_servers(protocol="plain")
    one_round(fed, train, first)
    second = fed.local_servers(protocol="plain")
    with raises(ParameterError, "budget-unknown"):
        one_round(fed, train, second)
    second.load_state_dict(first.state_dict())
    one_round(fed, train, second)
    assert second.number == 1


@pytest.mark.parametrize("protocol", ["plain", "fsl"])
def test_both_protocols_refuse_a_round_beyond_those_of_the_plan(protocol: Any) -> None:
    fed, train = start(**SIZES, max_rounds=2)
    servers = fed.local_servers(protocol=protocol)
    for _ in range(2):
        one_round(fed, train, servers)
    with raises(ProtocolError, "rounds-spent") as caught:
        one_round(fed, train, servers)
    assert "max_rounds = 2" in str(caught.value)
    assert "new Federated" in str(caught.value)


def test_explain_prints_epsilon_at_the_delta_that_is_asked() -> None:
    fed, _ = bounded()
    fed.plan = noisy(fed.plan)
    asked = privacy.guarantee(fed.plan, delta=1e-3, rounds=3).epsilon_server
    fed.plan = dataclasses.replace(fed.plan, max_rounds=3)
    for text in (fed.plan.explain(delta=1e-3), fed.explain(delta=1e-3)):
        assert f"epsilon {asked:.2f} at delta 0.001 against either server" in text
    assert "at delta 1e-06" in fed.plan.explain()
    assert "explain(delta=...)" in fed.plan.explain()
    with raises(ParameterError, "parameter"):
        fed.plan.explain(delta="1e-3")


# --- resuming ---------------------------------------------------------------------------------

OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"average": "rows"}, {}, "average is 'rows' here and 'clients' there"),
    ({}, {"average": "rows"}, "average is 'clients' here and 'rows' there"),
    ({"max_clients": 3}, {}, "max_clients is 3 here and 2 there"),
    ({"max_clients": 2, "rows_per_client": 20}, SIZES, "segments differ"),
    ({**SIZES, "average": "rows"}, SIZES, "average is 'rows' here and 'clients' there"),
    ({**SIZES, "min_clients": 1}, SIZES, "min_clients is 1 here and 2 there"),
]


@pytest.mark.parametrize(("options", "before", "text"), OTHERS)
def test_resume_refuses_other_settings_and_names_them(
    options: dict[str, Any], before: dict[str, Any], text: str
) -> None:
    result = simulate(*start(**before, above_break_even="keep"))
    with raises(ParameterError, "another-task") as caught:
        simulate(*start(**options, above_break_even="keep"), rounds=2, resume=result)
    assert text in str(caught.value)


def test_resume_refuses_weights_that_the_rounds_before_had_not() -> None:
    result = simulate(*start())
    with raises(ParameterError, "another-task") as caught:
        simulate(*start(), rounds=2, resume=result, weight=lambda batches: 6)
    assert "average is 'weight' here and 'clients' there" in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"average": "rows"}, {"max_clients": 2}, SIZES])
def test_resume_takes_equal_settings_of_a_new_and_of_the_same_federated(
    options: dict[str, Any],
) -> None:
    fed, train = start(**options)
    result = simulate(fed, train)
    kept = copy.deepcopy(result.checkpoint)
    assert len(simulate(fed, train, 2, resume=result).rounds) == 2
    assert len(simulate(*start(**options), 2, resume=kept).rounds) == 2


def test_resume_in_the_same_process_refuses_another_plan_as_well() -> None:
    result = simulate(*start())
    fed, train = start(average="rows")
    simulate(fed, train)
    with raises(ParameterError, "another-task"):
        simulate(fed, train, rounds=2, resume=result)


def test_a_round_refuses_servers_that_have_the_plan_before_the_present_one() -> None:
    fed, train = start(**SIZES)
    old, first = fed.local_servers(), fed.plan
    fed.make_plan(max_clients=3)
    with raises(ParameterError, "another-task") as caught:
        one_round(fed, train, old)
    assert "call servers = fed.local_servers() again" in str(caught.value)
    fed.plan = first
    one_round(fed, train, old)


def test_a_client_whose_batches_the_model_does_not_take_is_named_before_the_first_round() -> None:
    fed, train = start(max_clients=2)
    data = {3: [], 7: [(torch.tensor([[0.5]]),)]}
    with pytest.raises(Exception) as caught:  # noqa: PT011 torch's own
        torchfsl.simulate(fed, data, train, rounds=1)
    assert caught.value.__notes__ == ["This was client 7, before round 0 of simulate()."]
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fed.suggest_rows(data)
    assert caught.value.__notes__[-1] == "This was client 7 of the clients given."

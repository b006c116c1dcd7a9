"""Rounds of the engine through two servers, in this process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from scripts.attacks import owner_plans
from tests.support.engine_models import WIDE, Recommender, loss_of, make_batch, train
from tests.support.engine_rounds import Recording, Task, keep_updates, plain_sum, wanted
from tests.support.engine_setup import plan_of
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Dense, Fixed, RestPolicy, Rows, TopK
from torchfsl.engine.residual import Residual
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import psr


@pytest.mark.parametrize(
    ("rows", "rest", "retrieve"),
    [
        (Rows(), Dense(), True),
        (Rows(), TopK(0.3), False),
        (Rows(top=5), TopK(5), False),
        (Rows(budget=30), Dense(), True),
        (None, TopK(0.2), None),
    ],
    ids=["touched", "whole tables", "top", "budget", "no rows"],
)
def test_the_opened_sum_is_the_sum_of_what_clients_sent(
    rows: Rows | None, rest: RestPolicy, retrieve: bool | None
) -> None:
    task = Task(
        Settings(rows=rows, rest=rest, buffers="average"),
        3,
        retrieve=retrieve,
        rows_per_client=40 if rows == Rows() else None,
    )
    for _ in range(3):
        link, updates = task.begin(), []
        for number, hooks in enumerate(task.hooks):
            batch = make_batch(10 * task.number + number)
            ids = wanted(batch) if retrieve else None
            with Round(hooks, task.client(link, number), rows=ids, number=task.number) as rnd:
                train(hooks.model, hooks.optimizers, [batch])
            updates.append(rnd.update)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


@pytest.mark.parametrize("ahead", [False, True])
def test_clients_that_ask_before_the_first_goes_on_are_answered_together(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(num_clients=3)
    sizes: list[int] = []

    def counting(segment: Any, questions: Any, *tables: Any) -> Any:
        sizes.append(len(questions))
        return answers(segment, questions, *tables)

    answers = psr.answers
    monkeypatch.setattr(psr, "answers", counting)
    for _ in range(2):
        sizes.clear()
        link, updates = task.begin(), []
        batches = [make_batch(10 * task.number + number) for number in range(3)]
        rounds = [
            Round(hooks, task.client(link, number), rows=wanted(batch), number=task.number)
            for number, (hooks, batch) in enumerate(zip(task.hooks, batches, strict=True))
        ]
        for rnd in rounds if ahead else ():
            rnd.prefetch()
        for rnd, hooks, batch in zip(rounds, task.hooks, batches, strict=True):
            with rnd:
                train(hooks.model, hooks.optimizers, [batch])
            updates.append(rnd.update)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)
        assert set(sizes) == {3 if ahead else 1}


def test_a_client_asks_once_and_has_dropped_out_if_it_goes_no_further() -> None:
    task = Task(num_clients=2, min_clients=1)
    link, batch = task.begin(), make_batch(0)
    rounds = [
        Round(hooks, task.client(link, number), rows=wanted(batch), number=0)
        for number, hooks in enumerate(task.hooks)
    ]
    for rnd in rounds:
        rnd.prefetch()
    with pytest.raises(ProtocolError, match="has already started"):
        rounds[0].prefetch()
    before = {n: value.clone() for n, value in task.hooks[1].model.state_dict().items()}
    with rounds[0]:
        train(task.hooks[0].model, task.hooks[0].optimizers, [batch])
    assert task.finish().num_clients == 1
    after = task.hooks[1].model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_clients_read_the_servers_rows_and_nan_elsewhere() -> None:
    task = Task()
    for server in task.servers:
        server.model.state["item.weight"][7] = [1, 2, 3, 4]
        server.model.state["top.bias"][:] = 9
    link = task.begin()
    hooks = task.hooks[0]
    padding = hooks.model.item.weight[0].detach().clone()
    ids = {"item": [7, 3, 7, 0], "user.weight": np.array([2]), "words": torch.tensor([[5], [6]])}
    with Round(hooks, task.client(link, 0), rows=ids) as rnd:
        model = hooks.model
        assert model.item.weight[7].tolist() == [1, 2, 3, 4]
        assert model.top.bias.item() == 9
        assert torch.equal(model.item.weight[0], padding)
        real = (~model.item.weight.isnan()).any(1).nonzero().flatten().tolist()
        assert real == [0, 3, 7]
        assert (~model.user.weight.isnan()).any(1).nonzero().flatten().tolist() == [2]
        assert rnd.rows["words.weight"].tolist() == [5, 6]
        np.testing.assert_array_equal(
            model.words.weight[5].detach().numpy(), task.state["words.weight"][5]
        )


def test_a_model_with_rows_left_out_is_none_to_start_servers_from() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    with Round(hooks, task.client(link, 0), rows={"item": [1]}):
        pass
    with pytest.raises(ParameterError, match=r"item\.weight holds NaN"):
        hooks.server_state()
    hooks.load(task.state)
    np.testing.assert_array_equal(hooks.server_state()["item.weight"], task.state["item.weight"])


def test_models_stay_equal_to_plain_federated_averaging() -> None:
    task = Task(Settings(encoding=WIDE))
    start = task.hooks[0].server_state()
    link, deltas = task.begin(), []
    for number, hooks in enumerate(task.hooks):
        batches = [make_batch(number), make_batch(number + 5)]
        torch.manual_seed(0)
        plain = Recommender()
        train(plain, [torch.optim.Adagrad(plain.parameters(), lr=0.1)], batches)
        deltas.append({n: p.detach().numpy() - start[n] for n, p in plain.named_parameters()})
        with Round(hooks, task.client(link, number), rows=wanted(*batches)):
            train(hooks.model, hooks.optimizers, batches)
    task.finish()
    for name, value in task.state.items():
        expected = start[name] + (deltas[0][name] + deltas[1][name]) / 2
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


class Boom(Exception):
    pass


def fail(hooks: Hooks) -> None:
    train(hooks.model, hooks.optimizers, [make_batch(1)])
    raise Boom


def diverge(hooks: Hooks) -> None:
    (loss_of(hooks.model, make_batch(1)) * float("inf")).backward()
    hooks.optimizers[0].step()


def escape(hooks: Hooks) -> None:
    with torch.no_grad():
        hooks.model.item.weight[1:] += 1


def read_more(hooks: Hooks) -> None:
    train(hooks.model, hooks.optimizers, [make_batch(1), make_batch(77, 30, 40)])


@pytest.mark.parametrize("retrieve", [True, False])
@pytest.mark.parametrize(
    ("mishap", "error"),
    [(fail, Boom), (diverge, ParameterError), (escape, ParameterError), (read_more, None)],
)
def test_a_failing_client_sends_what_every_client_sends_and_its_model_is_put_back(
    retrieve: bool, mishap: Callable[[Hooks], None], error: type[Exception] | None
) -> None:
    if mishap is read_more:
        if not retrieve:
            return
        error = ParameterError
    assert error is not None
    task = Task(Settings(rest=TopK(0.5)), 3, retrieve=retrieve)
    for _ in range(2):
        link = task.begin()
        ids = wanted(make_batch(1)) if retrieve else None
        updates, traffics = [], []
        for number, hooks in enumerate(task.hooks):
            link.traffic = []
            client = task.client(link, number)
            if number == 1:
                before = {k: v.clone() for k, v in hooks.model.state_dict().items()}
                residual = hooks.residual.state_dict()
                with (
                    pytest.raises(error),
                    Round(hooks, client, rows=ids, number=task.number) as rnd,
                ):
                    mishap(hooks)
                for key, value in hooks.model.state_dict().items():
                    assert torch.equal(value.nan_to_num(7), before[key].nan_to_num(7)), key
                assert hooks.residual.state_dict() == residual
                with pytest.raises(ProtocolError, match="no update to send again"):
                    rnd.retry()
            else:
                batch = make_batch(1) if retrieve else make_batch(number)
                with Round(hooks, client, rows=ids, number=task.number) as rnd:
                    train(hooks.model, hooks.optimizers, [batch])
                updates.append(rnd.update)
            traffics.append([(kind, size) for kind, _, size in link.traffic])
        assert sorted(traffics[0]) == sorted(traffics[1]) == sorted(traffics[2])
        opened = task.finish()
        assert len(opened.clients) == 3
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


@pytest.mark.parametrize(
    "ids",
    [
        {"item": [50]},
        {"item": [-1]},
        {"item": [0.5]},
        {"nothing": [1]},
        {"item": ["one"]},
        [1, 2],
        {"item": [True]},
        {"item": 1},
        {"item": torch.tensor([1j])},
        {"item": [torch.tensor([1]), [2]]},
    ],
    ids=str,
)
def test_bad_rows_raise_and_the_servers_see_a_usual_client(ids: Any) -> None:
    task = Task()
    link = task.begin()
    hooks, other = task.hooks
    before = {k: v.clone() for k, v in hooks.model.state_dict().items()}
    with (
        pytest.raises(ParameterError),
        Round(hooks, task.client(link, 0), rows=ids),
    ):
        raise AssertionError("the block must not run")
    for key, value in hooks.model.state_dict().items():
        assert torch.equal(value, before[key])
    traffic, link.traffic = link.traffic, []
    with Round(other, task.client(link, 1), rows=wanted(make_batch(1))):
        train(other.model, other.optimizers, [make_batch(1)])
    assert sorted((k, n) for k, _, n in traffic) == sorted((k, n) for k, _, n in link.traffic)
    assert len(task.finish().clients) == 2


def test_clients_that_share_a_model_take_part_in_the_round_that_is_open() -> None:
    task = Task(num_clients=3, rows_per_client=40)
    hooks, batch = task.hooks[0], make_batch(1)
    task.number = 4
    for cohort in ((0, 1, 2), (0, 2)):  # one stays away, and comes back
        link = task.begin()
        for number in cohort:
            client, mine = task.client(link, number), Residual()
            with Round(hooks, client, rows=wanted(batch), residual=mine):
                train(hooks.model, hooks.optimizers, [batch])
        assert task.finish().clients == cohort
    with (
        pytest.raises(ProtocolError, match="no round is open at both servers: begin one"),
        Round(hooks, task.client(link, 0), rows=wanted(batch)),
    ):
        raise AssertionError("the block must not run")


def test_who_cannot_ask_for_the_open_round_names_it() -> None:
    class Sender:
        def send(self, party: int, message: bytes) -> None: ...

        def fetch(self, *_: object) -> bytes:
            return b""

    @dataclass
    class Simulated:
        plan: Any
        client_id: int = 0

    task = Task()
    hooks, ids = task.hooks[0], wanted(make_batch(1))
    with pytest.raises(ParameterError, match=r"Simulated cannot ask .* pass number="):
        Round(hooks, Simulated(task.plan), rows=ids)  # type: ignore[arg-type]
    client = Client(task.plan, Sender(), client_id=0)
    with (
        pytest.raises(ParameterError, match="Sender cannot ask the servers for the open"),
        Round(hooks, client, rows=ids),
    ):
        raise AssertionError("the block must not run")


@pytest.mark.parametrize("num", [5, 6, 40])
def test_more_rows_than_k_max_raise_on_entering_and_the_servers_see_a_usual_client(
    num: int,
) -> None:
    task = Task(rows_per_client=4)
    link, (hooks, other) = task.begin(), task.hooks
    before = {k: v.clone() for k, v in hooks.model.state_dict().items()}
    with (
        pytest.raises(ParameterError, match=rf"uses {num} rows .* rows_per_client is 4: .*={num},"),
        Round(hooks, task.client(link, 0), rows={"item": range(1, num), "user": [5], "words": [1]}),
    ):
        raise AssertionError("the block must not run")
    assert all(torch.equal(v, before[k]) for k, v in hooks.model.state_dict().items())
    traffic, link.traffic = link.traffic, []
    ids = {"item": [9, 3, 9, 4], "user": [5], "words": [1]}  # each once, with the user four
    with Round(other, task.client(link, 1), rows=ids) as rnd:
        assert rnd.rows["item.weight"].tolist() == [3, 4, 9]
        assert rnd.rows["user.weight"].tolist() == [5]
        other.model.item(torch.tensor([3, 9])).sum().backward()
        other.optimizers[0].step()
    assert sorted((k, n) for k, _, n in traffic) == sorted((k, n) for k, _, n in link.traffic)
    opened = task.finish()
    assert opened.clients == (0, 1)
    for name, total in plain_sum(task.plan, [rnd.update]).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


def test_rows_owed_from_an_earlier_round_are_fetched_and_sent() -> None:
    task = Task(num_clients=2)
    hooks = task.hooks[0]
    link = task.begin()
    with Round(hooks, task.client(link, 0), rows=wanted(make_batch(1)), number=0) as rnd:
        train(hooks.model, hooks.optimizers, [make_batch(1)])
        real_submit = rnd._session.submit

        def lose_one(update: Any, *, weight: int = 1) -> Any:
            receipt = real_submit(update, weight=weight)
            receipt.unmatched["rows4"] = update["rows4"].indices[:1]
            return receipt

        rnd._session.submit = lose_one
    row = int(rnd.update["rows4"].indices[0])
    assert hooks.residual.pending("rows4").tolist() == [row]
    link.traffic = []
    other = task.hooks[1]
    with Round(other, task.client(link, 1), rows={"words": [1]}, number=0) as rnd:
        pass
    task.finish()
    link = task.begin()
    with Round(hooks, task.client(link, 0), rows={"words": [1]}, number=1) as rnd:
        assert rnd.rows["item.weight"].tolist() == [row]
    assert rnd.update["rows4"].indices.tolist() == [row]
    assert np.any(rnd.update["rows4"].values)
    assert hooks.residual.pending("rows4").tolist() == []


def test_weights_and_stochastic_rounding() -> None:
    encoding = FixedPoint(ring_bits=64, frac_bits=16, clip=4.0, rounding="stochastic")
    task = Task(Settings(encoding=encoding), lane="weight", max_weight=10)
    link, updates = task.begin(), []
    for number, hooks in enumerate(task.hooks):
        with Round(
            hooks, task.client(link, number), rows=wanted(make_batch(number)), weight=number + 3
        ) as rnd:
            train(hooks.model, hooks.optimizers, [make_batch(number)])
        updates.append(
            {n: type(u)(u.indices, u.values * (number + 3)) for n, u in rnd.update.items()}
        )
    opened = task.finish()
    assert opened.total_weight == 7
    for name, total in plain_sum(task.plan, updates).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


def test_a_row_without_a_bin_is_zero_and_its_update_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuckoo, "place", owner_plans._place_but_the_guess)
    task = Task(min_clients=1)
    link, hooks = task.begin(), task.hooks[0]
    lost = owner_plans.LOST_ROW
    with Round(hooks, task.client(link, 0), rows={"item": [1, lost]}) as rnd:
        assert rnd.rows["item.weight"].tolist() == [1, lost]
        assert not hooks.model.item.weight[lost].any()
        assert hooks.model.item.weight[1].isfinite().all()
        hooks.model.item(torch.tensor([1, lost])).sum().backward()
        hooks.optimizers[0].step()
    assert rnd.receipt.unmatched["rows4"].tolist() == [lost]
    sums = task.finish().sums["rows4"]
    assert np.flatnonzero(sums.any(axis=1)).tolist() == [1]
    assert hooks.residual.pending("rows4").tolist() == [lost]


def test_after_a_weight_of_a_wrong_type_nothing_is_lost_and_a_good_one_is_taken() -> None:
    task = Task(lane="weight", max_weight=3)
    link, weights, updates = task.begin(), (2, 3), []
    for number, hooks in enumerate(task.hooks):
        batch, client = make_batch(number), task.client(link, number)
        rnd = Round(hooks, client, rows=wanted(batch))
        said = r"expected a whole number from 1 to max_weight=3"
        with pytest.raises(ParameterError, match=said), rnd:  # noqa: PT012 leaving the block raises
            train(hooks.model, hooks.optimizers, [batch])
            rnd.weight = 1.5  # type: ignore[assignment]
        for bad in (1.5, 2.0, "2", True):
            rnd.weight = bad  # type: ignore[assignment]
            with pytest.raises(ParameterError, match=said):
                rnd.retry()
        rnd.weight = np.int64(weights[number])  # type: ignore[assignment]
        assert rnd.retry() is rnd.receipt
        with pytest.raises(ProtocolError, match="no update to send again"):
            rnd.retry()
        assert rnd.update is not None
        updates.append({n: type(u)(u.indices, u.values * weights[number])
                        for n, u in rnd.update.items()})  # fmt: skip
    opened = task.finish()
    assert opened.total_weight == 5
    for name, total in plain_sum(task.plan, updates).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


@pytest.mark.parametrize("given", ["at once", "in the block"])
@pytest.mark.parametrize("bad", [4, 0, -1, np.int64(1 << 40)])
def test_whoever_weighs_too_much_reports_like_all_others_and_adds_nothing(
    bad: int, given: str
) -> None:
    """How much a client weighs is its own: silence would tell both servers."""
    task = Task(lane="weight", max_weight=3)
    traffics = []
    for number, hooks in enumerate(task.hooks):
        link = task.begin() if number == 0 else Recording(task.servers)
        batch, client = make_batch(number), task.client(link, number)
        if number:
            with Round(hooks, client, rows=wanted(batch), weight=2):
                train(hooks.model, hooks.optimizers, [batch])
        else:
            first = bad if given == "at once" else 1
            rnd = Round(hooks, client, rows=wanted(batch), weight=first)
            said = r"max_weight=3.*pass max\(1, min\(weight, 3\)\)"
            with pytest.raises(ParameterError, match=said), rnd:  # noqa: PT012 leaving raises
                train(hooks.model, hooks.optimizers, [batch])
                rnd.weight = bad
            with pytest.raises(ProtocolError, match="no update to send again"):
                rnd.retry()
            assert rnd.update is None
        traffics.append(sorted((kind, size) for kind, _, size in link.traffic))
    assert traffics[0] == traffics[1]
    assert all(len(server.reports.complete()) == len(task.hooks) for server in task.servers)
    opened = task.finish()
    assert opened.clients == tuple(range(len(task.hooks)))
    assert opened.total_weight == 2 * (len(task.hooks) - 1)


def test_a_weight_without_a_lane_names_the_lane_it_needs() -> None:
    for lane in ("none", "count"):
        task = Task(lane=lane)
        link, hooks = task.begin(), task.hooks[0]
        client, said = task.client(link, 0), rf"lane='{lane}'.*plan with average='weight'"
        with pytest.raises(ParameterError, match=said):
            Round(hooks, client, rows={"item": [1]}, weight=3)
        assert link.traffic == []
        rnd = Round(hooks, client, rows={"item": [1]})
        with pytest.raises(ParameterError, match=said), rnd:
            rnd.weight = 3
        rnd.weight = 1
        assert rnd.retry().upload_bytes > 0


def test_arguments_that_do_not_fit_the_plan_are_refused_before_anything_is_sent() -> None:
    task = Task()
    link = task.begin()
    with pytest.raises(ParameterError, match=r"batches=batches.* or pass rows="):
        Round(task.hooks[0], task.client(link, 0))
    weighted = Task(lane="weight", max_weight=3)
    for bad in (1.5, "2", True):
        with pytest.raises(ParameterError, match="a whole number from 1 to max_weight=3"):
            Round(weighted.hooks[0], weighted.client(link, 0), rows={"item": [1]}, weight=bad)
    whole = Task(retrieve=False)
    with pytest.raises(ParameterError, match="retrieve=True"):
        Round(whole.hooks[0], whole.client(link, 0), rows={"item": [1]})
    assert link.traffic == []


def test_sending_again_inside_the_block_or_after_it_went_is_refused() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    with (
        pytest.raises(ProtocolError, match="no update to send again"),
        Round(hooks, task.client(link, 0), rows={"item": [1]}) as rnd,
    ):
        rnd.retry()
    with Round(hooks, task.client(link, 1), rows={"item": [1]}, number=0) as rnd:
        pass
    with pytest.raises(ProtocolError, match="no update to send again"):
        rnd.retry()
    assert task.finish().clients == (0, 1)


def test_a_block_without_a_step_warns_at_the_line_of_the_block() -> None:
    task = Task()
    link = task.begin()
    with (
        pytest.warns(
            UserWarning, match=r"no optimizer of torchfsl\.Federated took a step"
        ) as caught,
        Round(task.hooks[0], task.client(link, 0), rows={"item": [1]}),
    ):
        pass
    assert [w.filename for w in caught] == [__file__]


def test_local_buffers_stay_local_and_averaged_ones_are_loaded() -> None:
    for buffers in ("local", "average"):
        settings = Settings(buffers=buffers)  # type: ignore[arg-type]
        task = Task(settings)
        hooks = task.hooks[0]
        hooks.model.norm.running_mean.fill_(5)
        link = task.begin()
        with Round(hooks, task.client(link, 0), rows={"item": [1]}):
            expected = 5 if buffers == "local" else 0
            assert hooks.model.norm.running_mean[0] == expected


def test_a_table_that_the_planner_sends_dense_is_sent_whole() -> None:
    task = Task(retrieve=False, rows_per_client=75, above_break_even="dense")
    assert {s.name: s.policy for s in task.plan.segments if s.name != "rest"} == {
        "rows4": "dense",
        "rows3": "dense",
    }
    link, updates = task.begin(), []
    for number, hooks in enumerate(task.hooks):
        raw, before = keep_updates(hooks), hooks.model.item.weight.detach().double()
        with Round(hooks, task.client(link, number)) as rnd:
            train(hooks.model, hooks.optimizers, [make_batch(number)])
        change = (hooks.model.item.weight.detach().double() - before).numpy()
        np.testing.assert_array_equal(np.asarray(raw[0]["rows4"].values)[:200, 0], change.ravel())
        updates.append(rnd.update)
    opened = task.finish()
    for name, total in plain_sum(task.plan, updates).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


FIXED = Fixed(
    {
        "item.weight": list(range(1, 25)),
        "user.weight": list(range(10)),
        "words.weight": list(range(25)),
    }
)


@pytest.mark.parametrize("retrieve", [True, False])
@pytest.mark.parametrize("rest", [Dense(), Fixed([0, 3, 7, 20])])
def test_a_fixed_submodel_uploads_its_trees_once(retrieve: bool, rest: RestPolicy) -> None:
    task = Task(
        Settings(rows=Rows(choose=FIXED), rest=rest),
        retrieve=retrieve,
        rows_per_client=None,
        max_epochs=3,
    )
    assert {s.name: s.k_max for s in task.plan.segments if s.policy == "rows"} == {
        "rows4": 34,
        "rows3": 25,
    }
    clients, sizes = {}, []
    for number in range(4):
        link, updates = task.begin(), []
        for c, hooks in enumerate(task.hooks):
            client = clients.setdefault(c, task.client(link, c))
            client.servers = link
            with Round(hooks, client, number=number) as rnd:
                if retrieve:
                    np.testing.assert_array_equal(
                        hooks.model.item.weight[24].detach().numpy(), task.state["item.weight"][24]
                    )
                    assert hooks.model.item.weight[25].isnan().all()
                train(hooks.model, hooks.optimizers, [make_batch(number + c)])
            receipt = rnd.receipt
            updates.append(rnd.update)
        sizes.append(receipt.upload_bytes)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)
    assert sizes[1] == sizes[2] < sizes[0] == sizes[3]


def test_sessions_need_fixed_policies() -> None:
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for settings, name in (
        (Settings(), "rows4"),
        (Settings(rows=Rows(choose=FIXED), rest=TopK(3)), "rest"),
    ):
        hooks = Hooks(model, optimizer, settings)
        with pytest.raises(ParameterError, match=f"'{name}'.*Fixed"):
            plan_of(hooks, max_clients=2, rows_per_client=9, max_epochs=2)
        hooks.remove()


def test_rows_are_averaged_by_who_sent_them_under_a_count_lane() -> None:
    task = Task(Settings(encoding=WIDE), lane="count")
    before = {name: value.copy() for name, value in task.state.items()}
    link, sent = task.begin(), []
    for number, hooks in enumerate(task.hooks):
        batch = make_batch(1) if number == 0 else make_batch(2, 5, 12)
        start = {n: before[n].astype(float) for n in before}
        client = task.client(link, number)
        with Round(hooks, client, rows=wanted(batch)):
            train(hooks.model, hooks.optimizers, [batch])
        sent.append(
            {n: p.detach().double().numpy() - start[n] for n, p in hooks.model.named_parameters()}
        )
    task.finish()
    for name in ("item.weight", "user.weight", "words.weight"):
        total, count = np.zeros_like(sent[0][name]), np.zeros(len(sent[0][name]))
        for one in sent:
            held = ~np.isnan(one[name]).any(1)
            held[0] &= name != "item.weight"
            total[held] += one[name][held]
            count += held & (one[name] != 0).any(1)
        expected = before[name] + total / np.maximum(count, 1)[:, None]
        np.testing.assert_allclose(task.state[name], expected, atol=1e-6)


DECAYING = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.1),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize("policy", ["restrict", "touched"])
def test_rows_that_were_nan_train_when_they_come_back(name: str, policy: str) -> None:
    settings = Settings(rows=Rows(untouched=policy))  # type: ignore[arg-type]
    task = Task(settings, optimize=DECAYING[name])
    for low, high in ((0, 10), (10, 20), (5, 15)):
        link = task.begin()
        batch = make_batch(low, low, high)
        for number, hooks in enumerate(task.hooks):
            with Round(hooks, task.client(link, number), rows=wanted(batch), number=task.number):
                train(hooks.model, hooks.optimizers, [batch])
        task.finish()
        assert all(np.isfinite(value).all() for value in task.state.values())
    for hooks in task.hooks:
        state = hooks.optimizers[0].state
        tensors = [v for s in state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        assert all(v.isfinite().all() for v in tensors)


@pytest.mark.parametrize(
    ("encodings", "said"),
    [({}, "clip = 0.01"),
     ({"rest": FixedPoint(ring_bits=32, frac_bits=16, clip=0.5)}, "clip = 0.01 of ")],
)  # fmt: skip
def test_clipped_values_are_reported_and_warned_of_once(
    caplog: pytest.LogCaptureFixture, encodings: dict[str, FixedPoint], said: str
) -> None:
    encoding = FixedPoint(ring_bits=32, frac_bits=16, clip=0.01)
    task = Task(Settings(encoding=encoding, encodings=encodings))
    link, hooks = task.begin(), task.hooks[0]
    client = task.client(link, 0)
    with (
        caplog.at_level(logging.DEBUG, "torchfsl"),
        pytest.warns(UserWarning, match="were clipped") as caught,
        Round(hooks, client, rows=wanted(make_batch(1))) as rnd,
    ):
        train(hooks.model, hooks.optimizers, [make_batch(1)])
    assert rnd.clip_report is not None
    assert rnd.clip_report.num_clipped > 0
    text = str(caught[0].message)
    assert said in text
    assert f"largest: {rnd.clip_report.largest:.3g}" in text
    assert not encodings or ", 0.5 of 'rest'" in text
    assert caught[0].filename == __file__
    assert "largest" not in caplog.text  # logs name no magnitudes
    with Round(task.hooks[1], task.client(link, 1), rows=wanted(make_batch(2))):
        train(task.hooks[1].model, task.hooks[1].optimizers, [make_batch(2)])
    task.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Round(hooks, task.client(task.begin(), 0), rows=wanted(make_batch(1))) as rnd:
            train(hooks.model, hooks.optimizers, [make_batch(1)])
    assert rnd.clip_report is not None
    assert rnd.clip_report.num_clipped > 0


def test_a_finished_round_holds_no_memory() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    client = task.client(link, 0)
    with Round(hooks, client, rows=wanted(make_batch(1))) as rnd:
        train(hooks.model, hooks.optimizers, [make_batch(1)])
        held = hooks.status().saved_bytes["item.weight"]
        rows = len(rnd.rows["item.weight"])
        assert 0 < held <= 2 * rows * (4 * 4 + 8) + 50
    assert set(hooks.status().saved_bytes.values()) == {0}


def test_a_second_block_on_one_model_and_a_wrong_number_are_told_what_to_do() -> None:
    task = Task()
    link, hooks = task.begin(), task.hooks[0]
    first, second = (
        Round(hooks, task.client(link, number), rows={"item": [1]}) for number in (0, 1)
    )
    with (
        first,
        pytest.raises(ProtocolError, match="leave the block of that round first"),
        second,
    ):
        pass
    wrong = Round(hooks, task.client(link, 1), rows={"item": [1]}, number=5)
    with pytest.raises(RejectedSubmission, match=r"round 5, and the open round is \d+: pass"):
        wrong.prefetch()

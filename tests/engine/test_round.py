"""Rounds of the engine through two servers, in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from scripts.attacks import crowded_rows
from tests.support.engine_models import WIDE, Recommender, loss_of, make_batch, train
from tests.support.engine_rounds import Task, plain_sum, wanted
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.engine import SubmodelEngine
from torchfsl.engine.handle import Handle
from torchfsl.engine.policies import Fixed, Rows, TopK
from torchfsl.engine.residual import Residual
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import psr


@pytest.mark.parametrize(
    ("rows", "rest", "retrieve"),
    [
        (Rows(), None, True),
        (Rows(), TopK(0.3), False),
        (Rows(top=5), TopK(5), False),
        (Rows(budget=30), None, True),
        (None, TopK(0.2), None),
    ],
    ids=["touched", "whole tables", "top", "budget", "no rows"],
)
def test_the_opened_sum_is_the_sum_of_what_clients_sent(
    rows: Rows | None, rest: TopK | None, retrieve: bool | None
) -> None:
    engine = SubmodelEngine(rows=rows, rest=rest, buffers="average")
    task = Task(engine, 3, retrieve=retrieve, rows_per_client=40 if rows == Rows() else None)
    for _ in range(3):
        link, updates = task.begin(), []
        for number, handle in enumerate(task.handles):
            batch = make_batch(10 * task.number + number)
            ids = wanted(batch) if retrieve else None
            with engine.round(
                task.client(link, number), rows=ids, handle=handle, number=task.number
            ) as rnd:
                train(handle.model, handle.optimizers, [batch])
            rnd.submit()
            updates.append(rnd.update)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


@pytest.mark.parametrize("ahead", [False, True])
def test_clients_that_ask_before_the_first_goes_on_are_answered_together(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SubmodelEngine()
    task = Task(engine, 3)
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
            engine.round(
                task.client(link, number), rows=wanted(batch), handle=handle, number=task.number
            )
            for number, (handle, batch) in enumerate(zip(task.handles, batches, strict=True))
        ]
        for rnd in rounds if ahead else ():
            rnd.ask()
        for rnd, handle, batch in zip(rounds, task.handles, batches, strict=True):
            with rnd:
                train(handle.model, handle.optimizers, [batch])
            rnd.submit()
            updates.append(rnd.update)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)
        assert set(sizes) == {3 if ahead else 1}


def test_a_client_asks_once_and_has_dropped_out_if_it_goes_no_further() -> None:
    engine = SubmodelEngine()
    task = Task(engine, 2, min_clients=1)
    link, batch = task.begin(), make_batch(0)
    rounds = [
        engine.round(task.client(link, number), rows=wanted(batch), handle=handle, number=0)
        for number, handle in enumerate(task.handles)
    ]
    for rnd in rounds:
        rnd.ask()
    with pytest.raises(ProtocolError, match="started already"):
        rounds[0].ask()
    before = {n: value.clone() for n, value in task.handles[1].model.state_dict().items()}
    with rounds[0]:
        train(task.handles[0].model, task.handles[0].optimizers, [batch])
    rounds[0].submit()
    assert task.finish().num_clients == 1
    after = task.handles[1].model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_clients_read_the_servers_rows_and_nan_elsewhere() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    for server in task.servers:
        server.model.state["item.weight"][7] = [1, 2, 3, 4]
        server.model.state["top.bias"][:] = 9
    link = task.begin()
    handle = task.handles[0]
    padding = handle.model.item.weight[0].detach().clone()
    ids = {"item": [7, 3, 7, 0], "user.weight": np.array([2]), "words": torch.tensor([[5], [6]])}
    with engine.round(task.client(link, 0), rows=ids, handle=handle) as rnd:
        model = handle.model
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
    rnd.submit()


def test_a_model_with_rows_left_out_is_none_to_start_servers_from() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    link, handle = task.begin(), task.handles[0]
    with engine.round(task.client(link, 0), rows={"item": [1]}, handle=handle) as rnd:
        pass
    rnd.submit()
    with pytest.raises(ParameterError, match=r"item\.weight holds NaN"):
        handle.server_state()
    handle.load(task.state)
    np.testing.assert_array_equal(handle.server_state()["item.weight"], task.state["item.weight"])


def test_models_stay_equal_to_plain_federated_averaging() -> None:
    engine = SubmodelEngine(encoding=WIDE)
    task = Task(engine)
    start = task.handles[0].server_state()
    link, deltas = task.begin(), []
    for number, handle in enumerate(task.handles):
        batches = [make_batch(number), make_batch(number + 5)]
        torch.manual_seed(0)
        plain = Recommender()
        train(plain, [torch.optim.Adagrad(plain.parameters(), lr=0.1)], batches)
        deltas.append({n: p.detach().numpy() - start[n] for n, p in plain.named_parameters()})
        with engine.round(task.client(link, number), rows=wanted(*batches), handle=handle) as rnd:
            train(handle.model, handle.optimizers, batches)
        rnd.submit()
    task.finish()
    for name, value in task.state.items():
        expected = start[name] + (deltas[0][name] + deltas[1][name]) / 2
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


class Boom(Exception):
    pass


def fail(handle: Handle) -> None:
    train(handle.model, handle.optimizers, [make_batch(1)])
    raise Boom


def diverge(handle: Handle) -> None:
    (loss_of(handle.model, make_batch(1)) * float("inf")).backward()
    handle.optimizers[0].step()


def escape(handle: Handle) -> None:
    with torch.no_grad():
        handle.model.item.weight[1:] += 1


def read_more(handle: Handle) -> None:
    train(handle.model, handle.optimizers, [make_batch(1), make_batch(77, 30, 40)])


@pytest.mark.parametrize("retrieve", [True, False])
@pytest.mark.parametrize(
    ("mishap", "error"),
    [(fail, Boom), (diverge, ParameterError), (escape, ParameterError), (read_more, None)],
)
def test_a_failing_client_sends_what_every_client_sends_and_its_model_is_put_back(
    retrieve: bool, mishap: Callable[[Handle], None], error: type[Exception] | None
) -> None:
    if mishap is read_more:
        if not retrieve:
            return
        error = ParameterError
    assert error is not None
    engine = SubmodelEngine(rest=TopK(0.5))
    task = Task(engine, 3, retrieve=retrieve)
    for _ in range(2):
        link = task.begin()
        ids = wanted(make_batch(1)) if retrieve else None
        updates, traffics = [], []
        for number, handle in enumerate(task.handles):
            link.traffic = []
            client = task.client(link, number)
            if number == 1:
                before = {k: v.clone() for k, v in handle.model.state_dict().items()}
                residual = handle.residual.state_dict()
                with (
                    pytest.raises(error),
                    engine.round(client, rows=ids, handle=handle, number=task.number) as rnd,
                ):
                    mishap(handle)
                for key, value in handle.model.state_dict().items():
                    assert torch.equal(value.nan_to_num(7), before[key].nan_to_num(7)), key
                assert handle.residual.state_dict() == residual
                with pytest.raises(ProtocolError):
                    rnd.submit()
            else:
                batch = make_batch(1) if retrieve else make_batch(number)
                with engine.round(client, rows=ids, handle=handle, number=task.number) as rnd:
                    train(handle.model, handle.optimizers, [batch])
                rnd.submit()
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
    engine = SubmodelEngine()
    task = Task(engine)
    link = task.begin()
    handle, other = task.handles
    before = {k: v.clone() for k, v in handle.model.state_dict().items()}
    with (
        pytest.raises(ParameterError),
        engine.round(task.client(link, 0), rows=ids, handle=handle),
    ):
        raise AssertionError("the block must not run")
    for key, value in handle.model.state_dict().items():
        assert torch.equal(value, before[key])
    traffic, link.traffic = link.traffic, []
    with engine.round(task.client(link, 1), rows=wanted(make_batch(1)), handle=other) as rnd:
        train(other.model, other.optimizers, [make_batch(1)])
    rnd.submit()
    assert sorted((k, n) for k, _, n in traffic) == sorted((k, n) for k, _, n in link.traffic)
    assert len(task.finish().clients) == 2


def test_clients_that_share_a_model_take_part_in_the_round_that_is_open() -> None:
    engine = SubmodelEngine()
    task = Task(engine, 3, rows_per_client=40)
    handle, batch = task.handles[0], make_batch(1)
    task.number = 4
    for cohort in ((0, 1, 2), (0, 2)):  # one stays away, and comes back
        link = task.begin()
        for number in cohort:
            client, mine = task.client(link, number), Residual()
            with engine.round(client, rows=wanted(batch), handle=handle, residual=mine) as rnd:
                train(handle.model, handle.optimizers, [batch])
            rnd.submit()
        assert task.finish().clients == cohort
    with (
        pytest.raises(ProtocolError, match="no round is open at both servers: begin one"),
        engine.round(task.client(link, 0), rows=wanted(batch), handle=handle),
    ):
        raise AssertionError("the block must not run")


def test_who_cannot_ask_for_the_open_round_names_it() -> None:
    class Sender:
        def send(self, party: int, message: bytes) -> None: ...

        def fetch(self, *_: object) -> bytes:
            return b""

    class Nameless:
        plan: Any = None

    class Simulated(Nameless):
        client_id = 0

    engine = SubmodelEngine()
    task = Task(engine)
    Nameless.plan = task.plan
    handle, ids = task.handles[0], wanted(make_batch(1))
    with pytest.raises(ParameterError, match=r"Nameless is no client: .* has plan and client_id"):
        engine.round(Nameless(), rows=ids, handle=handle)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"Simulated cannot ask .* pass number="):
        engine.round(Simulated(), rows=ids, handle=handle)  # type: ignore[arg-type]
    client = Client(task.plan, Sender(), client_id=0)
    with (
        pytest.raises(ParameterError, match="Sender cannot ask for the open round: pass its"),
        engine.round(client, rows=ids, handle=handle),
    ):
        raise AssertionError("the block must not run")


def test_rows_beyond_k_max_are_cut_in_the_order_given(caplog: pytest.LogCaptureFixture) -> None:
    engine = SubmodelEngine()
    task = Task(engine, rows_per_client=4)
    link, handle = task.begin(), task.handles[0]
    ids = {"item": [9, 3, 9, 4, 1, 2], "user": [5], "words": [1]}
    with (
        caplog.at_level(logging.WARNING, "torchfsl"),
        engine.round(task.client(link, 0), rows=ids, handle=handle) as rnd,
    ):
        assert rnd.rows["item.weight"].tolist() == [1, 3, 4, 9]
        assert rnd.rows["user.weight"].tolist() == []
    assert "k_max = 4" in caplog.text
    assert rnd.submit().upload_bytes > 0


def test_rows_owed_from_an_earlier_round_are_fetched_and_sent() -> None:
    engine = SubmodelEngine()
    task = Task(engine, 2)
    handle = task.handles[0]
    link = task.begin()
    with engine.round(
        task.client(link, 0), rows=wanted(make_batch(1)), handle=handle, number=0
    ) as rnd:
        train(handle.model, handle.optimizers, [make_batch(1)])
    row = int(rnd._raw["rows4"].indices[0])
    real_submit = rnd._session.submit

    def lose_one(update: Any, *, weight: int = 1) -> Any:
        receipt = real_submit(update, weight=weight)
        receipt.unmatched["rows4"] = np.array([row])
        return receipt

    rnd._session.submit = lose_one
    rnd.submit()
    assert handle.residual.pending("rows4").tolist() == [row]
    link.traffic = []
    other = task.handles[1]
    with engine.round(task.client(link, 1), rows={"words": [1]}, handle=other, number=0) as rnd:
        pass
    rnd.submit()
    task.finish()
    link = task.begin()
    with engine.round(task.client(link, 0), rows={"words": [1]}, handle=handle, number=1) as rnd:
        assert rnd.rows["item.weight"].tolist() == [row]
    rnd.submit()
    assert rnd.update["rows4"].indices.tolist() == [row]
    assert np.any(rnd.update["rows4"].values)
    assert handle.residual.pending("rows4").tolist() == []


def test_weights_and_stochastic_rounding() -> None:
    encoding = FixedPoint(ring_bits=64, frac_bits=16, clip=4.0, rounding="stochastic")
    engine = SubmodelEngine(encoding=encoding)
    task = Task(engine, lane="weight", max_weight=10)
    link, updates = task.begin(), []
    for number, handle in enumerate(task.handles):
        with engine.round(
            task.client(link, number), rows=wanted(make_batch(number)), handle=handle
        ) as rnd:
            train(handle.model, handle.optimizers, [make_batch(number)])
        rnd.submit(weight=number + 3)
        updates.append(
            {n: type(u)(u.indices, u.values * (number + 3)) for n, u in rnd.update.items()}
        )
    opened = task.finish()
    assert opened.total_weight == 7
    for name, total in plain_sum(task.plan, updates).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


def test_a_row_without_a_bin_is_zero_and_its_update_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuckoo, "place", crowded_rows._place_but_the_guess)
    engine = SubmodelEngine()
    task = Task(engine, min_clients=1)
    link, handle = task.begin(), task.handles[0]
    lost = crowded_rows.GUESS
    with engine.round(task.client(link, 0), rows={"item": [1, lost]}, handle=handle) as rnd:
        assert rnd.rows["item.weight"].tolist() == [1, lost]
        assert not handle.model.item.weight[lost].any()
        assert handle.model.item.weight[1].isfinite().all()
        handle.model.item(torch.tensor([1, lost])).sum().backward()
        handle.optimizers[0].step()
    assert rnd.submit().unmatched["rows4"].tolist() == [lost]
    sums = task.finish().sums["rows4"]
    assert np.flatnonzero(sums.any(axis=1)).tolist() == [1]
    assert handle.residual.pending("rows4").tolist() == [lost]


def test_after_a_weight_of_a_wrong_type_nothing_is_lost_and_a_good_one_is_taken() -> None:
    engine = SubmodelEngine()
    task = Task(engine, lane="weight", max_weight=3)
    link, weights, updates = task.begin(), (2, 3), []
    for number, handle in enumerate(task.handles):
        batch, client = make_batch(number), task.client(link, number)
        with engine.round(client, rows=wanted(batch), handle=handle) as rnd:
            train(handle.model, handle.optimizers, [batch])
        for bad in (1.5, 2.0, "2", True):
            with pytest.raises(ParameterError, match=r"lane='weight' and max_weight=3.*1\.\.3"):
                rnd.submit(weight=bad)  # type: ignore[arg-type]
        rnd.submit(weight=np.int64(weights[number]))  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="once a round"):
            rnd.submit(weight=2)
        assert rnd.update is not None
        updates.append({n: type(u)(u.indices, u.values * weights[number])
                        for n, u in rnd.update.items()})  # fmt: skip
    opened = task.finish()
    assert opened.total_weight == 5
    for name, total in plain_sum(task.plan, updates).items():
        np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)


@pytest.mark.parametrize("bad", [4, 0, -1, np.int64(1 << 40)])
def test_whoever_weighs_too_much_reports_like_all_others_and_adds_nothing(bad: int) -> None:
    """How much a client weighs is its own: silence would tell both servers."""
    engine = SubmodelEngine()
    task = Task(engine, lane="weight", max_weight=3)
    link = task.begin()
    for number, handle in enumerate(task.handles):
        batch, client = make_batch(number), task.client(link, number)
        with engine.round(client, rows=wanted(batch), handle=handle) as rnd:
            train(handle.model, handle.optimizers, [batch])
        if number:
            rnd.submit(weight=2)
            continue
        with pytest.raises(ParameterError, match=r"max_weight=3.*give min\(weight, 3\)"):
            rnd.submit(weight=bad)
        with pytest.raises(ProtocolError, match="once a round"):
            rnd.submit(weight=2)
        assert rnd.update is None
    assert all(len(server.reports.complete()) == len(task.handles) for server in task.servers)
    opened = task.finish()
    assert opened.clients == tuple(range(len(task.handles)))
    assert opened.total_weight == 2 * (len(task.handles) - 1)


def test_a_weight_without_a_lane_names_the_lane_it_needs() -> None:
    for lane in ("none", "count"):
        task = Task(SubmodelEngine(), lane=lane)
        link, handle = task.begin(), task.handles[0]
        client = task.client(link, 0)
        with task.engine.round(client, rows={"item": [1]}, handle=handle) as rnd:
            pass
        with pytest.raises(ParameterError, match=rf"lane is '{lane}'.*plan with lane='weight'"):
            rnd.submit(weight=3)
        rnd.submit()


def test_arguments_that_do_not_fit_the_plan_are_refused_before_anything_is_sent() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    link = task.begin()
    with pytest.raises(ParameterError, match="pass rows="):
        engine.round(task.client(link, 0), handle=task.handles[0])
    with pytest.raises(ParameterError, match="2 models are attached"):
        engine.round(task.client(link, 0), rows={"item": [1]})
    whole = Task(SubmodelEngine(), retrieve=False)
    with pytest.raises(ParameterError, match="retrieve=True"):
        whole.engine.round(whole.client(link, 0), rows={"item": [1]}, handle=whole.handles[0])
    assert link.traffic == []


def test_submitting_inside_the_block_or_twice_is_refused() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    link, handle = task.begin(), task.handles[0]
    with (
        pytest.raises(ProtocolError, match="leave the with block"),
        engine.round(task.client(link, 0), rows={"item": [1]}, handle=handle) as rnd,
    ):
        rnd.submit()
    client = task.client(link, 1)
    with engine.round(client, rows={"item": [1]}, handle=handle, number=0) as rnd:
        pass
    rnd.submit()
    with pytest.raises(ProtocolError, match="once a round"):
        rnd.submit()


def test_local_buffers_stay_local_and_averaged_ones_are_loaded() -> None:
    for buffers in ("local", "average"):
        engine = SubmodelEngine(buffers=buffers)  # type: ignore[arg-type]
        task = Task(engine)
        handle = task.handles[0]
        handle.model.norm.running_mean.fill_(5)
        link = task.begin()
        with engine.round(task.client(link, 0), rows={"item": [1]}, handle=handle) as rnd:
            expected = 5 if buffers == "local" else 0
            assert handle.model.norm.running_mean[0] == expected
        rnd.submit()


def test_a_table_that_the_planner_sends_dense_is_sent_whole() -> None:
    engine = SubmodelEngine()
    task = Task(engine, retrieve=False, rows_per_client=75, above_break_even="dense")
    assert {s.name: s.policy for s in task.plan.segments if s.name != "rest"} == {
        "rows4": "dense",
        "rows3": "dense",
    }
    link, updates = task.begin(), []
    for number, handle in enumerate(task.handles):
        before = handle.model.item.weight.detach().double()
        with engine.round(task.client(link, number), handle=handle) as rnd:
            train(handle.model, handle.optimizers, [make_batch(number)])
        change = (handle.model.item.weight.detach().double() - before).numpy()
        np.testing.assert_array_equal(np.asarray(rnd._raw["rows4"].values)[:200, 0], change.ravel())
        rnd.submit()
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
@pytest.mark.parametrize("rest", [None, Fixed([0, 3, 7, 20])])
def test_a_fixed_submodel_uploads_its_trees_once(retrieve: bool, rest: Fixed | None) -> None:
    engine = SubmodelEngine(rows=Rows(choose=FIXED), rest=rest)
    task = Task(engine, retrieve=retrieve, rows_per_client=None, max_epochs=3)
    assert {s.name: s.k_max for s in task.plan.segments if s.policy == "rows"} == {
        "rows4": 34,
        "rows3": 25,
    }
    clients, sizes = {}, []
    for number in range(4):
        link, updates = task.begin(), []
        for c, handle in enumerate(task.handles):
            client = clients.setdefault(c, task.client(link, c))
            client.servers = link
            with engine.round(client, handle=handle, number=number) as rnd:
                if retrieve:
                    np.testing.assert_array_equal(
                        handle.model.item.weight[24].detach().numpy(), task.state["item.weight"][24]
                    )
                    assert handle.model.item.weight[25].isnan().all()
                train(handle.model, handle.optimizers, [make_batch(number + c)])
            receipt = rnd.submit()
            updates.append(rnd.update)
        sizes.append(receipt.upload_bytes)
        opened = task.finish()
        for name, total in plain_sum(task.plan, updates).items():
            np.testing.assert_array_equal(opened.sums[name].reshape(total.shape), total)
    assert sizes[1] == sizes[2] < sizes[0] == sizes[3]


def test_sessions_need_fixed_policies() -> None:
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for engine, name in (
        (SubmodelEngine(), "rows4"),
        (SubmodelEngine(rows=Rows(choose=FIXED), rest=TopK(3)), "rest"),
    ):
        handle = engine.attach(model, optimizer)
        with pytest.raises(ParameterError, match=f"'{name}'.*Fixed"):
            engine.plan(handle, max_clients=2, rows_per_client=9, max_epochs=2)
        handle.remove()


def test_rows_are_averaged_by_who_sent_them_under_a_count_lane() -> None:
    engine = SubmodelEngine(encoding=WIDE)
    task = Task(engine, lane="count")
    before = {name: value.copy() for name, value in task.state.items()}
    link, sent = task.begin(), []
    for number, handle in enumerate(task.handles):
        batch = make_batch(1) if number == 0 else make_batch(2, 5, 12)
        start = {n: before[n].astype(float) for n in before}
        client = task.client(link, number)
        with engine.round(client, rows=wanted(batch), handle=handle) as rnd:
            train(handle.model, handle.optimizers, [batch])
        sent.append(
            {n: p.detach().double().numpy() - start[n] for n, p in handle.model.named_parameters()}
        )
        rnd.submit()
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
    engine = SubmodelEngine(rows=Rows(untouched=policy))  # type: ignore[arg-type]
    task = Task(engine, optimize=DECAYING[name])
    for low, high in ((0, 10), (10, 20), (5, 15)):
        link = task.begin()
        batch = make_batch(low, low, high)
        for number, handle in enumerate(task.handles):
            with engine.round(
                task.client(link, number), rows=wanted(batch), handle=handle, number=task.number
            ) as rnd:
                train(handle.model, handle.optimizers, [batch])
            rnd.submit()
        task.finish()
        assert all(np.isfinite(value).all() for value in task.state.values())
    for handle in task.handles:
        state = handle.optimizers[0].state
        tensors = [v for s in state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        assert all(v.isfinite().all() for v in tensors)


@pytest.mark.parametrize(
    ("encodings", "said"),
    [({}, "beyond clip = 0.01 were cut"),
     ({"rest": FixedPoint(ring_bits=32, frac_bits=16, clip=0.5)}, "beyond clip = 0.01 of ")],
)  # fmt: skip
def test_clipped_values_are_reported_and_warned_of(
    caplog: pytest.LogCaptureFixture, encodings: dict[str, FixedPoint], said: str
) -> None:
    encoding = FixedPoint(ring_bits=32, frac_bits=16, clip=0.01)
    engine = SubmodelEngine(encoding=encoding, encodings=encodings)
    task = Task(engine)
    link, handle = task.begin(), task.handles[0]
    client = task.client(link, 0)
    with engine.round(client, rows=wanted(make_batch(1)), handle=handle) as rnd:
        train(handle.model, handle.optimizers, [make_batch(1)])
    with caplog.at_level(logging.WARNING, "torchfsl"):
        rnd.submit()
    assert rnd.clip_report is not None
    assert rnd.clip_report.num_clipped > 0
    assert said in caplog.text
    assert not encodings or ", 0.5 of 'rest'" in caplog.text
    for private in (rnd.clip_report.num_clipped, f"{rnd.clip_report.largest:g}"):
        assert f" {private}" not in caplog.text


def test_a_finished_round_holds_no_memory() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    link, handle = task.begin(), task.handles[0]
    client = task.client(link, 0)
    with engine.round(client, rows=wanted(make_batch(1)), handle=handle) as rnd:
        train(handle.model, handle.optimizers, [make_batch(1)])
        held = handle.status().saved_bytes["item.weight"]
        rows = len(rnd.rows["item.weight"])
        assert 0 < held <= 2 * rows * (4 * 4 + 8) + 50
    assert set(handle.status().saved_bytes.values()) == {0}
    rnd.submit()


def test_a_second_block_on_one_model_and_a_wrong_number_are_told_what_to_do() -> None:
    engine = SubmodelEngine()
    task = Task(engine)
    link, handle = task.begin(), task.handles[0]
    first, second = (
        engine.round(task.client(link, number), rows={"item": [1]}, handle=handle)
        for number in (0, 1)
    )
    with (
        first,
        pytest.raises(ProtocolError, match="another client on this model begins after this one's"),
        second,
    ):
        pass
    wrong = engine.round(task.client(link, 1), rows={"item": [1]}, handle=handle, number=5)
    with pytest.raises(RejectedSubmission, match=r"round 5, open is \d+: give the open round's"):
        wrong.ask()

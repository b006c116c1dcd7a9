"""Mistakes that once ended in a wrong model, or in none, without a word."""

from __future__ import annotations

import copy
import io
import json
import threading
import warnings
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Claim, Hooks
from torchfsl.engine.round import Round
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.norm_bound import norm_kept, target_norm
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam

Source = Literal["delta", "gradient"]
USERS, ITEMS = torch.tensor([1, 2, 3]), torch.tensor([7, 8, 9])
IDS = {"users": USERS, "items": ITEMS}


class Model(nn.Module):
    def __init__(self, items: int = 400) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.users = nn.Embedding(items, 8), nn.Embedding(60, 8)
        self.head = nn.Linear(8, 1)

    def forward(self) -> Any:
        return self.head(self.users(USERS) * self.items(ITEMS)).squeeze(1)


class Setting:
    """One model, attached, its plan and two servers."""

    def __init__(
        self, *, settings: Settings | None = None, items: int = 400, server_model: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self.model = Model(items)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hooks = Hooks(self.model, self.optimizer, settings)
        usual: dict[str, Any] = {"max_clients": 8, "min_clients": 1, "rows_per_client": 12}
        plan = plan_of(self.hooks, **{**usual, **options})
        assert isinstance(plan, Plan)
        self.plan, state = plan, self.hooks.server_state()
        make = server_model or ServerModel
        self.servers = (
            Server(0, plan=plan, model=make(state)),
            Server(1, plan=plan, model=make(state)),
        )

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = (self.model() - 1).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def round(self, client: int = 0, number: int = 0, work: Any = None) -> Any:
        participant = Client(self.plan, self.servers, client_id=client)
        rows = IDS if self.plan.retrieving else None
        with Round(self.hooks, participant, rows=rows, number=number) as rnd:
            (self.step if work is None else work)()
        return rnd


# --- deltas and gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["delta", "gradient"])
def test_servers_that_take_gradients_for_deltas_are_refused_before_the_round(sent: Source) -> None:
    taken: Source = "gradient" if sent == "delta" else "delta"
    setting = Setting(
        settings=Settings(source=sent), server_model=lambda s: ServerModel(s, source=taken)
    )
    begin_round(setting.servers, 0)
    with pytest.raises(ParameterError, match=f"sends source='{sent}'.*use source='{taken}'"):
        setting.round()
    right = Setting(
        settings=Settings(source=sent), server_model=lambda s: ServerModel(s, source=sent)
    )
    begin_round(right.servers, 0)
    right.round()
    assert finish_round(right.servers).num_clients == 1


@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_simulated_servers_take_what_is_sent(protocol: Literal["fsl", "plain"]) -> None:
    """By default gradients were added: the loss grew from 0.8 to 8.6e9 in eight rounds."""

    def run(optimizer: Any = None) -> list[float]:
        model = Model()
        mine = torch.optim.SGD(model.parameters(), lr=0.1)
        fed = torchfsl.Federated(model, mine, source="gradient")

        def train(_: int) -> float:
            mine.zero_grad()
            loss = (model() - 1).pow(2).mean()
            loss.backward()
            mine.step()
            return float(loss)

        result = torchfsl.simulate(
            fed, range(3), train, rows=lambda _: IDS, rounds=5, progress=False, protocol=protocol,
            server_optimizer=optimizer,
        )  # fmt: skip
        return result.column("loss")

    losses = run(torchfsl.optim.SGD(0.1))
    assert losses == sorted(losses, reverse=True)
    assert run() == run(torchfsl.optim.SGD())


# --- one optimizer for both servers -------------------------------------------------------------


def test_one_optimizer_for_both_servers_is_refused() -> None:
    one = ServerAdam(0.1)
    setting = Setting(server_model=lambda state: ServerModel(state, one))
    with pytest.raises(ParameterError, match="one optimizer object"):
        begin_round(setting.servers, 0)
    two = Setting(server_model=lambda state: ServerModel(state, ServerAdam(0.1)))
    begin_round(two.servers, 0)


# --- threads ------------------------------------------------------------------------------------


def test_two_threads_do_not_measure_one_model_together() -> None:
    """Whoever comes second while a block is open is told so, and has sent nothing."""
    setting = Setting()
    begin_round(setting.servers, 0)
    problems: list[BaseException] = []

    def other() -> None:
        try:
            setting.round(client=1)
        except ProtocolError as error:
            problems.append(error)

    def work() -> None:
        setting.step()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    setting.round(client=0, work=work)
    assert [str(error)[:35] for error in problems] == ["a round is open on this model, and "]
    setting.round(client=1)  # in the same round, since nothing of it was sent
    assert finish_round(setting.servers).clients == (0, 1)


def test_a_claim_is_taken_by_one_of_many_threads() -> None:
    claim, taken = Claim(nn.Linear(1, 1), list), list[object]()
    start = threading.Barrier(8)

    def ask() -> None:
        owner = Setting.__new__(Setting)
        start.wait()
        try:
            claim.take(owner)
            taken.append(owner)
        except ProtocolError:
            pass

    for _ in range(50):
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == 1
        claim.give_back(taken.pop())


def test_a_round_that_was_never_left_frees_its_model_when_it_is_gone() -> None:
    dropped: list[int] = []
    claim, owner = Claim(nn.Linear(1, 1), lambda: dropped.append(1)), Setting.__new__(Setting)
    claim.take(owner)
    with pytest.raises(ProtocolError):
        claim.take(claim)
    claim.give_back(claim)  # not its own
    assert claim.is_of(owner)
    del owner
    assert not dropped
    claim.take(claim)
    assert dropped == [1]


def test_a_round_that_is_dropped_within_its_block_is_closed_by_the_next() -> None:
    setting = Setting()
    begin_round(setting.servers, 0)
    client = Client(setting.plan, setting.servers, client_id=0)
    rnd = Round(setting.hooks, client, rows=IDS, number=0)
    rnd.__enter__()
    with pytest.raises(ProtocolError, match="leave the block first"):
        rnd.__enter__()
    assert setting.hooks.claim.is_of(rnd)
    with pytest.raises(ProtocolError, match="leave the block of that round"):
        setting.round(client=1)
    del rnd
    setting.round(client=1)
    assert finish_round(setting.servers).clients == (1,)


def test_a_round_that_asked_ahead_may_be_entered_after_the_one_that_was_open() -> None:
    setting = Setting()
    begin_round(setting.servers, 0)
    clients = [Client(setting.plan, setting.servers, client_id=n) for n in (0, 1)]
    first, second = (Round(setting.hooks, one, rows=IDS, number=0) for one in clients)
    second.prefetch()
    with first:
        setting.step()
        with pytest.raises(ProtocolError, match="leave the block of that round"):
            second.__enter__()
    with second:
        setting.step()
    assert finish_round(setting.servers).clients == (0, 1)


@pytest.mark.parametrize("fails", ["before", "inside", "leaving"])
def test_a_round_that_failed_leaves_the_model_free(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting()
    begin_round(setting.servers, 0)

    def boom(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        if fails == "before":
            patch.setattr(type(setting.hooks.exchange), "load", boom)
        if fails == "leaving":
            patch.setattr(Hooks, "update", boom)
        with pytest.raises(ZeroDivisionError):
            setting.round(work=boom if fails == "inside" else None)
    setting.round(client=1)
    assert finish_round(setting.servers).clients == (0, 1)


# --- residuals of another model -----------------------------------------------------------------


def test_what_is_owed_to_rows_of_another_table_is_refused() -> None:
    """Tables of one segment: what users were owed went to rows of the larger table of items."""
    small = Setting(rows_per_client=2, retrieve=False)
    begin_round(small.servers, 0)
    small.round()
    state = small.hooks.state_dict()
    assert state["residuals"]
    larger = Setting(items=500, rows_per_client=12, retrieve=False)
    with pytest.raises(ParameterError, match=r"'rows8'.*old plan, or discard them"):
        larger.hooks.load_state_dict(state)
    assert not larger.hooks.state_dict()["residuals"]
    for odd in (5, {**state, "residuals": None}, {**state, "more": 1}):
        with pytest.raises(ParameterError, match=r"expected a state from fed\.state_dict\(\)"):
            larger.hooks.load_state_dict(odd)  # type: ignore[arg-type]
    larger.hooks.load_state_dict({**state, "residuals": {}})
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    again = Setting(rows_per_client=12, retrieve=False)
    again.hooks.load_state_dict(torch.load(file, weights_only=True))
    read = json.loads(json.dumps(state["layout"]))
    again.hooks.load_state_dict({**state, "layout": read})
    early = {name: part for name, part in state.items() if name != "layout"}
    again.hooks.load_state_dict(early)  # states that do not say, of versions before
    begin_round(again.servers, 0)
    rnd = again.round(work=lambda: None)
    assert rnd.update["rows8"].positions.tolist() == [7, 9, 401, 403]  # 8 and 402 were sent


# --- rounds that send nothing -------------------------------------------------------------------


def test_a_block_that_trains_another_model_is_told_so() -> None:
    setting = Setting()
    begin_round(setting.servers, 0)
    other = copy.deepcopy(setting.model)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    def elsewhere() -> None:
        other().sum().backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"no optimizer of torchfsl\.Federated took a step"):
        setting.round(work=elsewhere)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setting.round(client=1)
        # its report is there
        with pytest.raises(UserWarning, match=r"no optimizer of torchfsl\.Federated took a step"):
            setting.round(client=2, work=elsewhere)
    assert finish_round(setting.servers).clients == (0, 1, 2)


def test_an_optimizer_that_federated_does_not_have_is_warned_of() -> None:
    setting = Setting()
    begin_round(setting.servers, 0)
    other = torch.optim.SGD(setting.model.parameters(), lr=0.1)

    def elsewhere() -> None:
        setting.model().sum().backward()
        other.step()

    with pytest.warns(UserWarning, match="model changed in this block, but no optimizer of"):
        rnd = setting.round(work=elsewhere)
    assert any(part.values.any() for part in rnd.update.values())  # its report is whole
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setting.round(client=1)
    assert finish_round(setting.servers).clients == (0, 1)


# --- norms --------------------------------------------------------------------------------------


def test_a_bound_in_the_wrong_unit_is_told() -> None:
    """20 instead of 20 * 2**20: of a norm of 0.3 there is 0.00002 left."""
    setting = Setting(l2_bound=20)
    begin_round(setting.servers, 0)
    with pytest.warns(UserWarning, match=r"to 0\.\d\d% .* 20 units, .* 1.91e-05.*l2_bound\("):
        rnd = setting.round()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setting.round(client=1)  # said once
    assert finish_round(setting.servers).clients == (0, 1)
    kept = rnd.clip_report.norm_kept
    sent = sum(float((part.values.astype(float) ** 2).sum()) for part in rnd.update.values())
    free = Setting()
    begin_round(free.servers, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = free.round()
    assert whole.clip_report.norm_kept == 1.0
    norm = sum(float((part.values.astype(float) ** 2).sum()) for part in whole.update.values())
    assert kept == pytest.approx((sent / norm) ** 0.5, rel=0.1)  # rounding apart
    assert rnd.clip_report.num_clipped == 0


def test_the_share_that_a_bound_leaves_is_that_of_the_norms() -> None:
    parts = {"a": np.array([30.0, 40.0]), "b": np.array([0.0, 120.0])}  # norms 50 and 120: 130
    assert norm_kept(1000, 4, parts) == 1.0
    assert norm_kept(65, 4, parts) == pytest.approx(target_norm(65, 4) / 130)
    own = {"b": (60, 2)}
    left = float(np.hypot(50, target_norm(60, 2)))
    assert norm_kept(1000, 4, parts, own) == pytest.approx(left / 130)
    assert norm_kept(65, 4, parts, own) == pytest.approx(min(left, target_norm(65, 4)) / 130)
    assert norm_kept(9, 4, {"a": np.zeros(2)}) == 1.0


# --- tables that are none -----------------------------------------------------------------------


def test_private_retrieval_without_a_table_is_refused_and_the_round_says_why() -> None:
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Embedding(20, 8)), nn.Linear(8, 1)
    )
    hooks = Hooks(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ParameterError, match=r"retrieve=True.*weight_norm"):
        plan_of(hooks, max_clients=4, rows_per_client=12, retrieve=True)
    plan = plan_of(hooks, max_clients=4, min_clients=1, rows_per_client=12)
    state = hooks.server_state()
    servers = tuple(Server(b, plan=plan, model=ServerModel(state)) for b in (0, 1))
    client = Client(plan, servers, client_id=0)  # type: ignore[arg-type]
    with pytest.raises(
        ParameterError, match=r"no table .* by rows .*leave out rows= of the round$"
    ):
        Round(hooks, client, rows={"0": ITEMS}, number=0)

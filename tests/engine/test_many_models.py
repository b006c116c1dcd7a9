"""Models and loops of many kinds: the update is what a plain copy's training did."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.engine_models import (
    Recommender,
    engine_plan,
    exact_difference,
    make_batch,
    scatter,
    train,
)
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Fixed, Rows
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError

pytestmark = pytest.mark.filterwarnings("ignore")


class Bags(nn.Module):
    """EmbeddingBag in its odder forms."""

    def __init__(self, mode: str, sparse: bool) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(
            40, 4, mode=mode, sparse=sparse, include_last_offset=True, padding_idx=2
        )
        self.grid = nn.EmbeddingBag(40, 4, mode="sum")
        self.mode = mode

    def forward(self, seed: int) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 20, (12,), generator=g, dtype=torch.int32)
        weights = torch.rand(12, generator=g) if self.mode == "sum" else None
        offsets = torch.tensor([0, 3, 3, 12], dtype=torch.int32)
        one = self.bag(input=ids, offsets=offsets, per_sample_weights=weights)
        return one.square().sum() + self.grid(ids.reshape(4, 3)).tanh().sum()


class Text(nn.Module):
    """A recurrent model with keyword lookups, a padded embedding, weight norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 6, padding_idx=3, scale_grad_by_freq=True)
        self.rnn = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.out = torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 3))
        self.drop = nn.Dropout(0.3)

    def forward(self, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        ids = torch.randint(0, 30, (4, 7))
        state, _ = self.rnn(self.drop(self.words(input=ids)))
        return self.out(state[:, -1]).logsumexp(1).sum()


class Nested(nn.Module):
    """Tables in lists and dicts, one of them frozen, one used twice in a pass, one row, no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(9, 3), nn.Embedding(9, 3)])
        self.more = nn.ModuleDict({"one": nn.Embedding(1, 5), "frozen": nn.Embedding(9, 2)})
        self.more["frozen"].weight.requires_grad_(False)
        self.norm = nn.LayerNorm(3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, seed: int) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 5, (6,), generator=g)
        x = self.tables[0](ids) + self.tables[0](ids + 2) + self.tables[1](ids)
        empty = self.tables[1](torch.empty(0, dtype=torch.int64)).sum()
        extra = self.more["one"](ids * 0).sum() + self.more["frozen"](ids).sum()
        return (self.norm(x) * self.scale).square().sum() + extra + empty


class Subclass(nn.Embedding):
    """An embedding that does more than look up, through its own weight."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(input, self.weight) * 3


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = Subclass(20, 4)

    def forward(self, seed: int) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        return self.table(torch.randint(0, 10, (5,), generator=g)).exp().sum()


class Lion(torch.optim.Optimizer):
    """An optimizer that torch does not have: its momentum moves rows without a gradient."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                moment = self.state[p].setdefault("moment", torch.zeros_like(p))
                p.sub_((0.9 * moment + 0.1 * p.grad).sign(), alpha=group["lr"])
                moment.mul_(0.99).add_(p.grad, alpha=0.01)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bag sum": lambda: Bags("sum", False),
    "bag mean sparse": lambda: Bags("mean", True),
    "bag max": lambda: Bags("max", False),
    "recurrent": Text,
    "nested": Nested,
    "subclass": Custom,
    "no tables": lambda: _NoTables(),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.named_parameters(), lr=torch.tensor(0.05)),
    "Adagrad": lambda m: torch.optim.Adagrad([p for p in m.parameters() if p.requires_grad]),
    "Lion": lambda m: Lion(m.parameters()),
}


class _NoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.PReLU(2))

    def forward(self, seed: int) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed)
        return self.net(torch.randn(4, 1, 9, generator=g)).square().sum()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_update_is_what_training_did(name: str, optimizer: str) -> None:
    if (name, optimizer) == ("bag mean sparse", "Lion"):
        return  # a sparse gradient has no place in this optimizer
    torch.manual_seed(0)
    model = MODELS[name]()
    other = copy.deepcopy(model)
    mine, theirs = OPTIMIZERS[optimizer](model), OPTIMIZERS[optimizer](other)
    hooks = Hooks(model, mine)
    plan = engine_plan(hooks)
    for number in range(3):
        before = {n: p.detach().clone() for n, p in other.named_parameters()}
        hooks.begin_round()
        for m, o in ((model, mine), (other, theirs)):
            for seed in (2 * number, 2 * number + 1):
                o.zero_grad()
                m(seed).backward()
                if "sparse" not in name:
                    nn.utils.clip_grad_value_(m.parameters(), 10.0)
                o.step()
        sent = scatter(plan, hooks.update(plan))
        after = {n: p.detach() for n, p in other.named_parameters()}
        for tensor, value in exact_difference(after, before).items():
            if tensor in sent:
                np.testing.assert_array_equal(sent[tensor], value, err_msg=tensor)
            else:
                assert not value.any()


def test_an_optimizer_made_anew_each_round_keeps_delta_exact_and_gradient_honest() -> None:
    model = Recommender()
    hooks = Hooks(model, torch.optim.Adam(model.parameters(), lr=0.1))
    plan = engine_plan(hooks)
    for number in range(2):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        hooks.begin_round()
        train(model, [torch.optim.Adam(model.parameters(), lr=0.1)], [make_batch(number)])
        sent = scatter(plan, hooks.update(plan))
        after = {n: p.detach() for n, p in model.named_parameters()}
        for name, value in exact_difference(after, before).items():
            np.testing.assert_array_equal(sent[name], value)
    hooks.remove()
    hooks = Hooks(model, torch.optim.Adam(model.parameters()), Settings(source="gradient"))
    hooks.begin_round()
    train(model, [torch.optim.Adam(model.parameters(), lr=0.1)], [make_batch(1)])
    with pytest.raises(ParameterError, match=r"changed during a round with source='gradient'"):
        hooks.update(plan)


@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_a_forgotten_optimizer_is_noticed(source: str) -> None:
    model = Recommender(sparse=True)
    tables = [model.item.weight, model.user.weight, model.words.weight]
    rest = [p for p in model.parameters() if all(p is not t for t in tables)]
    sparse, dense = torch.optim.SparseAdam(tables), torch.optim.Adam(rest)
    hooks = Hooks(model, sparse, Settings(source=source))  # type: ignore[arg-type]
    hooks.begin_round()
    train(model, [sparse, dense], [make_batch(1)])
    with pytest.raises(ParameterError, match=r"norm\.weight changed.*\[a, b\]"):
        hooks.update(engine_plan(hooks))


def test_a_wrapper_that_skips_the_constructor_is_unwrapped() -> None:
    class Wrapped(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> Any:
            return self.optimizer.param_groups

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.optimizer.zero_grad(set_to_none)

        def step(self, closure: Any = None) -> None:
            self.optimizer.step()

    model = Recommender()
    wrapped = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
    hooks = Hooks(model, wrapped, Settings(source="gradient"))
    hooks.begin_round()
    train(model, [wrapped], [make_batch(1)])
    assert hooks.status().steps == 1
    assert scatter(p := engine_plan(hooks), hooks.update(p))["item.weight"].any()


def test_tables_may_be_named_by_their_module() -> None:
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer, Settings(rows=Rows(tables=("item", "user.weight"))))
    assert list(hooks.exchange.segment_tensors) == ["rows4", "rest"]
    hooks.remove()
    fixed = Fixed({"item": [3, 4], "user.weight": [1], "words": [2]})
    hooks = Hooks(model, optimizer, Settings(rows=Rows(choose=fixed, untouched="restrict")))
    plan = engine_plan(hooks, None)
    hooks.begin_round()
    train(model, [optimizer], [make_batch(1)])
    assert hooks.update(plan)["rows4"].indices.tolist() == [3, 4, 51]
    hooks.remove()
    hooks = Hooks(model, optimizer)
    with pytest.raises(
        ParameterError,
        match=r"has no number for 'user', and one for other tables of segment 'rows4'",
    ):
        plan_of(hooks, max_clients=2, rows_per_client={"item": 3})

"""Every refusal names the parameter, the reason, and the change that mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.engine_models import Recommender, engine_plan, loss_of, make_batch
from tests.support.engine_setup import plan_of
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Fixed, Rows
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError


def adam(model: nn.Module, **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), **options)


def attach(rows: Rows | None = None, optimizer: Callable[..., Any] = adam, **options: Any) -> Hooks:
    model = Recommender()
    settings = Settings(rows=Rows() if rows is None else rows)
    return Hooks(model, optimizer(model, **options), settings)


def tied() -> None:
    model = nn.ModuleDict({"words": nn.Embedding(9, 4), "decoder": nn.Linear(4, 9, bias=False)})
    model["decoder"].weight = model["words"].weight
    Hooks(model, adam(model))


def lazy() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    Hooks(model, adam(model))


def complex_numbers() -> None:
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    Hooks(model, adam(model))


def meta() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    Hooks(model, adam(model))


def stranger() -> None:
    model = Recommender()
    extra = nn.Parameter(torch.zeros(3))
    Hooks(model, torch.optim.SGD([*model.parameters(), extra], lr=0.1))


def budget() -> None:
    hooks = attach()
    plan_of(hooks, max_clients=2)


def later_parameter() -> None:
    hooks = attach()
    hooks.model.top.bias.requires_grad_(False)
    hooks.begin_round()


def later_decay() -> None:
    hooks = attach()
    hooks.optimizers[0].param_groups[0]["weight_decay"] = 0.1
    hooks.begin_round()


def trained(step: Callable[[Any], None], rows: Rows | None = None) -> None:
    hooks = attach(rows)
    hooks.begin_round()
    step(hooks)
    hooks.update(engine_plan(hooks, None if rows else 40))


def write(hooks: Hooks) -> None:
    with torch.no_grad():
        hooks.model.user.weight[3] += 1


def diverge(hooks: Hooks) -> None:
    (loss_of(hooks.model, make_batch(1)) * float("inf")).backward()
    torch.optim.SGD(hooks.model.parameters(), lr=1.0).step()


def look_up(hooks: Hooks) -> None:
    loss_of(hooks.model, make_batch(1)).backward()


FIXED = Fixed({"item.weight": [1], "user.weight": [1], "words.weight": [1]})

# What is done, the parameter named, the reason, the remedy.
CASES: list[tuple[str, Callable[[], Any], str, str, str]] = [
    ("decay", lambda: attach(weight_decay=0.1), "item.weight", "also moves rows", "restrict"),
    ("AdamW", lambda: attach(optimizer=lambda m: torch.optim.AdamW(m.parameters())),
     "item.weight", "weight_decay=0.01 also moves rows", "parameter group"),
    ("ASGD", lambda: attach(optimizer=lambda m: torch.optim.ASGD(m.parameters())),
     "item.weight", "lambd=0.0001 also moves rows", "restrict"),
    ("LBFGS", lambda: attach(optimizer=lambda m: torch.optim.LBFGS(m.parameters())),
     "item.weight", "closure many times", "SGD"),
    ("tied", tied, "words.weight", "is also decoder.weight", "find='scan'"),
    ("lazy", lazy, "0.weight", "not initialised", "run one forward pass"),
    ("complex", complex_numbers, "phase", "dtype torch.complex64", "requires_grad_(False)"),
    ("meta", meta, "weight", "meta device", "to_empty"),
    ("stranger", stranger, "shape (3,)", "is not in the model", "pass Federated the module"),
    ("tables", lambda: attach(Rows(tables=("top.weight",))),
     "top.weight", "not the weight of an nn.Embedding", "the trained tables ['item.weight'"),
    ("fixed name", lambda: attach(Rows(choose=Fixed({"nope": [1]}))),
     "nope", "not a parameter of the model", "the trained tables "),
    ("fixed range", lambda: attach(Rows(choose=Fixed({"item.weight": [99]}))),
     "item.weight", "row id 99 of Fixed", "from 0 to 49"),
    ("fixed list", lambda: attach(Rows(choose=Fixed([1]))),
     "item.weight", "Fixed expects", "mapping from table names to row ids"),
    ("budget", budget, "item.weight", "no limit on the rows", "rows_per_client="),
    ("frozen later", later_parameter, "top.bias", "differs from the", "call fed.detach()"),
    ("decay later", later_decay, "item.weight", "weight_decay=0.1", "restrict"),
    ("written", lambda: trained(write), "user.weight", "no lookup touched", "look rows up through"),
    ("diverged", lambda: trained(diverge), "item.weight", "NaN or infinite", "learning rate"),
    ("not fixed", lambda: trained(look_up, Rows(choose=FIXED)),
     "item.weight", "outside the fixed ids", "untouched='restrict'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("act", "name", "reason", "remedy"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_refusal_names_parameter_reason_and_remedy(
    act: Callable[[], Any], name: str, reason: str, remedy: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        act()
    for part in (name, reason, remedy):
        assert part in str(caught.value)


AT_ATTACH = [c for c in CASES[:13] if c[0] != "lazy"]  # lazy modules have hooks of their own


@pytest.mark.parametrize("act", [c[1] for c in AT_ATTACH], ids=[c[0] for c in AT_ATTACH])
def test_a_refused_attach_leaves_no_hooks(
    act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a hook was registered")

    monkeypatch.setattr(nn.Module, "register_forward_pre_hook", never)
    monkeypatch.setattr(torch.optim.Optimizer, "register_step_pre_hook", never)
    with pytest.raises(ParameterError):
        act()

"""DP-SGD by Opacus on the same optimizer: its noise lands on every row."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.engine_models import engine_plan, exact_difference, parameters_of, scatter
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.policies import Dense, Fixed, Rows, TopK
from torchfsl.engine.settings import Settings
from torchfsl.errors import ParameterError

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: it is in the test extra")
pytestmark = pytest.mark.filterwarnings("ignore")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 4)
        self.top = nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.words(ids).mean(1))


def private(model: nn.Module, optimizer: torch.optim.Optimizer):
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randint(0, 8, (32, 3), generator=g), torch.randint(0, 2, (32,), generator=g)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
        )


def build():
    torch.manual_seed(0)
    model = Classifier()
    return model, private(model, torch.optim.SGD(model.parameters(), lr=0.1))


def epoch(model, optimizer, loader) -> None:
    for ids, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), labels).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "rows", [Rows(), Rows(top=5), Rows(find="scan"), Rows(untouched="touched")]
)
def test_a_row_set_that_depends_on_the_data_is_refused(rows: Rows) -> None:
    _, (wrapped, optimizer, _) = build()
    with pytest.raises(ParameterError, match=r"words\.weight: Opacus.*every row.*Fixed.*servers"):
        Hooks(wrapped, optimizer, Settings(rows=rows))


def test_rows_outside_a_fixed_set_need_a_policy() -> None:
    _, (wrapped, optimizer, _) = build()
    rows = Rows(choose=Fixed(range(10)))
    with pytest.raises(ParameterError, match=r"words\.weight: Opacus.*restrict"):
        Hooks(wrapped, optimizer, Settings(rows=rows))


@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_a_public_row_set_carries_the_noise_and_the_rest_is_put_back(source: str) -> None:
    model, (wrapped, optimizer, loader) = build()
    rows = Rows(choose=Fixed(range(10)), untouched="restrict")
    hooks = Hooks(wrapped, optimizer, Settings(rows=rows, source=source))  # type: ignore[arg-type]
    assert list(hooks.server_state()) == ["words.weight", "top.weight", "top.bias"]
    plan = engine_plan(hooks, None)
    before = parameters_of(model)
    hooks.begin_round()
    epoch(wrapped, optimizer, loader)
    sent = scatter(plan, hooks.update(plan))
    assert sent["words.weight"][8:10].any(), "noise on rows that no batch touched"
    assert not sent["words.weight"][10:].any()
    if source == "delta":
        for name, value in exact_difference(parameters_of(model), before).items():
            np.testing.assert_array_equal(sent[name], value)
    else:
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_the_whole_table_can_be_sent() -> None:
    model, (wrapped, optimizer, loader) = build()
    for rest in (Dense(), TopK(20)):
        hooks = Hooks(wrapped, optimizer, Settings(rows=None, rest=rest))
        plan = engine_plan(hooks, None)
        before = parameters_of(model)
        hooks.begin_round()
        epoch(wrapped, optimizer, loader)
        sent = scatter(plan, hooks.update(plan))
        if rest == Dense():
            for name, value in exact_difference(parameters_of(model), before).items():
                np.testing.assert_array_equal(sent[name], value)
        hooks.remove()


def test_opacus_taking_over_after_attach_is_noticed() -> None:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = Hooks(model, optimizer)
    wrapped, noisy, loader = private(model, optimizer)
    hooks.begin_round()
    with pytest.raises(
        ParameterError,
        match=r"words\.weight: make_private of Opacus was called after torchfsl\.Federated",
    ):
        epoch(wrapped, noisy, loader)

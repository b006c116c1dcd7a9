from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn

import models
from training.local import loss, make_optimizer, train
from training.section_checks import ConfigError
from training.sections import Local
from training.tasks.task import Batch, Work

LOCAL = Local(optimizer="sgd", lr=0.1)


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(6, 1, 28, 28, generator=generator)
    return Batch((images,), torch.randint(10, (6,), generator=generator))


def trained(model: nn.Module, local: Local) -> dict[str, torch.Tensor]:
    own = copy.deepcopy(model)
    train(own, make_optimizer(own, local), Work({}, (batch(1), batch(2))), local)
    return dict(own.state_dict())


def test_bfloat16_trains_nearly_the_same_float32_weights() -> None:
    torch.manual_seed(0)
    model = models.MnistCNN()
    low = dataclasses.replace(LOCAL, precision="bfloat16")
    exact, rounded = trained(model, LOCAL), trained(model, low)
    assert {tensor.dtype for tensor in rounded.values()} == {torch.float32}
    assert any(not torch.equal(exact[name], rounded[name]) for name in exact)
    for name, tensor in exact.items():
        torch.testing.assert_close(rounded[name], tensor, rtol=0, atol=5e-3)


def test_the_loss_is_float32_at_either_precision() -> None:
    model = models.MnistCNN()
    low = dataclasses.replace(LOCAL, precision="bfloat16")
    values = [loss(model, batch(3), local) for local in (LOCAL, low)]
    assert [value.dtype for value in values] == [torch.float32, torch.float32]
    assert values[0] != values[1]


def test_mnist_cnn_pools_before_its_activations_without_changing_the_function() -> None:
    torch.manual_seed(0)
    model = models.MnistCNN().eval()
    first, second = (m for m in model.features if isinstance(m, nn.Conv2d))
    images = batch(4).inputs[0]
    maps = nn.functional.max_pool2d(first(images).relu(), 2)
    maps = nn.functional.max_pool2d(second(maps).relu(), 2)
    torch.testing.assert_close(model(images), model.classifier(maps.flatten(1)))


def test_the_proximal_term_is_that_of_fedprox() -> None:
    """Two steps written out: the second gradient is pulled back by mu times the first step."""
    start = torch.tensor([[1.0, -2.0]])
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = start.clone()
    inputs = torch.tensor([[0.5, 1.5]])
    batches = (Batch((inputs,), torch.zeros(1, dtype=torch.int64)),) * 2

    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = model

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.linear(values)[:, 0].square() / 2

    batches = tuple(Batch(one.inputs, None) for one in batches)
    local = Local(optimizer="sgd", lr=0.1, proximal=2.0)
    train(Squared(), make_optimizer(model, local), Work({}, batches), local)
    expected = start.clone()
    for _ in range(2):
        gradient = (inputs @ expected.T) * inputs + 2.0 * (expected - start)
        expected = expected - 0.1 * gradient
    torch.testing.assert_close(model.weight.data, expected)


def test_rows_that_were_not_fetched_stay_out_of_the_proximal_term() -> None:
    table = nn.Embedding(4, 2)
    table.weight.data = torch.tensor([[1.0, 1.0], [torch.nan, torch.nan], [2.0, 2.0], [3.0, 3.0]])

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = table

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids).sum(dim=1)

    local = Local(optimizer="sgd", lr=0.5, proximal=1.0)
    batch_of = Batch((torch.tensor([0]),), None)
    train(Sum(), make_optimizer(table, local), Work({}, (batch_of, batch_of)), local)
    # A step of -0.5, then one of -0.5 * (1 - 0.5).
    assert table.weight.data[0].tolist() == [0.25, 0.25]
    assert torch.isnan(table.weight.data[1]).all()
    assert table.weight.data[2:].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_a_negative_mu_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.proximal is -1"):
        Local(proximal=-1.0)

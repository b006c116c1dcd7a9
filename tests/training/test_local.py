from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn

import models
from training.local import loss, make_optimizer, train
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

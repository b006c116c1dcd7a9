"""Narrow networks of the paper's kinds, and federations of them in one process."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional

from torchfsl.privhfl import Querying, QueryPlan, Ring, make_plan

SEED = b"tests of privhfl"
SHAPE = (3, 8, 8)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Block(nn.Module):
    """Two convolutions and a shortcut, which is the identity unless the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.shortcut = (
            nn.Identity() if (before, stride) == (after, 1) else nn.Conv2d(before, after, 1, stride)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.shortcut(x))


def vgg7(width: int = 2) -> nn.Module:
    """Six convolutions, pooling before or behind the ReLU, one linear layer."""
    layers: list[nn.Module] = []
    before = 3
    for stage, after in enumerate((width, 2 * width, 2 * width)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1)]
        layers += [nn.MaxPool2d(2), nn.ReLU()] if stage else [nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


def resnet(blocks: tuple[int, ...], width: int = 2) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage, stride in enumerate(blocks):
        after = width * (1 + stage // 2)
        layers.append(Block(before, after, stride))
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def networks(seed: int = 0) -> dict[int, nn.Module]:
    """VGG-7, ResNet-8 and ResNet-10, narrow, with batch norm statistics that are not trivial."""
    torch.manual_seed(seed)
    made = {0: vgg7(), 1: resnet((1, 2, 2)), 2: resnet((1, 2, 2, 1))}
    for module in made.values():
        with torch.no_grad():
            for _ in range(3):
                module(torch.rand(16, *SHAPE, generator=generator(seed)) * 2 - 0.5)
        module.eval()
    return made


def federation(
    modules: dict[int, nn.Module], plan: QueryPlan | None = None, mode: str = "secure",
    seed: bytes | None = SEED, **fields: object,
) -> Querying:  # fmt: skip
    """A `Querying` whose clients have loaded their networks."""
    if plan is None:
        fields = {"batch": 2, "min_answering": 1, "session": "tests", **fields}
        plan = make_plan(modules, SHAPE, **fields)
    querying = Querying(plan, mode=mode, seed=seed)  # type: ignore[arg-type]
    for client, module in modules.items():
        querying.load(client, copy.deepcopy(module), images(16, seed=client))
    return querying


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=generator(seed))


RINGS = {32: Ring(), 64: Ring(64, 20, 20)}

"""Small models, every optimizer the engine promises, and brute-force comparisons."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.support.engine_setup import plan_of
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.hooks import Hooks
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.segments import tensor_spans
from torchfsl.submodel.update import RawSegment

torch.set_num_threads(1)  # small tensors: threads only wait for each other

NUM_ITEMS, NUM_WORDS = 50, 40


def start_afresh(optimizer: torch.optim.Optimizer) -> None:
    """The state of an optimizer just made: none, or zeros where torch makes them with it."""
    fresh = type(optimizer)([dict(group) for group in optimizer.param_groups])  # type: ignore[call-arg]
    optimizer.state.clear()
    optimizer.state.update(fresh.state)


class Recommender(nn.Module):
    """Two tables of one width, one of another, a tied use, padding, BatchNorm."""

    def __init__(self, sparse: bool = False, max_norm: float | None = None) -> None:
        super().__init__()
        self.item = nn.Embedding(NUM_ITEMS, 4, padding_idx=0, sparse=sparse, max_norm=max_norm)
        self.history = nn.Embedding(NUM_ITEMS, 4, padding_idx=0, sparse=sparse)
        self.history.weight = self.item.weight
        self.user = nn.Embedding(30, 4, sparse=sparse)
        self.words = nn.EmbeddingBag(NUM_WORDS, 3, mode="mean", sparse=sparse)
        self.norm = nn.BatchNorm1d(15)
        self.top = nn.Linear(15, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        past = self.history(batch["history"]).sum(1)
        bag = self.words(batch["words"])
        x = torch.cat([self.item(batch["item"]), past, self.user(batch["user"]), bag], 1)
        return self.top(self.norm(x)).squeeze(1)


def make_batch(seed: int, low: int = 0, high: int = 25) -> dict[str, torch.Tensor]:
    """Ids of items and words in [low, high), users in [0, 10)."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(low, high, shape, generator=g)  # noqa: E731
    return {
        "item": draw(6),
        "history": draw(6, 3),
        "words": draw(6, 2),
        "user": torch.randint(0, 10, (6,), generator=g),
        "label": torch.randn(6, generator=g),
    }


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch) - batch["label"].to(next(model.parameters()).dtype)).square().mean()


def train(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], batches: list[Any]
) -> None:
    for batch in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()


Make = Callable[[nn.Module], list[torch.optim.Optimizer]]


@dataclass(frozen=True)
class Case:
    """An optimizer and what it does to rows without a gradient."""

    name: str
    make: Make
    sparse: bool = False
    moves_all: bool = False

    def build(self, seed: int = 0) -> tuple[Recommender, list[torch.optim.Optimizer]]:
        torch.manual_seed(seed)
        model = Recommender(sparse=self.sparse)
        return model, self.make(model)


def _one(kind: Any, **options: Any) -> Make:
    return lambda model: [kind(model.parameters(), **options)]


def _two(kind: Any, rest: Any, **options: Any) -> Make:
    """One optimizer for the tables, another for the rest."""

    def make(model: nn.Module) -> list[torch.optim.Optimizer]:
        tables = [model.item.weight, model.user.weight, model.words.weight]
        others = [p for p in model.parameters() if all(p is not t for t in tables)]
        return [kind(tables, **options), rest(others, lr=0.05)]

    return make


_o = torch.optim
CASES = [
    Case("SGD", _one(_o.SGD, lr=0.1)),
    Case("SGD foreach", _one(_o.SGD, lr=0.1, foreach=True)),
    Case("SGD fused", _one(_o.SGD, lr=0.1, fused=True)),
    Case("SGD sparse", _one(_o.SGD, lr=0.1), sparse=True),
    Case("SGD maximize", _one(_o.SGD, lr=0.1, maximize=True)),
    Case("SGD momentum", _one(_o.SGD, lr=0.1, momentum=0.9)),
    Case("SGD momentum foreach", _one(_o.SGD, lr=0.1, momentum=0.9, foreach=True)),
    Case("SGD momentum fused", _one(_o.SGD, lr=0.1, momentum=0.9, fused=True)),
    Case("SGD Nesterov", _one(_o.SGD, lr=0.1, momentum=0.9, nesterov=True)),
    Case("SGD weight decay", _one(_o.SGD, lr=0.1, weight_decay=0.1), moves_all=True),
    Case("Adagrad", _one(_o.Adagrad, lr=0.1)),
    Case("Adagrad foreach", _one(_o.Adagrad, lr=0.1, foreach=True)),
    Case("Adagrad fused", _one(_o.Adagrad, lr=0.1, fused=True)),
    Case("Adagrad sparse", _one(_o.Adagrad, lr=0.1), sparse=True),
    Case("Adagrad weight decay", _one(_o.Adagrad, lr=0.1, weight_decay=0.1), moves_all=True),
    Case("Adam", _one(_o.Adam, lr=0.05)),
    Case("Adam foreach", _one(_o.Adam, lr=0.05, foreach=True)),
    Case("Adam fused", _one(_o.Adam, lr=0.05, fused=True)),
    Case("Adam amsgrad", _one(_o.Adam, lr=0.05, amsgrad=True)),
    Case("Adam weight decay", _one(_o.Adam, lr=0.05, weight_decay=0.1), moves_all=True),
    Case("AdamW", _one(_o.AdamW, lr=0.05), moves_all=True),
    Case("AdamW foreach", _one(_o.AdamW, lr=0.05, foreach=True), moves_all=True),
    Case("AdamW fused", _one(_o.AdamW, lr=0.05, fused=True), moves_all=True),
    Case("AdamW without decay", _one(_o.AdamW, lr=0.05, weight_decay=0.0)),
    Case("RMSprop", _one(_o.RMSprop, lr=0.02)),
    Case("RMSprop foreach", _one(_o.RMSprop, lr=0.02, foreach=True)),
    Case("RMSprop centered", _one(_o.RMSprop, lr=0.02, centered=True)),
    Case("RMSprop momentum", _one(_o.RMSprop, lr=0.02, momentum=0.9)),
    Case("RMSprop weight decay", _one(_o.RMSprop, lr=0.02, weight_decay=0.1), moves_all=True),
    Case("SparseAdam", _two(_o.SparseAdam, _o.Adam, lr=0.05), sparse=True),
    Case("Adadelta", _one(_o.Adadelta, lr=1.0)),
    Case("Adadelta foreach", _one(_o.Adadelta, lr=1.0, foreach=True)),
    Case("Adadelta weight decay", _one(_o.Adadelta, lr=1.0, weight_decay=0.1), moves_all=True),
    Case("NAdam", _one(_o.NAdam, lr=0.05)),
    Case("NAdam foreach", _one(_o.NAdam, lr=0.05, foreach=True)),
    Case("NAdam weight decay", _one(_o.NAdam, lr=0.05, weight_decay=0.1), moves_all=True),
]


def parameters_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def engine_plan(hooks: Hooks, rows: int | None = 80) -> Plan:
    return plan_of(
        hooks,
        max_clients=4,
        rows_per_client=rows,
        retrieve=False,
        above_break_even="keep",
        session=bytes(16),
        hash_seed=bytes(32),
    )


def scatter(plan: Plan, raw: dict[str, RawSegment]) -> dict[str, np.ndarray]:
    """The update as one array for every tensor of the plan, zero where nothing was sent."""
    tensors: dict[str, np.ndarray] = {}
    for segment in plan.segments:
        part = raw[segment.name]
        full = np.zeros((segment.index_space, segment.tau))
        if part.indices is None:
            full[:] = np.asarray(part.values).reshape(segment.index_space, 1)
        else:
            full[part.indices] = part.values
        for tensor, span in tensor_spans(segment):
            tensors[tensor.name] = full[span].reshape(-1)[: tensor.numel].reshape(tensor.shape)
    return tensors


def exact_difference(
    after: dict[str, torch.Tensor], before: dict[str, torch.Tensor]
) -> dict[str, np.ndarray]:
    return {n: (after[n].double() - before[n].double()).numpy() for n in after}


def clone_training(
    model: nn.Module, optimizers: list[torch.optim.Optimizer], case: Case
) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """An independent copy of model and optimizer state, without the engine."""
    other = copy.deepcopy(model)
    copies = case.make(other)
    for mine, theirs in zip(copies, optimizers, strict=True):
        mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    return other, copies


WIDE = FixedPoint(ring_bits=64, frac_bits=30, clip=64.0)

"""Mistakes of callers: each has its own message, code and remedy; NumPy pictures are taken."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.errors import raises
from torchfsl.errors import ParameterError
from torchfsl.privhfl import Querying, make_plan
from torchfsl.privhfl.network import read_network

SHAPE = (1, 4, 4)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))


def pictures(count: int = 5) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, *SHAPE))


@pytest.fixture(scope="module")
def querying() -> Querying:
    module = small()
    found = Querying(make_plan({1: module, 2: module, 3: module, 4: module}, SHAPE, batch=4))
    for client in (1, 2, 3):
        found.load(client, module, pictures())
    return found


@pytest.mark.parametrize(
    ("ask", "code", "words"),
    [
        (lambda q: q.ask(1, [2, 9], pictures()), "unknown-client", "client is 9"),
        (lambda q: q.ask(9, [2, 3], pictures()), "unknown-client", "client is 9"),
        (lambda q: q.ask(1, [1, 2], pictures()), "client-limits", "remove client 1"),
        (lambda q: q.ask(1, [2, 4], pictures()), "weights-missing", r"clients \[4\]"),
        (lambda q: q.ask(1, [2, 3], pictures()[:0]), "wrong-shape", r"shape \(0, 1, 4, 4\)"),
        (lambda q: q.ask(1, [2, 3], pictures()[0]), "wrong-shape", r"expected \(M, "),
        (lambda q: q.ask(1, [2, 3], [[1.0]]), "wrong-type", "of type list"),
        (lambda q: q.ask(1, [2, 3], pictures(), 1 << 16), "out-of-range", "iteration is 65536"),
        (lambda q: q.load(9, small(), pictures()), "unknown-client", "client is 9"),
        (lambda q: q.load(1, small(), pictures()[0]), "wrong-shape", "samples has shape"),
        (lambda q: q.plan.phase_bytes(9), "unknown-client", "client is 9"),
        (lambda q: q.plan.steps(9), "unknown-client", "client is 9"),
    ],
)
def test_each_cause_has_a_message_of_its_own(
    querying: Querying, ask: Callable[[Querying], object], code: str, words: str
) -> None:
    with raises(ParameterError, code) as caught:
        ask(querying)
    assert re.search(words, str(caught.value))


def test_numpy_pictures_give_the_answers_of_tensors() -> None:
    plan = make_plan({1: small(), 2: small(), 3: small()}, SHAPE, batch=4, session="test")
    answers = []
    for kind in (np.asarray, torch.as_tensor):
        querying = Querying(plan, seed=bytes(32))
        for client in plan.clients:
            querying.load(client, small(), kind(pictures()))
        answers.append(querying.ask(1, [2, 3], kind(pictures())).logits)
    assert torch.equal(*answers)
    bytes_of_pixels = np.zeros((2, *SHAPE), dtype=np.uint8)
    assert querying.ask(1, [2, 3], bytes_of_pixels, iteration=1).logits.shape == (2, 2)


def test_a_plan_explains_itself(querying: Querying) -> None:
    assert "clients answer" in querying.plan.explain()


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


class Gelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.linear(x.flatten(1)))


class Square(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x.flatten(1))
        return y * y


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Branching(), "unsupported-module"),
        (Gelu(), "unsupported-module"),
        (Square(), "unsupported-module"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.SiLU()), "unsupported-module"),
        (nn.Sequential(nn.Flatten(), nn.Linear(17, 2)), "wrong-shape"),
    ],
)
def test_refusals_of_modules_have_one_line_without_the_graph_of_torch_fx(
    module: nn.Module, code: str
) -> None:
    with raises(ParameterError, code) as caught:
        read_network(module, SHAPE)
    text = str(caught.value)
    for noise in ("\n", "While executing", "built-in", "Traceback", "%", "torch.fx"):
        assert noise not in text
    assert len(text) < 260


def test_clients_are_numbered() -> None:
    with pytest.raises(ParameterError, match="whole numbers"):
        make_plan({"a": small()}, SHAPE)  # type: ignore[dict-item]

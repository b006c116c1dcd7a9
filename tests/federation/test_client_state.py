"""Clients that train one model in turn end as clients that train apart, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, StepLR

import torchfsl
from torchfsl.crypto.fixed_point import FixedPoint

WORDS, WIDTH = 200, 8
ENCODING = FixedPoint(ring_bits=32, frac_bits=20, clip=4.0)
Train = Callable[[nn.Module, torch.optim.Optimizer, int], None]


class Net(nn.Module):
    """A table, a layer, and buffers that count the calls in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.calls: torch.Tensor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        out: torch.Tensor = self.head(self.words(ids).mean(1)).squeeze(1)
        return out / (1 + 0.1 * self.calls)  # what a counter left would change


class Dense(nn.Module):
    """No table: everything is sent whole."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(ids / WORDS).squeeze(1)
        return out


def data_of(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(client)
    ids = torch.randint(0, WORDS, (12, 4), generator=g)
    return ids, (ids.sum(1) % 2).float()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, client: int) -> None:
    ids, labels = data_of(client)
    for _ in range(3):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(ids), labels).backward()
        optimizer.step()


def scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> Train:
    def train(model: nn.Module, optimizer: torch.optim.Optimizer, client: int) -> None:
        schedule = make(optimizer)
        for _ in range(2):
            steps(model, optimizer, client)
            schedule.step()

    return train


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, client: int) -> None:
    """Steps after every second of three batches: what the third leaves goes out nowhere."""
    ids, labels = data_of(client)
    for number, (part, label) in enumerate(zip(ids.split(4), labels.split(4), strict=True)):
        functional.binary_cross_entropy_with_logits(model(part), label).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def changing_groups(model: nn.Module, optimizer: torch.optim.Optimizer, client: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5 + 0.1 * client
        group["seen"] = client
    steps(model, optimizer, client)


class Counting(torch.optim.Optimizer):
    """Bias correction by a counter that is kept where `place` says."""

    def __init__(self, params: Any, place: str, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.place, self.taken = place, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.taken += 1
        named: dict[Any, Any] = self.state
        named["all"] = {"step": named.get("all", {"step": 0})["step"] + 1}
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            count = {"group": group["step"], "attribute": self.taken, "state": named["all"]["step"]}
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                    mean.mul_(0.9).add_(p.grad, alpha=0.1)
                    p.sub_(group["lr"] * mean / (1 - 0.9 ** count[self.place]))


class Packed(torch.Tensor):
    """Only read and written whole, as the states of 8-bit optimizers are."""

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Packed:
        made: Packed = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, data: torch.Tensor) -> None:
        self.inner = data

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return cls(args[0].inner.clone())
        raise NotImplementedError(f"Packed: {func}")


class Heavy(torch.optim.Optimizer):
    """Momentum in packed tensors."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("exp_avg", Packed(torch.zeros_like(p)))
                    kept.inner.mul_(0.9).add_(p.grad)
                    p.sub_(group["lr"] * kept.inner)


def apart(
    build: Callable[[], nn.Module], optimize: Any, train: Train, clients: list[int], rounds: int,
    *, own: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """What servers should hold if every client has a model and an optimizer of its own."""
    state = {n: p.detach().numpy().copy() for n, p in build().named_parameters()}
    kept: dict[int, tuple[nn.Module, Any]] = {}
    for _ in range(rounds):
        total: dict[str, Any] = dict.fromkeys(state, 0)
        for client in clients:
            if client not in kept or not own:
                model = build()
                kept[client] = model, optimize(model)
            model, optimizer = kept[client]
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(torch.from_numpy(state[name]))
                    p.grad = None
            train(model, optimizer, client)
            for name, p in model.named_parameters():
                change = p.detach().double().numpy() - state[name].astype(np.float64)
                total[name] = total[name] + ENCODING.quantise(change)[0]
        for name, value in state.items():
            mean = ENCODING.dequantise(total[name]) / len(clients)
            state[name] = (value.astype(np.float64) + mean).astype(value.dtype)
    return state


def simulated(
    build: Callable[[], nn.Module], optimize: Any, train: Train, clients: list[int], rounds: int,
    *, own: bool, rows: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    model = build()
    optimizer = optimize(model)
    policy = torchfsl.Rows(error_feedback=False) if rows else None
    fed = torchfsl.Federated(
        model, optimizer, rows=policy, max_clients=8, min_clients=1, encoding=ENCODING,
        rows_per_client=100 if rows else None, above_break_even="keep",
    )  # fmt: skip
    result = torchfsl.simulate(
        fed, {c: c for c in clients}, lambda c: train(model, optimizer, c), rounds=rounds,
        rows=(lambda c: {"words": data_of(c)[0]}) if rows else None, protocol="plain",
        server_optimizer=torchfsl.optim.SGD(), progress=False,
        optimizer_state="own" if own else "fresh",
    )  # fmt: skip
    return {name: np.asarray(value) for name, value in result.model_state.items()}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


CASES: dict[str, tuple[Callable[[], nn.Module], Any, Train, bool]] = {
    "Adam": (Net, lambda m: torch.optim.Adam(m.parameters(), lr=0.05), steps, True),
    "Adagrad": (Net, lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1), steps, True),
    "momentum": (Net, lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9), steps, True),
    "counter in the group": (Net, lambda m: Counting(m.parameters(), "group"), steps, True),
    "counter on the optimizer": (
        Net, lambda m: Counting(m.parameters(), "attribute"), steps, True,
    ),
    "counter in a named state": (Net, lambda m: Counting(m.parameters(), "state"), steps, True),
    "rate as a tensor": (
        Net, lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.05)), steps, True,
    ),
    "ExponentialLR": (Net, sgd, scheduled(lambda o: ExponentialLR(o, 0.5)), True),
    "CosineAnnealingLR": (Net, sgd, scheduled(lambda o: CosineAnnealingLR(o, 2)), True),
    "StepLR": (Net, sgd, scheduled(lambda o: StepLR(o, 1, 0.1)), True),
    "LambdaLR": (Net, sgd, scheduled(lambda o: LambdaLR(o, lambda n: 0.5**n)), True),
    "groups written in the block": (Net, sgd, changing_groups, True),
    "gradients left, tables by row": (Net, sgd, accumulating, True),
    "gradients left, tables whole": (Net, sgd, accumulating, False),
    "gradients left, no tables": (Dense, sgd, accumulating, False),
    "packed state, tables whole": (Net, lambda m: Heavy(m.parameters()), steps, False),
    "BatchNorm, cumulative": (Dense, sgd, steps, False),
}  # fmt: skip


@pytest.mark.parametrize("own", [False, True], ids=["fresh", "own"])
@pytest.mark.parametrize("case", CASES)
def test_clients_in_turn_end_as_clients_apart(case: str, own: bool) -> None:
    build, optimize, train, rows = CASES[case]
    for clients, rounds in (([3], 2), ([0, 1, 2], 2)):
        want = apart(build, optimize, train, clients, rounds, own=own)
        got = simulated(build, optimize, train, clients, rounds, own=own, rows=rows)
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"{name}, {clients}")


def federated(optimizer_of: Any = sgd) -> tuple[Net, Any, torchfsl.Federated]:
    model = Net()
    optimizer = optimizer_of(model)
    fed = torchfsl.Federated(model, optimizer, max_clients=4, min_clients=1, rows_per_client=100)
    return model, optimizer, fed


def play(fed: torchfsl.Federated, servers: Any, client: int, train: Callable[[], None]) -> None:
    with fed.round(servers, client, rows={"words": data_of(client)[0]}):
        train()


def test_what_the_caller_changes_between_blocks_holds_for_all_clients() -> None:
    model, optimizer, fed = federated()
    servers, rates = fed.local_servers(), []
    schedule = ExponentialLR(optimizer, 0.5)  # of rounds, outside the blocks

    def train(client: int) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["weight"] = client
        steps(model, optimizer, client)

    for _ in range(3):
        with servers.round():
            for client in range(2):
                play(fed, servers, client, lambda c=client: train(c))  # type: ignore[misc]
        schedule.step()
    assert rates == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_an_optimizer_state_that_the_caller_clears_is_clear_for_all() -> None:
    model, optimizer, fed = federated(lambda m: torch.optim.Adam(m.parameters(), lr=0.05))
    servers, found = fed.local_servers(), []

    def train(client: int) -> None:
        found.append(len(optimizer.state))
        steps(model, optimizer, client)

    for number in range(2):
        with servers.round():
            for client in range(2):
                play(fed, servers, client, lambda c=client: train(c))  # type: ignore[misc]
        if not number:
            optimizer.state.clear()
    assert found == [0, 0, 0, 0]


def test_states_by_client_survive_a_checkpoint() -> None:
    def run(stop: int) -> dict[str, Any]:
        model, optimizer, fed = federated(lambda m: torch.optim.Adam(m.parameters(), lr=0.05))
        servers = fed.local_servers()
        for number in range(4):
            if number == stop:
                saved = copy.deepcopy((fed.state_dict(), servers.state_dict()))
                model, optimizer, fed = federated(
                    lambda m: torch.optim.Adam(m.parameters(), lr=0.05)
                )
                fed.plan = torchfsl.Plan.from_json(saved[0]["plan"])
                servers = fed.local_servers()
                fed.load_state_dict(saved[0])
                servers.load_state_dict(saved[1])
            with servers.round():
                for client in (0, 1, 2):
                    play(fed, servers, client, lambda c=client: steps(model, optimizer, c))  # type: ignore[misc]  # noqa: B023
        return dict(servers.model.state)

    whole = run(-1)
    for stop in (1, 2, 3):
        for name, value in run(stop).items():
            np.testing.assert_array_equal(value, whole[name])

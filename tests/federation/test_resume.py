"""A simulation that goes on ends as one that never stopped, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchfsl
from tests.support.errors import raises
from torchfsl.errors import ParameterError

WORDS, CLIENTS, ROUNDS = 400, 6, 6


class Net(nn.Module):
    """A table, a head, and a bias that stays at the client."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 2)
        self.own = nn.Parameter(torch.zeros(2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.words(words)) + self.own
        return out


def data_of(client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(client)
    words = torch.randint(0, WORDS, (6, 5), generator=g)
    return [(words, words[:, 0] % 2)] * 2


def three(number: int, clients: Any, generator: np.random.Generator) -> list[int]:
    """A sampler that draws and depends on the round."""
    first = number % CLIENTS
    return sorted({first, *generator.choice(clients, size=3).tolist()} | {(first + 1) % CLIENTS})


def run(rounds: int, protocol: Any, resume: Any = None, **options: Any) -> Any:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=CLIENTS, rows_per_client=30, rest=torchfsl.TopK(0.3),
        rows=torchfsl.Rows(), local=["own"], above_break_even="keep",
        encoding=torchfsl.FixedPoint(32, 16, 4.0, rounding="stochastic"),
    )  # fmt: skip

    def train(batches: Any) -> float:
        loss = torch.zeros(())
        for words, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words), labels)
            loss.backward()
            optimizer.step()
        return loss.item()

    return torchfsl.simulate(
        fed, {c: data_of(c) for c in range(CLIENTS)}, train, rounds=rounds, protocol=protocol,
        sampler=three, server_optimizer=torchfsl.optim.Adam(0.01), resume=resume,
        progress=False, **options,
    )  # fmt: skip


def assert_equal(one: Any, other: Any) -> None:
    for name, value in one.model_state.items():
        np.testing.assert_array_equal(value, other.model_state[name], err_msg=name)


@pytest.mark.parametrize("optimizer_state", ["fresh", "own"])
@pytest.mark.parametrize("protocol", ["fsl", "plain"])
def test_a_resumed_simulation_ends_bit_identical(protocol: str, optimizer_state: str) -> None:
    options = {"optimizer_state": optimizer_state}
    whole = run(ROUNDS, protocol, **options)
    part = run(ROUNDS // 2, protocol, **options)
    saved = io.BytesIO()
    torch.save(part.checkpoint, saved)
    saved.seek(0)
    rest = run(ROUNDS, protocol, torch.load(saved, weights_only=True), **options)
    assert_equal(whole, rest)
    assert [r.number for r in rest.rounds] == list(range(ROUNDS))  # the earlier ones too
    assert [r.clients for r in rest.rounds] == [r.clients for r in whole.rounds]
    assert whole.column("loss") == rest.column("loss")
    own = whole.checkpoint["federated"]["residuals"]
    assert own.keys() == rest.checkpoint["federated"]["residuals"].keys()
    assert own  # there are residuals to go on with


def test_fsl_and_plain_end_bit_identical() -> None:
    assert_equal(run(3, "fsl"), run(3, "plain"))


def test_an_interrupted_simulation_leaves_a_model_and_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = run(4, "plain")
    seen: list[Any] = []

    def stop(result: Any) -> None:
        seen.append(result)
        if result.number == 1:
            raise KeyboardInterrupt

    results: list[Any] = []
    make = torchfsl.SimulationResult.__init__

    def keep(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        results.append(self)

    monkeypatch.setattr(torchfsl.SimulationResult, "__init__", keep)
    model = Net()
    with pytest.raises(KeyboardInterrupt):
        run_with(stop, model)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert_equal(whole, run(4, "plain", results[0].checkpoint))


def run_with(progress: Any, model: Net, **options: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    fed = torchfsl.Federated(
        model, optimizer, max_clients=CLIENTS, rows_per_client=30, rest=torchfsl.TopK(0.3),
        local=["own"], above_break_even="keep",
        encoding=torchfsl.FixedPoint(32, 16, 4.0, rounding="stochastic"),
    )  # fmt: skip

    def train(batches: Any) -> float:
        loss = torch.zeros(())
        for words, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words), labels)
            loss.backward()
            optimizer.step()
        return loss.item()

    return torchfsl.simulate(
        fed, {c: data_of(c) for c in range(CLIENTS)}, train, rounds=4, protocol="plain",
        sampler=three, server_optimizer=torchfsl.optim.Adam(0.01), progress=progress, **options,
    )  # fmt: skip


@pytest.mark.parametrize("resume", [{}, {"servers": {}}, 3, "checkpoint"])
def test_what_is_no_checkpoint_is_refused(resume: Any) -> None:
    with pytest.raises(ParameterError, match="resume="):
        run(4, "plain", resume)


def test_the_state_of_another_kind_of_optimizer_is_refused() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(50, 2)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    fed = torchfsl.Federated(table, optimizer, max_clients=3, rows_per_client=2)
    state = fed.local_servers().state_dict()
    fed.local_servers().load_state_dict(state)
    with raises(ParameterError, "optimizer-state"):
        fed.local_servers(server_optimizer=torchfsl.optim.Adam(0.1)).load_state_dict(state)


def test_fewer_rounds_than_there_were_are_refused() -> None:
    with pytest.raises(ParameterError, match="pass rounds="):
        run(2, "plain", run(2, "plain"))


def test_metrics_of_personal_parts_are_those_of_each_client() -> None:
    found: dict[int, list[torch.Tensor]] = {}
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    fed = torchfsl.Federated(model, optimizer, max_clients=3, rows_per_client=30, local=["own"])

    def train(client: int) -> None:
        for words, labels in data_of(client):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words), labels).backward()
            optimizer.step()
        found.setdefault(client, []).append(model.own.detach().clone())

    def judge(client: int) -> float:
        assert torch.equal(model.own, found[client][-1])
        return float(client)

    result = torchfsl.simulate(
        fed, [0, 1, 2], train, rounds=2, batches=data_of, protocol="plain", progress=False,
        evaluate_client=judge,
    )  # fmt: skip
    assert result.column("metric") == [1.0, 1.0]
    frame = pytest.importorskip("pandas") and result.to_frame()
    assert list(frame["metric"]) == [1.0, 1.0]
    assert list(frame["number"]) == [0, 1]
    assert len(repr(result)) < 300


def test_an_interrupted_simulation_is_saved_and_goes_on_from_its_file(tmp_path: Path) -> None:
    whole, file = run(4, "plain"), tmp_path / "run.pt"

    def stop(result: Any) -> None:
        if result.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_with(stop, Net(), save=file)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    rest = run(4, "plain", file)
    assert_equal(whole, rest)
    assert rest.column("loss") == whole.column("loss")
    with pytest.raises(ParameterError, match="not a file"):
        run(4, "plain", str(tmp_path / "other.pt"))


def test_a_checkpoint_that_cannot_be_written_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ParameterError, match="the folder of save="):
        run(2, "plain", save=tmp_path / "none" / "run.pt")
    file = tmp_path / "run.pt"
    run(2, "plain", save=file)
    before = file.read_bytes()

    def full(state: Any, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        result = run(3, "plain", save=file)
    assert file.read_bytes() == before  # the last good one
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    assert_equal(run(4, "plain"), run(4, "plain", result))

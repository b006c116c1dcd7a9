"""Central training of an own task: torch's own loop on the pooled samples of all clients."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.test_own import CENTRAL, MODULE
from torchfsl.errors import ParameterError
from training.central import LocalSteps, pooled
from training.cli import main
from training.config import Config
from training.data.prf import Stream
from training.effect import idle_under_aggregation
from training.federation import Federation, build
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Local, Server
from training.tasks.build import build_task
from training.tasks.task import Batch, Task
from training.trainer import Trainer

COMMAND = ["--clients-per-round", "3", "--quiet", "--threads", "1", "--aggregation", "central"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def central(folder: Path, name: str, text: str, **changes: Any) -> tuple[Config, Task]:
    (folder / f"{name}.py").write_text(text)
    config = dataclasses.replace(
        PRESETS["own"], task=f"{name}:Taste", aggregation="central", clients_per_round=3, **changes
    )
    return config, build_task(config)


def rounds(config: Config, task: Task, count: int = 2) -> Federation:
    federation = build(config, task)
    trainer = Trainer(config, task, federation)
    for number in range(1, count + 1):
        assert trainer.run_round(number).exact is None
    return federation


def by_hand(config: Config, task: Task, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Two rounds of an ordinary loop with one optimizer."""
    for number in (1, 2):
        chosen = Stream(config.seed, "cohort", number).choice(task.num_clients, 3)
        batches = [batch for client in chosen for batch in task.work(number, int(client)).batches]
        inputs = torch.cat([batch.inputs[0] for batch in batches])
        labels = torch.cat([batch.labels for batch in batches if batch.labels is not None])
        order = Stream(config.seed, "central", number).permutation(len(labels))
        for part in torch.from_numpy(order).split(config.local.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[part]), labels[part]).backward()
            optimizer.step()


@pytest.mark.parametrize("kind", ["sgd", "adam", "RMSprop", "AdamW", "Adagrad", "NAdam"])
def test_the_clients_optimizer_steps_and_keeps_its_state_over_rounds(
    kind: str, folder: Path
) -> None:
    local = Local(optimizer=kind, lr=0.02, batch_size=16)
    config, task = central(folder, f"central_{kind}", MODULE, local=local)
    state = rounds(config, task).server_model.state
    model = task.build_model()
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}.get(kind) or getattr(
        torch.optim, kind
    )
    by_hand(config, task, model, made(model.parameters(), lr=0.02, weight_decay=0.0))
    for name, value in model.state_dict().items():
        assert np.array_equal(state[name], value.numpy()), name


def test_where_clients_send_gradients_the_servers_optimizer_steps(folder: Path) -> None:
    server = Server(optimizer="sgd", lr=0.1)
    config, task = central(folder, "central_gradient", MODULE, server=server)
    state = rounds(config, task).server_model.state
    model = task.build_model()
    by_hand(config, task, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=0, atol=1e-6)


OWN_LOSS = MODULE.replace(
    "return torch.nn.Sequential(torch.nn.Embedding(2000, 16), torch.nn.Linear(16, 2))",
    "return Odd()",
).replace(
    "Batch((torch.from_numpy(items),), torch.from_numpy(self.liked[items]))",
    "Batch((torch.from_numpy(items), torch.from_numpy(self.liked[items])), None)",
).replace(
    "model(torch.arange(2000))", "model(torch.arange(2000), None)"
) + '''

class Odd(torch.nn.Module):
    """Frozen, tied, unused and sparse parameters, a buffer, and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(2000, 16, sparse=True)
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Linear(16, 2).requires_grad_(False)
        self.unused = torch.nn.Linear(2, 2)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, items, liked):
        scores = self.frozen(self.second(self.first(self.table(items)).relu())) * self.scale
        if liked is None:
            return scores
        return torch.nn.functional.cross_entropy(scores, liked, reduction="none")
'''  # fmt: skip


@pytest.mark.parametrize("kind", ["gradient", "sgd", "Adagrad"])
def test_models_with_a_loss_of_their_own_and_odd_parameters_train(kind: str, folder: Path) -> None:
    config, task = central(
        folder, f"odd_{kind}", OWN_LOSS.replace('{"0.weight"', '{"table.weight"'),
        local=Local(optimizer=kind, lr=0.05),
    )  # fmt: skip
    state = rounds(config, task, 1).server_model.state
    before = dict(task.build_model().named_parameters())
    moved = {n for n, value in state.items() if not np.array_equal(value, before[n].detach())}
    assert moved == {"table.weight", "first.weight", "first.bias", "second.bias"}


def test_a_resumed_central_run_goes_on_with_the_optimizers_state(folder: Path) -> None:
    (folder / "moments.py").write_text(MODULE)
    (folder / "own.toml").write_text('[local]\noptimizer = "NAdam"\nlr = 0.02\n')
    command = ["own", "--task", "moments:Taste", "--config", "own.toml", *COMMAND]
    hashes = {}
    for out, parts in (("whole", [4]), ("parts", [1, 3, 4])):
        for last in parts:
            more = [] if last == parts[0] else ["--resume"]
            assert main([*command, "--rounds", str(last), "--out", out, *more]) == 0
        hashes[out] = json.loads((folder / out / "summary.json").read_text())["model_sha256"]
    assert hashes["parts"] == hashes["whole"]


def test_every_state_of_an_optimizer_is_written_and_read() -> None:
    """Numbers, counters in groups and momentum that is not there yet, too."""
    one, two = (nn.Linear(2, 2) for _ in range(2))
    two.load_state_dict(one.state_dict())
    steps = LocalSteps(one, Local(optimizer="RMSprop", lr=0.1))
    steps.optimizer.param_groups[0]["rounds_seen"] = 7
    for _ in range(2):
        one(torch.ones(1, 2)).sum().backward()
        steps.optimizer.step()
    again = LocalSteps(two, Local(optimizer="RMSprop", lr=0.1))
    again.load_state(steps.state())
    mine, theirs = steps.optimizer.state_dict(), again.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for place, entries in mine["state"].items():
        for name, value in entries.items():
            assert torch.equal(value, theirs["state"][place][name])


IDS = torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    "odd",
    [
        Batch((torch.zeros(3, 5),), IDS),  # another length of a history
        Batch((torch.zeros(3, 4, dtype=torch.float64),), IDS),
        Batch((torch.zeros(2, 4),), IDS),  # not by sample
        Batch((torch.zeros(3, 4),), None),
        Batch((torch.zeros(3, 4), torch.zeros(3)), IDS),
        Batch((torch.zeros(3, 4, 1),), IDS),
        Batch((torch.zeros(()),), IDS),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_batches_that_cannot_be_pooled_are_told_with_the_remedy(odd: Batch, first: bool) -> None:
    good = Batch((torch.zeros(3, 4),), IDS)
    with pytest.raises(ConfigError, match=r"different shapes .* pad samples to one shape"):
        pooled([odd, good] if first else [good, odd], pads=False)
    assert pooled([good, good], pads=False).inputs[0].shape == (6, 4)


def test_settings_that_central_training_does_not_use_are_named() -> None:
    preset = PRESETS["own"]
    stepping = dataclasses.replace(
        preset, aggregation="central", local=Local(optimizer="adam", clip_norm=1.0),
        server=dataclasses.replace(preset.server, lr=0.5),
    )  # fmt: skip
    assert idle_under_aggregation(stepping, preset) == ["server.lr"]
    sends = dataclasses.replace(stepping, local=Local(optimizer="gradient", clip_norm=1.0))
    assert idle_under_aggregation(sends, preset) == ["local.clip_norm"]


def test_rows_that_clients_could_not_send_are_trained_here(folder: Path) -> None:
    """A weight decay moves every row, which is refused where rows are fetched."""
    local = Local(optimizer="AdamW", lr=0.02, weight_decay=0.1)
    config, task = central(folder, "decays", MODULE, local=local)
    with pytest.raises(ParameterError, match="also moves rows"):
        build(dataclasses.replace(config, aggregation="plain"), task)
    before = task.build_model().state_dict()["0.weight"].numpy()
    assert (rounds(config, task, 1).server_model.state["0.weight"] != before).all()


def test_the_option_of_the_page_trains_the_task_of_the_page(folder: Path) -> None:
    (folder / "learns.py").write_text(MODULE)
    command = CENTRAL.replace("my_model", "learns").split()
    assert main([*command, "--rounds", "5", "--out", "run", "--quiet", "--threads", "1"]) == 0
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["exact_rounds"] is None
    assert summary["upload_bytes_per_client_round"] == 0
    assert summary["metrics"]["accuracy"] > 0.8

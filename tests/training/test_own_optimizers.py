"""Clients of an own task train with any optimizer of torch; what rounds cannot follow is told."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from tests.training.test_own import FACTORY, MODULE, PAGE
from training.cli import main
from training.effect import refuse_idle
from training.federation import build
from training.local import make_optimizer
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Local, Server
from training.tasks.build import build_task
from training.trainer import Trainer

KINDS = sorted(
    name for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
)  # fmt: skip
REFUSED = {
    "LBFGS": "LBFGS evaluates its closure many times",
    "Muon": "Muon only supports 2D parameters",
    "Adafactor": "a step of Adafactor on one row depends on all rows",
    "ASGD": "ASGD with lambd=0.0001 also moves rows",
    "SparseAdam": "does not support dense gradients",
}
"""By optimizer what the engine, or torch, says to a model with a table whose rows are fetched."""
SMALL = ["--rounds", "2", "--clients-per-round", "2", "--quiet", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(folder: Path, name: str, local: str, *options: str, more: str = "") -> dict[str, Any]:
    """A run of the page's task, `more` in its module and `local` in its settings."""
    (folder / f"{name}.py").write_text(MODULE + more)
    (folder / f"{name}.toml").write_text(
        f'[local]\n{local}\n[server]\noptimizer = "sgd"\nlr = 1.0\n'
    )
    command = ["own", "--task", f"{name}:Taste", "--config", f"{name}.toml", "--out", name]
    assert main([*command, *SMALL, *options]) == 0
    found: dict[str, Any] = json.loads((folder / name / "summary.json").read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_of_torch_trains_exactly_or_is_refused(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = f'optimizer = "{kind}"\nlr = 0.1'
    if kind not in REFUSED:
        assert run(folder, f"by_{kind}", local)["exact_rounds"] == 2
        return
    # SparseAdam's is torch's own, out of the first step.
    wanted = RuntimeError if kind == "SparseAdam" else SystemExit
    with pytest.raises(wanted) as refused:
        run(folder, f"by_{kind}", local)
    assert REFUSED[kind] in str(refused.value) + capsys.readouterr().err
    if wanted is SystemExit:  # before it makes a folder, so that the mended command starts
        assert not (folder / f"by_{kind}").exists()


def test_a_client_starts_with_the_state_that_its_optimizer_is_made_with(folder: Path) -> None:
    """Also where the constructor makes it, as that of Adagrad in older versions of torch."""
    mine = run(folder, "eager", 'optimizer = "eager:eager"\nlr = 0.5', more=OTHERS)
    assert mine["exact_rounds"] == 2
    sgd = run(folder, "plain_sgd", 'optimizer = "sgd"\nlr = 0.5', more=OTHERS)
    assert mine["model_sha256"] == sgd["model_sha256"]  # each client takes one first step


def test_no_client_goes_on_with_the_state_of_another_one(folder: Path) -> None:
    (folder / "fresh_model.py").write_text(MODULE)
    config = dataclasses.replace(
        PRESETS["own"], task="fresh_model:Taste", clients_per_round=2, aggregation="plain",
        local=Local(optimizer="Adagrad", lr=0.5), server=Server(),
    )  # fmt: skip
    task = build_task(config)
    federation = build(config, task)
    trainer = Trainer(config, task, federation)
    before = {name: value.copy() for name, value in federation.server_model.state.items()}
    assert trainer.run_round(1).exact
    total = {name: torch.zeros(value.shape) for name, value in before.items()}
    for client in trainer.cohort(1):
        model = task.build_model()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.5)
        (batch,) = task.work(1, client).batches
        torch.nn.functional.cross_entropy(model(*batch.inputs), batch.labels).backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            total[name] += (parameter.detach() - torch.from_numpy(before[name])) / 2
    for name, change in total.items():
        moved = torch.from_numpy(federation.server_model.state[name] - before[name])
        torch.testing.assert_close(moved, change, rtol=0, atol=1e-6)


OTHERS = """

def make(model, local):
    table, *rest = model.parameters()
    groups = [{"params": [table], "lr": 10 * local.lr}, {"params": rest, "weight_decay": 0.1}]
    return torch.optim.AdamW(groups, lr=local.lr, weight_decay=0.0)


class Eager(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["steps"] = torch.zeros(())

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["steps"] += 1
            rate = self.param_groups[0]["lr"] / float(self.state[parameter]["steps"])
            parameter.add_(parameter.grad, alpha=-rate)


def eager(model, local):
    return Eager(model.parameters(), local.lr)


def many(model, local):
    return [make(model, local)]


"""


def test_a_function_of_the_task_makes_the_optimizer_with_groups_of_its_own(folder: Path) -> None:
    local = 'optimizer = "with_groups:make"\nlr = 0.01\nlr_decay = 0.5\nlr_decay_rounds = 1'
    assert run(folder, "with_groups", local, more=OTHERS)["exact_rounds"] == 2
    settings = json.loads((folder / "with_groups" / "config.json").read_text())
    assert settings["local"]["optimizer"] == "with_groups:make"
    config = dataclasses.replace(
        PRESETS["own"], task="with_groups:Taste", clients_per_round=2, aggregation="plain",
        local=Local(optimizer="with_groups:make", lr=0.01, lr_decay=0.5, lr_decay_rounds=1),
    )  # fmt: skip
    task = build_task(config)
    federation = build(config, task)
    trainer = Trainer(config, task, federation)
    for number, rates in ((1, [0.1, 0.01]), (2, [0.05, 0.005]), (3, [0.025, 0.0025])):
        trainer.run_round(number)
        groups = federation.attached.optimizer.param_groups
        assert [group["lr"] for group in groups] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("adamw", r"local.optimizer is 'adamw': choose .*\(.*AdamW.*\), or MODULE:NAME"),
        ("Optimizer", "local.optimizer is 'Optimizer': choose"),
        ("lr_scheduler", "local.optimizer is 'lr_scheduler': choose"),
        (
            "odd_names:absent",
            "local.optimizer is odd_names:absent, but the module odd_names does not",
        ),
        (
            "nowhere_at_all:make",
            "local.optimizer is nowhere_at_all:make, but Python does not find the",
        ),
        (":make", "local.optimizer is ':make', expected MODULE:NAME"),
        (
            "odd_names:many",
            "local.optimizer odd_names:many returned a list, expected a torch.optim",
        ),
    ],
)
def test_an_optimizer_that_is_none_is_told(optimizer: str, message: str, folder: Path) -> None:
    (folder / "odd_names.py").write_text(MODULE + OTHERS)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=message):
        make_optimizer(model, Local(optimizer=optimizer))


def test_a_weight_decay_is_passed_on_or_refused() -> None:
    model = torch.nn.Linear(2, 2)
    decayed = make_optimizer(model, Local(optimizer="AdamW", weight_decay=0.25))
    assert decayed.param_groups[0]["weight_decay"] == 0.25
    assert make_optimizer(model, Local(optimizer="AdamW")).param_groups[0]["weight_decay"] == 0
    with pytest.raises(ConfigError, match=r"Rprop does not accept .*weight_decay"):
        make_optimizer(model, Local(optimizer="Rprop", weight_decay=0.25))


def test_settings_of_other_optimizers_are_refused() -> None:
    preset = PRESETS["din"]
    for local in (
        Local(optimizer="RMSprop", together=True),
        Local(optimizer="Adam", adam_eps=1e-3),
    ):
        with pytest.raises(ConfigError, match=r"local\.(together|adam_eps) has no effect"):
            refuse_idle(dataclasses.replace(preset, local=local), preset, ())


def test_the_settings_and_the_function_of_the_page_make_optimizers(folder: Path) -> None:
    (settings,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    (name,) = re.findall(r'`optimizer = "my_model:(\w+)"`', PAGE)
    (folder / "of_page.py").write_text(MODULE + "\n\n" + FACTORY)
    for out, optimizer in (("named", "RMSprop"), ("made", f"of_page:{name}")):
        (folder / "own.toml").write_text(settings.replace("RMSprop", optimizer))
        command = ["own", "--task", "of_page:Taste", "--config", "own.toml", "--out", out]
        assert main([*command, *SMALL]) == 0
        assert json.loads((folder / out / "summary.json").read_text())["exact_rounds"] == 2

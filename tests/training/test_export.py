"""`export`: the model of a run as torch reads it, of finished and interrupted runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_own import MODULE, PAGE
from torchfsl.submodel.server_model import state_digest
from training.cli import main
from training.export import main as export

NORMED = MODULE.replace(
    "torch.nn.Embedding(2000, 16)", "torch.nn.Embedding(2000, 16), torch.nn.BatchNorm1d(16)"
)
SMALL = ["--rounds", "2", "--clients-per-round", "2", "--quiet", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run(folder: Path, name: str, *options: str, text: str = NORMED) -> list[str]:
    (folder / f"{name}.py").write_text(text)
    command = ["own", "--task", f"{name}:Taste", "--out", name, *SMALL, *options]
    assert main(command) == 0
    return command


def read(file: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
    return found


def sha256(state: dict[str, torch.Tensor]) -> str:
    return state_digest({name: value.numpy() for name, value in state.items()}).hex()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        export(arguments)
    assert leaving.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("aggregation", ["fsl", "dense", "plain", "central"])
def test_the_file_holds_the_runs_model_with_its_buffers(aggregation: str, folder: Path) -> None:
    name = f"exported_{aggregation}"
    run(folder, name, "--aggregation", aggregation)
    assert export([name, "--torch", "model.pt"]) == 0
    state = read("model.pt")
    assert {"1.running_mean", "1.num_batches_tracked", "0.weight"} <= set(state)
    summary = json.loads((folder / name / "summary.json").read_text())
    assert sha256(state) == summary["model_sha256"]
    model = torch.nn.Sequential(
        torch.nn.Embedding(2000, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)
    )
    model.load_state_dict(state)
    assert not list(folder.glob("*.part"))


def test_an_interrupted_run_is_exported_as_of_its_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = run(folder, "goes_on")
    finished = json.loads((folder / "goes_on" / "summary.json").read_text())["model_sha256"]
    (folder / "goes_on" / "summary.json").unlink()
    assert export(["goes_on", "--torch", "two.pt"]) == 0
    assert capsys.readouterr().out == "two.pt: the model after 2 rounds\n"
    assert sha256(read("two.pt")) == finished
    assert main([*command, "--rounds", "3", "--resume"]) == 0
    assert export(["goes_on", "--torch", "three.pt"]) == 0
    assert sha256(read("three.pt")) != finished


def test_a_file_is_replaced_on_demand_only(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, "kept")
    (folder / "model.pt").write_text("mine")
    said = refused(capsys, "kept", "--torch", "model.pt")
    assert "model.pt exists: add --force to replace" in said
    assert (folder / "model.pt").read_text() == "mine"
    assert export(["kept", "--torch", "model.pt", "--force"]) == 0
    assert "0.weight" in read("model.pt")


def test_what_cannot_be_exported_is_told_with_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected the folder of a run of python -m training, got nowhere" in refused(
        capsys, "nowhere", "--torch", "a.pt"
    )
    (folder / "seeds" / "seed-0").mkdir(parents=True)
    assert "one of its folders seed-S" in refused(capsys, "seeds", "--torch", "a.pt")
    (folder / "seeds" / "config.json").write_text('{"preset": "privhfl"}')
    assert "expected the folder of a run" in refused(capsys, "seeds", "--torch", "a.pt")
    (folder / "seeds" / "config.json").write_text("[]")
    assert "expected the folder of a run" in refused(capsys, "seeds", "--torch", "a.pt")
    run(folder, "changes")
    assert "the folder absent does not exist: create the folder" in refused(
        capsys, "changes", "--torch", "absent/a.pt"
    )
    settings = json.loads((folder / "changes" / "config.json").read_text())
    smaller = "by_other"
    (folder / f"{smaller}.py").write_text(NORMED.replace("2000", "1000"))
    settings["task"] = f"{smaller}:Taste"
    (folder / "changes" / "config.json").write_text(json.dumps(settings))
    assert "0.weight of shape (2000, 16)" in refused(capsys, "changes", "--torch", "a.pt")
    (folder / "changes" / "checkpoint" / "index.json").unlink()
    said = refused(capsys, "changes", "--torch", "a.pt")
    assert "has no checkpoint yet: continue this run with --resume" in said
    assert not (folder / "a.pt").exists()


def test_the_command_of_the_page_writes_the_file(folder: Path) -> None:
    (line,) = re.findall(r"^python -m training export (.*)", PAGE, re.MULTILINE)
    run(folder, "of_the_page")
    (folder / "runs").mkdir()
    (folder / "of_the_page").rename(folder / "runs" / "mine")
    arguments: list[Any] = shlex.split(line)
    assert export(arguments) == 0
    assert "0.weight" in read(arguments[-1])


def test_help_says_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        export(["--help"])
    text = capsys.readouterr().out
    assert "weights_only=True" in text
    assert "4 bytes per float32 value" in text

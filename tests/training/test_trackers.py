"""What is written elsewhere by round: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.cli import main

SMALL = """
rounds = 2
clients_per_round = 2
checkpoint_every = 1
[recommendation]
dim = 4
history = 5
negatives = 1
rows_per_client = 32
"""


def test_event_files_hold_the_figures_of_the_metrics_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the tensorboard extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings, out = tmp_path / "small.toml", tmp_path / "run"
    settings.write_text(SMALL)
    command = ["din", "--config", str(settings), "--out", str(out), "--threads", "1",
               "--aggregation", "plain", "--quiet", "--tensorboard"]  # fmt: skip
    assert main(command) == 0
    assert main([*command, "--resume", "--rounds", "3"]) == 0
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for tag, name in (("metrics/auc", "auc"), ("round/upload_bytes", "upload_bytes")):
        points = [(e.step, e.value) for e in events.Scalars(tag)]
        wanted = [(line["round"], line[name]) for line in lines if name in line]
        assert [step for step, _ in points] == [number for number, _ in wanted]
        assert [value for _, value in points] == pytest.approx([value for _, value in wanted])


class FakeMLflow:
    """As much of MLflow as is used; what it was told is kept."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.points: list[tuple[int, dict[str, float]]] = []
        self.runs: list[dict[str, str]] = []
        self.ended = 0

    def start_run(self, **wanted: str) -> Any:
        self.runs.append(wanted)
        return SimpleNamespace(info=SimpleNamespace(run_id=wanted.get("run_id", "run-7")))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params |= params

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        assert all(re.fullmatch(r"[\w\-. :/]+", name) for name in values)
        self.points.append((step, values))

    def end_run(self) -> None:
        self.ended += 1


class FakeWandB:
    """The same of Weights & Biases."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.points: list[tuple[int, dict[str, float]]] = []
        self.ended = 0

    def init(self, **wanted: Any) -> Any:
        self.begun.append(wanted)
        return SimpleNamespace(id=wanted["id"] or "id-7")

    def log(self, values: dict[str, float], step: int) -> None:
        self.points.append((step, values))

    def finish(self) -> None:
        self.ended += 1


def small_command(tmp_path: Path, option: str) -> list[str]:
    settings = tmp_path / "small.toml"
    settings.write_text(SMALL)
    return ["din", "--config", str(settings), "--out", str(tmp_path / "run"), "--threads", "1",
            "--aggregation", "plain", "--quiet", option]  # fmt: skip


def test_mlflow_gets_settings_and_figures_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMLflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    command = small_command(tmp_path, "--mlflow")
    assert main(command) == 0
    assert main([*command, "--resume", "--rounds", "3"]) == 0
    assert fake.runs == [{"run_name": "run"}, {"run_id": "run-7"}]
    assert (fake.params["recommendation.dim"], fake.params["aggregation"]) == (4, "plain")
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in fake.points] == [line["round"] for line in lines] == [1, 2, 3]
    assert [v["metrics/auc"] for _, v in fake.points if "metrics/auc" in v] == [
        line["auc"] for line in lines if "auc" in line
    ]
    assert fake.ended == 2


def test_wandb_gets_settings_and_figures_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    command = small_command(tmp_path, "--wandb")
    assert main(command) == 0
    assert main([*command, "--resume", "--rounds", "3"]) == 0
    assert [(one["id"], one["resume"]) for one in fake.begun] == [
        (None, "allow"), ("id-7", "allow"),
    ]  # fmt: skip
    assert fake.begun[0]["config"]["recommendation.dim"] == 4
    assert [step for step, _ in fake.points] == [1, 2, 3]
    assert fake.points[-1][1]["round/exact"] == 1.0
    assert fake.ended == 2


def test_the_real_mlflow_takes_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the mlflow extra")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    assert main(small_command(tmp_path, "--mlflow")) == 0
    run = mlflow.get_run((tmp_path / "run" / "mlflow-run").read_text().strip())
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert run.data.metrics["metrics/auc"] == last["auc"]
    assert run.data.params["recommendation.dim"] == "4"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_not_there_is_named_with_its_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as leaving:
        main(small_command(tmp_path, f"--{name}"))
    assert leaving.value.code == 2
    said = capsys.readouterr().err
    assert f"--{name} needs the package {name}: pip install 'torchfsl[{name}]'" in said
    assert not (tmp_path / "run").exists()

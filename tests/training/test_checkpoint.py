from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.small_tasks import files_of, small_config, small_task
from training import experiment
from training.config import Config
from training.section_checks import ConfigError
from training.trainer import RoundRecord


class Interrupted(Exception):
    """Stands for a killed process."""


class Listener:
    """A console that can stop the run after a round."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.rounds: list[int] = []

    def say(self, text: str) -> None: ...

    def start(self, finished: int, rounds: int) -> None: ...

    def stop(self) -> None: ...

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        return steps

    def round_done(self, record: RoundRecord) -> None:
        self.rounds.append(record.round)
        if record.round == self.stop_after:
            raise Interrupted


@pytest.fixture(autouse=True)
def small_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "build_task", small_task)


def run(config: Config, folder: Path, *, resume: bool = False, stop_after: int = 0) -> dict:
    listener = Listener(stop_after)
    return experiment.run_experiment(config, folder, resume=resume, console=listener)


def six_rounds(preset: str, aggregation: str) -> Config:
    config = small_config(preset, aggregation)  # type: ignore[arg-type]
    return dataclasses.replace(config, rounds=6, checkpoint_every=2)


@pytest.mark.parametrize(
    ("preset", "aggregation"), [("din", "fsl"), ("textcnn", "plain"), ("cnn-mnist", "plain")]
)
def test_a_resumed_run_ends_with_the_model_of_an_uninterrupted_one(
    preset: str, aggregation: str, tmp_path: Path
) -> None:
    config = six_rounds(preset, aggregation)
    whole = run(config, tmp_path / "whole")
    # Stopped after round 5, of which the last checkpoint (round 4) knows nothing.
    with pytest.raises(Interrupted):
        run(config, tmp_path / "parts", stop_after=5)
    assert not (tmp_path / "parts" / "summary.json").exists()
    parts = run(config, tmp_path / "parts", resume=True)
    assert parts["model_sha256"] == whole["model_sha256"]
    assert parts["exact_rounds"] == parts["rounds"] == 6
    lines = (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for first, second in zip(whole["metrics"].items(), parts["metrics"].items(), strict=True):
        assert first == second


def test_the_mean_of_the_models_changes_no_round_and_is_part_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    plain = dataclasses.replace(six_rounds("din", "plain"), eval_every=2)
    server = dataclasses.replace(plain.server, average=0.9)
    config = dataclasses.replace(plain, server=server)
    without, whole = run(plain, tmp_path / "without"), run(config, tmp_path / "whole")
    assert whole["model_sha256"] == without["model_sha256"]
    with pytest.raises(Interrupted):
        run(config, tmp_path / "parts", stop_after=5)
    parts = run(config, tmp_path / "parts", resume=True)
    assert parts["metrics"] == whole["metrics"]
    assert {name: whole["metrics"][name] for name in without["metrics"]} == without["metrics"]
    assert whole["metrics"]["mean_auc"] != whole["metrics"]["auc"]


@pytest.mark.slow
def test_momentum_and_the_falling_rate_of_the_servers_go_on_where_they_stopped(
    tmp_path: Path,
) -> None:
    plain = six_rounds("cnn-mnist", "plain")
    server = dataclasses.replace(plain.server, momentum=0.5, lr_decay=0.5, lr_decay_rounds=2)
    config = dataclasses.replace(plain, server=server)
    whole, without = run(config, tmp_path / "whole"), run(plain, tmp_path / "without")
    assert whole["model_sha256"] != without["model_sha256"]
    with pytest.raises(Interrupted):
        run(config, tmp_path / "parts", stop_after=5)
    assert run(config, tmp_path / "parts", resume=True)["model_sha256"] == whole["model_sha256"]


def test_residuals_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    config = six_rounds("cnn-mnist", "plain")
    run(config, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoint"
    assert any(name.startswith("residual-") for name in files_of(folder))
    for path in folder.glob("residual-*.npz"):
        with np.load(path, allow_pickle=False) as file:
            assert any(np.any(file[name] != 0) for name in file.files if name != "format")


def test_only_the_latest_checkpoint_is_kept(tmp_path: Path) -> None:
    run(six_rounds("din", "plain"), tmp_path / "run")
    assert files_of(tmp_path / "run") == {
        "config.json", "metrics.jsonl", "summary.json", "curves.png",
        "checkpoint/index.json", "checkpoint/model-6.npz",
    }  # fmt: skip


def test_a_finished_run_can_go_on_to_more_rounds(tmp_path: Path) -> None:
    config = six_rounds("din", "plain")
    whole = run(config, tmp_path / "whole")
    run(dataclasses.replace(config, rounds=2), tmp_path / "parts")
    parts = run(config, tmp_path / "parts", resume=True)
    assert parts["model_sha256"] == whole["model_sha256"]


def test_resuming_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    config = six_rounds("din", "plain")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", stop_after=1)
    assert run(config, tmp_path / "run", resume=True)["rounds"] == 6


def test_resuming_without_a_checkpoint_says_that_it_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said = six_rounds("din", "plain"), []
    monkeypatch.setattr(Listener, "say", lambda self, text: said.append(text))
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", stop_after=1)
    run(config, tmp_path / "run", resume=True)
    assert any("holds no checkpoint yet, so --resume starts over" in text for text in said)


def test_checkpoints_come_by_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(six_rounds("din", "plain"), checkpoint_every=100)
    monkeypatch.setattr(experiment, "_CHECKPOINT_SECONDS", 0)
    with pytest.raises(Interrupted):
        run(config, tmp_path / "run", stop_after=3)
    assert json.loads((tmp_path / "run/checkpoint/index.json").read_text())["round"] == 3


def test_a_half_written_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    config = six_rounds("din", "plain")
    whole = run(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config, tmp_path / "parts", stop_after=3)
    folder = tmp_path / "parts" / "checkpoint"
    (folder / "model-4.npz.part").write_bytes(b"half")
    (folder / "index.json.part").write_bytes(b"{")
    assert run(config, tmp_path / "parts", resume=True)["model_sha256"] == whole["model_sha256"]


def test_other_settings_are_not_resumed(tmp_path: Path) -> None:
    config = dataclasses.replace(six_rounds("din", "plain"), rounds=1)
    run(config, tmp_path / "run")
    with pytest.raises(ConfigError, match="seed = 3, and now seed is 4"):
        run(dataclasses.replace(config, seed=4), tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        run(config, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no run to resume"):
        run(config, tmp_path / "other", resume=True)


def test_a_setting_that_an_older_version_did_not_know_had_its_default(tmp_path: Path) -> None:
    config = dataclasses.replace(six_rounds("cnn-mnist", "plain"), rounds=1)
    run(config, tmp_path / "run")
    settings = tmp_path / "run" / "config.json"
    saved = json.loads(settings.read_text())
    del saved["images"]["random_crop"], saved["dropouts"], saved["sesa"]
    settings.write_text(json.dumps(saved))
    run(dataclasses.replace(config, rounds=2), tmp_path / "run", resume=True)
    central = dataclasses.replace(config.images, random_crop=False)
    with pytest.raises(
        ConfigError, match=r"images\.random_crop = True, and now images\.random_crop is False"
    ):
        run(dataclasses.replace(config, rounds=2, images=central), tmp_path / "run", resume=True)


def test_the_summary_says_what_was_run(tmp_path: Path) -> None:
    config = dataclasses.replace(six_rounds("din", "fsl"), rounds=1)
    summary = run(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    wanted = {
        "preset", "aggregation", "backend", "rounds", "metrics", "upload_bytes_per_client_round",
        "download_bytes_per_client_round", "exact_rounds", "exact_retrieval_rounds", "segments",
        "verification", "retrieval", "model_sha256", "seed", "versions",
    }  # fmt: skip
    assert wanted <= set(summary)
    fields = {"name", "policy", "mechanism", "k_max", "bins", "theta", "nu", "stash"}
    assert all(fields <= set(segment) for segment in summary["segments"])
    assert {"popularity_auc", "untrained_auc"} <= set(summary["baselines"])
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert {"round", "auc", "gauc", "logloss", "upload_bytes", "download_bytes", "client_seconds",
            "server_seconds", "exact"} <= set(line)  # fmt: skip
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")

"""The preset with differential privacy: limits, noise from the seed, and what was spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_tasks import small_config, small_task
from torchfsl import privacy
from training import experiment
from training.config import Config
from training.effect import refuse_idle
from training.federation import listing_of
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.trainer import RoundRecord

ROUNDS = 6


class Interrupted(Exception):
    """Stands for a killed process."""


class Listener:
    """A console that can stop the run after a round, and keeps what was measured."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.epsilons: list[float] = []

    def say(self, text: str) -> None: ...

    def start(self, finished: int, rounds: int) -> None: ...

    def stop(self) -> None: ...

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        return steps

    def round_done(self, record: RoundRecord) -> None:
        if record.metrics:
            self.epsilons.append(record.metrics["epsilon"])
        if record.round == self.stop_after:
            raise Interrupted


@pytest.fixture(autouse=True)
def small_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    monkeypatch.setattr(experiment, "build_task", small_task)


def config_of(aggregation: Any = "plain", **changes: Any) -> Config:
    small, preset = small_config("din", aggregation), PRESETS["din-dp"]
    limits = dataclasses.replace(preset.privacy, max_participations=2, min_separation=3)
    return dataclasses.replace(
        small, preset="din-dp", rounds=ROUNDS, clients_per_round=6, eval_every=1, fsl=preset.fsl,
        encoding=preset.encoding, privacy=limits, server=preset.server, **changes,
    )  # fmt: skip


def run(
    config: Config, folder: Path, listener: Listener | None = None, *, resume: bool = False
) -> dict[str, Any]:
    return experiment.run_experiment(config, folder, resume=resume, console=listener or Listener())


def test_plain_and_both_servers_train_the_same_model_with_the_same_noise(tmp_path: Path) -> None:
    found = [run(config_of(kind), tmp_path / kind) for kind in ("plain", "fsl")]
    assert found[0]["model_sha256"] == found[1]["model_sha256"]
    assert [one["exact_rounds"] for one in found] == [ROUNDS, ROUNDS]


def test_epsilon_spent_is_measured_by_round_and_ends_at_what_was_asked(tmp_path: Path) -> None:
    listener = Listener()
    summary = run(config_of(), tmp_path / "run", listener)
    first, last = listener.epsilons[:3], listener.epsilons[3:]
    assert first == pytest.approx([first[0]] * 3, rel=1e-6)  # one report of a client at most
    assert last == pytest.approx([8.0] * 3, abs=1e-3)
    assert first[0] < 6 < max(last) <= 8.0
    assert summary["metrics"]["epsilon"] == last[-1]


@pytest.mark.parametrize("aggregation", ["plain", "fsl"])
def test_a_resumed_run_goes_on_with_counts_and_past_noise(aggregation: Any, tmp_path: Path) -> None:
    whole = run(config_of(aggregation), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config_of(aggregation), tmp_path / "parts", Listener(stop_after=4))
    parts = run(config_of(aggregation), tmp_path / "parts", resume=True)
    assert parts["model_sha256"] == whole["model_sha256"]


def test_a_separation_alone_makes_cohorts_that_keep_it(tmp_path: Path) -> None:
    config = config_of()
    apart = dataclasses.replace(config.privacy, max_participations=0)
    run(dataclasses.replace(config, privacy=apart), tmp_path / "run")


@pytest.mark.parametrize("aggregation", ["plain", "fsl"])
def test_a_run_on_listed_rows_spends_on_the_list_too(aggregation: Any, tmp_path: Path) -> None:
    listed = dataclasses.replace(config_of(aggregation).privacy, rows=7)
    config = dataclasses.replace(config_of(aggregation), privacy=listed)
    listener = Listener()
    run(config, tmp_path / "run", listener)
    task = small_task(config)
    assert tuple(task.build_model().state_dict()["item_embedding.weight"].shape) == (8, 4)
    (listing,) = [listing_of(config, task)]
    assert listing is not None
    alone = privacy.guarantee(listing, delta=1e-6).epsilon_server
    assert 0 < alone < listener.epsilons[0] < max(listener.epsilons) <= 8.0
    assert listener.epsilons[-1] == pytest.approx(8.0, abs=1e-3)


def test_another_seed_has_other_noise(tmp_path: Path) -> None:
    models = {run(config_of(), tmp_path / "one")["model_sha256"]}
    changed = config_of()
    object.__setattr__(changed, "seed", 4)
    models.add(run(changed, tmp_path / "two")["model_sha256"])
    assert len(models) == 2


def test_a_list_needs_noise_and_servers_that_draw_it_from_the_seed() -> None:
    config = PRESETS["din-dp"]
    for changes in ({"epsilon": 0.0, "rows": 5}, {"rows": -1}, {"list_share": 1.0}):
        with pytest.raises(ConfigError, match=r"privacy\."):
            dataclasses.replace(config.privacy, **changes)
    far = dataclasses.replace(
        config,
        servers="https://a:1,https://b:2",
        privacy=dataclasses.replace(config.privacy, rows=5),
    )
    with pytest.raises(ConfigError, match=r"privacy\.rows"):
        refuse_idle(far, config, [])


def test_epsilon_needs_a_norm() -> None:
    config = PRESETS["din-dp"]
    with pytest.raises(ConfigError, match=r"fsl\.l2_norm"):
        dataclasses.replace(config, fsl=dataclasses.replace(config.fsl, l2_norm=0.0))

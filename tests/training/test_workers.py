"""Clients in processes of their own: the same bits as one after the other."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import pytest
import torch

from tests.support.small_tasks import small_config
from training import workers
from training.config import Aggregation, Config
from training.effect import refuse_idle
from training.federation import Federation, build
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Rest
from training.tasks.build import build_task
from training.trainer import RoundRecord, Trainer


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Sums of several threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def config_of(preset: str, aggregation: Aggregation, **changes: Any) -> Config:
    config = small_config(preset, aggregation)
    stochastic = dataclasses.replace(config.encoding, rounding="stochastic")
    config = dataclasses.replace(config, rounds=2, clients_per_round=4, encoding=stochastic)
    return dataclasses.replace(config, **changes)


def run(config: Config) -> tuple[Federation, list[RoundRecord], Trainer]:
    task = build_task(config)
    federation = build(config, task)
    trainer, records = Trainer(config, task, federation), []
    trainer.run(1, records.append)
    return federation, records, trainer


@pytest.mark.parametrize(
    ("preset", "aggregation", "changes"),
    [
        ("textcnn", "fsl", {"dropouts": 0.25}),
        ("cnn-mnist", "plain", {"rest": Rest(policy="topk", amount=0.01)}),
        ("din", "fsl", {}),
    ],
)
def test_workers_end_with_the_model_and_the_residuals_of_the_loop(
    preset: str, aggregation: Aggregation, changes: dict[str, Any]
) -> None:
    alone, loop, one = run(config_of(preset, aggregation, **changes))
    together, side_by_side, two = run(config_of(preset, aggregation, workers=3, **changes))
    assert all(record.exact for record in side_by_side)
    assert together.model_sha256() == alone.model_sha256()
    for mine, other in zip(loop, side_by_side, strict=True):
        assert mine.metrics == other.metrics
        assert (mine.upload_bytes, mine.phases) == (other.upload_bytes, other.phases)
        assert (mine.dropouts, mine.clipped_values) == (other.dropouts, other.clipped_values)
    assert set(one.residuals) == set(two.residuals)
    for client, residual in one.residuals.items():
        left, right = residual.state_dict()["parts"], two.residuals[client].state_dict()["parts"]
        assert set(left) == set(right)
        for name, tensors in left.items():
            assert all(torch.equal(tensors[key], right[name][key]) for key in tensors)


def test_a_worker_that_is_killed_is_named_and_nothing_hangs() -> None:
    config = config_of("textcnn", "plain", workers=2)
    task = build_task(config)
    trainer = Trainer(config, task, build(config, task))
    trainer.run_round(1)
    assert trainer._workers is not None
    for process in trainer._workers._processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with pytest.raises(ConfigError, match=r"a worker process ended.* lower workers"):
        trainer.run_round(2)
    trainer.close()


def test_what_training_raises_in_a_worker_is_raised_here() -> None:
    config = config_of("cnn-mnist", "plain", workers=2)
    trainer = Trainer(config, build_task(config), build(config, build_task(config)))
    odd = dataclasses.replace(config, local=dataclasses.replace(config.local, lr=-1.0))
    trainer.config = odd  # what workers start from
    with pytest.raises(ValueError, match=r"^Invalid learning rate: -1\.0"):  # as without workers
        trainer.run(1, lambda record: None)
    assert isinstance(workers._error_of("ConfigError", "so", ""), ConfigError)
    assert str(workers._error_of(None, "'key'", "its trace")) == "in a worker:\nits trace"


def test_workers_where_clients_are_not_trained_one_by_one_are_refused() -> None:
    preset = PRESETS["din"]
    local = dataclasses.replace(preset.local, together=True)
    for changes in ({"local": local}, {"aggregation": "central"}):
        config = dataclasses.replace(preset, workers=2, **changes)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="workers has no effect"):
            refuse_idle(config, preset, ())
    with pytest.raises(ConfigError, match="workers is 0"):
        dataclasses.replace(preset, workers=0)

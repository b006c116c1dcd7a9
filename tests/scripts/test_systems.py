"""The comparison of systems: one task, one model whoever sums."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import Any

from scripts.reproduction import systems
from training.privhfl.settings import Settings
from training.privhfl.tasks import load_population


def test_all_systems_end_a_round_with_the_same_model() -> None:
    small = Settings(task="mnist", data="synthetic", private=20, test=50)
    people = load_population(small)
    installed = [n for n in systems.AGGREGATIONS if n != "sefl" or find_spec("tenseal")]
    runs = {name: systems._run(name, "mnist", people, 1) for name in installed}
    assert len({run["model_sha256"] for run in runs.values()}) == 1
    upload = {name: run["upload_bytes"] for name, run in runs.items()}
    assert upload["plain"] < upload["dense"] < upload["sesa"]


def test_the_shared_model_of_cifar_is_summed_alike_in_shards_and_whole() -> None:
    people = load_population(
        Settings(task="cifar10", data="synthetic", clients=5, private=8, test=20)
    )
    runs = [systems._run(name, "cifar10", people, 1) for name in ("plain", "sesa")]
    assert runs[0]["model_sha256"] == runs[1]["model_sha256"]


def test_every_client_trains_on_its_own_samples() -> None:
    people = load_population(Settings(task="mnist", data="synthetic", private=20, test=50))
    config = dataclasses.replace(
        systems.PRESETS["mlp-mnist-widths"], clients_per_round=9, sesa=systems._SESA["mnist"]
    )
    task: Any = systems._task(config, systems.SHARED["mnist"], people)
    assert task.num_clients == 9
    for part, own in zip(task.parts, people.clients, strict=True):
        (images,) = task.train.inputs(part, None)
        assert images.equal(own.images)
        assert task.train.labels[part].tolist() == own.labels.tolist()

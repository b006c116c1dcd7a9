"""Rows chosen by a noisy histogram: what clients send, and what is chosen by whoever asks."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.support.small_tasks import small_config
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import check_update
from torchfsl.types import Indices
from training.config import Config
from training.presets import PRESETS
from training.row_list import MOST, frequent_rows, histogram_plan, histogram_update
from training.seeded_noise import SeededNoise

ROWS = 60
KNOWN = [np.sort(np.random.default_rng(c).integers(0, ROWS, 3 + c) ** 2 % ROWS) for c in range(40)]


def config_of(epsilon: float, rows: int = 9) -> Config:
    pytest.importorskip("dp_accounting", reason="needs torchfsl[privacy]")
    preset = PRESETS["din-dp"]
    asked = dataclasses.replace(preset.privacy, epsilon=epsilon, rows=rows, list_share=0.5)
    return dataclasses.replace(small_config("din", "plain"), fsl=preset.fsl, privacy=asked)


def plan_of(config: Config) -> Plan:
    plan = histogram_plan(config, ROWS, len(KNOWN))
    assert plan is not None
    return plan


def kept(config: Config) -> Indices:
    rows = frequent_rows(config, KNOWN, ROWS)
    assert rows is not None
    return rows


def test_a_client_sends_its_last_rows_with_a_norm_of_one_at_most() -> None:
    plan = plan_of(config_of(8.0))
    for rows in (np.array([5]), np.array([3, 3, 9, 3]), np.arange(ROWS), np.arange(ROWS)[::-1]):
        update = histogram_update(plan, rows)
        check_update(plan, update)
        part = update["histogram"]
        count = min(len(np.unique(rows)), MOST)
        assert part.indices is not None
        assert set(part.indices) <= set(rows[-MOST - 2 :].tolist())
        assert len(part.indices) == count
        norm = math.sqrt(float((part.values.astype(float) ** 2).sum()))
        assert plan.l2_bound * 0.999 < norm <= plan.l2_bound


def test_with_little_noise_the_most_frequent_rows_are_chosen_the_same_in_every_process() -> None:
    config = config_of(400.0)
    exact = np.zeros(ROWS)
    for rows in KNOWN:
        part = histogram_update(plan_of(config), rows)["histogram"]
        exact[part.positions] += part.values[:, 0]
    wanted = np.sort(np.argsort(-exact, kind="stable")[:9])
    for _ in range(2):
        assert np.array_equal(kept(config), wanted)
    noisy = dataclasses.replace(config, privacy=dataclasses.replace(config.privacy, epsilon=0.3))
    assert not np.array_equal(kept(noisy), wanted)
    every = dataclasses.replace(config.privacy, rows=0)
    assert frequent_rows(dataclasses.replace(config, privacy=every), KNOWN, ROWS) is None


def test_both_servers_choose_the_same_rows_with_the_same_noise() -> None:
    config = config_of(3.0)
    plan = plan_of(config)
    models = [ServerModel({"histogram": np.zeros((ROWS, 1), np.float32)}) for _ in range(2)]
    servers = TwoServers(plan, (models[0], models[1]), SeededNoise(config.seed).both)
    servers.open_round(0, range(len(KNOWN)))
    for client, rows in enumerate(KNOWN):
        session = servers.participant(client).start_round(0)
        session.submit(histogram_update(plan, rows))
    counts = servers.close_round().opened.sums["histogram"].reshape(-1)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:9])
    assert np.array_equal(kept(config), chosen)

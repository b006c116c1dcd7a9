"""Gradients of a round's clients taken together: those of the loop, but for the order of sums."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.support.small_tasks import small_config
from training.cli import config_from, make_parser
from training.config import Config
from training.data.interactions import Interactions, synthetic_interactions
from training.federation import Federation, build
from training.presets import NARROW, PRESETS
from training.section_checks import ConfigError
from training.sections import Local, Rest
from training.tasks.build import recommender
from training.tasks.recommendation import RecommendationTask
from training.trainer import RoundRecord, Trainer

UNITS = 20
"""One of the fixed point, 2**-22, for each client: as far as a sum may be from the loop's."""


def config_of(preset: str, *, together: bool, aggregation: Any = "plain", **changes: Any) -> Config:
    config = dataclasses.replace(small_config("din", aggregation), preset=preset, rounds=2)
    own = PRESETS[preset].recommendation
    small = dataclasses.replace(config.recommendation, user_table=own.user_table, dropout=0.25)
    if preset in ("mf", "sasrec"):
        small = dataclasses.replace(small, dropout=0.0)
    local = dataclasses.replace(config.local, together=together)
    config = dataclasses.replace(config, recommendation=small, local=local, clients_per_round=20)
    return dataclasses.replace(config, **changes)


def run(
    config: Config, data: Interactions | None = None
) -> tuple[Federation, list[RoundRecord], list[dict[str, Any]]]:
    """The federation after two rounds, their records and sums."""
    data = data or synthetic_interactions(3, users=30, items=40, categories=5, length=(3, 9))
    task = RecommendationTask(
        data, config.recommendation, network=recommender(config), seed=3, evaluate=config.evaluate,
        steps=config.local.epochs,
    )  # fmt: skip
    federation = build(config, task)
    trainer, records, sums = Trainer(config, task, federation), [], []
    for number in (1, 2):
        records.append(trainer.run_round(number))
        sums.append({name: value.copy() for name, value in federation.audit._sums.items()})
    return federation, records, sums


@pytest.mark.parametrize("preset", ["din", "din-published", "mf", "ncf", "deepfm", "sasrec"])
def test_sums_are_those_of_the_loop_but_for_the_last_bits(preset: str) -> None:
    _, loop, expected = run(config_of(preset, together=False))
    _, records, found = run(config_of(preset, together=True))
    assert all(record.exact and record.exact_retrieval for record in records)
    assert [r.upload_bytes for r in records] == [r.upload_bytes for r in loop]
    for name, sums in found[0].items():
        assert np.abs(expected[0][name]).max() > 1000 * UNITS
        assert np.abs(sums - expected[0][name]).max() <= UNITS, name
        # Rows of a sum of exactly zero are the same, or the servers would move other rows.
        assert np.array_equal(sums.any(axis=1), expected[0][name].any(axis=1))


STEPS = Local(
    optimizer="sgd", lr=0.5, lr_decay=0.5, lr_decay_rounds=1, epochs=3, loss="sum", proximal=0.5
)


@pytest.mark.parametrize("preset", ["din", "mf", "deepfm"])
def test_own_steps_are_those_of_the_loop_but_for_the_last_bits(preset: str) -> None:
    """Dropout draws anew in each step, the rate falls in the second round, FedProx pulls back."""
    _, loop, expected = run(config_of(preset, together=False, local=STEPS))
    together = dataclasses.replace(STEPS, together=True)
    _, records, found = run(config_of(preset, together=True, local=together))
    assert all(record.exact and record.exact_retrieval for record in records)
    assert [r.upload_bytes for r in records] == [r.upload_bytes for r in loop]
    for first, second in zip(found, expected, strict=True):
        for name, sums in first.items():
            assert np.abs(second[name]).max() > 1000 * UNITS
            assert np.abs(sums - second[name]).max() <= 10 * UNITS, name
    free = dataclasses.replace(together, proximal=0.0)
    _, _, without = run(config_of(preset, together=True, local=free))
    gaps = [np.abs(without[0][name] - sums).max() for name, sums in found[0].items()]
    assert max(gaps) > 1000 * UNITS


def test_both_servers_end_with_the_model_of_plain() -> None:
    plain, _, _ = run(config_of("din", together=True, encoding=NARROW))
    fsl, records, _ = run(config_of("din", together=True, aggregation="fsl", encoding=NARROW))
    assert fsl.plan.rings == {16}
    assert all(record.exact and record.exact_retrieval for record in records)
    assert plain.model_sha256() == fsl.model_sha256()


def test_dropouts_stochastic_rounding_and_users_without_samples_are_as_in_the_loop() -> None:
    """Under validation users of three items have nothing to train on."""
    changes = {"dropouts": 0.25, "evaluate": "validation"}
    encoding = dataclasses.replace(PRESETS["din"].encoding, rounding="stochastic", frac_bits=12)
    _, loop, expected = run(config_of("din", together=False, encoding=encoding, **changes))
    _, records, found = run(config_of("din", together=True, encoding=encoding, **changes))
    assert [record.dropouts for record in records] == [5, 5]
    assert [r.phases for r in records] == [r.phases for r in loop]
    for name, sums in found[0].items():
        assert np.abs(sums - expected[0][name]).max() <= UNITS


@pytest.mark.parametrize(
    ("preset", "changes", "said"),
    [
        ("din", {"rest": Rest(policy="topk")}, "local.together needs rest.policy"),
        ("sasrec", {"recommendation": dataclasses.replace(
            PRESETS["sasrec"].recommendation, dropout=0.5)}, "supports one dropout, before a head"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused(preset: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(config_of(preset, together=True, **changes))


@pytest.mark.parametrize(
    "arguments",
    [["din", "--aggregation", "dense"], ["cnn-mnist"], ["din", "--device", "cuda"]],
)
def test_where_it_has_no_effect_it_is_refused(arguments: list[str], tmp_path: Any) -> None:
    (tmp_path / "own.toml").write_text("[local]\ntogether = true")
    options = make_parser().parse_args([*arguments, "--config", str(tmp_path / "own.toml")])
    with pytest.raises(ConfigError, match=r"local\.together has no effect in this run"):
        config_from(options)

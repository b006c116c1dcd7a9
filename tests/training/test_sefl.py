"""`--aggregation sefl`: the model of `plain` and `dense`, with dropouts and when resumed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.small_tasks import small_config, small_task
from torchfsl.sefl import AggregatorAndKeyHolder, SeflPlan
from training.cli import main
from training.config import Aggregation, Config
from training.federation import Federation, build, explained, guaranteed, sefl_units
from training.section_checks import ConfigError
from training.sections import Rest, Sefl, Sentences
from training.trainer import RoundRecord, Trainer

pytest.importorskip("tenseal", reason="needs the extra homomorphic")


def config_of(aggregation: Aggregation, dropouts: float = 0.0) -> Config:
    return dataclasses.replace(
        small_config("textcnn", aggregation),
        clients_per_round=4,
        dropouts=dropouts,
        rest=Rest(policy="dense"),
        sentences=Sentences(dim=8, maps=4, table="rest"),
    )


def run(config: Config) -> tuple[Federation, list[RoundRecord]]:
    task = small_task(config)
    federation = build(config, task)
    records: list[RoundRecord] = []
    Trainer(config, task, federation).run(1, records.append)
    return federation, records


@pytest.mark.parametrize("dropouts", [0.0, 0.5])
def test_sefl_ends_with_the_model_of_plain_and_dense(dropouts: float) -> None:
    hashes = set()
    for aggregation in ("plain", "dense", "sefl"):
        federation, records = run(config_of(aggregation, dropouts))  # type: ignore[arg-type]
        assert all(record.exact for record in records)
        assert {record.dropouts for record in records} == {4 * dropouts}
        hashes.add(federation.model_sha256())
    assert len(hashes) == 1


def test_servers_that_start_again_have_new_keys_and_go_on() -> None:
    config = config_of("sefl")
    first = build(config, small_task(config))
    again = build(config, small_task(config), plan=first.plan.to_json(), finished=1)
    assert isinstance(again.audit.aggregation, AggregatorAndKeyHolder)
    assert again.plan != first.plan
    assert again.plan.session == first.plan.session


@pytest.mark.parametrize(
    ("option", "value"), [("above-break-even", "keep"), ("servers", "https://a,https://b")]
)
def test_settings_without_effect_are_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["din", "--aggregation", "sefl", f"--{option}", value])
    assert "no effect" in capsys.readouterr().err


def noisy(**settings: float) -> Config:
    return dataclasses.replace(config_of("sefl"), sefl=Sefl(**settings))


def test_noise_reaches_both_servers_and_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, records = run(noisy(l2_norm=1.0, noise=0.5))
    bound = 1 << config_of("sefl").encoding.frac_bits
    assert (federation.plan.l2_bound, federation.plan.noise_sigma) == (bound, bound // 2)
    assert all(record.exact for record in records)
    home = federation.audit.aggregation
    assert isinstance(home, AggregatorAndKeyHolder)
    added = np.concatenate([part[:, 0] for part in home.noise_sums().values()])
    assert len(added) == home.plan.num_values > 1000
    assert abs(float(added.std()) / (bound / 2) / 2**0.5 - 1) < 0.15  # two draws a value
    again, _ = run(noisy(l2_norm=1.0, noise=0.5))
    assert again.model_sha256() != federation.model_sha256()
    monkeypatch.setattr(AggregatorAndKeyHolder, "noise_sums", lambda _: {})
    assert not any(record.exact for record in run(noisy(l2_norm=1.0, noise=0.5))[1])


def test_without_noise_a_length_alone_is_exact_and_bounds_updates() -> None:
    federation, records = run(noisy(l2_norm=0.01))
    assert all(record.exact for record in records)
    assert federation.plan.l2_bound == round(0.01 * 2 ** config_of("sefl").encoding.frac_bits)
    assert federation.model_sha256() != run(config_of("sefl"))[0].model_sha256()


def test_the_guarantee_of_a_noisy_run_is_said() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra privacy")
    config = noisy(l2_norm=1.0, noise=4.0, delta=1e-6)
    federation = build(config, small_task(config))
    assert isinstance(federation.plan, SeflPlan)
    found = guaranteed(config, federation.plan)
    assert (found.rounds, found.delta) == (config.rounds, 1e-6)
    assert f"epsilon {found.epsilon_aggregator:.3g} against" in explained(config, federation)
    still = config_of("sefl")
    assert "epsilon" not in explained(still, build(still, small_task(still)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"noise": 1.0}, "set both"),
        ({"l2_norm": -1.0}, "0 or more"),
        ({"delta": 1.0}, "above 0 and below 1"),
    ],
)
def test_settings_of_noise_that_guarantee_nothing_are_refused(
    settings: dict[str, float], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Sefl(**settings)


def test_other_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="2048 or 4096"):
        Sefl(slots=1000)


@pytest.mark.parametrize(
    "settings",
    [
        {"l2_norm": 5e-6},
        {"l2_norm": 0.9 * 2**-16},
        {"l2_norm": 5e-5, "noise": 0.1},
        {"l2_norm": 1e308},
        {"l2_norm": 1.0, "noise": 1e308},
    ],
)
def test_a_norm_or_noise_that_no_unit_holds_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"expected 1 unit to 2\*\*62 units"):
        sefl_units(Sefl(**settings), 16)
    with pytest.raises(ConfigError, match=r"sefl.l2_norm = 1e\+308 is inf units"):
        sefl_units(Sefl(l2_norm=1e308, noise=0.0), 16)
    assert sefl_units(Sefl(), 16) == (0, 0)
    assert sefl_units(Sefl(l2_norm=2**-16, noise=1.0), 16) == (1, 1)

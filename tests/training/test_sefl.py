"""`--aggregation sefl`: the model of `plain` and `dense`, with dropouts and when resumed."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.small_tasks import small_config, small_task
from torchfsl.sefl import AggregatorAndKeyHolder
from training.cli import main
from training.config import Aggregation, Config
from training.federation import Federation, build
from training.sections import ConfigError, Rest, Sefl, Sentences
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


def test_other_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="2048 or 4096"):
        Sefl(slots=1000)

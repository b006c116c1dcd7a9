"""Clients of different widths in the trainer, under every aggregation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import models
from tests.training.test_checkpoint import Interrupted, Listener
from torchfsl import Rows
from torchfsl.engine.hooks import Hooks
from torchfsl.engine.settings import Settings
from torchfsl.errors import Error, ProtocolError
from torchfsl.service.net.calls import NotReady
from torchfsl.sesa import SesaPlan, Sharded
from torchfsl.submodel.plain import Plain
from training import experiment
from training.cli import config_from, main, make_parser
from training.config import Aggregation, Config
from training.federation import Federation, build, rows_by_segment
from training.presets import PRESETS
from training.run_folder import summarise
from training.section_checks import ConfigError
from training.sections import Partition, Recommendation, Sesa
from training.tasks.build import build_task
from training.tasks.widths import Widths
from training.trainer import RoundRecord, Trainer

ALL: tuple[Aggregation, ...] = ("plain", "dense", "fsl", "sesa")
WIDE = ("mlp-mnist-widths", "cnn-mnist-widths", "cnn-cifar10-widths")


def small(aggregation: Aggregation, **changes: Any) -> Config:
    """Fifteen clients a round, five of each width; two may collude and one drop out."""
    config = dataclasses.replace(
        PRESETS["mlp-mnist-widths"],
        data="synthetic",
        rounds=2,
        clients_per_round=15,
        seed=5,
        aggregation=aggregation,
        partition=Partition(clients=20, scheme="two-labels"),
        sesa=Sesa(collusion=0.14),
    )
    return dataclasses.replace(config, **changes)


def run(config: Config) -> tuple[Federation, list[RoundRecord]]:
    task = build_task(config)
    federation = build(config, task)
    records: list[RoundRecord] = []
    Trainer(config, task, federation).run(1, records.append)
    return federation, records


@pytest.mark.parametrize("dropouts", [0.0, 0.07])
def test_every_aggregation_ends_with_the_same_model(dropouts: float) -> None:
    found = {}
    for aggregation in ALL:
        federation, records = run(small(aggregation, dropouts=dropouts))
        found[aggregation] = federation.model_sha256()
        assert all(record.exact for record in records)
        assert {record.dropouts for record in records} == {round(15 * dropouts)}
        expected = None if aggregation == "dense" else True
        assert {record.exact_retrieval for record in records} == {expected}
        for record in records:
            total = record.upload_bytes + record.download_bytes
            assert sum(record.phases.values()) == pytest.approx(total)
            assert set(record.phases_by_width) == {"1", "0.5", "0.25"}
    assert len(set(found.values())) == 1, found


def test_dropouts_change_the_model() -> None:
    """Otherwise they would be counted all the same."""
    without, _ = run(small("plain"))
    with_some, _ = run(small("plain", dropouts=0.07))
    assert without.model_sha256() != with_some.model_sha256()


@pytest.mark.parametrize("aggregation", ["plain", "fsl"])
def test_dropouts_reach_presets_without_widths(aggregation: Aggregation) -> None:
    config = dataclasses.replace(
        PRESETS["din"], rounds=1, clients_per_round=4, dropouts=0.5, aggregation=aggregation,
        recommendation=Recommendation(dim=4, history=4, negatives=1, rows_per_client=32),
    )  # fmt: skip
    federation, records = run(config)
    assert records[0].exact
    assert records[0].dropouts == 2
    assert (
        federation.model_sha256()
        == run(dataclasses.replace(config, aggregation="plain"))[0].model_sha256()
    )


def test_who_drops_out_does_not_depend_on_the_aggregation() -> None:
    def gone(aggregation: Aggregation) -> list[set[int]]:
        config = small(aggregation, dropouts=0.2)
        trainer = Trainer(config, build_task(config), federation)
        return [trainer.dropouts(number, trainer.cohort(number)) for number in range(1, 9)]

    federation = build(small("plain"), build_task(small("plain")))
    assert gone("plain") == gone("sesa")
    assert len({frozenset(round_) for round_ in gone("plain")}) > 1
    assert {len(round_) for round_ in gone("plain")} == {3}


def test_more_dropouts_than_the_plan_bears_are_refused_with_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="for at most 9 dropouts"):
        run(small("sesa", dropouts=0.7))
    with pytest.raises(ValueError, match=r"above max_isolation = 0.0001"):
        run(small("sesa", dropouts=0.5))
    out = tmp_path / "run"
    command = ["mlp-mnist-widths", "--data", "synthetic", "--aggregation", "sesa", "--dropouts",
               "0.9", "--out", str(out)]  # fmt: skip
    with pytest.raises(SystemExit) as leaving:
        main(command)
    assert leaving.value.code == 2
    assert "for at most 32 dropouts" in capsys.readouterr().err
    assert not out.exists()


def test_a_round_whose_survivors_would_isolate_a_submodel_is_not_opened() -> None:
    """The plan is checked for the mean over dropouts, a round for those at hand."""
    config = small("sesa", dropouts=0.3, sesa=Sesa(collusion=0.07, max_isolation=0.01))
    task = build_task(config)
    federation = build(config, task)
    trainer, plan, widths = Trainer(config, task, federation), federation.plan, task.widths
    assert isinstance(plan, SesaPlan)
    assert widths is not None
    assert 0 < plan.refusal(4) < 0.5
    refused = []
    for number in range(1, 100):
        cohort = trainer.cohort(number)
        left = [widths.of(c) for c in cohort if c not in trainer.dropouts(number, cohort)]
        if plan.isolation([left.count(width) for width in range(3)]) > 0.01:
            refused.append(number)
    before = federation.model_sha256()
    with pytest.raises(ProtocolError, match=r"4 of 15 clients dropped out.*max_isolation = 0\.01"):
        trainer.run_round(refused[0])
    assert federation.model_sha256() == before


@pytest.mark.parametrize("error", [ProtocolError, NotReady])
def test_such_a_round_ends_the_command_in_one_line(
    error: type[Error],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error("nothing is opened")

    monkeypatch.setattr(experiment, "run_experiment", refuse)
    with pytest.raises(SystemExit) as leaving:
        main(["mlp-mnist-widths", "--out", str(tmp_path / "run")])
    assert leaving.value.code == 1
    assert capsys.readouterr().err == "python -m training: nothing is opened\n"


def test_bytes_by_phase_in_the_summary_are_those_of_the_specification() -> None:
    config = small("sesa", rounds=1)
    federation, records = run(config)
    summary = summarise(config, federation, records, {}, "accuracy")
    n, colluding, bias, header = 15, 2, 10, 64
    row = 50 * (784 + 1 + 10)
    dim = row + bias
    taken = {"1": 4, "0.5": 2, "0.25": 1}
    masked = {name: 4 * (k * row + bias) for name, k in taken.items()}
    offline = {
        name: 16 + colluding * 32 + (n - 1 - colluding) * (4 * (dim + k + 1) + 16)
        for name, k in taken.items()
    }
    relayed = sum(5 * value for value in offline.values()) + n * 16 * (n - 2)
    for name in taken:
        found = summary["bytes_by_width"][name]
        assert found["hello"] == header + 36
        assert found["cohort"] == header + 44 * n
        assert found["model"] == header + 4 * 159_010
        assert found["shares"] == header + offline[name]
        assert found["masked"] == header + masked[name]
        assert found["survivors"] == header + n + 5 * sum(masked.values())
        assert found["answer"] == header + 32 + 4 * dim
    flat = summary["bytes_by_phase"]
    assert flat["relay"] == pytest.approx(header + relayed / n)
    assert flat["masked"] == pytest.approx(header + sum(masked.values()) / 3)
    assert set(flat) == set(summary["bytes_by_width"]["1"])
    assert summary["collusion"] == "at most 2 of 15 clients"


def test_a_cohort_has_as_many_of_each_width_in_every_round() -> None:
    config = small("plain", clients_per_round=14)
    task = build_task(config)
    widths = task.widths
    assert widths is not None
    assert (list(widths.sizes), list(widths.counts)) == ([6, 7, 7], [4, 5, 5])
    assert [widths.of(client) for client in range(20)] == [0] * 6 + [1] * 7 + [2] * 7
    cohorts = [widths.cohort(number) for number in range(1, 30)]
    for cohort in cohorts:
        assert cohort == sorted(set(cohort))
        assert [sum(widths.of(c) == w for c in cohort) for w in range(3)] == [4, 5, 5]
    assert set().union(*cohorts) == set(range(20))
    assert cohorts == [widths.cohort(number) for number in range(1, 30)]


def layout() -> Sharded:
    return Sharded(models.MLP(inputs=3, hidden=(8, 8), classes=2), shards=4)


def widths_with(**settings: Any) -> Widths:
    return Widths(Sesa(**settings), layout(), seed=1, num_clients=9, cohort=3)


def test_random_shards_differ_by_client_round_and_layer_and_are_all_equally_likely() -> None:
    widths = widths_with()
    seen = np.zeros((2, 4))
    distinct = set()
    for number in range(1, 201):
        shards = widths.shards(number, 8)
        assert [len(own) for own in shards] == [1, 1]
        distinct.add(tuple(own[0] for own in shards))
        for layer, own in enumerate(shards):
            seen[layer, own] += 1
    assert len(distinct) == 16
    assert np.all(np.abs(seen - 50) < 25)
    assert widths.shards(3, 8) == widths.shards(3, 8)
    assert [list(own) for own in widths.shards(1, 0)] == [[0, 1, 2, 3]] * 2
    assert all(len(set(own)) == 2 for own in widths.shards(1, 4))


def test_shards_and_submodels_are_those_of_the_papers_figure_2() -> None:
    """B = 2/3 and 1/3: of 3 shards in a layer 2 and 1, of 9 submodels between two 4 and 1."""
    net = Sharded(models.MLP(inputs=3, hidden=(6, 6), classes=2), shards=3)
    widths = Widths(Sesa(budgets=(2 / 3, 1 / 3), shards=3), net, seed=1, num_clients=2, cohort=2)
    assert [[len(own) for own in widths.shards(1, client)] for client in (0, 1)] == [[2, 2], [1, 1]]
    assert [rows["links.0.weight"] for rows in widths.rows] == [4, 1]
    assert len(net.links[0].weight) == 9


def test_a_rolling_window_moves_on_by_a_shard_a_round_and_a_static_one_stays() -> None:
    rolling, static = widths_with(choice="rolling"), widths_with(choice="static")
    assert [rolling.shards(number, 4)[0] for number in range(1, 6)] == [
        [0, 1], [1, 2], [2, 3], [0, 3], [0, 1],
    ]  # fmt: skip
    assert [static.shards(number, 4)[1] for number in (1, 2)] == [[0, 1], [0, 1]]
    assert rolling.rows[1] == {"units.0.weight": 2, "units.1.weight": 2, "links.0.weight": 4}


@pytest.mark.parametrize("choice", ["rolling", "static"])
def test_other_choices_run_under_other_aggregations(choice: str) -> None:
    settings = dataclasses.replace(small("plain").sesa, choice=choice)
    plain, records = run(small("plain", rounds=1, sesa=settings))
    assert records[0].exact
    assert isinstance(plain.audit.aggregation, Plain)
    fsl, _ = run(small("fsl", rounds=1, sesa=settings))
    assert fsl.model_sha256() == plain.model_sha256()


def test_a_mean_over_the_owners_is_the_same_under_plain_and_fsl_and_differs_from_the_cohorts() -> (
    None
):
    settings = dataclasses.replace(small("plain").sesa, mean="owners", choice="static")
    by_owners, _ = run(small("plain", rounds=1, sesa=settings))
    fsl, records = run(small("fsl", rounds=1, sesa=settings))
    assert records[0].exact
    assert fsl.model_sha256() == by_owners.model_sha256()
    settings = dataclasses.replace(settings, mean="cohort")
    by_cohort, _ = run(small("plain", rounds=1, sesa=settings))
    owned = [15, 10, 5, 5]  # five of each width, the first shards
    before = run_nothing()
    for row, count in enumerate(owned):
        changes = [
            federation.server_model.state["units.0.weight"][row].astype(np.float64) - before[row]
            for federation in (by_owners, by_cohort)
        ]
        assert np.allclose(changes[0] * count, changes[1] * 15, atol=1e-5)
        assert np.abs(changes[0]).max() > 1e-3


def run_nothing() -> np.ndarray:
    config = small("plain")
    state = build(config, build_task(config)).server_model.state
    return state["units.0.weight"].astype(np.float64)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["mlp-mnist-widths"], "[sesa]\nbudgets = [1, 0.3]", "expected multiples of 1/4"),
        (["mlp-mnist-widths"], "[sesa]\nbudgets = []", "sesa.budgets is empty"),
        (["mlp-mnist-widths"], "[sesa]\nshards = 0", "sesa.shards is 0"),
        (["mlp-mnist-widths"], "dropouts = 0.99", "min_clients = 2: lower dropouts"),
        (["mlp-mnist-widths"], "[sesa]\nbudgets = 1", "expected a list"),
        (["mlp-mnist-widths"], "[sesa]\ncollusion = 1", "choose a share above 0 and below 1"),
        (["mlp-mnist-widths"], "dropouts = 1.0", "choose 0 or a share below 1"),
        (["mlp-mnist-widths"], "aggregation = 'sesa'\n[sesa]\nchoice = 'static'", "random shards"),
        (["mlp-mnist-widths", "--aggregation", "sesa"], "[sesa]\nmean = 'owners'", "not sesa"),
        (["mlp-mnist-widths", "--aggregation", "dense"], "[sesa]\nmean = 'owners'", "not dense"),
        (["din"], "[sesa]\nshards = 8", "the preset is din"),
        (["din", "--aggregation", "sesa"], "", "choose a preset whose name ends in -widths"),
        (["mlp-mnist-widths", "--aggregation", "sesa", "--servers", "a:1,b:1", "--tls", "x"], "",
         "has one server"),
    ],
)  # fmt: skip
def test_settings_that_do_nothing_or_cannot_be_are_named(
    arguments: list[str], text: str, message: str, tmp_path: Path
) -> None:
    settings = tmp_path / "wrong.toml"
    settings.write_text(text)
    with pytest.raises(ConfigError) as found:
        config_from(make_parser().parse_args([*arguments, "--config", str(settings)]))
    assert message in str(found.value)


def test_settings_that_the_data_or_the_cohort_does_not_bear_are_named() -> None:
    with pytest.raises(ConfigError, match="the 3 entries of"):
        build_task(small("plain", clients_per_round=2))
    with pytest.raises(ConfigError, match="less than one client: raise"):
        run(small("sesa", sesa=Sesa(collusion=0.05)))
    with pytest.raises(ConfigError, match="twice as many examples"):
        build_task(small("plain", partition=Partition(clients=1500, scheme="two-labels")))


@pytest.mark.parametrize("preset", WIDE)
def test_every_preset_of_widths_has_a_plan_that_isolates_nothing(preset: str) -> None:
    config = dataclasses.replace(
        PRESETS[preset], data="synthetic", aggregation="sesa", dropouts=0.1
    )
    plan = build(config, build_task(config)).plan
    assert isinstance(plan, SesaPlan)
    assert plan.collusion == 4
    assert plan.refusal(config.num_dropouts) == 0
    assert plan.isolation([width.clients for width in plan.widths], config.num_dropouts) == 0


def test_a_plan_that_cannot_tell_how_likely_a_row_is_is_not_made() -> None:
    """A segment of two tables, of which clients train one row in four and one in sixteen."""
    units, links = torch.nn.Embedding(4, 6), torch.nn.Embedding(16, 6)
    tables = torch.nn.ModuleDict({"units": units, "links": links})
    hooks = Hooks(tables, torch.optim.SGD(tables.parameters(), lr=1), Settings(rows=Rows()))
    assert rows_by_segment(hooks, {"units.weight": 4, "links.weight": 16}) == {"rows6": 20}
    with pytest.raises(ConfigError, match="a client trains different parts of them"):
        rows_by_segment(hooks, {"units.weight": 1, "links.weight": 1})


def test_the_collusion_of_the_paper_is_refused_by_the_isolation_limit() -> None:
    config = dataclasses.replace(small("sesa"), sesa=Sesa(collusion=0.5))
    with pytest.raises(ValueError, match="max_isolation"):
        run(config)


def test_an_interrupted_run_with_one_server_goes_on_and_ends_equal(tmp_path: Path) -> None:
    config = small("sesa", rounds=3, checkpoint_every=1, dropouts=0.07)
    whole = experiment.run_experiment(config, tmp_path / "a", resume=False, console=Listener())
    with pytest.raises(Interrupted):
        experiment.run_experiment(
            config, tmp_path / "b", resume=False, console=Listener(stop_after=2)
        )
    parts = experiment.run_experiment(config, tmp_path / "b", resume=True, console=Listener())
    assert parts["model_sha256"] == whole["model_sha256"]
    assert parts["exact_rounds"] == parts["rounds"] == 3
    assert parts["bytes_by_width"] == whole["bytes_by_width"]

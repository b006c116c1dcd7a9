"""The study of averages: one run of its smallest task, kept runs, and the tables of its figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.reproduction import averages, systems_tables
from scripts.reproduction.averages_tasks import SETTINGS, TwoTowerTask, train


def test_momentum_is_ahead_of_the_plain_mean_on_disjoint_words() -> None:
    words = dataclasses.replace(SETTINGS["words"], rounds=5)
    plain, momentum = (
        averages.run(words, "clients", averages.SERVERS[servers], "fresh", 0)[-1]
        for servers in ("SGD(1)", "SGD(2.5, momentum=0.8)")
    )
    assert momentum >= 0.9 > plain


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_a_task_names_all_rows_that_its_batches_read(name: str) -> None:
    setting = dataclasses.replace(SETTINGS[name], rounds=5)
    task = setting.make(0)
    one, again = (task.work(3, 1) for _ in range(2))
    assert {table: ids.tolist() for table, ids in one.rows.items()} == {
        table: ids.tolist() for table, ids in again.rows.items()
    }
    model = task.build_model()
    optimizer = setting.optimizer(model.parameters())
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    train(model, optimizer, one.batches)
    for table, ids in one.rows.items():
        moved = (dict(model.named_parameters())[table] != before[table]).any(dim=1).nonzero()
        assert set(moved[:, 0].tolist()) <= set(ids.tolist())
        assert len(moved)


def test_interactions_are_the_same_however_they_are_dealt_to_clients() -> None:
    by_user, spread = TwoTowerTask(0), TwoTowerTask(0, spread=True)
    assert by_user.known.equal(spread.known)
    assert len({pair // 39 for pair in by_user.parts[0].tolist()}) == 25
    assert len({pair // 39 for pair in spread.parts[0].tolist()}) > 250
    assert sorted(i for part in spread.parts for i in part.tolist()) == list(range(500 * 39))


def test_finished_runs_are_kept(tmp_path: Path) -> None:
    kept = averages.Kept(tmp_path / "runs" / "averages.jsonl")
    assert kept.curve("runs/words/clients/SGD(1)/fresh", 0, lambda _: [0.25, 0.5]) == [0.25, 0.5]
    later = averages.Kept(tmp_path / "runs" / "averages.jsonl")
    assert later.curve("runs/words/clients/SGD(1)/fresh", 0, lambda _: [0.0]) == [0.25, 0.5]


def test_a_table_has_means_over_seeds() -> None:
    figures = {
        "runs": {"words/clients/SGD(1)/fresh": {"0": [0.2, 0.6, 0.4], "1": [0.4, 0.6, 0.8]}},
        "causes": {"central": {"0": [0.1, 0.3]}}, "default": "clients/SGD(1)/fresh", "former": "",
    }  # fmt: skip
    (row,) = systems_tables._averages("words", figures)
    assert row == ("clients", "SGD(1) (**default**)", "fresh", "0.300", "0.600", "0.700", "0.600",
                   "0.600, 0.800", 2)  # fmt: skip
    assert not list(systems_tables._averages("din", figures))
    assert list(systems_tables._causes(figures)) == [("central", "0.300", "0.300", "0.300")]

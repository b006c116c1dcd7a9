"""A restored task goes on with its privacy budget: who has reported, and how many rounds opened."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_private_rounds import private
from tests.service.test_backup import Parties
from tests.service.test_noise_state import authorities as authorities
from tests.support.errors import raises
from tests.support.federation import make_state, mixed_plan
from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission
from torchfsl.service.backup import Backup, restore
from torchfsl.service.command import main
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state_checks import check_budget
from torchfsl.service.task import Past, Task, bind_plan, decode_task, encode_task

PLAN = private(mixed_plan(), max_participations=3)  # four rounds apart, as noise is correlated


def fresh(count: int = 0, last: int = 0) -> dict[str, Any]:
    return {"clients": np.full(count, 7, np.uint64), "places": np.full(count, last, np.int64)}


def test_a_restored_task_refuses_who_came_before_the_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "backup"
    with Parties(tmp_path / "servers", PLAN) as pair:
        pair.start()
        pair.set_up()
        pair.round(range(2))
        pair.round(range(2, 4))
        assert main(["backup", str(file), "--state", str(pair.state(1))]) == 0
        for party in (0, 1):
            pair.lose_state(party)
        backup = Backup.read(file)
        assert backup.task.past is not None
        assert backup.task.past.reports() == [(0, 0), (1, 0), (2, 1), (3, 1)]
        capsys.readouterr()
        arguments = ["restore", str(file), "--servers", ",".join(pair.urls), "--tls", str(pair.tls)]
        assert main(arguments) == 0
        assert "rounds spent 2 of 60, reports that count 4" in capsys.readouterr().out
        for party in (0, 1):
            assert check_budget(pair.state(party)).startswith(
                "rounds spent 2 of 60, reports that count 4"
            )
            pair.kill(party)
            pair.start(party)  # what was carried over outlives a crash
        pair.go_on_with(dataclasses.replace(backup.task, plan=pair.owner.plan()))
        pair.open()
        for early in (0, 1, 2, 3):
            with raises(RejectedSubmission, "too-early"):
                pair.take_part([early])
        pair.take_part([4])
        pair.close()
        assert check_budget(pair.state(0)).startswith("rounds spent 3 of 60, reports that count 5")


def test_a_backup_without_counts_starts_no_task_that_limits_reports(tmp_path: Path) -> None:
    with Parties(tmp_path / "servers", PLAN) as pair:
        pair.start()
        pair.set_up()
        pair.round()
        backup = Backup.of_state(pair.state(0))
        old = dataclasses.replace(backup, task=dataclasses.replace(backup.task, past=None))
        old.write(tmp_path / "backup")
        with raises(ParameterError, "budget-unknown"):
            restore(pair.owner, Backup.read(tmp_path / "backup"))
        assert pair.owner.plan() == pair.plan
        spent = dataclasses.replace(backup, spent=60)
        with raises(ParameterError, "rounds-spent"):
            restore(pair.owner, spent)


@pytest.mark.parametrize(
    ("index", "values"),
    [
        (None, {}),
        (3, {"clients": np.zeros(0, np.uint64)}),
        ("3", fresh()),
        (-1, fresh()),
        (3, fresh(2, 3)),
        (3, fresh(2, -1)),
        (3, {**fresh(2), "clients": np.zeros(3, np.uint64)}),
        (3, {**fresh(), "clients": np.zeros(0, np.int64)}),
        (3, {"clients": np.zeros((1, 1), np.uint64), "places": np.zeros((1, 1), np.int64)}),
    ],
)
def test_counts_that_are_no_counts_are_refused(index: Any, values: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match="past report"):
        Past.of_values(index, {f"past/{name}": value for name, value in values.items()})


def test_counts_travel_with_the_task_and_a_task_without_them_has_the_bytes_of_before(
    authorities: Authorities,
) -> None:
    plan = bind_plan(PLAN, authorities, bytes(16))
    task, state = Task(plan, bytes(16)), make_state(plan)
    largest = np.array([5, (1 << 64) - 1], np.uint64)
    past = Past(9, largest, np.array([0, 8], np.int64))
    bare = encode_task(task, state)
    assert b"past" not in bare
    assert decode_task(bare)[0].past is None
    found = decode_task(encode_task(dataclasses.replace(task, past=past), state))[0].past
    assert found is not None
    assert (found.index, found.reports()) == (9, [(5, 0), ((1 << 64) - 1, 8)])

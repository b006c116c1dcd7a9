"""The tasks of the app template, without Flower: they use parts of the clone that change."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "examples" / "flower"


@pytest.mark.parametrize("name", ["classifier", "din"])
def test_the_templates_tasks_train(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))
    template = importlib.import_module("submodels.task")
    settings = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    task = template.make_task(settings | {"task": name})
    fed, optimizer = template.federate(task, settings)
    batches = task.batches(1, 0)
    assert 0 < sum(map(len, fed.rows_of(batches).values())) <= task.rows_per_client
    losses = [template.train(fed.model, optimizer, batches) for _ in range(3)]
    assert losses[-1] < losses[0]

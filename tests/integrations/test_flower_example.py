"""The app template runs, and the code of the page on Flower is an app that runs."""

from __future__ import annotations

import importlib
import random
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from tests.support.flower_grid import HereGrid

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "examples" / "flower"


def play(server: Any, client: Any, nodes: int, config: dict[str, Any]) -> HereGrid:
    run_id = random.getrandbits(60)
    grid = HereGrid(client, [{}] * nodes, run_id=run_id, run_config=config)
    server(grid, Context(run_id, 1, {}, RecordDict(), config))
    return grid


@pytest.mark.parametrize("task", ["classifier", "din"])
def test_the_template_learns(
    task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(APP))
    settings = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    parts = {name: ref.split(":") for name, ref in settings["components"].items()}
    loaded = {n: getattr(importlib.import_module(m), a) for n, (m, a) in parts.items()}
    grid = play(
        loaded["serverapp"], loaded["clientapp"], 3, settings["config"] | {"task": task, "nodes": 3}
    )
    losses = [
        float(v) for v in re.findall(r"^round \d+: loss ([\d.]+)", capsys.readouterr().out, re.M)
    ]
    assert len(losses) == settings["config"]["rounds"]
    assert losses[-1] < losses[0]
    assert grid.array_bytes == 0


def test_the_code_of_the_page_is_an_app_that_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "flower.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    page: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "flower.md", "exec"), page)  # noqa: S102 - the page under test
    grid = play(page["server_app"], page["client_app"], 3, {})
    assert page["digests"][-1] != page["digests"][0]
    assert not any(reply.has_error() for reply in grid.replies)
    assert grid.array_bytes == 0


def test_the_environment_of_the_page_is_the_one_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    app = tomllib.loads((APP / "pyproject.toml").read_text())["project"]["dependencies"]
    assert extras["flower"] == app
    assert sys.version_info >= (3, 11)

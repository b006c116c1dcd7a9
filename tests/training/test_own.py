"""A task of one's own, from a module in a folder: the page's runs, wrong ones are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from training.cli import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-experiments.md").read_text()
(MODULE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
(COMMAND,) = re.findall(r"^python -m training (own .*)", PAGE, flags=re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main([*arguments, "--out", "run", "--quiet"])
    assert leaving.value.code == 2
    return capsys.readouterr().err


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_the_task_of_the_page_trains_exactly_and_learns(folder: Path) -> None:
    # Another name than the page's, so that no other test finds this module.
    write(folder, "page_model", MODULE)
    command = COMMAND.replace("my_model", "page_model").split()
    assert main([*command, "--out", "run", "--quiet", "--threads", "1"]) == 0
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["exact_rounds"] == summary["exact_retrieval_rounds"] == 20
    assert summary["metrics"]["accuracy"] > 0.8
    settings = json.loads((folder / "run" / "config.json").read_text())
    assert settings["task"] == "page_model:Taste"


def test_plain_ends_with_the_same_model(folder: Path) -> None:
    write(folder, "twice_model", MODULE)
    for aggregation in ("plain", "fsl"):
        command = ["own", "--task", "twice_model:Taste", "--rounds", "2", "--out", aggregation]
        assert main([*command, "--aggregation", aggregation, "--quiet", "--threads", "1"]) == 0
    hashes = {
        json.loads((folder / name / "summary.json").read_text())["model_sha256"]
        for name in ("plain", "fsl")
    }
    assert len(hashes) == 1


def test_a_name_that_leads_nowhere_is_told_with_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "MODULE:NAME" in complaint(capsys, "own")
    assert "MODULE:NAME" in complaint(capsys, "own", "--task", "only_a_module")
    assert "there is no module 'absent_one'" in complaint(capsys, "own", "--task", "absent_one:T")
    write(folder, "empty_one", "")
    assert "no class or function 'T'" in complaint(capsys, "own", "--task", "empty_one:T")
    assert "preset own, not din" in complaint(capsys, "din", "--task", "empty_one:T")


def test_an_incomplete_task_is_told_what_it_lacks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "bare_one", "def make(config):\n    return object()\n")
    said = complaint(capsys, "own", "--task", "bare_one:make")
    assert "lacks num_clients, metric" in said
    assert "inherit from training.tasks.task.Task" in said
    write(folder, "unbounded_one", MODULE.replace("rows_per_client = 40", "rows_per_client = 0"))
    assert "rows_per_client" in complaint(capsys, "own", "--task", "unbounded_one:Taste")
    listed = re.sub(r"return torch.nn.Sequential.*", "return [1, 2]", MODULE)
    write(folder, "list_one", listed)
    said = complaint(capsys, "own", "--task", "list_one:Taste")
    assert "build_model returns a list" in said

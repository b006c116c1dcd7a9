"""A task of one's own, from a module in a folder: the page's runs, wrong ones are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from training.cli import main
from training.compare import main as compare

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "own-experiments.md").read_text()
MODULE, FACTORY = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
COMMAND, CENTRAL = re.findall(r"^python -m training (own .*)", PAGE, flags=re.MULTILINE)


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


def test_the_other_commands_of_the_page_do_as_they_say(folder: Path) -> None:
    """Those on a table of events, of pages for a colleague, and of seeds; with short rounds."""
    printed = re.findall(r"^python -m training ((?!own|export).*)", PAGE, flags=re.MULTILINE)
    events, comparisons, seeds = printed[0], printed[1:-1], printed[-1]
    lines = [f"u{n % 40},s{n * 7 % 90},{n}" for n in range(400)]
    (folder / "events.csv").write_text("\n".join(["uid,sku,at", *lines]))
    short = "--rounds 1 --clients-per-round 2 --above-break-even dense --quiet --threads 1"
    for seed, out in enumerate(["runs/mine", "runs/other"]):
        assert main([*events.split(), *short.split(), "--seed", str(seed), "--out", out]) == 0
    assert [line.split()[0] for line in comparisons] == ["compare", "compare"]
    for line in comparisons:
        assert compare(line.split()[1:]) == 0
    assert {path.name for path in folder.glob("*.*")} >= {"mine.html", "both.html", "both.png"}
    assert main([*seeds.split(), *short.split(), "--data", "synthetic"]) == 0
    assert {path.name for path in (folder / "runs/three").iterdir()} >= {
        "seed-0", "seed-1", "seed-2", "report.html", "curves.png",
    }  # fmt: skip


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
    assert "Python does not find the module 'absent_one'" in complaint(
        capsys, "own", "--task", "absent_one:T"
    )
    write(folder, "empty_one", "")
    assert "define a class or function 'T'" in complaint(capsys, "own", "--task", "empty_one:T")
    assert "only the preset own has a task" in complaint(capsys, "din", "--task", "empty_one:T")


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
    assert "build_model returned a list" in said


def test_a_budget_by_table_is_taken_and_one_that_is_none_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_budget(text: str) -> str:
        return MODULE.replace("rows_per_client = 40", f"rows_per_client = {text}")

    write(folder, "by_table", with_budget('{"0": 40}'))
    command = ["own", "--task", "by_table:Taste", "--rounds", "1", "--clients-per-round", "2"]
    assert main([*command, "--out", "run", "--quiet", "--threads", "1"]) == 0
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [s["k_max"] for s in summary["segments"] if s["policy"] == "rows"] == [40]
    write(folder, "odd_budget", with_budget('{"0": 0}'))
    said = complaint(capsys, "own", "--task", "odd_budget:Taste", "--out", "other")
    assert "rows_per_client is {'0': 0}, but retrieves is true" in said


def test_a_table_too_small_for_trees_is_told_with_the_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "small_table", MODULE.replace("2000", "60"))
    said = complaint(capsys, "own", "--task", "small_table:Taste")
    assert "trees for 40 of 60 positions cost" in said
    assert "--above-break-even dense to send such segments whole" in said
    assert "above_break_even=" not in said
    command = ["own", "--task", "small_table:Taste", "--rounds", "1", "--clients-per-round", "2"]
    options = ["--above-break-even", "dense", "--out", "run", "--quiet", "--threads", "1"]
    assert main([*command, *options]) == 0


def test_batch_norm_is_warned_of_and_evaluated_by_its_statistics(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = MODULE.replace(
        "torch.nn.Linear(16, 2)", "torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2)"
    )
    looks = "assert not any(m.training for m in model.modules())\n        with torch.no_grad():"
    write(folder, "with_norm", text.replace("under torch.no_grad()", looks))
    command = ["own", "--task", "with_norm:Taste", "--rounds", "1", "--clients-per-round", "2"]
    assert main([*command, "--out", "run", "--threads", "1"]) == 0
    assert "BatchNorm (1) keeps the statistics from build_model" in caplog.text


def test_targets_that_are_no_classes_are_told_with_the_remedy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = "torch.from_numpy(self.liked[items])"
    write(folder, "float_targets", MODULE.replace(labels, f"{labels}.float()"))
    said = complaint(capsys, "own", "--task", "float_targets:Taste")
    assert "labels of dtype torch.float32: return int64 classes, or None with a model" in said


def test_the_page_of_a_run_is_made_by_the_command_of_the_guide(folder: Path) -> None:
    (command,) = re.findall(
        r"^python -m training (compare runs/mine --html .*)", PAGE, re.MULTILINE
    )
    write(folder, "to_show", MODULE)
    run = ["own", "--task", "to_show:Taste", "--rounds", "1", "--clients-per-round", "2"]
    assert main([*run, "--out", "runs/mine", "--quiet", "--threads", "1"]) == 0
    assert compare(command.split()[1:]) == 0
    assert "accuracy" in (folder / "mine.html").read_text()
    listed = set(
        re.findall(r"^\| `([\w.]+/?)` \|", PAGE.split("## Files of a run")[1], re.MULTILINE)
    )
    there = {path.name + "/" * path.is_dir() for path in (folder / "runs" / "mine").iterdir()}
    assert listed == there


OWN = """
import math

import numpy as np
import torch

from training.tasks.task import Batch, Task, Work


class Small(Task):
    metric = "accuracy"
    batch = Batch((torch.ones(3, 2),), torch.tensor([0, 1, 1]))

    def __init__(self, config):
        self.num_clients = 4

    def build_model(self):
        return torch.nn.Linear(2, 2)

    def work(self, round_number, client):
        return Work({}, (self.batch,))

    def evaluate(self, model):
        return {"accuracy": 0.5}

"""
ODD = {
    "def evaluate(self, model): return None": "returned None as figures, expected a dict",
    "def evaluate(self, model): return {'accuracy': 'good'}": "expected a dict from names to",
    "def evaluate(self, model): return {'acc': 1}": r"is 'accuracy', and its evaluate\(\) returns",
    "def evaluate(self, model): return {'accuracy': 1, 'round': 7, 'exact': 0}":
        "figures with the names exact, round, which metrics.jsonl uses",
    "def build_model(self): return torch.nn.Linear(2, 2).bfloat16()":
        "weight has dtype torch.bfloat16.*float()",
    "num_clients = 4.0\n    def __init__(self, config): pass": "num_clients is 4.0",
    "batch = Batch((torch.ones(3, 2),), torch.tensor([0, 1, 2]))":
        "label 2, expected 0 to 1, because the model has 2",
    "batch = Batch((torch.ones(3, 2),), torch.tensor([0, 1, -1]))":
        "label -1, expected 0 to 1, because the model has 2",
    "batch = Batch((np.ones((3, 2)),), torch.tensor([0, 1, 0]))":
        "inputs of type ndarray.*tuple of tensors",
    "batch = Batch(torch.ones(3, 2), torch.tensor([0, 1, 0]))":
        "inputs of type Tensor.*tuple of tensors",
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(ODD)))
def test_what_a_task_gives_is_checked(
    number: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member, said = list(ODD.items())[number]
    write(folder, f"odd_{number}", OWN + f"\nclass Odd(Small):\n    {member}\n")
    options = "--rounds 1 --clients-per-round 2 --aggregation plain --threads 1"
    told = complaint(capsys, "own", "--task", f"odd_{number}:Odd", *options.split())
    assert re.search(said, told), told


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_figures_that_are_no_numbers_are_null_and_best_is_of_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gives = "[math.nan, np.float32(0.25), torch.tensor(0.125), math.inf][self.n % 4]"
    write(folder, "odd_nan", OWN + f"""
class Odd(Small):
    n = -1

    def evaluate(self, model):
        self.n += 1
        return {{"accuracy": {gives} if self.n < 3 else math.nan}}
""")  # fmt: skip
    command = ["own", "--task", "odd_nan:Odd", "--aggregation", "plain", "--quiet"]
    command += ["--threads", "1", "--clients-per-round", "2", "--out", "run"]
    assert main([*command, "--rounds", "4"]) == 0
    lines = [strict(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in lines] == [None, 0.25, 0.125, None]  # type: ignore[index]
    summary = strict((folder / "run/summary.json").read_text())
    assert (summary["best"], summary["metrics"]) == (0.25, {"accuracy": None})  # type: ignore[index]
    assert main([*command, "--rounds", "5", "--resume"]) == 0
    assert compare(["run", "--html", "page.html"]) == 0
    assert "nan" in capsys.readouterr().out

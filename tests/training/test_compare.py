"""Runs side by side: seeds are one row, differences name the rows, the page holds all of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from training import cli, compare
from training.compare import page
from training.runs import Run, rows_of, table
from training.section_checks import ConfigError
from training.tasks.recommendation import RecommendationTask


def make_run(folder: Path, values: Sequence[float | None], **settings: Any) -> Run:
    folder.mkdir(parents=True)
    told = {"preset": "din", "seed": 0, "rounds": 3, "local": {"lr": 0.1}} | settings
    (folder / "config.json").write_text(json.dumps(told))
    lines = [
        {"round": n + 1, "auc": value, "upload_bytes": 2e6, "download_bytes": 1e6, "exact": True}
        for n, value in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run.read(folder)


def test_seeds_are_one_row_with_mean_and_deviation(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{place}", [0.5, last], seed=seed, local={"lr": rate})
        for place, (seed, rate, last) in enumerate([(0, 0.1, 0.7), (0, 0.2, 0.65), (1, 0.1, 0.9)])
    ]
    first, second = rows_of(runs)
    assert first.cells() == (
        "local.lr 0.1", "0, 1", "2", "0.8000 ± 0.1414", "0.8000 ± 0.1414", "2.000", "1.000",
        "4 of 4",
    )  # fmt: skip
    assert second.cells()[:4] == ("local.lr 0.2", "0", "2", "0.6500")
    assert table([first, second]).splitlines()[0].split() == [
        "run", "seeds", "rounds", "last", "best", "MB", "up", "MB", "down", "exact"
    ]  # fmt: skip


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", [0.5])
    with pytest.raises(ConfigError, match="same settings and seed"):
        rows_of([one, make_run(tmp_path / "b", [0.6])])
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match="not the folder of a run"):
        Run.read(tmp_path / "c")
    with pytest.raises(ConfigError, match="with a finished round"):
        make_run(tmp_path / "d", [])
    with pytest.raises(SystemExit) as leaving:
        compare.main([str(tmp_path / "c")])
    assert leaving.value.code == 2


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "a", [0.5, 0.6])
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "auc": 0.7')
    assert Run.read(tmp_path / "a").evaluated == [(1, 0.5), (2, 0.6)]


def test_the_page_is_one_file_and_escapes_what_it_shows(tmp_path: Path) -> None:
    text = page(rows_of([make_run(tmp_path / "a", [0.5, 0.6], data="<b>mine</b>")]))
    HTMLParser().feed(text)
    assert "<b>mine</b>" not in text
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert re.search(r'src="data:image/png;base64,[A-Za-z0-9+/=]{1000}', text)
    assert not re.search(r'(src|href)="http', text)


def test_seeds_run_one_after_the_other_and_go_on_where_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["din", "--rounds", "1", "--clients-per-round", "3", "--aggregation", "plain",
               "--seeds", "4,5", "--out", str(tmp_path / "runs")]  # fmt: skip
    assert cli.main(command) == 0
    assert "auc of 2 seeds" in capsys.readouterr().out
    folders = [tmp_path / "runs" / f"seed-{seed}" for seed in (4, 5)]
    first, second = (json.loads((one / "summary.json").read_text()) for one in folders)
    assert (first["seed"], second["seed"]) == (4, 5)
    assert first["model_sha256"] != second["model_sha256"]
    assert (tmp_path / "runs" / "report.html").exists()
    (folders[1] / "summary.json").unlink()
    assert cli.main([*command, "--resume"]) == 0
    assert (
        json.loads((folders[1] / "summary.json").read_text())["model_sha256"]
        == (second["model_sha256"])
    )
    with pytest.raises(SystemExit):
        cli.main([*command, "--seed", "1"])


def test_figures_without_a_number_are_no_best_and_stop_no_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [None, 0.6, None])
    assert run.best == 0.6
    assert math.isnan(make_run(tmp_path / "b", [None]).best)
    told = {"baselines": {"random": None, "popular": 0.5}}
    (tmp_path / "a" / "summary.json").write_text(json.dumps(told))
    text = page(rows_of([Run.read(tmp_path / "a")]))
    assert "popular 0.5000" in text
    assert "random" not in text


@pytest.mark.parametrize("last", [(0.7, 0.65), (math.nan, math.nan)])
def test_a_run_without_patience_left_stops_and_is_not_taken_up_again(
    last: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained = 0.5
    honest = RecommendationTask.evaluate
    values = iter([untrained, 0.6, 0.7, *last, untrained])
    monkeypatch.setattr(
        RecommendationTask, "evaluate",
        lambda task, model: honest(task, model) | {"auc": next(values)},
    )  # fmt: skip
    folder = str(tmp_path / "run")
    command = [
        "din-published", "--rounds", "6", "--clients-per-round", "3", "--aggregation", "plain",
        "--quiet", "--eval-every", "1", "--patience", "2", "--out", folder,
    ]  # fmt: skip
    assert cli.main(command) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4
    assert cli.main([*command, "--resume"]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4

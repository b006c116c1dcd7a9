from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

pytest.importorskip("matplotlib", reason="needs the training extra")

from reproduction import accuracy, communication, hashing, one_round, report  # noqa: E402


def test_results_page_is_what_the_results_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert report.TARGET.read_text(encoding="utf-8") == report.render()


def test_a_measured_round_is_exact_and_counts_its_bytes() -> None:
    plan = one_round.one_segment_plan(1 << 10, 102, ring_bits=128, check=False)
    costs = one_round.measure(plan)  # raises unless the opened sum is the plaintext sum
    assert costs.upload_bytes == 15_866
    assert 0 < costs.client_seconds < 10
    assert 0 < costs.server_seconds < 10


def test_dense_shares_are_measured_too() -> None:
    plan = one_round.dense_plan(1000, clients=3)
    assert 4000 < one_round.measure(plan).upload_bytes < 4500


def test_the_papers_factor_fails_where_ours_does_not() -> None:
    assert hashing._failures(10, 13, 500) > 0
    assert hashing._failures(10, 200, 500) == 0


def test_break_even_separates_cheap_plans_from_dear_ones() -> None:
    percent = communication.break_even(1 << 15, 1, 32, False)
    for share, cheaper in ((0.8 * percent, True), (1.5 * percent, False)):
        k = round((1 << 15) * share / 100)
        upload = communication.messages.client_bytes(
            one_round.one_segment_plan(1 << 15, k, ring_bits=32, check=False)
        )
        assert (upload < 4 << 15) == cheaper


def test_an_accuracy_run_checks_fsl_against_plain_and_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    cell = accuracy.Cell("table8", "trec", 1, seed=0, rounds=1)
    config = cell.config("synthetic", 1)
    short = accuracy.run_cell(cell, config, tmp_path, 1)
    assert short["fsl"]["rounds"] == short["fsl"]["exact_rounds"] == 1
    more = dataclasses.replace(config, rounds=2)
    longer = accuracy.run_cell(dataclasses.replace(cell, rounds=2), more, tmp_path, 1)
    assert longer["exact_rounds"] == longer["rounds"] == 2
    assert [number for number, _ in longer["curve"]] == [1, 2]
    assert longer["fsl"] == short["fsl"]
    assert "mean_curve" not in longer


def test_an_accuracy_run_with_a_mean_has_both_curves_and_a_name_of_its_own(tmp_path: Path) -> None:
    [cell] = accuracy.table7(["trec"], [5], [0], 2, False, average=0.5)
    assert cell.name == "trec-5-mean0.5-seed0-2rounds"
    result = accuracy.run_cell(cell, cell.config("synthetic", 1), tmp_path, 1)
    assert [number for number, _ in result["mean_curve"]] == [1, 2]
    assert result["mean_curve"][0] == result["curve"][0]  # the mean of one model is the model
    values = [value for _, value in result["mean_curve"]]
    assert result["mean_accuracy_percent"] == pytest.approx(50 * sum(values))


def test_precision_is_a_setting_of_image_runs() -> None:
    cells = accuracy.table7(["trec", "cifar10"], [1], [0], None, False, precision="float32")
    assert [cell.config(None, 1).local.precision for cell in cells] == ["float32", "float32"]
    assert [cell.name for cell in cells] == ["trec-1-seed0", "cifar10-1-float32-seed0"]

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scripts.reproduction import (
    accuracy,
    communication,
    hashing,
    one_round,
    plots,
    preamble,
    report,
    runs,
)
from scripts.reproduction.cells import Cell, table7
from scripts.reproduction.markdown import size
from scripts.reproduction.page_table import TABLES
from scripts.reproduction.results import read_results, write_result
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from training.checkpoint import CheckpointFolder

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_have_the_tables_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    marks: Counter[str] = Counter()
    for path in report.pages():
        page = path.read_text(encoding="utf-8")
        assert page == report.filled(page), "stale: scripts/reproduce report"
        marks.update(found[2] for found in report.MARKS.finditer(page))
    assert marks == Counter(TABLES.keys()), "a table is on no page, or on two"


def test_a_table_without_results_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, table in TABLES.items():
        assert table.render().startswith("*Not run yet: `scripts/reproduce "), name


def test_a_result_is_replaced_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("b", 1), ("a", 2), ("b", 0.1)):
        write_result("some", name, {"value": value})
    lines = Path("results/some.jsonl").read_text().splitlines()
    assert lines == ['{"name": "a", "value": 2}', '{"name": "b", "value": 0.1}']
    assert [path.name for path in Path("results").iterdir()] == ["some.jsonl"]
    assert read_results("some")["b"] == {"value": 0.1}
    assert read_results("others") == {}


def test_the_index_has_the_figures_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is written by hand; these are the figures that change with a new count of bytes."""
    monkeypatch.chdir(ROOT)
    index = Path("RESULTS.md").read_text(encoding="utf-8")
    figures = read_results("tables")
    din, even = figures["din"]["round"], figures["rates"]["ours_break_even_percent"]
    for name in ("upload_bytes", "download_bytes", "dense_two_server_upload_bytes"):
        assert size(din[name]) in index
    for kind, digits in (("tau=18 l=32 check", 0), ("tau=32 l=32 check", 0),
                         ("tau=1 l=32 check", 1), ("tau=1 l=32 no check", 1)):  # fmt: skip
        assert f"{even[f'm=2^20 {kind}']:.{digits}f} %" in index
    for line in TABLES["recommenders"].render().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells[1:2] == ["`din`"]:
            assert cells[4] in index
            assert cells[6] in index


def test_a_run_with_a_mean_has_a_row_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [
        Cell("table7", "cifar10", 100, seed=0, rounds=7),
        Cell("table7", "cifar10", 100, seed=0, rounds=7, average=0.9),
        Cell("table7", "cifar10", 1, 0, 7, server_rate=2.5, precision="float32"),
        Cell("table7", "cifar10", 5, seed=0, rounds=7, average=0.9, precision="float32"),
        Cell("table7", "cifar10", 5, seed=0, rounds=8, average=0.9),
    ]
    finals = [(80.0, None), (80.0, 81.0), (70.0, None), (75.0, 77.0), (76.0, 78.0)]
    for cell, (latest, mean) in zip(cells[:1] + cells[2:], finals[:1] + finals[2:], strict=True):
        _write_run(cell, latest, mean)
    rows = _rows_of(TABLES["table7-cifar10"].render())
    assert rows["1 %, server rate 2.5, float32"][2:5] == ["70.00", "-10.00", "1"]
    assert rows["5 %, float32"][2:5] == ["75.00", "-5.00", "1"]
    assert rows["5 %, mean of models (0.9), float32"][2:5] == ["77.00", "-3.00 (its latest)", "1"]
    assert rows["5 %, mean of models (0.9)"][2:5] == ["78.00", "-", "1"]  # none of 8 rounds
    _write_run(cells[1], *finals[1])
    _write_run(dataclasses.replace(cells[1], average=0.99), 80.0, 82.0)
    page = TABLES["table7-cifar10"].render()
    rows = _rows_of(page)
    assert rows["100 % (dense shares)"][2:5] == ["80.00", "-", "1"]  # one model, in three files
    assert rows["100 % (dense shares), mean of models (0.9)"][2:5] == ["81.00", "-", "1"]
    assert rows["100 % (dense shares), mean of models (0.99)"][2:5] == ["82.00", "-", "1"]
    assert rows["1 %, server rate 2.5, float32"][2:5] == ["70.00", "-10.00", "1"]
    assert rows["5 %, mean of models (0.9), float32"][2:5] == ["77.00", "-4.00", "1"]  # to mean
    _write_run(dataclasses.replace(cells[0], precision="float32"), 79.0, None)
    rows = _rows_of(TABLES["table7-cifar10"].render())
    assert rows["1 %, server rate 2.5, float32"][2:5] == ["70.00", "-9.00", "1"]


def test_a_run_with_momentum_says_so_and_is_compared_with_averaging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = Cell("table7", "cifar10", 1, 0, 7, server_rate=0.5)
    ours = dataclasses.replace(usual, server_momentum=0.9, server_decay=0.99)
    assert ours.name == "cifar10-1-rate0.5-momentum0.9-decay0.99-seed0-7rounds"
    config = ours.config(None).server
    assert (config.lr, config.momentum, config.lr_decay) == (0.5, 0.9, 0.99)
    _write_run(Cell("table7", "cifar10", 100, seed=0, rounds=7), 80.0, None)
    _write_run(usual, 70.0, None)
    _write_run(ours, 79.0, None)
    _write_run(dataclasses.replace(ours, server_rate=1.0, percent=100), 78.0, None)
    page = TABLES["table7-cifar10"].render()
    rows = _rows_of(page)
    assert rows["1 %, server rate 0.5"][2:5] == ["70.00", "-10.00", "1"]
    momentum = "times 0.99 every ten rounds, momentum 0.9"
    assert rows[f"1 %, server rate 0.5 {momentum}"][2:5] == ["79.00", "-1.00", "1"]
    assert rows[f"100 % (dense shares), server rate 1 {momentum}"][3] == "-2.00"


def test_a_run_with_momentum_is_compared_with_everything_sent_with_momentum_at_equal_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = Cell("table7", "cifar10", 1, 0, 9, server_momentum=0.9, server_decay=0.99, average=0.9)
    latest = "1 %, server rate 1 times 0.99 every ten rounds, momentum 0.9"
    mean = latest + ", mean of models (0.9)"
    curves = (
        [[n, (60 + n) / 100] for n in range(1, 10)],
        [[n, (70 + n) / 100] for n in range(1, 10)],
    )
    _write_run(ours, 79.0, 80.0, curves)
    _write_run(dataclasses.replace(ours, percent=100, rounds=7), 78.0, 81.0)
    rows = _rows_of(TABLES["table7-cifar10"].render())
    # Rounds 3 to 7 of the curves: 65 and 75.
    assert rows[latest][3] == "-; -13.00 with the same settings, both after 7 rounds"
    assert rows[mean][3] == "-; -6.00 with the same settings, both after 7 rounds"
    _write_run(dataclasses.replace(ours, percent=100), 79.5, 82.0)
    _write_run(Cell("table7", "cifar10", 100, 0, 9), 78.0, None)
    rows = _rows_of(TABLES["table7-cifar10"].render())
    # Curves' last five: 67 and 77.
    assert rows[latest][3] == "+1.00; -12.50 with the same settings"
    assert rows[mean][3] == "+2.00 (its latest); -5.00 with the same settings"
    # What has no such run of all its seeds says nothing of it.
    _write_run(dataclasses.replace(ours, seed=1), 79.0, 80.0, curves)
    assert "with the same settings |" not in TABLES["table7-cifar10"].render()


def test_trials_on_held_out_data_have_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = Cell("table7", "cifar10", 1, 0, 7, server_rate=2, average=0.9, held_out=True)
    assert trial.name == "cifar10-1-rate2-mean0.9-heldout-seed0-7rounds"
    settings = trial.config(None)
    assert (settings.evaluate, settings.eval_every) == ("validation", 10)
    table = dataclasses.replace(trial, held_out=False)
    assert (table.config(None).evaluate, table.config(None).eval_every) == ("test", 50)
    for cell, latest, mean in (
        (trial, 70.0, 71.0),
        (dataclasses.replace(trial, seed=1), 72.0, 75.0),
        (dataclasses.replace(trial, server_momentum=0.9, server_decay=0.96), 73.0, None),
        (table, 90.0, 91.0),
    ):
        _write_run(cell, latest, mean)
    rows = [
        line.split(" | ")[1:] for line in TABLES["table7-held-out"].render().splitlines()
        if line.startswith("| cifar10")
    ]  # fmt: skip
    assert rows == [
        ["1 %", "2", "-", "-", "7", "2", "71.00 ± 1.41", "73.00 ± 2.83 |"],
        ["1 %", "2", "0.9", "0.96", "7", "1", "73.00", "- |"],
    ]
    page = TABLES["table7-cifar10"].render()
    assert "90.00" in page
    assert "73.00" not in page


USUAL = Cell("table7", "cifar10", 1, seed=0, rounds=7)
CHANGED = "server momentum or falling rate"


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, {"top-k scalars"}),
        ({"percent": 100}, {"dense shares (100 %)"}),
        ({"server_rate": 2.5}, {"other server rate"}),
        ({"average": 0.9}, {"mean of models"}),
        ({"server_rate": 2.5, "average": 0.9}, {"other server rate, mean of models"}),
        ({"server_momentum": 0.9}, {CHANGED}),
        ({"server_decay": 0.9}, {CHANGED}),
        ({"server_decay": 0.9, "percent": 100}, {CHANGED}),
        ({"server_decay": 0.9, "server_rate": 2.5}, {CHANGED}),
        ({"server_decay": 0.9, "average": 0.9}, {f"{CHANGED}, mean of models"}),
        ({"augment": False}, {"no augmentation"}),
        ({"augment": False, "server_momentum": 0.9}, set()),
    ],
)
def test_a_plots_points_do_not_mix_runs_of_different_servers(
    changes: dict[str, Any], kinds: set[str]
) -> None:
    cell = dataclasses.asdict(dataclasses.replace(USUAL, **changes))
    assert {plots.kind(cell)} - {None} == kinds <= set(plots.MARKERS)


def _write_run(cell: Cell, latest: float, mean: float | None, curves: Any = None) -> None:
    run: dict[str, Any] = {
        "cell": dataclasses.asdict(cell),
        "accuracy_percent": latest,
        "curve": [[cell.rounds, latest / 100]],
        "rounds": cell.rounds,
        "model_sha256": str(latest),
        "fsl": {"rounds": 1, "upload_bytes": 1e6},
        "segments": [{"positions": 10**6, "values_per_position": 1}],
        "command": "scripts/reproduce table7",
        "date": "2026-01-01",
    }
    if mean is not None:
        run |= {"mean_accuracy_percent": mean, "mean_curve": [[cell.rounds, mean / 100]]}
    if curves is not None:
        run |= {"curve": curves[0], "mean_curve": curves[1]}
    write_result(cell.results, cell.name, run)


def _rows_of(page: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    return {cells[0]: cells for cells in lines if len(cells) > 4}


def test_a_cell_with_a_result_is_not_run_again_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = Cell("table7", "trec", 5, seed=0, rounds=500)
    write_result("table7", cell.name, {"kept": True})
    accuracy.run_cells(
        [cell], data_root=tmp_path, runs=tmp_path, fsl_rounds=5, workers=1, command=""
    )
    assert "remove its result to run it again" in capsys.readouterr().out
    assert read_results("table7") == {cell.name: {"kept": True}}


def test_a_measured_round_is_exact_and_counts_its_bytes() -> None:
    plan = one_round.one_segment_plan(1 << 10, 102, ring_bits=128, check=False)
    costs = one_round.measure(plan)  # raises unless the opened sum is the plaintext sum
    assert costs.upload_bytes == 15_898
    assert 0 < costs.client_seconds < 10
    assert 0 < costs.server_seconds < 10


def test_a_measured_round_times_each_party_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client and a server that sleep are slow themselves and make nobody else slow."""
    plan = one_round.one_segment_plan(1 << 10, 102, ring_bits=128, check=False)
    quantise, receive = one_round.quantise, Server.receive

    def slow(call: Any, seconds: float) -> Any:
        def slept(*args: Any, **kwargs: Any) -> Any:
            time.sleep(seconds)
            return call(*args, **kwargs)

        return slept

    with monkeypatch.context() as patch:
        patch.setattr(one_round, "quantise", slow(quantise, 0.3))
        costs = one_round.measure(plan)
    assert costs.client_seconds >= 0.3 > costs.server_seconds
    with monkeypatch.context() as patch:
        patch.setattr(Server, "receive", slow(receive, 0.3))
        costs = one_round.measure(plan)
    assert costs.server_seconds >= 0.45 > 0.3 > costs.client_seconds  # three messages, two servers


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
        upload = communication.costs.client_bytes(
            one_round.one_segment_plan(1 << 15, k, ring_bits=32, check=False)
        )
        assert (upload < 4 << 15) == cheaper


def test_an_accuracy_run_checks_fsl_against_plain_and_goes_on_where_it_stopped(
    tmp_path: Path,
) -> None:
    cell = Cell("table8", "trec", 1, seed=0, rounds=1)
    config = cell.config("synthetic")
    short = accuracy.run_cell(cell, config, tmp_path, 1)
    assert short["fsl"]["rounds"] == short["fsl"]["exact_rounds"] == 1
    more = dataclasses.replace(config, rounds=2)
    longer = accuracy.run_cell(dataclasses.replace(cell, rounds=2), more, tmp_path, 1)
    assert longer["exact_rounds"] == longer["rounds"] == 2
    assert [number for number, _ in longer["curve"]] == [1, 2]
    assert longer["fsl"] == short["fsl"]
    assert "mean_curve" not in longer


def test_an_accuracy_run_with_a_mean_has_both_curves_and_a_name_of_its_own(tmp_path: Path) -> None:
    [cell] = table7(["trec"], [5], [0], 2, False, average=0.5)
    assert cell.name == "trec-5-mean0.5-seed0-2rounds"
    result = accuracy.run_cell(cell, cell.config("synthetic"), tmp_path, 1)
    assert [number for number, _ in result["mean_curve"]] == [1, 2]
    assert result["mean_curve"][0] == result["curve"][0]  # the mean of one model is the model
    values = [value for _, value in result["mean_curve"]]
    assert result["mean_accuracy_percent"] == pytest.approx(50 * sum(values))


def test_precision_is_a_setting_of_image_runs() -> None:
    cells = table7(["trec", "cifar10"], [1], [0], None, False, precision="float32")
    assert [cell.config(None).local.precision for cell in cells] == ["float32", "float32"]
    assert [cell.name for cell in cells] == ["trec-1-seed0", "cifar10-1-float32-seed0"]


def test_noise_of_drawn_blocks_is_computed_for_the_plan_of_the_runs(tmp_path: Path) -> None:
    """Drawn in secret they need hardly more than the largest; drawn in public far more."""
    config = preamble.config_of(tmp_path, preamble.WAYS["sample"], rounds=60)
    config = dataclasses.replace(config, data="synthetic", rounds=1)
    assert runs.run_or_read(config, tmp_path / "run", runs.Progress("accuracy"))
    checkpoint = CheckpointFolder(tmp_path / "run" / "checkpoint").load()
    assert checkpoint is not None
    found = preamble.noise(Plan.from_json(checkpoint.plan), 60)
    assert found["drawn_in_public"] == pytest.approx(
        found["topk"] * (found["blocks"] / found["chosen"]) ** 0.5
    )
    assert 0 < found["drawn_in_secret"] < found["drawn_in_public"]

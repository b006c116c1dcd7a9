"""`torchfsl estimate`: of a table or of a plan in a file, with what it says of bad options."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from torchfsl.errors import ParameterError
from torchfsl.fsl.costs import predict
from torchfsl.fsl.estimates import estimate as estimating
from torchfsl.fsl.estimates import measuring
from torchfsl.fsl.estimates.estimate import estimate
from torchfsl.fsl.estimates.measuring import Rates, rows_plan
from torchfsl.integrations.ray.estimate import estimate_shards
from torchfsl.service.command import main

RATES = Rates(0.003, 1e-6, 0.004, 2e-6, 7e8, 5e7)
TABLE = ["--rows", "5000", "--width", "8", "--rows-per-client", "32", "--clients", "40"]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (estimating, measuring):
        monkeypatch.setattr(module, "measured_rates", lambda: RATES)


def test_a_table_and_the_same_plan_in_a_file_give_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = rows_plan(5000, 8, 32, 40)
    (tmp_path / "plan.json").write_text(plan.to_json())
    options = ["--cores", "4", "--bandwidth", "10", "--within", "60", "--prices", "0.05", "0.1"]
    assert main(["estimate", *TABLE, *options]) == 0
    assert main(["estimate", "--plan", str(tmp_path / "plan.json"), *options]) == 0
    out = capsys.readouterr().out
    told = estimate(plan, cores=4, bandwidth=10.0, within=60.0, rates=RATES, prices=(0.05, 0.1))
    assert out == f"{told}\n{told}\n"
    assert f"{predict(plan).upload_bytes / 1000:.3g} kB up" in out


def test_more_rows_than_the_table_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    table = ["--rows", "10", "--width", "16", "--rows-per-client", "11", "--clients", "100"]
    with pytest.raises(SystemExit):
        main(["estimate", *table])
    told = capsys.readouterr()
    assert "--rows-per-client is 11, and --rows is 10" in told.err
    assert not told.out


def test_shards_are_told_of_beside_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", *TABLE, "--shards", "3"]) == 0
    out = capsys.readouterr().out
    plan = rows_plan(5000, 8, 32, 40)
    told = estimate(plan, rates=RATES)
    assert out == f"{told}\n{estimate_shards(plan, 3, rates=RATES)}\n"


@pytest.mark.parametrize(
    "options",
    [[], TABLE[:-2], ["--plan", "plan.json", *TABLE], ["--plan", "nowhere.json"],
     [*TABLE, "--cores", "0"], [*TABLE[:-1], "0"], [*TABLE, "--shards", "0"]],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *options])
    assert ended.value.code == 2
    assert "torchfsl: " in capsys.readouterr().err


def test_noise_is_told_in_seconds_and_bytes_and_rates_without_it_are_refused() -> None:
    plain = rows_plan(5000, 8, 32, 40)
    noisy = dataclasses.replace(
        plain, l2_bound=1 << 30, noise_sigma=1000, max_rounds=60, min_separation=3,
        noise_taps=(256, -128, -32),
    )  # fmt: skip
    with pytest.raises(ParameterError, match="without noise: leave out"):
        estimate(noisy, rates=RATES)
    rates = dataclasses.replace(RATES, noise_seconds=1e-6, noise_tap_seconds=1e-8)
    told, before = estimate(noisy, rates=rates), estimate(plain, rates=rates)
    values = 5000 * 8
    assert told.noise_seconds == pytest.approx(values * (1e-6 + 2e-8))
    assert told.noise_bytes == 3 * values * 4 == told.disk_bytes - before.disk_bytes
    assert told.memory_bytes - before.memory_bytes == 8 * values
    assert "its noise takes each server 0.0408 core-seconds a round, and 480 kB of disk" in str(
        told
    )
    assert "noise" not in str(before)
    assert f"keeps {3 * values * 4:,} bytes of past noise on disk" in noisy.explain()


def test_rates_of_noise_are_measured() -> None:
    drawing, correlating = measuring.noise_rates()
    assert 0 < correlating < drawing < 1e-4

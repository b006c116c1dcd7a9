"""The table of costs of one server: measured rounds, and what is made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.reproduction import sesa
from scripts.reproduction.report import TABLES
from scripts.reproduction.results import write_result
from training.sections import Partition, Sesa


def test_rounds_of_equal_shape_are_measured_under_every_aggregation() -> None:
    config = dataclasses.replace(
        sesa.shapes()["MLP"], clients_per_round=15, dropouts=0.0, sesa=Sesa(collusion=0.14),
        partition=Partition(clients=15),
    )  # fmt: skip
    found = {
        name: sesa.one_round(dataclasses.replace(config, aggregation=name))
        for name in sesa.AGGREGATIONS
    }
    row = 50 * 795
    for name, taken in (("1", 4), ("0.5", 2), ("0.25", 1)):
        plain, dense = (found[key]["bytes"][name] for key in ("plain", "dense"))
        assert plain["upload"] == 4 * (taken * row + 10 + taken)
        assert plain["download"] == 4 * (taken * row + 10)
        assert 0 < dense["upload"] - 4 * 159_010 < 300
        assert found["fsl"]["bytes"][name] == found["fsl"]["bytes"]["1"]
        own = found["sesa"]["bytes"][name]
        assert own["phases"]["masked"] == 64 + 4 * (taken * row + 10)
        assert sum(own["phases"].values()) == pytest.approx(own["upload"] + own["download"])
    assert all(0 < one["server_share"] < 1 and one["cpu_seconds"] > 0 for one in found.values())


def test_a_curve_resumes_and_keeps_its_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = dataclasses.replace(sesa.PRESETS["mlp-mnist-widths"], data="synthetic")
    monkeypatch.setitem(sesa.PRESETS, "mlp-mnist-widths", preset)
    first = sesa.curve(None, tmp_path, "rolling", 0, 1)
    longer = sesa.curve(None, tmp_path, "rolling", 0, 2)
    assert [at for at, _ in first["curve"]] == [1]
    assert longer["curve"][0] == first["curve"][0]
    assert longer["exact_rounds"] == longer["rounds"] == 2
    assert sesa.curve(None, tmp_path, "rolling", 0, 1)["curve"] == first["curve"]


def test_the_tables_show_means_over_seeds_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    widths = ("1", "0.5", "0.25")
    kinds = ("shares", "masked", "answer", "survivors")
    one = {
        "bytes": {
            width: {"upload": 5e6 + n, "download": 7e6, "phases": dict.fromkeys(kinds, 1e6)}
            for n, width in enumerate(widths)
        },
        "cpu_seconds": 8.0, "server_share": 0.25, "collusion": 4, "segments": [],
    }  # fmt: skip
    shape = {"parameters": 1000, "clients": 3, "planned_dropouts": 1, "secagg_plus": None}
    shape |= dict.fromkeys(sesa.AGGREGATIONS, one)
    accuracy = {
        name: {str(seed): {"curve": [(20, 0.7 + seed / 100), (40, 0.8)]} for seed in range(3)}
        for name in sesa.CHOICES
    }
    accuracy["static"]["2"] = {"curve": [(20, 0.9)]}
    figures = {
        "costs": {"MLP": shape},
        "accuracy": accuracy,
        "date": "2026-01-01",
        "command": "scripts/reproduce sesa --data /x",
        "machine": "2 cores of X",
    }
    write_result("tables", "sesa", figures)
    names = ("sesa-MLP", "sesa-MLP-messages", "sesa-accuracy")
    text = "".join(TABLES[name].render() for name in names)
    assert (
        "| **SESA**: random shards, divided by the cohort | 71.0 ± 1.0 | 80.0 ± 0.0 | - |" in text
    )
    assert "divided by owners | 77.0 ± 11.3 | - | - |" in text
    assert "not run: flwr is absent" in text
    assert "| `sesa` | 1 | 5 MB | 7 MB | 2 s | 2 s |" in text
    assert "`scripts/reproduce sesa --data DATA`" in text

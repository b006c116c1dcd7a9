"""The table of costs of one server: measured rounds, and what is made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.reproduction import sesa
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

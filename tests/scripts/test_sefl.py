"""SEFL's table and figure: runs, costs, and the page made of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from scripts.reproduction import sefl, sefl_costs, sefl_tables
from scripts.reproduction.page_table import TABLES
from scripts.reproduction.results import read_results, write_result
from training.config import Config
from training.sections import Language, Local


def small(model: str) -> Config:
    return dataclasses.replace(
        sefl.config_of(None, model, "1", 1, 0, 2, 0.25),
        data="synthetic",
        language=Language(vocabulary=64, width=8, tokens=6, block=4, block_embedding=4),
        local=Local(optimizer="adam", batch_size=4, steps=2, clip_norm=1.0),
    )


def test_table_and_figure_vary_what_they_say() -> None:
    config = sefl.config_of(Path("data"), sefl.MODELS[0], "8 tables", 4, 3, 7)
    assert (config.rounds, config.clients_per_round, config.seed) == (7, 4, 3)
    assert (config.language.block, config.language.block_embedding) == (8, 8)
    assert config.data == "data/wikitext2"
    others = [sefl.config_of(None, m, f, 4, 0, 7) for m in sefl.MODELS for f in sefl.forms()]
    assert len({sefl.name_of(one) for one in others}) == len(others) == 18


@pytest.mark.slow
@pytest.mark.parametrize("model", sefl.MODELS)
def test_the_first_round_gives_one_model_under_every_aggregation(
    model: str, tmp_path: Path
) -> None:
    hashes = sefl.same_model(small(model), tmp_path)
    assert sefl.same_model(small(model), tmp_path) == hashes
    assert set(hashes) == set(sefl_costs.AGGREGATIONS)
    assert len(set(hashes.values())) == 1


def test_a_run_is_read_again_once_it_is_there(tmp_path: Path) -> None:
    run = sefl.run(small(sefl.MODELS[0]), tmp_path)
    assert run["exact_rounds"] == run["rounds"] == 2
    assert run["dropouts_per_round"] == 2
    assert run["curve"][-1][0] == 2
    assert sefl.run(small(sefl.MODELS[0]), tmp_path) == run


def test_a_run_among_the_results_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = sefl.kept(small(sefl.MODELS[0]), tmp_path / "runs")
    assert {"machine", "date"} <= set(first)
    monkeypatch.setattr(sefl, "run", None)
    assert sefl.kept(small(sefl.MODELS[0]), tmp_path / "other") == first


def test_runs_summed_by_sefl_and_in_the_clear_end_with_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(sefl.MODELS[0])
    monkeypatch.chdir(tmp_path)
    run = sefl.encrypted(config, tmp_path / "runs")
    assert run["plain_sha256"] == run["model_sha256"]
    clear = f"{sefl.name_of(config)}-{config.rounds}rounds"
    found = read_results("sefl")[clear]
    write_result("sefl", clear, found | {"machine": "another"})
    assert sefl.encrypted(config, tmp_path / "runs")["plain_sha256"] is None
    write_result("sefl", clear, found | {"model_sha256": "other"})
    with pytest.raises(RuntimeError, match="different models"):
        sefl.encrypted(config, tmp_path / "runs")


def test_costs_are_of_rounds_whose_sums_are_right() -> None:
    config = small(sefl.MODELS[0])
    plain, dense = (sefl_costs.one_round(config, name) for name in ("plain", "dense"))
    assert plain["upload_bytes"] == 4 * plain["values"]
    assert dense["values"] == plain["values"]
    assert dense["upload_bytes"] > plain["upload_bytes"]
    assert dense["client_seconds"] > 0


def test_the_tables_compare_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(value: float) -> dict[str, Any]:
        return {"test_perplexity": value, "rounds": 3, "exact_rounds": 3, "values": 1000,
                "model_sha256": "a", "plain_sha256": "a" if value < 332 else None,
                "unigram_perplexity": 400.0, "curve": [(3, value)]}  # fmt: skip

    cost = {"upload_bytes": 4e6, "client_seconds": 0.5, "server_seconds": 0.25, "clients": 4}
    shared = {"environment": {"cores": 2, "cpu": "X", "backend": "native"}, "date": "today",
              "command": "scripts/reproduce sefl --data here"}  # fmt: skip
    shares = {"0": {"0": run(300.0), "1": run(302.0)}, "0.75": {"0": run(330.0), "1": run(332.2)}}
    forms = {
        form: {**run(200.0 + 10 * number), "machine": f"machine {number % 2}", "date": "then"}
        for number, form in enumerate(sefl.forms())
    }
    results = {
        "sefl-table1": {
            **shared,
            "block": 8,
            "runs": dict.fromkeys(sefl.MODELS, shares),
            "same": {"some": {"0": {"plain": "a", "fsl": "a"}}},
        },
        "sefl-figure4": {
            **shared,
            "seed": 0,
            "runs": dict.fromkeys(sefl.MODELS, forms),
            "costs": {
                m: {form: dict.fromkeys(sefl_costs.AGGREGATIONS, cost) for form in forms}
                for m in sefl.MODELS
            },
            "untied": {"rows": 0.05, "costs": {"dense": cost, "fsl": cost}},
        },
    }
    monkeypatch.chdir(tmp_path)
    for name, figures in results.items():
        write_result("tables", name, figures)
    page = "".join(table.render() for name, table in TABLES.items() if name.startswith("sefl-"))
    assert "| LSTM | 75 % | 194.82 | +9.8 % | 331.1 ± 1.6 | +10.0 % |" in page
    assert "| whole matrices |  | 1,000 | 1.00 | 200.0 |  | 4 MB, 0.5 s, 0.25 s | 4 MB" in page
    assert "| 4 | layers | 1,000 | 1.00 | 210.0 | +5.0 % | 4 MB, 0.5 s, 0.25 s | 4 MB" in page
    assert "| runs | 8 |\n| exact in every round | 8 |" in page
    assert "| same model in the clear, on the same machine | 6 |" in page
    assert "with one model | `plain`, `fsl` |" in page
    assert page.count("Runs: machine 0, then and machine 1, then.") == 1
    assert len(sefl_tables.curves()) == 4

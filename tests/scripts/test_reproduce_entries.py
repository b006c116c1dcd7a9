"""Every entry of `scripts/reproduce` runs in small; tables of bytes say what is sent today."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from scripts.bench import round as bench_round
from scripts.reproduction import (
    __main__ as command,
)
from scripts.reproduction import (
    baselines,
    computation,
    hashing,
    paper,
    privhfl_costs,
    privhfl_features,
    rivals,
    secemb,
)
from scripts.reproduction.one_round import dense_plan, measure, one_segment_plan
from scripts.reproduction.results import read_results
from torchfsl.fsl import costs
from training.data.synthetic import synthetic_sentences

ROOT = Path(__file__).resolve().parents[2]
Patch = pytest.MonkeyPatch


def _small_tables(patch: Patch) -> None:
    patch.setattr(paper, "COMMUNICATION", {(10, 1): paper.COMMUNICATION[10, 1]})
    patch.setattr(paper, "COMPUTATION", {(10, 10): paper.COMPUTATION[10, 10]})
    patch.setattr(paper, "MAX_BIN", {10: {10: 45}})
    patch.setattr(computation, "ROUNDS", {10: 1, 15: 1})
    patch.setattr(hashing.table3, "__defaults__", (20,))
    patch.setattr(hashing, "LOGS", (10,))


def _small_models(patch: Patch) -> None:
    for name, size in (("ITEMS", 9000), ("CATEGORIES", 900), ("USERS", 50)):
        patch.setattr(bench_round, name, size)
    patch.setattr(baselines, "CLIENTS", 2)
    patch.setattr(paper, "DIN", {**paper.DIN, "parameters": 1000})
    patch.setattr(secemb, "PUBLISHED", {"ML-100K": secemb.PUBLISHED["ML-100K"]})
    patch.setattr(privhfl_costs, "CIFAR", {"MLP": lambda: _pixels_to_classes(3 * 32 * 32)})
    patch.setattr(privhfl_costs, "BATCHES", {"tables": (1,), "trees": (1,)})
    patch.setattr(privhfl_costs, "MNIST_BATCHES", (1,))
    patch.setattr(privhfl_costs, "FIGURE8", (2,))
    patch.setattr(privhfl_costs, "cnet", privhfl_costs.mlp)


def _pixels_to_classes(pixels: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), nn.ReLU(), nn.Linear(8, 10))


NEEDS_NO_DATA: dict[str, list[str]] = {
    "table2": [], "table3": [], "table4": [], "table5": [], "table6": [], "mnist": [], "rates": [],
    "din": ["--clients", "2"], "secemb": [], "baselines": [], "privhfl-costs": [],
    "privhfl-batches": [],
}  # fmt: skip
ON_MADE_UP_DATA: dict[str, list[str]] = {
    "table9": [],
    "din-auc": ["--rounds", "1"],
    "rivals": [],
}
ELSEWHERE = {
    "averages": "test_averages.py::test_momentum_is_ahead_of_the_plain_mean_on_disjoint_words",
    "canaries": "tests/security/test_canary_audit.py::test_the_table_has_what_the_audit_finds",
    "liars": "tests/scripts/test_lies_table.py and its own runs of hours",
    "preamble": "test_reproduction.py::test_noise_of_drawn_blocks_is_computed_for_the_plan",
    "sesa": "test_sesa_costs.py::test_rounds_of_equal_shape_are_measured_under_every_aggregation",
    "sesa-speed": "tests/training/test_widths.py, whose runs have the same choices of shards",
    "sesa-attack": "tests/security/test_isolated_submodels.py",
    "sesa-writers": "tests/training/test_leaf.py::test_each_client_is_one_writer",
    "privhfl-steps": "test_sharing_and_aggregating_are_parts_of_a_query",
    "privhfl-features": "test_coverage_counts_test_points_in_cells_of_the_set",
    "privhfl-tiny": "test_networks_of_tiny_imagenet_have_the_layers_of_their_names",
    "sefl": "test_sefl.py::test_costs_are_of_rounds_whose_sums_are_right",
    "systems": "test_systems.py::test_all_systems_end_a_round_with_the_same_model",
    "systems-cifar10": "test_systems.py::test_the_shared_model_of_cifar_is_summed_alike",
}
"""Entries that take long on any data, and the test of their parts."""


def test_every_entry_is_run_here_or_has_a_test_of_its_parts() -> None:
    assert set(command.TABLES) == {*NEEDS_NO_DATA, *ON_MADE_UP_DATA, *ELSEWHERE}


def test_sharing_and_aggregating_are_parts_of_a_query() -> None:
    found = privhfl_costs._steps(_pixels_to_classes(3 * 4 * 4), (3, 4, 4), 2)
    assert set(found) == {"share", "aggregate"}
    assert all(seconds > 0 for seconds in found.values())


def test_coverage_counts_test_points_in_cells_of_the_set() -> None:
    import torch

    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    found = privhfl_features.coverage({"all": corners, "half": corners[:2]}, corners)
    assert found == {"all": {"cells": 4, "test": 1.0}, "half": {"cells": 2, "test": 0.5}}


def test_networks_of_tiny_imagenet_have_the_layers_of_their_names() -> None:
    from torch import nn

    for name, pairs in privhfl_costs.TINY.items():
        net = models.resnet_of_pairs(pairs)
        layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        shortcuts = [m for m in layers if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
        assert f"ResNet-{len(layers) - len(shortcuts)}" == name


def run(patch: Patch, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the command line in a folder; returns the written figures."""
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["scripts/reproduce", *arguments])
    assert command.main() == 0
    return read_results("tables")[arguments[0]]


@pytest.mark.parametrize("table", NEEDS_NO_DATA)
def test_an_entry_runs_without_data(table: str, tmp_path: Path, monkeypatch: Patch) -> None:
    _small_tables(monkeypatch)
    _small_models(monkeypatch)
    figures = run(monkeypatch, tmp_path, table, *NEEDS_NO_DATA[table])
    assert figures["command"].startswith(f"scripts/reproduce {table}")
    assert len(figures) > 3


def made_up(folder: Path) -> Path:
    """TREC and Amazon Beauty in small."""
    datasets = pytest.importorskip("datasets")
    sentences = synthetic_sentences(0, train=60, test=20, classes=6)
    (folder / "trec").mkdir(parents=True)
    features = datasets.Features(
        {"text": datasets.Value("string"), "coarse_label": datasets.ClassLabel(num_classes=6)}
    )
    for split, data in (("train", sentences.train), ("test", sentences.test)):
        rows = {"text": data.inputs, "coarse_label": data.labels.tolist()}
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(str(folder / "trec" / f"{split}-0.parquet"))
    (folder / "amazon-beauty").mkdir()
    items = np.random.default_rng(0).integers(1, 3000, (110, 14))
    lines = "".join(f"{user} {' '.join(map(str, own))}\n" for user, own in enumerate(items))
    for name, text in (("sequences.txt", lines), ("item2attributes.json", '{"7": [1]}')):
        with gzip.open(folder / "amazon-beauty" / f"{name}.gz", "wt") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize("table", ON_MADE_UP_DATA)
def test_an_entry_runs_on_made_up_data(table: str, tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("ROUNDS", "TRIAL_ROUNDS", "EVERY", "CLIENTS"):
        monkeypatch.setattr(rivals, name, 2 if name == "CLIENTS" else 1)
    data = made_up(tmp_path / "data")
    figures = run(monkeypatch, tmp_path, table, *ON_MADE_UP_DATA[table], "--data", str(data))
    assert figures["command"].startswith(f"scripts/reproduce {table}")
    assert str(tmp_path) not in json.dumps(figures)


def kept(name: str) -> dict[str, Any]:
    return read_results("tables")[name]


def _table5() -> tuple[int, int]:
    cell = kept("table5")["cells"][0]
    plan = one_segment_plan(1 << cell["log2_m"], 102, ring_bits=128, check=False)
    return cell["l128"]["upload_bytes"], measure(plan).upload_bytes


def _table6() -> tuple[int, int]:
    cell = kept("table6")["cells"][0]
    plan = one_segment_plan(1 << cell["log2_m"], cell["k"], ring_bits=32, check=True)
    return cell["l32_check_bytes"], measure(plan).upload_bytes


def _table2() -> tuple[int, int]:
    row = kept("table2")["rows"][-1]
    plan = one_segment_plan(1 << 15, (1 << 15) // 100, ring_bits=32, tau=32)
    return row["upload_bytes"], measure(plan).upload_bytes


def _mnist() -> tuple[int, int]:
    figures = kept("mnist")
    rows = -(-figures["weights"] // 32)
    plan = one_segment_plan(rows, -(-rows // 100), ring_bits=32, tau=32)
    return figures["blocks_of_32_l32_check_bytes"], measure(plan).upload_bytes


def _rates() -> tuple[int, int]:
    fixed = kept("rates")["fixed_submodel_m=2^20_1_percent_l=32"]
    plan = one_segment_plan(1 << 20, (1 << 20) // 100, ring_bits=32, epochs=8)
    return fixed["later_round_bytes"], costs.predict(plan).later_upload_bytes


def _secemb() -> tuple[int, int]:
    row = kept("secemb")["rows"][0]
    plan = secemb._plan(row["items"], row["rows"], check=True)
    return row["checked"]["upload_bytes"], measure(plan).upload_bytes


def _baselines() -> tuple[int, int]:
    figures = kept("baselines")
    plan = dense_plan(figures["parameters"], clients=2)
    return figures["dense_two_server"]["upload_bytes"], measure(plan).upload_bytes


def _din() -> tuple[int, int]:
    plan = bench_round.federated().make_plan(max_clients=2, rows_per_client=bench_round.ROWS)
    return kept("din")["round"]["upload_bytes"], costs.client_bytes(plan)


FRESH: list[Callable[[], tuple[int, int]]] = [
    _table2, _table5, _table6, _mnist, _rates, _secemb, _baselines, _din,
]  # fmt: skip


@pytest.mark.parametrize("count", FRESH, ids=lambda count: count.__name__.strip("_"))
def test_a_row_of_every_table_of_bytes_is_what_is_sent_today(
    count: Callable[[], tuple[int, int]],
) -> None:
    written, fresh = count()
    assert written == fresh


def test_the_first_paper_is_credited_on_the_page() -> None:
    assert paper.CREDIT in (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    title = paper.CREDIT.split('"')[1]
    assert f"title: {title}" in cited
    for name in ("Cui", "Chen", "Ye", "Wang"):
        assert f"family-names: {name}" in cited
        assert name in paper.CREDIT

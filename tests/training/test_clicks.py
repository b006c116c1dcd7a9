"""Click-through rates: tables as they are published, clients, rows and figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import FieldDeepFM
from training.cli import config_from, make_parser
from training.config import Config
from training.data.click_tables import CRITEO, Clicks, load_clicks, synthetic_clicks
from training.experiment import run_experiment
from training.listeners import Console
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Ctr
from training.tasks import metrics
from training.tasks.clicks import TABLE, ClicksTask
from training.tasks.task import LocalPlan

pytest.importorskip("pyarrow", reason="needs the extra torchfsl[training]")

CSV = """click,ip,at,site,price
0,a,3,news,1.5
1,b,1,shop,
1,a,2,shop,100
0,c,4,,3
"""


def write(folder: Path, text: str, name: str = "clicks.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_columns_have_roles_and_lines_are_in_time_order(tmp_path: Path) -> None:
    columns = "label=click,client=ip,time=at,numeric=price,fields=*"
    data = load_clicks(write(tmp_path, CSV), columns)
    assert data.labels.tolist() == [1, 1, 0, 0]
    assert list(data.values) == ["site", "price"]
    assert data.values["site"].tolist() == ["shop", "shop", "news", ""]
    # Missing; 2 + whole part of log(100)**2 = 21.2; 1.5 rounded down; log(3)**2 = 1.2.
    assert data.values["price"].tolist() == ["", "23", "1", "3"]
    assert data.clients is not None
    assert data.clients.tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize("suffix", ["tsv", "parquet"])
def test_other_formats_hold_the_same(suffix: str, tmp_path: Path) -> None:
    from pyarrow import csv, parquet

    source = write(tmp_path, CSV)
    if suffix == "tsv":
        other = write(tmp_path, CSV.replace(",", "\t"), "clicks.tsv")
    else:
        other = tmp_path / "clicks.parquet"
        parquet.write_table(csv.read_csv(source), other)
    columns = "label=click,fields=site,numeric=price+at"
    first, second = load_clicks(source, columns), load_clicks(other, columns)
    assert np.array_equal(first.labels, second.labels)
    assert {n: v.tolist() for n, v in first.values.items()} == {
        n: v.tolist() for n, v in second.values.items()
    }
    assert first.clients is None


def test_criteo_as_published_needs_no_columns(tmp_path: Path) -> None:
    rows = []
    for line in range(3):
        numbers = [str(line * column) if column % 3 else "" for column in range(13)]
        words = [f"{line:08x}" if column % 5 else "" for column in range(26)]
        rows.append("\t".join([str(line % 2), *numbers, *words]))
    data = load_clicks(write(tmp_path, "\n".join(rows) + "\n", "train.tsv"), "")
    assert list(data.values) == [*CRITEO[14:], *CRITEO[1:14]]
    assert data.labels.tolist() == [0, 1, 0]
    assert data.values["C2"].tolist() == ["00000000", "00000001", "00000002"]
    assert data.values["C1"].tolist() == ["", "", ""]
    assert data.values["I2"].tolist() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("", "say which columns hold which data, for example --columns label=click"),
        ("label=click,fields=nothing", "columns has nothing, but clicks.csv has the columns"),
        ("label=click,fields=site+site", "site twice"),
        ("label=click,time=click,fields=site", "click twice"),
        ("label=click", r"expected label=NAME and fields=NAME\+NAME"),
        ("fields=site", r"expected label=NAME and fields=NAME\+NAME"),
        ("label=click,label=ip,fields=site", "cannot read 'label=ip'"),
        ("label=click+ip,fields=site", "give only one column for each"),
        ("label=price,fields=site", "other values than 0 and 1"),
        ("label=click,numeric=site", "column site has values that are not numbers"),
        ("label=click,time=ip,fields=site", "'a' in line 2, expected a number or a date"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(columns: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        load_clicks(write(tmp_path, CSV), columns)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_clicks(tmp_path / "none.csv", "")
    with pytest.raises(ValueError, match="does not end in"):
        load_clicks(write(tmp_path, CSV, "clicks.txt"), "label=click,fields=*")


def task_of(data: Clicks, **changes: Any) -> ClicksTask:
    settings = Ctr(**{"least": 2, "rows_per_client": 24, "clients": 7, **changes})
    return ClicksTask(
        data, settings, network=FieldDeepFM, local=LocalPlan(4, 1), seed=1,
        evaluate="validation",
    )  # fmt: skip


def test_a_client_fetches_the_rows_of_its_lines_within_the_budget() -> None:
    task = task_of(synthetic_clicks(2, lines=500, clients=20))
    assert task.num_clients == 20
    full = 0
    for client in range(task.num_clients):
        work = task.work(3, client)
        ids = torch.cat([batch.inputs[0] for batch in work.batches])
        assert set(work.rows[TABLE].tolist()) == set(ids.reshape(-1).tolist())
        assert len(work.rows[TABLE]) <= 24
        full += len(ids) < len(task._lines[client])
        assert [len(batch.labels) for batch in work.batches[:-1]] == [4] * (len(work.batches) - 1)
    assert full  # the budget left lines for other rounds
    again, other = task.work(3, 0), task.work(4, 0)
    assert torch.equal(again.batches[0].inputs[0], task.work(3, 0).batches[0].inputs[0])
    assert not torch.equal(again.batches[0].inputs[0], other.batches[0].inputs[0])


def test_held_out_lines_are_no_clients_and_their_new_values_are_rare() -> None:
    lines = 100
    known = np.array(["a", "b", "once"] * 33 + ["a"])
    known[2] = "single"
    known[80:] = "new"
    data = Clicks(np.arange(lines) % 2, {"field": known}, None)
    task = task_of(data)
    assert sorted(np.concatenate(task._lines).tolist()) == list(range(80))
    assert task._held_out.tolist() == list(range(80, 90))
    assert task.num_rows == 4  # rare, a, b, once
    assert task._ids[[0, 1, 2, 5], 0].tolist() == [1, 2, 0, 3]
    assert set(task._ids[80:, 0].tolist()) == {0}


def test_without_a_column_lines_are_spread_over_a_number_of_clients() -> None:
    data = dataclasses.replace(synthetic_clicks(2, lines=500, clients=20), clients=None)
    assert task_of(data).num_clients == 7


def test_figures_are_of_the_held_out_lines() -> None:
    task = task_of(synthetic_clicks(2, lines=500, clients=20))
    model = task.build_model().train()
    found = task.evaluate(model)
    assert model.training
    model.eval()
    with torch.no_grad():
        output = model(torch.from_numpy(task._ids[400:450])).double().numpy()
    score, labels = output[:, 1] - output[:, 0], task._labels[400:450]
    assert found["auc"] == pytest.approx(metrics.auc(labels, score))
    expected = np.mean(np.log1p(np.exp(np.where(labels == 1, -score, score))))
    assert found["logloss"] == pytest.approx(expected)
    share = task._labels[:400].mean()
    entropy = -np.mean(np.where(labels == 1, np.log(share), np.log(1 - share)))
    assert task.baselines()["share_of_clicks_logloss"] == pytest.approx(entropy)


def test_too_few_lines_or_rows_are_refused() -> None:
    data = synthetic_clicks(2, lines=500, clients=20)
    with pytest.raises(ConfigError, match="the 4 fields of a line"):
        task_of(data, rows_per_client=3)
    short = Clicks(np.zeros(1, np.int64), {"a": np.array(["x"])}, None)
    with pytest.raises(ConfigError, match="has 1 lines"):
        task_of(short)


def test_evaluation_lines_of_one_label_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = synthetic_clicks(2, lines=500, clients=20)
    task_of(data)
    assert "no AUC" not in caplog.text
    labels = data.labels.copy()
    labels[400:] = 0
    task = task_of(dataclasses.replace(data, labels=labels))
    assert "all 50 lines of the evaluation have the label 0, so the AUC is not" in caplog.text
    assert np.isnan(task.evaluate(task.build_model())["auc"])


def config_of(aggregation: Any, **changes: Any) -> Config:
    base = PRESETS["ctr-deepfm"]
    ctr = Ctr(clients=60, dim=5, head=(8,), rows_per_client=32)
    return dataclasses.replace(
        base, rounds=2, clients_per_round=6, aggregation=aggregation, eval_every=2, ctr=ctr,
        **changes,
    )  # fmt: skip


def test_both_servers_end_with_the_model_of_plain(tmp_path: Path) -> None:
    hashes = set()
    for aggregation in ("plain", "fsl"):
        config = config_of(aggregation)
        summary = run_experiment(
            config, tmp_path / aggregation, resume=False, console=Console(quiet=True)
        )
        assert summary["exact_rounds"] == 2
        hashes.add(summary["model_sha256"])
    assert len(hashes) == 1


FAST = dataclasses.replace(PRESETS["ctr-deepfm"].server, lr=0.03)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_training_ranks_clicks_of_made_up_lines(tmp_path: Path) -> None:
    config = dataclasses.replace(
        config_of("plain"), rounds=6, clients_per_round=20, eval_every=6, server=FAST,
        ctr=Ctr(clients=60, rows_per_client=256, lines=200),
    )  # fmt: skip
    summary = run_experiment(config, tmp_path / "run", resume=False, console=Console(quiet=True))
    assert summary["metrics"]["auc"] > summary["baselines"]["untrained_auc"] + 0.05


@pytest.mark.parametrize(
    ("arguments", "toml", "said"),
    [
        (["--columns", "label=a,fields=*"], "", r"ctr\.columns has no effect"),
        (["--data", "x.csv", "--columns", "label=a,client=b,fields=*"], "[ctr]\nclients = 9",
         r"ctr\.clients has no effect"),
        ([], "[recommendation]\ndim = 4", "recommendation has no effect"),
        ([], "[local]\ntogether = true", r"local\.together has no effect"),
        (["--aggregation", "central"], "", "aggregation central"),
    ],
)  # fmt: skip
def test_what_clicks_have_no_use_for_is_refused(
    arguments: list[str], toml: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(toml)
    options = ["ctr-deepfm", *arguments, "--config", str(tmp_path / "own.toml")]
    with pytest.raises(ConfigError, match=said):
        config_from(make_parser().parse_args(options))


def test_columns_of_clicks_come_from_the_option() -> None:
    options = ["ctr-deepfm", "--data", "x.tsv", "--columns", "label=a,fields=*"]
    assert config_from(make_parser().parse_args(options)).ctr.columns == "label=a,fields=*"

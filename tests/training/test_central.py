"""Central training: torch's own loop on the same samples, and what it writes down."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.support.small_tasks import small_config, small_task
from training.cli import main
from training.config import Config
from training.data.prf import Stream
from training.federation import build
from training.section_checks import ConfigError
from training.sections import Server
from training.trainer import Trainer


def central(  # a large eps: of a gradient of zero, Adam would step by the rounding error
    optimizer: Any = "adam", batch_size: int = 7
) -> Config:
    config = small_config("din", "central")
    local = dataclasses.replace(config.local, batch_size=batch_size)
    return dataclasses.replace(
        config, local=local, server=Server(optimizer=optimizer, lr=0.05, eps=1e-3)
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lazy-adam"])
def test_it_is_torchs_own_loop_on_the_cohorts_samples(optimizer: str) -> None:
    config = central(optimizer)
    task = small_task(config)
    federation = build(config, task)
    trainer = Trainer(config, task, federation)
    model = task.build_model().train()
    model.norm.eval()
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    own = kinds.get(optimizer, torch.optim.Adam)(
        model.parameters(),
        lr=0.05,
        **({} if optimizer == "sgd" else {"betas": (0.9, 0.99), "eps": 1e-3}),
    )
    record = trainer.run_round(1)
    assert record.exact is None
    assert record.upload_bytes == 0
    batches = [b for c in trainer.cohort(1) for b in task.work(1, c).batches]
    longest = max(batch.inputs[3].shape[1] for batch in batches)
    samples = [
        [*(t[i] for t in b.inputs[:3]),
         *(functional.pad(t[i], (0, longest - t.shape[1])) for t in b.inputs[3:]), b.labels[i]]
        for b in batches for i in range(len(b.labels))
    ]  # fmt: skip
    order = Stream(config.seed, "central", 1).permutation(len(samples)).tolist()
    for start in range(0, len(order), 7):
        columns = zip(*(samples[i] for i in order[start : start + 7]), strict=True)
        *inputs, labels = (torch.stack(column) for column in columns)
        own.zero_grad()
        functional.cross_entropy(model(*inputs), labels).backward()
        own.step()
        if optimizer == "lazy-adam":
            break
    mine = federation.server_model.state
    names = dict(model.named_parameters())
    if optimizer == "lazy-adam":  # rows that nobody named are where they began
        start_state = task.build_model().state_dict()["item_embedding.weight"].numpy()
        named = np.unique(np.concatenate([b.inputs[1].numpy() for b in batches] + [
            b.inputs[3][b.inputs[5]].numpy() for b in batches]))  # fmt: skip
        moved = (mine["item_embedding.weight"] != start_state).any(axis=1)
        assert set(np.flatnonzero(moved)) <= set(named.tolist())
        assert moved.any()
        return
    for name, value in names.items():
        np.testing.assert_allclose(mine[name], value.detach().numpy(), rtol=0, atol=1e-4)


def test_a_central_run_is_written_down_without_claims_of_exactness(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(
        "clients_per_round = 4\nabove_break_even = 'keep'\n[local]\nbatch_size = 32\n"
        "[recommendation]\ndim = 4\nhistory = 5\nnegatives = 1\nranked_users = 9\n"
        "head = [4]\nattention = [4]\n"
    )
    command = ["din", "--config", str(settings), "--aggregation", "central", "--quiet",
               "--threads", "1", "--out", str(tmp_path / "run")]  # fmt: skip
    assert main([*command, "--rounds", "2"]) == 0
    assert main([*command, "--rounds", "3", "--resume"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["exact_rounds"], summary["exact_retrieval_rounds"]) == (None, None)
    assert {"hr10", "mean_hr10"} <= set(summary["test"])
    assert main([*command[:-1], str(tmp_path / "whole"), "--rounds", "3"]) == 0
    whole = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert whole["model_sha256"] == summary["model_sha256"]


def test_a_finished_run_is_ranked_again_from_its_checkpoint(tmp_path: Path) -> None:
    settings = (
        "clients_per_round = 4\nabove_break_even = 'keep'\n[local]\nbatch_size = 32\n"
        "[recommendation]\ndim = 4\nhistory = 5\nnegatives = 1\nhead = [4]\nattention = [4]\n"
    )

    def summary(out: str, more: str, *options: str) -> dict[str, Any]:
        (tmp_path / "some.toml").write_text(settings + more)
        command = ["din", "--config", str(tmp_path / "some.toml"), "--aggregation", "central",
                   "--quiet", "--threads", "1", "--rounds", "3"]  # fmt: skip
        assert main([*command, "--out", str(tmp_path / out), *options]) == 0
        found: dict[str, Any] = json.loads((tmp_path / out / "summary.json").read_text())
        return found

    often = "ranked_users = 9\ncatalogue_users = 1_000_000\nrank_every = 1\n"
    none = summary("run", "ranked_users = 0\n")
    again, at_once = summary("run", often, "--resume"), summary("whole", often)
    assert "test" not in none
    assert none["ranking"] == {"ranked_users": 0, "catalogue_users": 0, "rank_every": 0}
    assert at_once["ranking"] == {"ranked_users": 9, "catalogue_users": 1000, "rank_every": 1}
    assert again["model_sha256"] == at_once["model_sha256"] == none["model_sha256"]
    assert again["test"] == at_once["test"]
    assert {"hr20", "mean_catalogue_ndcg20"} <= set(again["test"])
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    assert ["catalogue_hr20" in json.loads(line) for line in lines] == [True, True, False]


def test_central_is_for_recommenders_and_without_dropouts() -> None:
    for changes, why in (
        ({"preset": "cnn-mnist"}, "needs a recommender or the preset own"),
        ({"dropouts": 0.34}, "no client drops out of aggregation central"),
    ):
        with pytest.raises(ConfigError, match=why):
            dataclasses.replace(central(), **changes)

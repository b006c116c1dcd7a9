"""Running text, the task on it, and its rounds under every aggregation."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from models.hankel import project
from training.checkpoint import CheckpointFolder
from training.cli import config_from, main, make_parser
from training.config import Aggregation, Config
from training.data.errors import DataError
from training.data.text import Text, load_text, synthetic_text
from training.experiment import run_experiment
from training.federation import Federation, build
from training.listeners import Console
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.sections import Language, Local
from training.tasks.build import build_task, language_task
from training.tasks.language import LanguageTask, cut
from training.tasks.task import LocalPlan
from training.trainer import RoundRecord, Trainer

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "wikitext2"
NAMES = ("lstm-wikitext2", "transformer-wikitext2")
LINES = {"train": "\n the cat sat \n the dog", "valid": "the cow\n", "test": "a dog sat\n"}


def write_folder(folder: Path, packed: bool = False) -> str:
    for split, text in LINES.items():
        if packed:
            (folder / f"wiki.{split}.tokens.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"wiki.{split}.tokens").write_text(text)
    return str(folder)


def spelled(text: Text, split: str) -> list[str]:
    return [text.words[number] for number in getattr(text, split)]


@pytest.mark.parametrize("packed", [False, True])
def test_every_line_ends_with_a_word_of_its_own(packed: bool, tmp_path: Path) -> None:
    text = load_text(write_folder(tmp_path, packed))
    assert spelled(text, "train") == ["<eos>", "the", "cat", "sat", "<eos>", "the", "dog", "<eos>"]
    assert spelled(text, "valid") == ["the", "<unk>", "<eos>"]
    assert spelled(text, "test") == ["<unk>", "dog", "sat", "<eos>"]
    assert text.words == ["<eos>", "the", "cat", "dog", "sat", "<unk>"]
    assert text.train.dtype == np.int32


def test_a_shorter_list_of_words_keeps_the_frequent_ones(tmp_path: Path) -> None:
    text = load_text(write_folder(tmp_path), most=3)
    assert text.words == ["<eos>", "<unk>", "the"]
    assert spelled(text, "train") == [
        "<eos>",
        "the",
        "<unk>",
        "<unk>",
        "<eos>",
        "the",
        "<unk>",
        "<eos>",
    ]
    assert text.unknown_share == 3 / 8


def test_a_folder_that_datasets_reads_is_text_too(tmp_path: Path) -> None:
    for split, text in LINES.items():
        name = "validation" if split == "valid" else split
        lines = text.removesuffix("\n").split("\n")
        rows = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    text = load_text(str(tmp_path))
    assert spelled(text, "train") == ["<eos>", "the", "cat", "sat", "<eos>", "the", "dog", "<eos>"]


def test_missing_or_odd_texts_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"wiki\.train\.tokens"):
        load_text(str(tmp_path))
    write_folder(tmp_path)
    (tmp_path / "wiki.valid.tokens").unlink()
    with pytest.raises(DataError, match=r"wiki\.valid\.tokens\[\.gz\]"):
        load_text(str(tmp_path))
    (tmp_path / "wiki.valid.tokens.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="expected UTF-8 text in gzip"):
        load_text(str(tmp_path))
    with pytest.raises(DataError, match="expected two words or more"):
        Text.build([["a", "b"], ["a"], ["a", "b"]])


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the folder wikitext2 beside the checkout")
def test_wikitext_2_has_its_published_sizes() -> None:
    text = load_text(str(DATA))
    sizes = tuple(len(split) for split in (text.train, text.valid, text.test))
    assert sizes == (2_088_628, 217_646, 245_569)
    assert len(text.words) == 33_278
    assert round(unigram(text), 1) == 967.6
    assert round(unigram(load_text(str(DATA), 8192)), 1) == 408.6


def unigram(text: Text) -> float:
    task = small_task(text, model=lambda: Even(len(text.words)))
    return task.baselines()["unigram_perplexity"]


class Even(nn.Module):
    """Every word is as likely as any other, unless a bias says otherwise."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(words))

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return -torch.log_softmax(self.scores, 0)[following].flatten()


def small_task(text: Text, model: object = None, **changes: int) -> LanguageTask:
    settings = {"clients": 4, "tokens": 5, "valid_tokens": 0, "seed": 1} | changes
    build_model = model or (lambda: Even(len(text.words)))
    local = LocalPlan(batch_size=3, epochs=2, steps=None)
    return LanguageTask(text, model=build_model, local=local, **settings)  # type: ignore[arg-type]


def made_up() -> Text:
    return synthetic_text(5, train=403, valid=101, test=101)


def test_windows_overlap_by_the_word_that_is_predicted() -> None:
    windows = cut(np.arange(12, dtype=np.int32), 5)
    assert windows.tolist() == [[0, 1, 2, 3, 4, 5], [5, 6, 7, 8, 9, 10]]


def test_clients_train_on_stretches_of_the_text_that_do_not_meet() -> None:
    text = dataclasses.replace(made_up(), train=np.arange(403, dtype=np.int32))
    task = small_task(text)
    seen = []
    for client in range(4):
        batches = task.work(2, client).batches
        for batch in batches:
            assert batch.labels is None
            words, following = batch.inputs
            assert torch.equal(words + 1, following)
        words = torch.cat([batch.inputs[0].flatten() for batch in batches])
        seen.append((int(words.min()), int(words.max())))
        # Two epochs of 20 or 19 windows in batches of 3, each word once an epoch at most.
        assert len(words) in range(2 * 19 * 5, 2 * 20 * 5 + 1)
        assert words.unique(return_counts=True)[1].max() == 2
    assert all(before[1] < after[0] for before, after in pairwise(seen))


def test_work_is_a_function_of_round_and_client() -> None:
    task = small_task(made_up())

    def words(number: int, client: int) -> list[int]:
        return task.work(number, client).batches[0].inputs[0].flatten().tolist()

    assert words(1, 2) == words(1, 2)
    assert words(1, 2) != words(2, 2)
    assert words(1, 2) != words(1, 3)


def test_steps_limit_a_round() -> None:
    task = small_task(made_up())
    task.local = LocalPlan(batch_size=3, epochs=2, steps=4)
    assert len(task.work(1, 0).batches) == 4


def test_perplexity_is_that_of_the_words_that_follow() -> None:
    task = small_task(made_up())
    model = task.build_model().train()
    words = len(task.text.words)
    figures = task.evaluate(model)
    assert figures["perplexity"] == pytest.approx(words, rel=1e-5)
    assert figures["log_likelihood"] == pytest.approx(-math.log(words), rel=1e-5)
    assert model.training
    with torch.no_grad():  # the right frequencies
        counts = np.bincount(task.text.train, minlength=words) + 1
        model.scores.copy_(torch.from_numpy(np.log(counts)))
    unigram = np.log(counts / counts.sum())[task.text.test[1:101]].mean()
    assert task.final_test(model)["log_likelihood"] == pytest.approx(unigram, rel=1e-5)
    assert small_task(made_up(), valid_tokens=20).evaluate(model) != task.evaluate(model)


def test_texts_without_a_window_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lower language\.clients or"):
        small_task(made_up(), clients=60)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": 0}, "language.block is 0"),
        ({"vocabulary": 5}, "language.vocabulary is 5"),
        ({"heads": 3}, "not a multiple of language.heads = 3"),
        ({"dropout": 1.0}, "language.dropout is 1.0"),
        ({"rows": 0.0}, "language.rows is 0.0"),
        ({"valid_tokens": -1}, "language.valid_tokens is -1"),
        ({"decoder": "adaptive", "width": 8}, "choose 16 or more"),
        ({"decoder": "adaptive", "block_embedding": 4}, "choose a tied or untied decoder"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Language(**settings)  # type: ignore[arg-type]


def small(preset: str, aggregation: Aggregation, **language: object) -> Config:
    settings = {"width": 8, "tokens": 6, "clients": 20} | language
    return dataclasses.replace(
        PRESETS[preset],
        data="synthetic",
        rounds=2,
        clients_per_round=3,
        eval_every=2,
        dropouts=0.34,
        aggregation=aggregation,
        threads=1,
        language=Language(**settings),  # type: ignore[arg-type]
        local=Local(optimizer="adam", lr=0.01, batch_size=4, steps=2, clip_norm=1.0),
    )


def run(config: Config) -> tuple[Federation, list[RoundRecord]]:
    task = build_task(config)
    federation = build(config, task)
    records: list[RoundRecord] = []
    Trainer(config, task, federation).run(1, records.append)
    return federation, records


@pytest.mark.parametrize("preset", NAMES)
@pytest.mark.parametrize("blocks", [{}, {"block": 4, "block_embedding": 4}])
def test_all_aggregations_end_with_the_same_model(preset: str, blocks: dict[str, int]) -> None:
    hashes = set()
    for aggregation in ("plain", "dense", "fsl"):
        federation, records = run(small(preset, aggregation, **blocks))  # type: ignore[arg-type]
        assert all(record.exact for record in records)
        assert [record.dropouts for record in records] == [1, 1]
        assert set(records[-1].metrics) == {"log_likelihood", "perplexity"}
        hashes.add(federation.model_sha256())
    assert len(hashes) == 1


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("decoder", ["untied", "adaptive"])
def test_rows_of_an_untied_table_go_through_trees(decoder: str, block: int) -> None:
    if decoder == "adaptive" and block > 1:
        pytest.skip("the adaptive decoder has no blocks")
    settings = {"decoder": decoder, "block_embedding": block, "width": 64, "rows": 0.05}
    plain, _ = run(small("lstm-wikitext2", "plain", **settings))
    fsl, records = run(small("lstm-wikitext2", "fsl", **settings))
    assert all(record.exact for record in records)
    assert plain.model_sha256() == fsl.model_sha256()
    rows = [segment for segment in fsl.plan.segments if segment.policy == "rows"]
    assert [segment.mechanism in ("dpf", "full-domain") for segment in rows] == [True]


def test_a_run_in_blocks_goes_on_from_a_whole_model(tmp_path: Path) -> None:
    config = small("lstm-wikitext2", "plain")
    whole = run_experiment(config, tmp_path / "whole", resume=False, console=Console(quiet=True))
    language = dataclasses.replace(
        config.language, block=4, block_embedding=2, start=str(tmp_path / "whole")
    )
    nearest = build_task(dataclasses.replace(config, language=language))
    saved = CheckpointFolder(tmp_path / "whole" / "checkpoint").load()
    assert saved is not None
    table = torch.from_numpy(saved.state["embedding.table.weight"])
    assert torch.equal(nearest.build_model().state_dict()["embedding.table.weight"],
                       project(table, 2).flatten(1))  # fmt: skip
    start = nearest.baselines()["untrained_perplexity"]
    assert whole["metrics"]["perplexity"] < start < whole["baselines"]["untrained_perplexity"]
    for folder, why in (("nowhere", "a run with a checkpoint"), ("whole", "otherwise equal sizes")):
        other = dataclasses.replace(language, start=str(tmp_path / folder), layers=1, width=6)
        with pytest.raises(ConfigError, match=why):
            build_task(dataclasses.replace(config, language=other)).build_model()


def test_the_papers_sizes_are_in_a_file_that_both_presets_take() -> None:
    file = str(Path(__file__).resolve().parents[2] / "examples" / "wikitext2-paper.toml")
    for preset, count in zip(NAMES, (13_987_678, 13_828_878), strict=True):
        config = config_from(make_parser().parse_args([preset, "--config", file]))
        words = np.arange(33_278, dtype=np.int32)
        names = [str(word) for word in words]
        model = language_task(config, Text(words, words, words, names)).build_model()
        assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_a_run_ends_with_the_test_text(tmp_path: Path) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text("[language]\nwidth = 8\ntokens = 6\n[local]\nsteps = 1\n")
    out = tmp_path / "run"
    command = ["transformer-wikitext2", "--data", "synthetic", "--config", str(settings), "--out",
               str(out), "--rounds", "2", "--aggregation", "plain", "--quiet"]  # fmt: skip
    assert main(command) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["test"]) == {"log_likelihood", "perplexity"}
    assert summary["metric"] == "log_likelihood"
    assert {"unigram_perplexity", "untrained_perplexity"} < set(summary["baselines"])
    assert (out / "curves.png").exists()

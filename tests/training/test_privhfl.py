"""Learning from the answers of others: pictures, selection, labels, controls, resumption."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from tests.training.test_models import count
from torchfsl.privhfl import Querying as Parties
from training.data.prf import Stream
from training.privhfl import experiment
from training.privhfl.command import main, make_parser, settings_from
from training.privhfl.distillation import (
    MOST_LOGIT,
    bounded,
    logits,
    retrained,
    soft_labels,
    train_baseline,
)
from training.privhfl.expansion import POOL, expand, select
from training.privhfl.querying import Plain
from training.privhfl.settings import Settings
from training.privhfl.tasks import RECIPES, architecture, build_model, load_population
from training.privhfl.trainer import Trainer, model_sha256
from training.section_checks import ConfigError

SMALL = Settings(task="mnist", data="synthetic", clients=4, private=30, queries=40, test=200)
NETWORKS = {
    "vgg7": models.VGG7(width=4, size=16),
    "resnet8": models.resnet8(width=4, size=16),
    "resnet8-pooled": models.resnet8(width=4, size=16, pool=4),
    "resnet10": models.resnet10(width=4, size=16),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer epochs than experiments have."""
    short = dataclasses.replace(RECIPES["mnist"], epochs=20, retrain_epochs=8)
    monkeypatch.setitem(RECIPES, "mnist", short)


def stream() -> Stream:
    return Stream(3, "test")


def samples(n: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, 28, 28, generator=generator), torch.arange(n) % 10


def quiet(_: str) -> None:
    """Nothing is shown."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_logits_from_flat_features(name: str) -> None:
    model = NETWORKS[name].eval()
    images = torch.randn(3, 3, 16, 16)
    features = model.get_submodule("features")(images)
    assert features.dim() == 2
    assert torch.equal(model.get_submodule("classifier")(features), model(images))
    assert model(images).shape == (3, 10)


def test_paper_size_networks_have_the_sizes_that_results_name() -> None:
    sizes = [count(m) for m in (models.VGG7(), models.resnet8(), models.resnet10())]
    assert [round(size / 1e6, 2) for size in sizes] == [1.19, 0.63, 4.98]
    small = (models.MnistMLP(), models.SmallCNN(), models.SmallResNet())
    assert [count(m) for m in small] == [109_386, 11_298, 5_122]


def test_networks_consist_of_what_the_protocol_evaluates_alone() -> None:
    allowed = (nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d,
               nn.Flatten)  # fmt: skip
    for recipe in RECIPES.values():
        for build in recipe.architectures.values():
            leaves = [m for m in build().modules() if not list(m.children())]
            assert all(isinstance(leaf, allowed) for leaf in leaves)


def test_pooling_before_relu_is_the_same_function() -> None:
    x = torch.randn(2, 3, 8, 8)
    pool = nn.MaxPool2d(2)
    assert torch.equal(pool(x).relu(), pool(x.relu()))


def test_mixup_is_a_mixture_of_two_private_pictures_and_of_their_labels() -> None:
    images, labels = samples()
    made = expand("mixup", images, labels, 50, stream(), classes=10)
    assert made.own_labels is not None
    flat = images.flatten(1)
    for picture, own in zip(made.images.flatten(1), made.own_labels, strict=True):
        # The weights of all private pictures, from least squares: two at most, a tenth apart.
        weights = torch.linalg.lstsq(flat.T, picture[:, None]).solution.squeeze(1)
        assert torch.allclose(10 * weights, (10 * weights).round(), atol=1e-3)
        assert weights.sum() == pytest.approx(1, abs=1e-4)
        expected = torch.zeros(10).index_add(0, labels, weights)
        assert torch.allclose(own, expected, atol=1e-3)


def test_one_coefficient_of_mixup_is_used_for_all() -> None:
    images, labels = samples()
    made = expand("mixup", images, labels, 30, stream(), classes=10, lam=0.3)
    assert made.own_labels is not None
    values = {round(float(v), 3) for row in made.own_labels for v in row}
    assert values <= {0.0, 0.3, 0.7, 1.0}
    assert 0.3 in values


def test_cutmix_takes_each_pixel_from_one_of_two_pictures_in_the_labels_shares() -> None:
    images, labels = samples()
    made = expand("cutmix", images, labels, 20, stream(), classes=10)
    assert made.own_labels is not None
    for picture, own in zip(made.images, made.own_labels, strict=True):
        same = (picture == images).flatten(1).double().mean(dim=1)
        first = int(same.argmax())
        assert same.sum() == pytest.approx(1, abs=1e-6) or same[first] == 1
        assert own.sum() == pytest.approx(1, abs=1e-5)
        assert own[labels[first]] >= same[first] - 1e-5


def test_cutout_blanks_a_box_and_nothing_else() -> None:
    images, labels = samples()
    made = expand("cutout", images, labels, 20, stream(), classes=10)
    for picture in made.images:
        blank = picture[0] == 0
        rows, columns = torch.where(blank)
        assert 0 < blank.sum() <= 14 * 14
        assert blank[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].all()
        assert ((picture == images) | (picture == 0)).flatten(1).all(dim=1).any()


def test_private_and_flipped_queries_are_at_most_one_a_sample() -> None:
    images, labels = samples()
    own = expand("private", images, labels, 50, stream(), classes=10)
    mirrored = expand("flip", images, labels, 50, stream(), classes=10)
    assert len(own.images) == len(mirrored.images) == 12
    assert torch.equal(own.images.flip(-1), mirrored.images)
    assert own.own_labels is not None
    assert sorted(own.own_labels.argmax(1).tolist()) == sorted(labels.tolist())


def test_noise_has_no_labels_and_unit_variance() -> None:
    made = expand("noise", *samples(), 40, stream(), classes=10)
    assert made.own_labels is None
    assert float(made.images.std()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("kind", ["random", "margin", "entropy", "k-centre", "icd"])
def test_selections_give_as_many_distinct_positions_as_asked(kind: Any) -> None:
    pool = expand("mixup", *samples(), 80, stream(), classes=10).images
    torch.manual_seed(0)
    model = models.SmallCNN().eval()
    chosen = select(kind, pool, 20, model=model, private=samples()[0], stream=stream())
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == 20
    again = select(kind, pool, 20, model=model, private=samples()[0], stream=stream())
    assert torch.equal(chosen, again)
    all_of_them = select(kind, pool, 80, model=model, private=samples()[0], stream=stream())
    assert all_of_them.tolist() == list(range(80))


def test_uncertain_pictures_are_chosen() -> None:
    pool = expand("noise", *samples(), 60, stream(), classes=10).images
    torch.manual_seed(0)
    model = models.SmallCNN().eval()
    shares = logits(model, pool).softmax(1)
    two = shares.topk(2, dim=1).values
    margin, entropy = two[:, 0] - two[:, 1], -(shares * shares.log()).sum(1)
    for kind, score in (("margin", margin), ("entropy", -entropy)):
        chosen = select(kind, pool, 15, model=model, private=pool[:5], stream=stream())  # type: ignore[arg-type]
        left = [p for p in range(60) if p not in chosen.tolist()]
        assert score[chosen].max() <= score[left].min()


def test_k_centre_leaves_no_picture_farther_than_a_random_choice_does() -> None:
    pool = expand("noise", *samples(), 60, stream(), classes=10).images
    torch.manual_seed(0)
    model = models.SmallCNN().eval()
    features = model.features(pool).detach()

    def radius(kind: Any) -> float:
        chosen = select(kind, pool, 20, model=model, private=pool[:1], stream=stream())
        return float(torch.cdist(features, features[chosen]).min(dim=1).values.max())

    assert radius("k-centre") < radius("random")


def test_soft_labels_are_the_softmax_of_mean_logits() -> None:
    sums = torch.tensor([[6.0, 3.0, 0.0]])
    assert torch.allclose(soft_labels(sums, 3, 1.0), torch.tensor([[2.0, 1.0, 0.0]]).softmax(1))
    assert torch.allclose(soft_labels(sums, 3, 2.0), torch.tensor([[1.0, 0.5, 0.0]]).softmax(1))


def test_plain_answers_add_up_and_depend_on_every_answering_model() -> None:
    images, _ = samples()
    nets = [(n, build_model(SMALL, n).eval()) for n in range(3)]
    found = Plain().ask(1, 3, images, nets)
    assert found.count == 3
    assert torch.allclose(found.sums, sum(logits(m, images) for _, m in nets), atol=1e-5)
    shares = Plain(probabilities=True).ask(1, 3, images, nets)
    assert torch.allclose(shares.sums.sum(1), torch.full((12,), 3.0), atol=1e-5)


def test_a_model_with_huge_logits_answers_with_bounded_ones_and_the_same_classes() -> None:
    own = load_population(SMALL).clients[0]
    wild, tame = build_model(SMALL, 0).eval(), build_model(SMALL, 1).eval()
    with torch.no_grad():
        for parameter in wild.get_submodule("classifier").parameters():
            parameter.mul_(1e4)
    before = logits(wild, own.images)
    answered = logits(bounded(wild, own), own.images)
    assert before.abs().max() > MOST_LOGIT > answered.abs().max() > 0.9 * MOST_LOGIT
    assert torch.equal(before.argmax(1), answered.argmax(1))
    assert torch.equal(before, logits(wild, own.images))
    assert bounded(tame, own) is tame


def test_retraining_leaves_the_model_that_others_still_ask() -> None:
    people = load_population(SMALL)
    model = build_model(SMALL, 0).eval()
    before = model_sha256(model)
    after = retrained(model, people.clients[0], None, None, RECIPES["mnist"], stream())
    assert model_sha256(model) == before
    assert model_sha256(after) != before


def test_a_batch_of_one_left_over_is_not_trained_alone() -> None:
    """BatchNorm over one sample of one position would fail."""
    settings = dataclasses.replace(SMALL, private=65, clients=3)
    people = load_population(settings)
    recipe = dataclasses.replace(RECIPES["mnist"], retrain_epochs=1)
    retrained(build_model(settings, 1), people.clients[1], None, None, recipe, stream())


def test_no_sample_belongs_to_two_clients() -> None:
    for alpha in (0.0, 0.5):
        people = load_population(dataclasses.replace(SMALL, alpha=alpha, clients=5))
        seen = [image.numpy().tobytes() for one in people.clients for image in one.images]
        assert len(set(seen)) == len(seen) == 5 * 30


def test_small_alpha_means_few_labels_a_client() -> None:
    def labels(alpha: float) -> float:
        people = load_population(dataclasses.replace(SMALL, alpha=alpha))
        return float(np.mean([len(set(one.labels.tolist())) for one in people.clients]))

    assert labels(0.1) < labels(100.0)


def test_architectures_take_turns() -> None:
    names = [architecture(SMALL, client) for client in range(6)]
    assert names == ["MLP", "CNN", "ResNet"] * 2


def test_the_asked_are_others_as_many_as_the_fraction_says() -> None:
    settings = dataclasses.replace(SMALL, clients=9, fraction=0.6)
    trainer = Trainer(settings, load_population(settings), Plain())
    drawn = {trainer.answering(1, client) for client in range(9)}
    assert all(len(others) == 5 for others in drawn)
    assert all(client not in trainer.answering(1, client) for client in range(9))
    assert len(drawn) > 1
    assert Settings(task="mnist", fraction=0.1).answering == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": 2}, "at least 3 clients"),
        ({"fraction": 0.0}, "fraction is 0.0"),
        ({"lam": 1.0}, "lam is 1.0"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"queries": 0}, "queries is 0"),
        ({"expansion": "dream"}, "expansion is 'dream': choose one of private"),
        ({"frac_bits": 15}, "choose at most 14 for ring_bits = 32"),
        ({"label": "probabilities", "querying": "secure"}, "can average only logits"),
        ({"control": "mixlocal", "expansion": "noise"}, "makes no labels"),
        ({"control": "local", "querying": "secure"}, "queries no other client"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_remedy(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SMALL, **changes)


def run(tmp_path: Path, name: str = "run", **changes: Any) -> dict[str, Any]:
    settings = dataclasses.replace(SMALL, **changes)
    return experiment.run_experiment(settings, tmp_path / name, say=quiet)


def test_a_client_gains_by_answers_of_better_models_and_not_by_its_own() -> None:
    settings = dataclasses.replace(SMALL, private=20, queries=300, expansion="cutmix")
    people = load_population(settings)
    trainer = Trainer(settings, people, Plain())
    weak, first = trainer.baseline(0)
    teachers = [build_model(settings, n) for n in (0, 1, 3)]
    rich = load_population(dataclasses.replace(settings, clients=3, private=600)).clients
    recipe = dataclasses.replace(RECIPES["mnist"], epochs=6)
    for teacher, samples_ in zip(teachers, rich, strict=True):
        train_baseline(teacher, samples_, recipe, stream())
    _, taught = trainer.iterate(1, 0, [weak, *teachers])
    alone = Trainer(dataclasses.replace(settings, control="selfmix"), people, Plain())
    _, untaught = alone.iterate(1, 0, [weak, *teachers])
    assert taught.accuracy > first.accuracy + 0.05
    assert taught.accuracy > untaught.accuracy + 0.05
    assert (taught.queries, taught.answered_by) == (300, (1, 2, 3))
    assert (untaught.queries, untaught.answered_by) == (0, ())


def test_predictions_are_counted(tmp_path: Path) -> None:
    summary = run(tmp_path, "all", queries=10)
    assert summary["predictions"] == 4 * 10 * 3
    assert run(tmp_path, "none", queries=10, control="local")["predictions"] == 0


def test_a_run_writes_what_it_says(tmp_path: Path) -> None:
    summary = run(tmp_path, iterations=2, control="selfmix")
    folder = tmp_path / "run"
    lines = [json.loads(one) for one in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [one["iteration"] for one in lines] == [0, 1, 2]
    assert lines[2]["gain"] == pytest.approx(lines[2]["accuracy"] - lines[0]["accuracy"])
    assert summary["least_gain"] == min(
        now - then for now, then in zip(lines[2]["accuracies"], lines[0]["accuracies"], strict=True)
    )
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert (folder / "curves.png").stat().st_size > 0


def test_a_figure_that_is_no_number_is_null_in_the_files_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment.line
    monkeypatch.setattr(experiment, "line", lambda *of: made(*of) | {"accuracy": math.nan})
    run(tmp_path)
    texts = [(tmp_path / "run" / name).read_text() for name in ("metrics.jsonl", "summary.json")]
    assert [json.loads(one)["accuracy"] for one in texts[0].splitlines()] == [None, None]
    assert "NaN" not in "".join(texts)


def test_the_protocol_and_its_integers_in_the_clear_end_with_the_same_models(
    tmp_path: Path,
) -> None:
    few = {"private": 20, "queries": 10, "batch": 4, "test": 50}
    secure = run(tmp_path, "secure", querying="secure", **few)
    fixed = run(tmp_path, "fixed", querying="fixed", **few)
    plain = run(tmp_path, "plain", **few)
    assert secure["exact"] is True
    assert secure["model_sha256"] == fixed["model_sha256"] != plain["model_sha256"]
    assert (secure["baselines"], secure["predictions"]) == (plain["baselines"], 4 * 10 * 3)
    assert set(secure["cpu_seconds"]) == {"querying", "answering", "server", "training"}
    offline = "querying-server, offline"
    assert secure["bytes"][offline] > sum(secure["bytes"].values()) / 2
    assert fixed["bytes"] == plain["bytes"] == {}


def test_altered_sums_are_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Parties.ask

    def altered(self: Parties, *arguments: Any) -> Any:
        answer = honest(self, *arguments)
        return dataclasses.replace(answer, logits=answer.logits + (self.mode == "secure"))

    monkeypatch.setattr(Parties, "ask", altered)
    few = {"private": 20, "queries": 4, "batch": 4, "test": 50, "querying": "secure"}
    assert run(tmp_path, **few)["exact"] is False


class Interrupted(RuntimeError):
    """The run is killed."""


class Stopping(Plain):
    """Dies when a client of some number asks."""

    def __init__(self, client: int) -> None:
        super().__init__()
        self._client = client

    def ask(
        self,
        iteration: int,
        client: int,
        queries: Tensor,
        answering: Sequence[tuple[int, nn.Module]],
    ) -> Any:
        if (iteration, client) == (2, self._client):
            raise Interrupted
        return super().ask(iteration, client, queries, answering)


def test_an_interrupted_run_ends_with_the_same_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path, "whole", iterations=2)
    settings = dataclasses.replace(SMALL, iterations=2)
    with monkeypatch.context() as patched:
        patched.setattr(experiment, "build_querying", lambda *_: Stopping(2))
        with pytest.raises(Interrupted):
            experiment.run_experiment(settings, tmp_path / "cut", say=quiet)
    again = experiment.run_experiment(settings, tmp_path / "cut", resume=True, say=quiet)
    assert again["model_sha256"] == whole["model_sha256"]
    assert again["accuracies"] == whole["accuracies"]


def test_shared_baselines_are_those_of_an_own_run(tmp_path: Path) -> None:
    own = run(tmp_path, "own")
    shared = tmp_path / "baselines"
    for name in ("first", "second"):
        found = experiment.run_experiment(SMALL, tmp_path / name, say=quiet, baselines=shared)
        assert found["model_sha256"] == own["model_sha256"]
    assert not (tmp_path / "first" / "iteration-0").exists()
    other = dataclasses.replace(SMALL, private=20)
    with pytest.raises(ConfigError, match="private = 30, and now private is 20"):
        experiment.run_experiment(other, tmp_path / "third", say=quiet, baselines=shared)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(ConfigError, match="add --resume"):
        run(tmp_path)
    with pytest.raises(ConfigError, match="queries = 40, and now queries is 50"):
        experiment.run_experiment(
            dataclasses.replace(SMALL, queries=50), tmp_path / "run", resume=True, say=quiet
        )


def test_the_pool_is_larger_than_what_is_asked(tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, selection="margin")
    trainer = Trainer(settings, load_population(settings), Plain())
    model = build_model(settings, 0).eval()
    assert len(trainer.queries(1, 0, model).images) == 40
    few = dataclasses.replace(settings, expansion="private", queries=100)
    alone = Trainer(few, load_population(few), Plain())
    assert len(alone.queries(1, 0, model).images) == 30 < POOL * 100


def test_options_become_settings() -> None:
    line = "cifar10 --queries 500 --fraction 0.6 --ring-bits 64 --expansion cutmix --alpha 0.5"
    found = settings_from(make_parser().parse_args(line.split()))
    assert (found.clients, found.private, found.queries) == (6, 1000, 500)
    assert (found.fraction, found.ring_bits, found.fractional) == (0.6, 64, 20)
    assert (found.expansion, found.alpha) == ("cutmix", 0.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mnist --resume", "--resume needs the folder of the run"),
        ("mnist --fraction 2", "choose a number above 0"),
        ("mnist --data nowhere-at-all", "cannot load 'nowhere-at-all'"),
    ],
)
def test_the_command_refuses_in_one_line(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    arguments = line.split()
    if "--resume" not in arguments:
        arguments += ["--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_command_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["mnist", "--data", "synthetic", "--clients", "3", "--private", "20", "--queries", "20",
            "--test", "100", "--out", str(tmp_path / "run")]  # fmt: skip
    assert main(line) == 0
    said = capsys.readouterr().out
    assert "baseline, private samples alone" in said
    assert "points, least" in said
    assert main([*line, "--resume", "--iterations", "2", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3

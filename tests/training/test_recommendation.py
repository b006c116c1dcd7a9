from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import models
from training.data.interactions import Interactions, synthetic_interactions
from training.sections import Recommendation
from training.tasks import metrics, recommendation
from training.tasks.recommendation import CATEGORIES, ITEMS, USERS, RecommendationTask

SMALL = Recommendation(history=4, negatives=2, rows_per_client=24)


def task_of(data: Interactions, seed: int = 5, **changes: Any) -> RecommendationTask:
    evaluate = changes.pop("evaluate", "test")
    settings = dataclasses.replace(SMALL, **changes)
    return RecommendationTask(
        data, settings, network=functools.partial(models.DIN, dim=4), seed=seed, evaluate=evaluate
    )


def make_task(seed: int = 5, **changes: Any) -> RecommendationTask:
    data = synthetic_interactions(5, users=40, items=60, categories=6, length=(4, 25))
    return task_of(data, seed, **changes)


def held_out_elsewhere(data: Interactions) -> Interactions:
    """The same training sequences, another held-out item each."""
    sequences = [np.r_[s[:-1], (s[-1] + 1) % data.num_items] for s in data.sequences]
    return dataclasses.replace(data, sequences=tuple(sequences))


def test_a_clients_rows_fit_its_budget_and_cover_its_batches() -> None:
    task = make_task()
    for client in range(task.num_clients):
        work = task.work(1, client)
        assert sum(map(len, work.rows.values())) <= SMALL.rows_per_client
        (batch,) = work.batches
        user, target, target_category, history, history_category, mask = batch.inputs
        assert len(batch.labels) > 0
        assert set(user.tolist()) == set(work.rows[USERS].tolist()) == {client}
        assert {*target.tolist(), *history[mask].tolist()} == set(work.rows[ITEMS].tolist())
        kinds = {*target_category.tolist(), *history_category[mask].tolist()}
        assert kinds == set(work.rows[CATEGORIES].tolist())


def test_long_users_are_cut_to_their_latest_items() -> None:
    task = make_task()
    client = int(np.argmax([len(s) for s in task.data.sequences]))
    known = task.data.sequences[client][:-1]
    batch = task.work(1, client).batches[0]
    taken = batch.inputs[1][batch.labels == 1].tolist()
    assert taken == known[::-1][: len(taken)].tolist()
    assert len(taken) < len(known) - 1


def test_training_never_sees_the_held_out_item() -> None:
    task = make_task()
    other = task_of(held_out_elsewhere(task.data))
    for client in range(task.num_clients):
        first, second = task.work(2, client), other.work(2, client)
        assert all(map(torch.equal, first.batches[0].inputs, second.batches[0].inputs))


def test_negatives_were_never_taken_by_the_user() -> None:
    task = make_task()
    for client, sequence in enumerate(task.data.sequences):
        assert task._negatives[client] not in sequence
        batch = task.work(1, client).batches[0]
        assert not np.isin(batch.inputs[1][batch.labels == 0], sequence[:-1]).any()


def test_work_is_a_function_of_seed_round_and_client() -> None:
    task, again = make_task(), make_task()
    again.work(9, 9)
    for first, second in ((task.work(3, 4), again.work(3, 4)),):
        assert all(map(torch.equal, first.batches[0].inputs, second.batches[0].inputs))
    targets = [make_task(seed=seed).work(r, 4).batches[0].inputs[1].tolist()
               for seed, r in ((5, 3), (5, 4), (6, 3))]  # fmt: skip
    assert len(set(map(tuple, targets))) == 3


def test_evaluation_scores_every_user_twice_and_keeps_the_mode() -> None:
    task = make_task()
    model = task.build_model().train()
    result = task.evaluate(model)
    assert set(result) == {"auc", "gauc", "logloss"}
    assert model.training
    scores, labels, users = [], [], []
    model.eval()
    for user, sequence in enumerate(task.data.sequences):
        for label, item in ((1, sequence[-1]), (0, task._negatives[user])):
            history = sequence[:-1][-task.settings.history :]
            inputs = task._inputs(np.array([user]), np.array([item]), [history])
            with torch.no_grad():
                output = model(*inputs)[0]
            scores.append(float(output[1] - output[0]))
            labels.append(label)
            users.append(user)
    arrays = np.array(users), np.array(labels), np.array(scores)
    assert result["auc"] == pytest.approx(metrics.auc(*arrays[1:]), abs=1e-3)
    assert result["gauc"] == pytest.approx(metrics.gauc(*arrays), abs=1e-3)


def test_baselines_are_popularity_and_the_untrained_model() -> None:
    task = make_task()
    baselines = task.baselines()
    counts = np.bincount(np.concatenate([s[:-1] for s in task.data.sequences]), minlength=60)
    last = [s[-1] for s in task.data.sequences]
    wins = np.subtract.outer(counts[last], counts[task._negatives])
    expected = np.mean(np.where(wins > 0, 1.0, np.where(wins == 0, 0.5, 0.0)))
    assert baselines["popularity_auc"] == pytest.approx(expected)
    assert 0.2 < baselines["untrained_auc"] < 0.8


def test_a_budget_that_holds_no_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="can need 15"):
        make_task(rows_per_client=14)


def test_without_a_user_table_a_client_names_items_and_categories_alone() -> None:
    task = make_task(user_table=False)
    assert not any("user" in name for name in task.build_model().state_dict())
    work = task.work(1, 3)
    assert set(work.rows) == {ITEMS, CATEGORIES}
    assert task.build_model()(*work.batches[0].inputs).shape == (len(work.batches[0].labels), 2)


def test_validation_holds_out_the_second_to_last_item_and_never_reads_the_last() -> None:
    task = make_task(evaluate="validation")
    other = task_of(held_out_elsewhere(task.data), evaluate="validation")
    assert task._positives.tolist() == [s[-2] for s in task.data.sequences]
    for client, sequence in enumerate(task.data.sequences):
        first, second = task.work(2, client), other.work(2, client)
        assert all(map(torch.equal, first.batches[0].inputs, second.batches[0].inputs))
        batch = first.batches[0]
        assert batch.inputs[1][batch.labels == 1].tolist()[:1] == sequence[-3:-2].tolist()
    popularity = np.bincount(np.concatenate([s[:-2] for s in task.data.sequences]), minlength=60)
    won = np.subtract.outer(popularity[task._positives], popularity[task._negatives])
    expected = np.mean(np.where(won > 0, 1.0, np.where(won == 0, 0.5, 0.0)))
    assert task.baselines()["popularity_auc"] == pytest.approx(expected)


def test_a_user_of_three_items_has_nothing_to_train_on_under_validation() -> None:
    data = Interactions(tuple(np.array([u, u + 1, u + 2]) for u in range(8)), np.zeros(10, int), 1)
    work = task_of(data, evaluate="validation", rows_per_client=15).work(1, 0)
    assert work.batches == ()
    assert {name: len(rows) for name, rows in work.rows.items()}[ITEMS] == 0
    assert task_of(data, rows_per_client=15).work(1, 0).batches[0].labels.sum() == 1


@pytest.fixture(params=["whole", "pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue at once, or 7 users and 11 items at a time."""
    if request.param == "pieces":
        monkeypatch.setattr(metrics, "_SCORES", 7 * 60)
        monkeypatch.setattr(recommendation, "_BLOCK", 11)
        monkeypatch.setattr(recommendation, "_TOGETHER", 150)


def place_by_sorting(scores: dict[int, float], item: int) -> float:
    """Mean place of an item among candidates over all orders of equal scores."""
    order = sorted(scores.values(), reverse=True)
    first = order.index(scores[item])
    return 1 + first + (order.count(scores[item]) - 1) / 2


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("evaluate", ["test", "validation"])
def test_places_are_those_of_sorting_the_candidates_one_user_at_a_time(evaluate: str) -> None:
    """An implementation of its own: dictionaries, sorting, one forward pass a candidate set."""
    task = make_task(evaluate=evaluate, ranked_users=30, catalogue_users=25)
    torch.manual_seed(3)
    model = task.build_model().eval()
    back = {"test": 1, "validation": 2}[evaluate]
    found: dict[str, list[float]] = {"": [], "catalogue_": []}
    ranked = {
        int(user): own[1:].tolist()
        for users, candidates in task._ranking._groups
        for user, own in zip(users, candidates, strict=True)
    }
    for user, sequence in enumerate(task.data.sequences):
        positive, history = int(sequence[-back]), sequence[:-back][-task.settings.history :]
        untouched = sorted(set(range(60)) - set(sequence.tolist()))
        sampled = ranked.get(user, untouched)
        assert sorted(sampled) == untouched  # of 60 items, fewer than 99 are left to all
        for prefix, others in (("", sampled), ("catalogue_", untouched)):
            if user not in (task._ranking._in_catalogue if prefix else ranked):
                continue
            items = [positive, *others]
            inputs = task._inputs(np.full(len(items), user), np.array(items), [history])
            with torch.no_grad():
                output = model(*inputs).double()
            scores = dict(zip(items, (output[:, 1] - output[:, 0]).tolist(), strict=True))
            found[prefix].append(place_by_sorting(scores, positive))
    measured = task.final_test(model)
    assert (len(found[""]), len(found["catalogue_"])) == (30, 25)
    for prefix, places in found.items():
        for most in (10, 20):
            gains = [1 / math.log2(1 + place) if place <= most else 0.0 for place in places]
            hits = [place <= most for place in places]
            assert 0 < sum(hits) < len(hits)
            assert measured[f"{prefix}hr{most}"] == pytest.approx(sum(hits) / len(hits))
            assert measured[f"{prefix}ndcg{most}"] == pytest.approx(sum(gains) / len(gains))
        reciprocal = sum(1 / place for place in places) / len(places)
        assert measured[prefix + "mrr"] == pytest.approx(reciprocal)
        assert f"popularity_{prefix}hr10" in task.baselines()


def test_a_user_of_nearly_all_items_has_fewer_negatives_and_no_one_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = synthetic_interactions(5, users=20, items=150, categories=6, length=(4, 20))
    alone = task_of(data, ranked_users=99, catalogue_users=2)
    assert alone.scope == {"ranked_users": 20, "catalogue_users": 2, "rank_every": 0}
    assert "negatives" not in caplog.text
    many = dataclasses.replace(data, sequences=(*data.sequences, np.arange(143)))
    task = task_of(many, ranked_users=99, catalogue_users=2)
    drawn = {
        int(user): own.tolist()
        for users, candidates in task._ranking._groups
        for user, own in zip(users, candidates, strict=True)
    }
    (group,) = alone._ranking._groups
    assert {user: drawn[user] for user in range(20)} == {
        int(user): own.tolist() for user, own in zip(*group, strict=True)
    }
    assert len(set(drawn[20])) == 1 + 7
    assert task.scope["ranked_users"] == 21
    assert (task.scope["users_with_fewer_negatives"], task.scope["fewest_negatives"]) == (1, 7)
    task.final_test(task.build_model())
    assert (
        "1 of 21 ranked users have fewer than 99 items to compare with; the smallest number is 7"
        in caplog.text
    )


def test_a_user_of_all_items_is_refused() -> None:
    data = synthetic_interactions(5, users=20, items=30, categories=6, length=(4, 20))
    full = dataclasses.replace(data, sequences=(*data.sequences, np.arange(30)))
    with pytest.raises(ValueError, match=r"1 of 21 users .*user 20.* all 30 items"):
        task_of(full)


def test_ties_share_the_mean_of_their_places() -> None:
    others = np.array([[3.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    assert metrics.ranks(np.array([1.0, 1.0]), others).tolist() == [3.0, 3.0]
    assert metrics.of_ranks(np.array([1.0, 10.0, 11.0])) == pytest.approx(
        {
            "hr10": 2 / 3,
            "ndcg10": (1 + 1 / math.log2(11)) / 3,
            "hr20": 1.0,
            "ndcg20": (1 + 1 / math.log2(11) + 1 / math.log2(12)) / 3,
            "mrr": (1 + 0.1 + 1 / 11) / 3,
        }
    )


def test_items_that_a_user_took_do_not_compete_whatever_their_score() -> None:
    task = make_task(catalogue_users=40)

    def scores(users: np.ndarray, items: np.ndarray) -> np.ndarray:
        found = np.zeros((len(users), len(items)), dtype=np.float32)
        for row, user in zip(found, users, strict=True):
            row[task.data.sequences[user]] = 5.0  # the held-out item among them
            row[[task._positives[user]]] = 1.0
        return found

    assert task._ranking.catalogue_places(scores).tolist() == [1.0] * 40


def test_a_ranking_says_how_far_it_is() -> None:
    task = make_task(ranked_users=30, catalogue_users=25)
    seen: list[str] = []

    def follow(steps: Sequence[Any], name: str) -> Iterator[Any]:
        for step in steps:
            seen.append(name)
            yield step

    quiet = task.final_test(task.build_model())
    task.follow = follow
    assert task.final_test(task.build_model()) == quiet
    assert seen.count("ranking") >= 2

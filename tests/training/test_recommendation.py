from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from training.data.interactions import Interactions, synthetic_interactions
from training.tasks import metrics
from training.tasks.recommendation import CATEGORIES, ITEMS, USERS, RecommendationTask

SETTINGS = {"seed": 5, "dim": 4, "history": 4, "negatives": 2, "rows_per_client": 24}


def make_task(**changes: int) -> RecommendationTask:
    data = synthetic_interactions(5, users=40, items=60, categories=6, length=(4, 25))
    return RecommendationTask(data, **{**SETTINGS, **changes})


def held_out_elsewhere(data: Interactions) -> Interactions:
    """The same training sequences, another held-out item each."""
    sequences = [np.r_[s[:-1], (s[-1] + 1) % data.num_items] for s in data.sequences]
    return dataclasses.replace(data, sequences=tuple(sequences))


def test_a_clients_rows_fit_its_budget_and_cover_its_batches() -> None:
    task = make_task()
    for client in range(task.num_clients):
        work = task.work(1, client)
        assert sum(map(len, work.rows.values())) <= SETTINGS["rows_per_client"]
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
    other = RecommendationTask(held_out_elsewhere(task.data), **SETTINGS)
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
            history = sequence[:-1][-task.history :]
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

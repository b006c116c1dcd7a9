"""The ranking of a catalogue: one forward pass of each user and item, and `score_items`.

    python -m scripts.bench.ranking --data amazon-beauty [--preset din] [--run FOLDER] [--users 100]

Users are those that a run ranks first, with their own sequences. `forward` gives a user's scores as
`RecommendationTask` takes AUC: each item is a sample with a copy of the history. `by model` gives
the scores of all `--ranked` users together, by the model's own way. Both are CPU seconds per user
of one thread. Then come the users, of those scored both ways, whose place differs, and the largest
difference of two scores. `--run` takes the model of a run's last checkpoint; without it the model
is untrained.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.bench import measure
from scripts.program import Found, Options, UsageError, option
from training.checkpoint import CheckpointFolder
from training.presets import PRESETS
from training.tasks.build import build_task
from training.tasks.metrics import ranks
from training.tasks.recommendation import RecommendationTask


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.thread_time()
    found = call()
    return found, time.thread_time() - start


def places(task: RecommendationTask, users: Any, scores: Any) -> Any:
    """Of users and their scores of all items, the held-out items' places."""
    found = []
    for user, row in zip(users, scores, strict=True):
        others = np.delete(row, task.data.sequences[user])
        found.append(ranks(row[[task._positives[user]]], others[None])[0])
    return np.array(found)


@measure.benchmark(
    option("--data", "synthetic", "folder of the data"),
    option("--preset", "din", "preset of a recommender"),
    option("--run", Path(), "folder of a run of this preset"),
    option("--users", 100, "number of users scored in both ways"),
    option("--ranked", 100_000, "number of users scored in the model's own way"),
)
def main(options: Options, figures: Found) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    base = PRESETS[options.preset]
    chosen = dataclasses.replace(
        base.recommendation, ranked_users=0, catalogue_users=options.ranked
    )
    task = build_task(dataclasses.replace(base, data=options.data, recommendation=chosen))
    if not isinstance(task, RecommendationTask):
        raise UsageError(f"--preset is {options.preset}, expected a recommender: choose din")
    model = task.build_model().eval()
    saved = CheckpointFolder(options.run / "checkpoint").load()
    if saved is not None:
        state = {name: torch.from_numpy(own) for name, own in (saved.mean or saved.state).items()}
        model.load_state_dict(state, strict=False)
    everyone, items = task._ranking._in_catalogue, np.arange(task.data.num_items)
    users = everyone[: options.users]
    slow, before = _timed(
        lambda: np.concatenate(
            [task._scores(model, users[[i]], items[None]) for i in range(len(users))]
        )
    )
    step = max(1, 300_000_000 // len(items))
    after, fast = 0.0, np.empty((0, len(items)), dtype=np.float32)
    for start in range(0, len(everyone), step):
        found, spent = _timed(lambda s=start: task._rank(model, everyone[s : s + step], items))
        after += spent
        fast = np.concatenate([fast, found[: len(users) - len(fast)]])
    moved = places(task, users, slow) != places(task, users, fast)
    for name, value in {
        "items": len(items),
        "users scored both ways": len(users),
        "users ranked": len(everyone),
        "seconds a user, forward": before / len(users),
        "seconds a user, by model": after / len(everyone),
        "times": before / len(users) / (after / len(everyone)),
        "users whose place differs": int(moved.sum()),
        "largest difference": float(np.abs(slow - fast).max()),
    }.items():
        figures[name] = value
        measure.print_figure(name, value)

"""One PrivHFL run from start, or from the last finished client, to its summary."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import torchfsl
from training.curves import plot_clients
from training.privhfl.querying import build_querying
from training.privhfl.settings import Settings
from training.privhfl.store import Store
from training.privhfl.tasks import Population, load_population
from training.privhfl.trainer import Outcome, Trainer
from training.run_folder import replace_file, strict_json, versions

Say = Callable[[str], None]


def run_experiment(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    say: Say,
    population: Population | None = None,
    baselines: Path | None = None,
) -> dict[str, Any]:
    """Run to the last iteration and write all files; returns the summary.

    Args:
        settings: settings of the experiment.
        folder: folder for the files.
        resume: whether to continue the run in the folder.
        say: function that receives a line for each client and iteration.
        population: the clients' samples, if they are loaded already.
        baselines: folder of a run whose baselines are shared, see `Store`.

    Raises:
        ConfigError, ParameterError, DataError: settings or data cannot be used.
    """
    store = Store(folder, settings, resume=resume, baselines=baselines)
    people = population or load_population(settings)
    trainer = Trainer(settings, people, build_querying(settings, people))
    store.start()
    say(f"{settings.clients} clients of {settings.private} samples; files in {folder}")
    lines: list[dict[str, Any]] = []
    models: list[nn.Module] = []
    for iteration in range(settings.iterations + 1):
        models, outcomes = _iteration(iteration, trainer, store, models, say)
        lines.append(line(iteration, outcomes, lines))
        text = "".join(strict_json(one) + "\n" for one in lines)
        replace_file(folder / "metrics.jsonl", text)
        say(_shown(lines[-1]))
    summary = summarise(settings, lines)
    replace_file(folder / "summary.json", strict_json(summary, indent=2) + "\n")
    title = f"privhfl {settings.task}, {settings.querying}, {settings.expansion}"
    plot_clients(lines, title, folder / "curves.png")
    return summary


def line(
    iteration: int, outcomes: Sequence[Outcome], before: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """One object of `metrics.jsonl`: gains are over the baseline, in accuracy."""
    accuracies = [outcome.accuracy for outcome in outcomes]
    start = before[0]["accuracies"] if before else accuracies
    gains = [now - then for now, then in zip(accuracies, start, strict=True)]
    sent: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for outcome in outcomes:
        sent.update(outcome.bytes)
        seconds.update(outcome.cpu_seconds)
    exact = [outcome.exact for outcome in outcomes if outcome.exact is not None]
    labels = [o.label_accuracy for o in outcomes if not math.isnan(o.label_accuracy)]
    return {
        "iteration": iteration,
        "accuracy": float(np.mean(accuracies)),
        "gain": float(np.mean(gains)),
        "least_gain": min(gains),
        "accuracies": accuracies,
        "architectures": [outcome.architecture for outcome in outcomes],
        "queries": sum(outcome.queries for outcome in outcomes),
        "predictions": sum(outcome.queries * len(outcome.answered_by) for outcome in outcomes),
        "label_accuracy": float(np.mean(labels)) if labels else None,
        "bytes": dict(sent),
        "cpu_seconds": dict(seconds),
        "exact": all(exact) if exact else None,
        "model_sha256": [outcome.model_sha256 for outcome in outcomes],
    }


def summarise(settings: Settings, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of a run: its last iteration, and the baseline."""
    last = lines[-1]
    whole = hashlib.sha256("".join(last["model_sha256"]).encode()).hexdigest()
    queried = [one for one in lines if one["iteration"]]
    return {
        **dataclasses.asdict(settings),
        "backend": torchfsl.backend(),
        "baseline": lines[0]["accuracy"],
        "baselines": lines[0]["accuracies"],
        **{name: last[name] for name in ("accuracy", "gain", "least_gain", "accuracies")},
        "architectures": last["architectures"],
        "gain_by_iteration": [one["gain"] for one in queried],
        "label_accuracy": last["label_accuracy"],
        "predictions": sum(one["predictions"] for one in lines),
        "bytes": dict(sum((Counter(one["bytes"]) for one in lines), Counter())),
        "cpu_seconds": dict(sum((Counter(one["cpu_seconds"]) for one in lines), Counter())),
        "exact": last["exact"],
        "model_sha256": whole,
        "versions": versions(),
    }


def _iteration(
    iteration: int, trainer: Trainer, store: Store, before: list[nn.Module], say: Say
) -> tuple[list[nn.Module], list[Outcome]]:
    """All clients' next models, those that are on disk from there."""
    models, outcomes = [], []
    for client in range(trainer.settings.clients):
        found = store.load(iteration, client)
        if found is None:
            trained = trainer.iterate(iteration, client, before) if iteration else None
            found = trained or trainer.baseline(client)
            store.save(iteration, *found)
            say(
                f"  client {client + 1} of {trainer.settings.clients}, {found[1].architecture}: "
                f"accuracy {found[1].accuracy:.4f}"
            )
        models.append(found[0])
        outcomes.append(found[1])
    return models, outcomes


def _shown(one: dict[str, Any]) -> str:
    if not one["iteration"]:
        return f"baseline, private samples alone: mean accuracy {one['accuracy']:.4f}"
    sent = sum(one["bytes"].values())
    exact = "" if one["exact"] is None else f", exact {one['exact']}"
    cost = f", {sent / 1e6:,.1f} MB in all" if sent else ""
    return (
        f"iteration {one['iteration']}: mean accuracy {one['accuracy']:.4f}, gain "
        f"{100 * one['gain']:+.1f} points, least {100 * one['least_gain']:+.1f}{cost}{exact}"
    )

"""One run from start, or from its last checkpoint, to the summary."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from torchfsl.federation.privacy_state import PrivacyState
from training.checkpoint import Checkpoint
from training.config import Config
from training.curves import plot_curves
from training.federation import Federation, build, explained
from training.interrupt import Interrupt
from training.run_folder import RunFolder
from training.tasks.build import build_task
from training.tasks.recommendation import RecommendationTask
from training.tasks.task import Task
from training.trainer import MeanModel, RoundRecord, Trainer

_CHECKPOINT_SECONDS: Final = 300
"""So long after a checkpoint the next round writes one, whatever `checkpoint_every`."""


class Listener(Protocol):
    """Hears how a run goes."""

    def say(self, text: str) -> None:
        """A line or a table."""

    def start(self, finished: int, rounds: int) -> None:
        """Rounds begin."""

    def round_done(self, record: RoundRecord) -> None:
        """A round ended."""

    def stop(self) -> None:
        """Rounds ended, or failed."""

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        """Go through the steps of a ranking."""
        return steps


def _said_of(config: Config, federation: Federation) -> str:
    """Description of the data that clients send, in words."""
    if config.aggregation == "central":
        return "central trains in one place: nothing is sent"
    text = explained(config, federation)
    if config.aggregation == "plain":
        return (
            f"plain adds in the clear, 4 bytes a value; the same round under fsl would be\n{text}"
        )
    return text


def run_experiment(
    config: Config, folder: Path, *, resume: bool, console: Listener
) -> dict[str, Any]:
    """Run to the last round and write all files; returns the summary.

    Args:
        config: settings.
        folder: folder for the files.
        resume: whether to continue the run in the folder.
        console: listener that receives the progress.

    Raises:
        ConfigError, ParameterError, DataError, FileNotFoundError: settings or data cannot be used.
        KeyboardInterrupt: after a Ctrl-C and the checkpoint of its round.
    """
    task = build_task(config)
    if isinstance(task, RecommendationTask):
        task.follow = console.follow
    run = RunFolder(folder, config, resume=resume)
    saved = run.checkpoints.load()
    federation = _build(config, task, saved)
    keep = config.server.average
    mean = MeanModel(keep, saved.mean if saved else None) if keep else None
    trainer = Trainer(config, task, federation, saved.residuals if saved else None, mean)
    finished = saved.round if saved else 0
    records = run.start_at(finished)
    if finished:
        console.say(f"resuming after round {finished} in {folder}")
    elif resume:
        console.say(f"{folder} holds no checkpoint yet, so --resume starts over, at round 1")
    else:
        console.say(f"starting in {folder}")
    console.say(_said_of(config, federation))
    baselines = task.baselines()
    console.say("  ".join(f"{name} {value:.4f}" for name, value in baselines.items()))
    keeper = _Keeper(run, trainer, records, console)
    console.start(finished, config.rounds)
    try:
        if not keeper.is_patience_over():
            with keeper.interrupt:
                trainer.run(finished + 1, keeper.round_done)
    finally:
        console.stop()
    test = trainer.measure(task.final_test)
    summary = run.write_summary(federation, records, baselines, test, task)
    title = f"{config.preset}, {config.aggregation}, {summary['rounds']} rounds"
    plot_curves(records, task.metric, baselines, title, folder / "curves.png")
    if test:
        console.say("test  " + "  ".join(f"{name} {value:.4f}" for name, value in test.items()))
    console.say(_said_of_end(summary, task.metric, folder))
    return summary


def _said_of_end(summary: dict[str, Any], metric: str, folder: Path) -> str:
    exact = summary["exact_rounds"]
    return (
        ("" if exact is None else f"{exact} of {summary['rounds']} rounds exact, ")
        + f"{metric} {summary['metrics'].get(metric, float('nan')):.4f}, "
        f"model {summary['model_sha256'][:16]}, files in {folder}"
    )


class _Keeper:
    """Writes every round down, and a checkpoint where one is due."""

    def __init__(
        self, run: RunFolder, trainer: Trainer, records: list[RoundRecord], console: Listener
    ) -> None:
        self._run, self._trainer, self._records, self._console = run, trainer, records, console
        self.interrupt = Interrupt()
        self._changed: set[int] = set()
        self._saved_at = time.monotonic()

    def is_patience_over(self) -> bool:
        """Whether the last `patience` evaluations were no better than the best before them."""
        trainer, patience = self._trainer, self._trainer.config.patience
        evaluated = [one.metrics[trainer.task.metric] for one in self._records if one.metrics]
        values = [-math.inf if math.isnan(value) else value for value in evaluated]
        return 0 < patience < len(values) and max(values[-patience:]) <= max(values[:-patience])

    def round_done(self, record: RoundRecord) -> bool:
        self._records.append(record)
        self._run.append(record)
        self._changed.update(self._trainer.cohort(record.round))
        config = self._trainer.config
        is_over = bool(record.metrics) and self.is_patience_over()
        due = self.interrupt.asked or time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS
        last = record.round == config.rounds or is_over
        if due or last or record.round % config.checkpoint_every == 0:
            self._save(record.round)
            self._saved_at = time.monotonic()
        self._console.round_done(record)
        if self.interrupt.asked:
            raise KeyboardInterrupt
        if is_over:
            self._console.say(f"stopped: {config.patience} evaluations brought nothing better")
        return is_over

    def _save(self, round_number: int) -> None:
        trainer, federation = self._trainer, self._trainer.federation
        mean = trainer.mean.state if trainer.mean else {}
        self._run.checkpoints.save(
            round_number,
            federation.plan,
            federation.server_model,
            trainer.residuals,
            self._changed,
            mean,
            PrivacyState(federation.audit.aggregation).save(),
        )
        self._changed.clear()


def _build(config: Config, task: Task, saved: Checkpoint | None) -> Federation:
    if saved is None:
        return build(config, task)
    return build(
        config,
        task,
        plan=saved.plan,
        state=saved.state,
        optimizer_state=saved.optimizer_state,
        finished=saved.round,
        privacy_state=saved.privacy,
    )

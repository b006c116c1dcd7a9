"""Training runs of the tables: made once, resumed after an interruption, shared by processes."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.reproduction.results import Figures, read_results, write_result
from training.config import Config
from training.experiment import run_experiment


class Progress:
    """A line for each evaluation: `metric` of `training.tasks.metrics`."""

    def __init__(self, metric: str) -> None:
        """Nothing shown yet."""
        self._metric = metric

    def say(self, text: str) -> None:
        """Plans and summaries are in the run's folder."""

    def start(self, finished: int, rounds: int) -> None:
        """Say where the run starts."""
        self._rounds, self._since = rounds, time.time()
        if finished:
            print(f"  resuming after round {finished}", flush=True)

    def round_done(self, record: Any) -> None:
        """One line where the round evaluates."""
        if record.metrics:
            value, spent = record.metrics[self._metric], time.time() - self._since
            head = f"  round {record.round}/{self._rounds}  {self._metric}"
            print(f"{head} {value:.4f}  {spent:.0f} s", flush=True)

    def stop(self) -> None:
        """Nothing to close."""

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        """Show nothing."""
        return steps


def changed(config: Config, **changes: Any) -> Config:
    """The config with these changes. A mapping changes settings of the section of that name."""
    new = {
        name: dataclasses.replace(getattr(config, name), **value)
        if isinstance(value, Mapping)
        else value
        for name, value in changes.items()
    }
    return dataclasses.replace(config, **new)


def write_once(table: str, name: str, make: Callable[[], Figures], command: str) -> None:
    """Make and write a result, unless the table has one of this name."""
    if name in read_results(table):
        print(f"{name}: is here; remove its result to run it again", flush=True)
    else:
        print(name, flush=True)
        write_result(table, name, make() | {"command": command})


def run_or_read(config: Config, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run, resume, or read a finished run."""
    summary = folder / "summary.json"
    if summary.exists():
        done: dict[str, Any] = json.loads(summary.read_text())
        if done["rounds"] >= config.rounds:
            if done["rounds"] > config.rounds:
                done = json.loads((folder / f"summary-{config.rounds}.json").read_text())
            return done
    folder.parent.mkdir(parents=True, exist_ok=True)
    result = run_experiment(config, folder, resume=folder.exists(), console=progress)
    text = json.dumps(result, indent=2) + "\n"
    (folder / f"summary-{config.rounds}.json").write_text(text)
    return result


def summarised(summary: Figures, *names: str) -> Figures:
    """Figures of a run's summary, its upload per client and round among them."""
    upload = {"upload_bytes": summary["upload_bytes_per_client_round"]}
    return upload | {name: summary[name] for name in names}


def records(folder: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """The metrics of a run's first rounds; of all without a number."""
    return [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()[:rounds]
    ]


def curve(folder: Path, metric: str, rounds: int | None = None) -> list[tuple[int, float]]:
    """Rounds and values of a metric."""
    return [(r["round"], r[metric]) for r in records(folder, rounds) if metric in r]


def data_folder(data: Path | None, table: str, name: str) -> Path:
    """The folder of a data set.

    Raises:
        SystemExit: if no folder of data sets is given.
    """
    if data is None:
        raise SystemExit(
            f"{table} needs the data set {name}: pass --data with the folder that contains {name}"
        )
    return data / name


@contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether this process alone holds a file, until the block ends; without a wait maybe not."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True

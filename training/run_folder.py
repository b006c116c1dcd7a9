"""The files of a run: settings, metrics by round, summary, curves, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchfsl
from training.checkpoint import CheckpointFolder
from training.config import Config
from training.effect import idle_under_aggregation
from training.federation import Federation
from training.presets import PRESETS
from training.section_checks import ConfigError
from training.tasks.recommendation import RecommendationTask
from training.tasks.task import Task
from training.trainer import RoundRecord

_MAY_DIFFER = frozenset(
    ["rounds", "eval_every", "checkpoint_every", "patience", "servers", "tls", "replace", "workers"]
    + [f"recommendation.{name}" for name in ("ranked_users", "catalogue_users", "rank_every")]
)
"""Settings that a resumed run may change: they do not alter what a round does."""


class RunFolder:
    """One run's folder.

    Args:
        folder: where to write.
        config: of the run.
        resume: whether to continue what is there.

    Raises:
        ConfigError: the folder exists and `resume` is off, or holds a run of other settings.
    """

    def __init__(self, folder: Path, config: Config, *, resume: bool) -> None:
        """Check that there is none, or that the run in it is this one; `start_at` makes it."""
        self.folder, self.config = folder, config
        self.checkpoints = CheckpointFolder(folder / "checkpoint")
        check_folder(folder, config, resume=resume, may_differ=_MAY_DIFFER)

    @property
    def metrics_file(self) -> Path:
        """One JSON object a round."""
        return self.folder / "metrics.jsonl"

    def start_at(self, finished: int) -> list[RoundRecord]:
        """Make the folder; keep the records of the finished rounds, drop what a killed run wrote.

        Called once all else is ready, so that a start that fails leaves no folder behind.
        """
        lines = self.metrics_file.read_text().splitlines() if self.metrics_file.exists() else []
        records = [_record(json.loads(line)) for line in lines[:finished]]
        if [record.round for record in records] != list(range(1, finished + 1)):
            raise ConfigError(
                f"{self.metrics_file} does not have rounds 1 to {finished}: start a new run in "
                "another --out"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_settings(self.folder, self.config)
        replace_file(self.metrics_file, "".join(_line(record) for record in records))
        return records

    def append(self, record: RoundRecord) -> None:
        """Add one round."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def write_summary(
        self,
        federation: Federation,
        records: list[RoundRecord],
        baselines: dict[str, float],
        test: dict[str, float],
        task: Task,
    ) -> dict[str, Any]:
        """Write `summary.json`; returns its content."""
        summary = summarise(self.config, federation, records, baselines, task.metric)
        if test:
            summary["test"] = test
        if isinstance(task, RecommendationTask):
            summary["ranking"] = dict(task.scope)
        replace_file(self.folder / "summary.json", strict_json(summary, indent=2) + "\n")
        return summary


def summarise(
    config: Config,
    federation: Federation,
    records: list[RoundRecord],
    baselines: dict[str, float],
    metric: str,
) -> dict[str, Any]:
    """Results of a run: the content of `summary.json`."""
    evaluated = [record.metrics for record in records if record.metrics]
    values = [metrics[metric] for metrics in evaluated]
    messages = getattr(federation.audit.aggregation, "messages", None)
    return {
        "preset": config.preset,
        "data": config.data,
        "aggregation": config.aggregation,
        "not_used": idle_under_aggregation(config, PRESETS[config.preset]),
        "backend": torchfsl.backend(),
        "rounds": len(records),
        "clients_per_round": config.clients_per_round,
        "metric": metric,
        "metrics": evaluated[-1] if evaluated else {},
        "best": max((value for value in values if not math.isnan(value)), default=None),
        "mean_of_last_three": float(np.mean(values[-3:])) if values else None,
        "mean_of_last_five": float(np.mean(values[-5:])) if values else None,
        "baselines": baselines,
        **_bytes(records),
        "dropouts_per_round": float(np.mean([record.dropouts for record in records])),
        "client_seconds": float(np.mean([r.client_seconds for r in records])),
        "server_seconds_per_round": float(np.mean([r.server_seconds for r in records])),
        **({} if messages is None else {"messages": dict(messages)}),
        "exact_rounds": _exact(records),
        "exact_retrieval_rounds": (
            sum(bool(record.exact_retrieval) for record in records)
            if federation.retrieves and _exact(records) is not None
            else None
        ),
        "clipped_values": sum(record.clipped_values for record in records),
        "segments": [segment.describe() for segment in federation.plan.segments],
        **federation.plan.describe(),
        "plan_digest": federation.plan.digest.hex(),
        "model_sha256": federation.model_sha256(),
        "seed": config.seed,
        "versions": versions(),
    }


def _exact(records: list[RoundRecord]) -> int | None:
    """How many rounds were; None where nothing is summed."""
    if any(record.exact is None for record in records):
        return None
    return sum(bool(record.exact) for record in records)


def _mean(figures: list[dict[str, float]]) -> dict[str, float]:
    """By name the mean over rounds."""
    names = dict.fromkeys(name for phases in figures for name in phases)
    return {n: float(np.mean([phases.get(n, 0.0) for phases in figures])) for n in names}


def _bytes(records: list[RoundRecord]) -> dict[str, Any]:
    """Means a client and round: in all, by phase, and by width where there are several."""
    rounds = [record.phases_by_width for record in records]
    widths = dict.fromkeys(name for one in rounds for name in one)
    by_width = {name: _mean([one[name] for one in rounds if name in one]) for name in widths}
    return {
        "upload_bytes_per_client_round": float(np.mean([r.upload_bytes for r in records])),
        "download_bytes_per_client_round": float(np.mean([r.download_bytes for r in records])),
        "bytes_by_phase": _mean([record.phases for record in records]),
        **({"bytes_by_width": by_width} if by_width else {}),
    }


def _line(record: RoundRecord) -> str:
    fields = dataclasses.asdict(record)
    metrics = fields.pop("metrics")
    if fields["exact_retrieval"] is None:
        del fields["exact_retrieval"]
    return strict_json({"round": fields.pop("round"), **metrics, **fields}) + "\n"


def strict_json(value: Any, indent: int | None = None) -> str:
    """JSON in which numbers that are not finite are null, since the format has none."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record(line: dict[str, Any]) -> RoundRecord:
    known = {field.name for field in dataclasses.fields(RoundRecord)}
    metrics = {
        name: math.nan if value is None else value
        for name, value in line.items()
        if name not in known
    }
    return RoundRecord(metrics=metrics, **{n: v for n, v in line.items() if n in known})


def check_folder(folder: Path, config: Any, *, resume: bool, may_differ: Collection[str]) -> None:
    """Refuse a folder that is there, except to go on with the same run in it.

    Raises:
        ConfigError: it exists and `resume` is off, or holds a run of other settings.
    """
    settings = folder / "config.json"
    if folder.exists() and not resume:
        raise ConfigError(
            f"{folder} exists: add --resume to continue its run, or choose another --out"
        )
    if settings.exists():
        check_same(settings, config, folder, may_differ=may_differ)
    elif folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} has no run to resume: choose another --out")


def check_same(file: Path, config: Any, folder: Path, *, may_differ: Collection[str]) -> None:
    """Refuse to resume a run with other settings.

    Args:
        file: JSON of the settings that the run began with.
        config: dataclass of the settings now.
        folder: of the run, for the message.
        may_differ: settings that do not alter what a round does, those of sections with a dot.

    Raises:
        ConfigError: another setting differs.
    """
    saved = json.loads(file.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(dataclasses.asdict(config)))
    # What an older version did not know had its default.
    defaults = {
        field.name: json.loads(json.dumps(_plain(field.default)))
        for field in dataclasses.fields(config)
        if field.default is not dataclasses.MISSING
    }
    for name in now:
        before = saved.get(name, defaults.get(name))
        section = type(getattr(config, name))
        if isinstance(before, dict) and dataclasses.is_dataclass(section):
            before = {**json.loads(json.dumps(dataclasses.asdict(section()))), **before}
            free = {key: own for key, own in now[name].items() if f"{name}.{key}" in may_differ}
            before |= free
        if name not in may_differ and before != (after := now[name]):
            if isinstance(before, dict) and isinstance(after, dict):  # a section: name the setting
                keys = [*after, *before]
                key = next(key for key in keys if before.get(key) != after.get(key))
                name, before, after = f"{name}.{key}", before.get(key), after.get(key)
            raise ConfigError(
                f"the run in {folder} has {name} = {before}, and now {name} is {after}: "
                "resume with the same settings, or choose another --out"
            )


def _plain(default: Any) -> Any:
    """A setting's default as JSON has it."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        return dataclasses.asdict(default)
    return default


def replace_file(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old text or the new one."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_settings(folder: Path, config: Any) -> None:
    """Write `config.json`, of a dataclass."""
    replace_file(folder / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")


def versions() -> dict[str, str]:
    """Versions of the packages that made a run, for its summary."""
    return {
        "torchfsl": torchfsl.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

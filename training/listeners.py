"""Optional records of a run elsewhere, the figures of `metrics.jsonl` by round.

TensorBoard, MLflow and Weights & Biases, each where it is installed. MLflow and W&B take where they
write from their own environment variables (`MLFLOW_TRACKING_URI`, `WANDB_MODE` and so on).
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from training.config import Config
from training.experiment import Listener
from training.section_checks import ConfigError
from training.trainer import RoundRecord


class Tracker:
    """A listener that writes the run's figures down elsewhere, and passes every call on.

    Args:
        config: settings of the run.
        folder: folder of the run.
        console: listener that receives the same calls.

    Raises:
        ConfigError: the package is not installed.
    """

    package: ClassVar[str]
    module: ClassVar[str]

    def __init__(self, config: Config, folder: Path, console: Listener) -> None:
        """Nothing is written before the rounds start: the run's folder may not exist yet."""
        try:
            self.library: Any = importlib.import_module(self.module)
        except ImportError as error:
            raise ConfigError(
                f"--{self.package} needs the package {self.package}: "
                f"pip install 'torchfsl[{self.package}]'"
            ) from error
        self.config, self.folder, self.console = config, folder, console

    def say(self, text: str) -> None:
        """Pass on."""
        self.console.say(text)

    def start(self, finished: int, rounds: int) -> None:
        """Open what is written to."""
        self.open(finished)
        self.console.start(finished, rounds)

    def round_done(self, record: RoundRecord) -> None:
        """One point a figure."""
        self.write(record.round, dict(figures(record)))
        self.console.round_done(record)

    def stop(self) -> None:
        """Close it."""
        self.close()
        self.console.stop()

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        """Pass on."""
        return self.console.follow(steps, name)

    def open(self, finished: int) -> None:
        """Begin, or go on after so many rounds."""
        raise NotImplementedError

    def write(self, number: int, values: dict[str, float]) -> None:
        """The figures of one round."""
        raise NotImplementedError

    def close(self) -> None:
        """No more rounds."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files in the folder `tensorboard` of the run."""

    package, module = "tensorboard", "torch.utils.tensorboard"

    def open(self, finished: int) -> None:
        """Open the files, and hide what a killed run wrote after its last checkpoint."""
        self._writer = self.library.SummaryWriter(
            str(self.folder / "tensorboard"), purge_step=finished + 1 if finished else None
        )

    def write(self, number: int, values: dict[str, float]) -> None:
        """Scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()


class MLflow(Tracker):
    """A run of MLflow, named as the folder; its id is in `mlflow-run`, so that --resume goes on."""

    package, module = "mlflow", "mlflow"

    def open(self, finished: int) -> None:
        """Start a new run, or continue the earlier one."""
        known = self.folder / "mlflow-run"
        if finished and known.exists():
            self.library.start_run(run_id=known.read_text().strip())
            return
        run = self.library.start_run(run_name=self.folder.name)
        known.write_text(run.info.run_id + "\n")
        self.library.log_params(settings(self.config))

    def write(self, number: int, values: dict[str, float]) -> None:
        """Metrics, whose names MLflow restricts."""
        allowed = {re.sub(r"[^\w\-. :/]", "-", name): value for name, value in values.items()}
        self.library.log_metrics(allowed, step=number)

    def close(self) -> None:
        """End the run."""
        self.library.end_run()


class WandB(Tracker):
    """A run of Weights & Biases, named as the folder; its id is in `wandb-run`."""

    package, module = "wandb", "wandb"

    def open(self, finished: int) -> None:
        """Start a new run, or continue the earlier one."""
        known = self.folder / "wandb-run"
        before = known.read_text().strip() if finished and known.exists() else None
        run = self.library.init(
            project="torchfsl",
            name=self.folder.name,
            id=before,
            resume="allow",
            dir=str(self.folder),
            config=settings(self.config),
        )
        known.write_text(run.id + "\n")

    def write(self, number: int, values: dict[str, float]) -> None:
        """Metrics."""
        self.library.log(values, step=number)

    def close(self) -> None:
        """End the run."""
        self.library.finish()


TRACKERS = (TensorBoard, MLflow, WandB)


def figures(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """The figures of a round as `group/name` and value; without those that it lacks."""
    fields = dataclasses.asdict(record)
    del fields["round"]
    phases, by_width = fields.pop("phases"), fields.pop("phases_by_width")
    groups = {"metrics": fields.pop("metrics"), "round": fields, "bytes": phases}
    groups |= {f"bytes of width {name}": values for name, values in by_width.items()}
    for group, values in groups.items():
        for name, value in values.items():
            if value is not None:
                yield f"{group}/{name}", float(value)


def settings(config: Config) -> dict[str, Any]:
    """All settings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": own for key, own in value.items()}
        else:
            flat[name] = value
    return flat


class Console:
    """Lines and a bar."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None

    def say(self, text: str) -> None:
        """Print a line or a table."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    def start(self, finished: int, rounds: int) -> None:
        """Show the bar."""
        if not self._quiet:
            from tqdm import tqdm  # type: ignore[import-untyped]

            self._bar = tqdm(
                total=rounds, initial=finished, unit="round", file=sys.stderr, dynamic_ncols=True
            )

    def round_done(self, record: RoundRecord) -> None:
        """Advance the bar; a line for rounds that evaluate."""
        if self._bar is None:
            return
        self._bar.set_postfix_str(f"exact {record.exact}", refresh=False)
        self._bar.update()
        if record.metrics:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
            self.say(
                f"round {record.round:4d}  {shown}  up {record.upload_bytes / 1e6:.3f} MB  "
                f"down {record.download_bytes / 1e6:.3f} MB a client  exact {record.exact}"
            )

    def stop(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def follow(self, steps: Sequence[Any], name: str) -> Iterable[Any]:
        """Show a second bar, which goes when it is full."""
        if self._quiet:
            return steps
        from tqdm import tqdm

        bar: Iterable[Any] = tqdm(steps, name, file=sys.stderr, leave=False, dynamic_ncols=True)
        return bar

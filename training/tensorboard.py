"""Optional TensorBoard output: the same figures as `metrics.jsonl`, as scalars by round."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from training.experiment import Listener
from training.sections import ConfigError
from training.trainer import RoundRecord


class TensorBoard:
    """A listener that writes event files and passes everything on.

    Args:
        folder: of the run; events go to its `tensorboard` folder.
        console: hears the same.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, console: Listener) -> None:
        """Nothing is written before the rounds start: the run's folder may not exist yet."""
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs the package tensorboard: pip install 'torchfsl[tensorboard]'"
            ) from error
        self._folder, self._console = folder / "tensorboard", console

    def say(self, text: str) -> None:
        """Pass on."""
        self._console.say(text)

    def start(self, finished: int, rounds: int) -> None:
        """Open the files; what a killed run wrote after its last checkpoint is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(self._folder), purge_step=finished + 1 if finished else None
        )
        self._console.start(finished, rounds)

    def round_done(self, record: RoundRecord) -> None:
        """One point a figure."""
        fields = dataclasses.asdict(record)
        number, metrics = fields.pop("round"), fields.pop("metrics")
        phases, by_width = fields.pop("phases"), fields.pop("phases_by_width")
        groups = {"metrics": metrics, "round": fields, "bytes": phases}
        groups |= {f"bytes of width {name}": figures for name, figures in by_width.items()}
        for group, figures in groups.items():
            for name, value in figures.items():
                if value is not None:
                    self._writer.add_scalar(f"{group}/{name}", float(value), number)
        self._console.round_done(record)

    def stop(self) -> None:
        """Close the files."""
        self._writer.close()
        self._console.stop()

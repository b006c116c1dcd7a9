"""A PrivHFL run's models and outcomes on disk, a client at a time."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training.privhfl.settings import Settings
from training.privhfl.tasks import build_model
from training.privhfl.trainer import Outcome
from training.run_folder import check_folder, check_same, replace_file, write_settings

_MAY_DIFFER = ("iterations",)
_BASELINE = ("task", "data", "clients", "private", "alpha", "test", "seed")
"""Settings that baselines depend on."""


class Store:
    """One run's folder: `config.json`, and `iteration-K/client-N.npz` with a `.json` each.

    The store writes a client's outcome after its model, so that a reader who finds the outcome also
    has the model.

    Args:
        folder: folder of the run.
        settings: settings of the run.
        resume: whether to continue the run in the folder.
        baselines: folder of another run, whose iteration 0 is used and completed instead of that in
            `folder`; None for that in `folder`.

    Raises:
        ConfigError: the folder exists and `resume` is off, or holds a run of other settings.
    """

    def __init__(
        self, folder: Path, settings: Settings, *, resume: bool, baselines: Path | None = None
    ) -> None:
        self.folder, self.settings = folder, settings
        self._baselines = baselines or folder
        check_folder(folder, settings, resume=resume, may_differ=_MAY_DIFFER)
        if baselines is not None and (baselines / "config.json").exists():
            others = [f.name for f in dataclasses.fields(settings) if f.name not in _BASELINE]
            check_same(baselines / "config.json", settings, baselines, may_differ=others)

    def start(self) -> None:
        """Make the folders; called once all else is ready, so that a failed start leaves none."""
        for folder in {self.folder, self._baselines}:
            folder.mkdir(parents=True, exist_ok=True)
            if folder == self.folder or not (folder / "config.json").exists():
                write_settings(folder, self.settings)

    def load(self, iteration: int, client: int) -> tuple[nn.Module, Outcome] | None:
        """A client's model and outcome in an iteration; None if the client is not done."""
        file = self._file(iteration, client)
        if not file.with_suffix(".json").exists():
            return None
        with np.load(file, allow_pickle=False) as saved:
            state = {name: torch.from_numpy(saved[name].copy()) for name in saved.files}
        model = build_model(self.settings, client)
        model.load_state_dict(state)
        model.eval()
        fields = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        fields["answered_by"] = tuple(fields["answered_by"])
        return model, Outcome(**fields)

    def save(self, iteration: int, model: nn.Module, outcome: Outcome) -> None:
        """Write a client's model, then its outcome."""
        file = self._file(iteration, outcome.client)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(file.name + ".part")
        arrays: dict[str, Any] = {n: t.numpy() for n, t in model.state_dict().items()}
        with temporary.open("wb") as opened:
            np.savez(opened, **arrays)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
        replace_file(file.with_suffix(".json"), json.dumps(dataclasses.asdict(outcome)) + "\n")

    def _file(self, iteration: int, client: int) -> Path:
        folder = self.folder if iteration else self._baselines
        return folder / f"iteration-{iteration}" / f"client-{client}.npz"

"""Checkpoints of a run that resumes bit-identically, in NumPy files without pickle.

`index.json` names the files that belong together. `save` replaces `index.json` last, in one step,
so that a run that is killed at any point resumes from a whole checkpoint. A checkpoint writes
residuals for the clients that changed since the previous checkpoint; the other clients' files stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from torchfsl.engine.residual import Residual
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Array

_INDEX = "index.json"
_MODEL, _OPTIMIZER, _MEAN, _PRIVACY = "model/", "optimizer/", "mean/", "privacy/"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run after `round` rounds.

    Attributes:
        round: finished rounds.
        plan: the public plan as its canonical JSON; a resumed run keeps it.
        state: the servers' model.
        optimizer_state: the servers' optimizer.
        residuals: by client.
        mean: of the models so far; empty where the run keeps none.
        privacy: what the servers keep for differential privacy; empty without.
    """

    round: int
    plan: str
    state: dict[str, Array]
    optimizer_state: dict[str, Array]
    residuals: dict[int, Residual]
    mean: dict[str, Array]
    privacy: dict[str, Array]


class CheckpointFolder:
    """Writes and reads the checkpoints of one run; keeps the latest.

    Args:
        folder: made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._residual_files: dict[int, str] = {}

    def save(
        self,
        round_number: int,
        plan: SubmodelPlan,
        model: ServerModel,
        residuals: Mapping[int, Residual],
        changed: set[int],
        mean: Mapping[str, Array],
        privacy: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        """Write a checkpoint, make it the current one, delete what only older ones used.

        Args:
            round_number: finished rounds.
            plan: public plan.
            model: server model with its optimizer.
            residuals: of all clients.
            changed: clients whose residual may differ from the checkpoint before.
            mean: of the models so far; empty for none.
            privacy: what the servers keep for differential privacy.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {_MODEL + name: value for name, value in model.state.items()}
        arrays |= {_OPTIMIZER + name: value for name, value in model.optimizer.state().items()}
        arrays |= {_MEAN + name: value for name, value in mean.items()}
        arrays |= {_PRIVACY + name: value for name, value in privacy.items()}
        model_file = f"model-{round_number}.npz"
        self._write_arrays(model_file, arrays)
        files = dict(self._residual_files)
        for client in sorted(changed & set(residuals)):
            if residuals[client].num_bytes:
                files[client] = f"residual-{client}-{round_number}.npz"
                self._write_arrays(files[client], residual_arrays(residuals[client]))
            else:
                files.pop(client, None)
        index = {
            "round": round_number,
            "plan": plan.to_json(),
            "model": model_file,
            "residuals": {str(client): name for client, name in files.items()},
        }
        self._write(_INDEX, json.dumps(index).encode())
        self._residual_files = files
        keep = {_INDEX, model_file, *files.values()}
        for path in self.folder.iterdir():
            if path.name not in keep:
                path.unlink()

    def load(self) -> Checkpoint | None:
        """The current checkpoint, or None where there is none."""
        try:
            index = json.loads((self.folder / _INDEX).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        arrays = self._read_arrays(index["model"])
        self._residual_files = {int(client): name for client, name in index["residuals"].items()}
        residuals = {
            client: residual_of(self._read_arrays(name))
            for client, name in self._residual_files.items()
        }
        return Checkpoint(
            round=index["round"],
            plan=index["plan"],
            state=_under(_MODEL, arrays),
            optimizer_state=_under(_OPTIMIZER, arrays),
            residuals=residuals,
            mean=_under(_MEAN, arrays),
            privacy=_under(_PRIVACY, arrays),
        )

    def _read_arrays(self, name: str) -> dict[str, Array]:
        with np.load(self.folder / name, allow_pickle=False) as file:
            return dict(file)

    def _write_arrays(self, name: str, arrays: Mapping[str, Array]) -> None:
        temporary = self.folder / (name + ".part")
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            _flush(file)
        os.replace(temporary, self.folder / name)

    def _write(self, name: str, content: bytes) -> None:
        temporary = self.folder / (name + ".part")
        with temporary.open("wb") as file:
            file.write(content)
            _flush(file)
        os.replace(temporary, self.folder / name)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _under(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}


def residual_arrays(residual: Residual) -> dict[str, Array]:
    """`<field>/<segment>` for every tensor, and the format."""
    state = residual.state_dict()
    arrays: dict[str, Array] = {"format": np.array(state["format"])}
    for segment, tensors in state["parts"].items():
        for field, tensor in tensors.items():
            arrays[f"{field}/{segment}"] = tensor.cpu().numpy()
    return arrays


def residual_of(arrays: Mapping[str, Array]) -> Residual:
    """Inverse of `residual_arrays`."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in arrays.items():
        if "/" in name:
            field, segment = name.split("/", 1)
            parts.setdefault(segment, {})[field] = torch.from_numpy(value)
    residual = Residual()
    residual.load_state_dict({"format": int(arrays["format"]), "parts": parts})
    return residual

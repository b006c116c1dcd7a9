"""What a client keeps between rounds: a ClientApp may be a new process for every Message.

What it owes (residuals) and what stays with it (`attach(local=)`) go into the node's Context, which
Flower keeps at the node and sends nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context

from torchfsl.engine.handle import Handle
from torchfsl.engine.residual import Residual
from torchfsl.errors import ParameterError
from torchfsl.integrations.flower.records import RECORD

_OWED, _PERSONAL = f"{RECORD}-residual", f"{RECORD}-personal"
_BETWEEN = "\x1f"
"""Between a segment's name and a field of its residual."""


def recall(context: Context, handle: Handle, client_id: int) -> Residual:
    """Put this client's own tensors into the model; returns what it owes.

    Raises:
        ParameterError: the node keeps the state of another model.
    """
    handle.personal.switch_to(client_id)
    own = context.state.get(_PERSONAL)
    if own is not None:
        _write_personal(handle, _tensors(own))
    residual, parts = Residual(), dict[str, dict[str, Any]]()
    for name, tensor in _tensors(context.state.get(_OWED, ArrayRecord())).items():
        segment, _, field = name.partition(_BETWEEN)
        parts.setdefault(segment, {})[field] = tensor
    residual.load_state_dict({"format": 1, "parts": parts})
    return residual


def keep(context: Context, handle: Handle, residual: Residual) -> None:
    """Store both in the node's Context."""
    owed = {
        f"{segment}{_BETWEEN}{field}": tensor
        for segment, fields in residual.state_dict()["parts"].items()
        for field, tensor in fields.items()
    }
    for key, tensors in ((_OWED, owed), (_PERSONAL, handle.personal.tensors)):
        context.state.pop(key, None)
        if tensors:
            context.state[key] = ArrayRecord({n: _array(t) for n, t in tensors.items()})


def _array(tensor: torch.Tensor) -> Array:
    return Array(tensor.detach().cpu().numpy().copy())


def _tensors(record: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value.numpy())) for name, value in record.items()}


@torch.no_grad()
def _write_personal(handle: Handle, tensors: dict[str, torch.Tensor]) -> None:
    mine = handle.personal.tensors
    if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in tensors.items()}:
        raise ParameterError(
            "the node keeps personal tensors of another model: attach with the same local=, or "
            "begin a new run"
        )
    for name, tensor in tensors.items():
        mine[name].copy_(tensor)

"""The state of a client between rounds: each Message may start a new process of the ClientApp.

Residual and personal parts (`Federated(local=)`) are in the Context of the node. Flower keeps it at
the node and sends it nowhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context

from torchfsl.engine.hooks import Hooks
from torchfsl.errors import ParameterError
from torchfsl.integrations.flower.records import RECORD

_RESIDUAL, _PERSONAL = f"{RECORD}-residual", f"{RECORD}-personal"
_BETWEEN = "\x1f"
"""Between a segment's name and a field of its residual."""


def recall(context: Context, hooks: Hooks, client_id: int) -> None:
    """Give the hooks the residual of this client, and the model its personal parts.

    Raises:
        ParameterError: the node keeps the state of another model.
    """
    hooks.personal.switch_to(client_id)
    own = context.state.get(_PERSONAL)
    if own is not None:
        _write_personal(hooks, _tensors(own))
    parts = dict[str, dict[str, Any]]()
    for name, tensor in _tensors(context.state.get(_RESIDUAL, ArrayRecord())).items():
        segment, _, field = name.partition(_BETWEEN)
        parts.setdefault(segment, {})[field] = tensor
    hooks.residuals.load_state_dict({client_id: {"format": 1, "parts": parts}})


def keep(context: Context, hooks: Hooks, client_id: int) -> None:
    """Store both in the Context of the node."""
    residual = {
        f"{segment}{_BETWEEN}{field}": tensor
        for segment, fields in hooks.residuals.of(client_id).state_dict()["parts"].items()
        for field, tensor in fields.items()
    }
    for key, tensors in ((_RESIDUAL, residual), (_PERSONAL, hooks.personal.tensors)):
        context.state.pop(key, None)
        if tensors:
            context.state[key] = ArrayRecord({n: _array(t) for n, t in tensors.items()})


def _array(tensor: torch.Tensor) -> Array:
    return Array(tensor.detach().cpu().numpy().copy())


def _tensors(record: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value.numpy())) for name, value in record.items()}


@torch.no_grad()
def _write_personal(hooks: Hooks, tensors: dict[str, torch.Tensor]) -> None:
    mine = hooks.personal.tensors
    if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in tensors.items()}:
        raise ParameterError(
            "the stored personal tensors of this node do not fit this model: pass Federated the "
            "same local= as before, or begin a new run"
        )
    for name, tensor in tensors.items():
        mine[name].copy_(tensor)

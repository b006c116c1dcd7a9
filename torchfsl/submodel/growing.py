"""A server's model with more rows: old rows and their moments stay, new ones begin."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerFTRL, ServerOptimizer
from torchfsl.types import Array


def grown(
    model: ServerModel, state: Mapping[str, Array], optimizer: ServerOptimizer
) -> ServerModel:
    """The model of a new plan whose tables have rows added at their ends.

    Both servers call this function with equal arguments, and the results are bit-identical.

    Args:
        model: as it is.
        state: initial state of the larger model; rows that `model` has keep their own values.
        optimizer: fresh, with the settings of `model.optimizer`; takes over its moments.

    Raises:
        ParameterError: a tensor came, went or shrank, or the optimizer's state cannot grow.
    """
    if set(state) != set(model.state):
        odd = sorted(set(state) ^ set(model.state))
        raise ParameterError(
            "only rows of tables can be added, and these tensors were added or removed: "
            f"{', '.join(odd)}",
            code="only-rows-grow",
        )
    new: dict[str, Array] = {}
    for name, old in model.state.items():
        value = np.array(state[name], dtype=old.dtype)
        if value.shape[1:] != old.shape[1:] or value.shape[:1] < old.shape[:1]:
            raise ParameterError(
                f"{name} has shape {old.shape} and would get shape {value.shape}: change the "
                "number of rows only, and add rows at the end",
                code="only-rows-grow",
            )
        value[tuple(slice(n) for n in old.shape)] = old
        new[name] = value
    optimizer.load_state(
        {key: _moment(key, m, model, new, optimizer) for key, m in model.optimizer.state().items()}
    )
    return ServerModel(new, optimizer, source=model.source, reduce=model.reduce)


def _moment(
    key: str,
    moment: Array,
    model: ServerModel,
    new: Mapping[str, Array],
    optimizer: ServerOptimizer,
) -> Array:
    """The optimizer's state of a tensor, with the new rows as if they had always been there."""
    kind, _, name = key.partition("/")
    if not name:
        return moment
    if name not in new:
        raise ParameterError(
            f"{type(optimizer).__name__} keeps {key!r}, which belongs to no tensor of the model, "
            "so its state cannot grow: start with a new optimizer state",
            code="optimizer-state",
        )
    old, value = model.state[name], new[name]
    num_more = value.size - old.size
    if moment.size != old.size:  # one a row
        num_more = len(value) - len(old)
    more = np.zeros(num_more)
    if kind == "linear" and isinstance(optimizer, ServerFTRL):
        more = optimizer.beginning(value.reshape(-1)[old.size :].astype(np.float64))
    return np.concatenate([moment, more])

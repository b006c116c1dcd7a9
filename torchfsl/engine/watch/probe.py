"""Whether an optimizer's step of one row looks at other rows, tried on a small table.

If rows are fetched, a client holds few rows of a table and all others are NaN. An optimizer that
scales its step by a norm over the whole table (Adafactor, LARS, LAMB, Fromage) would then train
wrongly without a word. Optimizer states that cannot be read by row would stop a later round.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Table
from torchfsl.errors import ParameterError

_ROWS: Final = 512
_STEPS: Final = 3

_ROW_BY_ROW: Final = (
    torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW,
    torch.optim.SparseAdam, torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.NAdam,
    torch.optim.RAdam, torch.optim.Adamax, torch.optim.Rprop, torch.optim.ASGD,
)  # fmt: skip
"""Step every element separately; only these classes, not classes derived from them."""

_REMEDY: Final = (
    "train it with SGD, Adagrad or Adam, or send the whole table, "
    "torchfsl.Federated(model, optimizer, rows=None)"
)


def check_row_by_row(optimizer: Optimizer, table: Table) -> None:
    """Refuse an optimizer whose step of a row depends on other rows of the table.

    Args:
        optimizer: the one that trains the table, unwrapped; it is not stepped.
        table: whose rows are fetched.

    Raises:
        ParameterError: it does, or keeps a state that cannot be read by row.
    """
    if type(optimizer) in _ROW_BY_ROW:
        return
    name = type(optimizer).__name__
    try:
        alone, state = _stepped(optimizer, table, others=False)
        among, _ = _stepped(optimizer, table, others=True)
    except Exception:
        return  # it cannot be tried on another table; rounds check what they can
    if not torch.equal(alone, among):
        raise ParameterError(
            f"{table.name}: a step of {name} on one row depends on all rows of the table, most of "
            f"which a client does not hold where rows are fetched: {_REMEDY}"
        )
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == (_ROWS, table.tau):
            _check_readable(table, name, str(key), value)


def _check_readable(table: Table, name: str, key: str, value: torch.Tensor) -> None:
    try:
        ids = torch.zeros(1, dtype=torch.int64, device=value.device)
        bool((value != 0).any(dim=1).any())
        value.index_select(0, ids).isnan()
        value.index_fill_(0, ids, 0.0)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise ParameterError(
            f"{table.name}: {name} keeps {key!r} as {type(value).__name__}, whose rows cannot be "
            f"read one by one: {_REMEDY}"
        ) from error


def _stepped(
    optimizer: Optimizer, table: Table, *, others: bool
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Row 0 after some steps, and the optimizer's state; `others` gives other rows a part."""
    like = table.weight
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(_ROWS, table.tau, generator=draw)
    steps = torch.randn(_STEPS, _ROWS, table.tau, generator=draw)
    if others:
        start[1:] *= 37.0
        steps[:, 1:] *= 53.0
    else:
        steps[:, 1:] = 0.0
    weight = nn.Parameter(start.to(like.device, like.dtype))
    twin = _twin(optimizer, like, weight)
    for gradient in steps:
        weight.grad = gradient.to(weight)
        twin.step()
    return weight.detach()[0].clone(), dict(twin.state.get(weight, {}))


def _twin(optimizer: Optimizer, trained: nn.Parameter, weight: nn.Parameter) -> Optimizer:
    """An optimizer of the same settings, without state and hooks, that trains `weight` alone."""
    twin: Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if not callable(value):  # a schedule wraps `step` of the one it steps
            setattr(twin, name, OrderedDict() if isinstance(value, OrderedDict) else value)
    group = next(g for g in optimizer.param_groups if any(p is trained for p in g["params"]))
    kept = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
    kept["lr"] = kept.get("lr") or 0.1
    twin.state = defaultdict(dict)
    twin.param_groups = [{**kept, "params": [weight]}]
    return twin

"""Which rows of a table an optimizer moves, beyond those that have a gradient.

Three kinds of movement matter for rows segments. Rows with a gradient move: those the lookups
touched. Rows whose optimizer state still carries momentum from an earlier round move: they are
found in the state, once a round. And under weight decay every row moves, which no list of rows
can hold: that is refused, or handled as `Rows(untouched=...)` says.

A step of one row may also look at others, which is tried on a small table. If rows are fetched, a
client holds few rows of a table and all others are NaN. An optimizer that scales its step by a norm
over the whole table (Adafactor, LARS, LAMB, Fromage) would then train wrongly without a word.
Optimizer states that cannot be read by row would stop a later round.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from torchfsl.engine.inventory import Table
from torchfsl.engine.policies import Rows
from torchfsl.errors import ParameterError

_CARRYING_STATE: Final = ("momentum_buffer", "exp_avg")
"""State of torch's optimizers by which a row moves without a gradient."""

_STATELESS_MOVERS: Final = (
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.SparseAdam,
    torch.optim.Rprop,
)
"""A row without a gradient stays, whatever their state says."""


def as_optimizers(given: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """One optimizer or several as a list, each once.

    Raises:
        ParameterError: if one is not an optimizer, or there are none.
    """
    several: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for one in several:
        if not isinstance(one, Optimizer):
            name, kind = getattr(one, "__name__", ""), type(one).__name__
            got = f"the class {name}" if isinstance(one, type) else f"a {kind}"
            raise ParameterError(
                f"Federated(model, optimizer) expects a torch.optim.Optimizer, got {got}: pass the "
                "optimizer that trains the model, or a list of optimizers"
            )
    if not several:
        raise ParameterError(
            "Federated expects one optimizer or more, got an empty list: pass the optimizer that "
            "trains the model"
        )
    return list({id(one): one for one in several}.values())


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """The torch optimizer inside a wrapper.

    Inside Opacus's, hooks see the noised gradient. Wrappers that are optimizers themselves but
    skip `Optimizer.__init__` (and so have no hooks) keep theirs as `.optimizer`.
    """
    while True:
        inner = None
        if is_opacus(optimizer):
            inner = optimizer.original_optimizer  # type: ignore[attr-defined]
        elif not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return optimizer
        optimizer = inner


def is_opacus(optimizer: Optimizer) -> bool:
    """Whether this is an Opacus optimizer around another one."""
    return any(kind.__module__.startswith("opacus.") for kind in type(optimizer).__mro__) and (
        hasattr(optimizer, "original_optimizer")
    )


def decay_of(optimizer: Optimizer, weight: nn.Parameter) -> str | None:
    """The setting by which the optimizer moves every element of `weight`, or None.

    Returns:
        For example `weight_decay=0.01`.
    """
    for group in optimizer.param_groups:
        if any(p is weight for p in group["params"]):
            for key in ("weight_decay", "lambd"):
                value = group.get(key, 0)
                if isinstance(value, torch.Tensor):
                    value = float(value)
                if value:
                    return f"{key}={value:g}"
    return None


def owner(optimizers: Sequence[Optimizer], weight: nn.Parameter) -> Optimizer:
    """The optimizer that trains `weight`."""
    for optimizer in optimizers:
        if any(p is weight for group in optimizer.param_groups for p in group["params"]):
            return optimizer
    raise AssertionError("a hooked table has no optimizer: this is a bug of torchfsl")


def check_optimizer(optimizer: Optimizer, names: Mapping[int, str]) -> None:
    """Refuse optimizers whose steps hooks cannot follow.

    Args:
        optimizer: unwrapped.
        names: of the model's parameters, by id.

    Raises:
        ParameterError: LBFGS, or an object without step hooks.
    """
    name = type(optimizer).__name__
    trained = [names.get(id(p), "?") for g in optimizer.param_groups for p in g["params"]]
    what = ", ".join(trained[:1]) + (f" and {len(trained) - 1} others" if trained[1:] else "")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ParameterError(
            f"{what}: LBFGS evaluates its closure many times in one step, and its line search "
            "combines all parameters: train with SGD, Adagrad or Adam"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ParameterError(
            f"{what}: {name} did not call torch.optim.Optimizer.__init__, so step hooks do not "
            "work: pass Federated the optimizer inside the wrapper, or call super().__init__ in "
            f"the constructor of {name}"
        )


def check_rows(optimizer: Optimizer, table: Table, rows: Rows, noised: bool) -> None:
    """Refuse what would move rows that are not sent, unless `rows.untouched` says what to do.

    Args:
        optimizer: the one that trains the table.
        table: a table sent by rows.
        rows: the policy.
        noised: whether Opacus adds noise to the gradient.

    Raises:
        ParameterError: it would, under `reject`.
    """
    name = type(optimizer).__name__
    if noised and rows.fixed is None:
        raise ParameterError(
            f"{table.name}: Opacus adds noise to every row of the gradient: use "
            "rows=Rows(choose=Fixed(ids), untouched='restrict') with public ids, or rows=None, "
            "or let the servers add the noise"
        )
    if rows.untouched != "reject":
        return
    decay = decay_of(optimizer, table.weight)
    if decay is None and noised:
        raise ParameterError(
            f"{table.name}: Opacus adds noise to every row, including rows outside the fixed ids: "
            "choose Rows(untouched='restrict') to restore these rows, or "
            "Rows(untouched='touched') to keep their noise at the client"
        )
    if decay is not None:
        raise ParameterError(
            f"{table.name}: {name} with {decay} also moves rows without lookups: set "
            f"{decay.split('=')[0]}=0 for its parameter group, or Rows(untouched='restrict') to "
            "restore these rows, or 'touched' to keep their decay local"
        )


def check_gradient_settings(optimizers: Sequence[Optimizer]) -> None:
    """Refuse settings of a client's optimizer that rounds of gradients leave out.

    The servers step with the sum of the clients' gradients; the client's own steps change nothing.

    Raises:
        ParameterError: `maximize`, a decay, or rates that differ between groups.
    """
    rates = set()
    for optimizer in optimizers:
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            rates.add(float(group.get("lr", 0.0)))
            if group.get("maximize"):
                raise ParameterError(
                    f"{name} has maximize=True, but with source='gradient' the servers minimise "
                    "the loss: use maximize=False and negate the loss"
                )
            for key in ("weight_decay", "lambd"):
                if value := float(group.get(key, 0.0)):
                    raise ParameterError(
                        f"{name} has {key}={value:g}, which has no effect under "
                        f"source='gradient', because clients do not step: set {key}=0 and add the "
                        "penalty to the loss, or use source='delta'"
                    )
    if len(rates) > 1:
        raise ParameterError(
            f"the parameter groups have the learning rates {sorted(rates)}, which have no effect "
            "under source='gradient': use one rate and torchfsl.optim.LazyAdam(rates={name: "
            "rate}) at the servers, or source='delta'"
        )


def moves_all(optimizer: Optimizer, table: Table, noised: bool) -> bool:
    """Whether a step moves rows of the table that have no gradient and never had one."""
    return noised or decay_of(optimizer, table.weight) is not None


def carried_rows(optimizer: Optimizer, weight: nn.Parameter) -> torch.Tensor:
    """Rows that the optimizer's state moves without a gradient: int64, increasing.

    Looks through the momentum of the table once (none before the first step). For optimizers
    outside torch any state of the table's shape counts.
    """
    nothing = torch.empty(0, dtype=torch.int64, device=weight.device)
    if isinstance(optimizer, _STATELESS_MOVERS):
        return nothing
    known = type(optimizer).__module__.startswith("torch.optim")
    state: dict[str, Any] = optimizer.state.get(weight, {})
    rows = [
        _nonzero_rows(value)
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
        and value.shape == weight.shape
        and (key in _CARRYING_STATE or not known)
    ]
    return torch.unique(torch.cat(rows)) if rows else nothing


def broken_state(
    optimizer: Optimizer, weight: nn.Parameter, held: torch.Tensor | None
) -> str | None:
    """The name of a state of `weight` that holds NaN or infinity (`exp_avg`, ...), or None.

    Looks at the rows `held` (int64 ids), the only ones the client has; None for all.
    """
    for key, value in optimizer.state.get(weight, {}).items():
        if not isinstance(value, torch.Tensor) or value.is_sparse:
            continue
        if held is not None and value.shape == weight.shape:
            value = value.index_select(0, held)
        if not value.isfinite().all():
            return str(key)
    return None


def mend_state(optimizer: Optimizer, weight: nn.Parameter, present: torch.Tensor) -> None:
    """Make NaN zero in the state of all rows but `present` (int64 ids).

    Weight decay reads rows that were not retrieved, which are NaN, and writes NaN to their state.
    """
    for value in optimizer.state.get(weight, {}).values():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and not value.is_sparse:
            rows = torch.nonzero(value.isnan().any(dim=1)).flatten()
            value.index_fill_(0, rows[~torch.isin(rows, present)], 0.0)


def start_afresh(
    optimizer: Optimizer, weight: nn.Parameter, ids: torch.Tensor, *, but: torch.Tensor | None
) -> None:
    """Give those of the rows `ids` (int64) whose state has NaN the state of a row never trained.

    A loss that reads NaN in rows that were not retrieved, or weight decay, writes it there. Rows
    `but`, which were at hand in the round before, have NaN for other reasons.
    """
    if but is not None:
        ids = ids[~torch.isin(ids, but.to(ids.device))]
    group = next(g for g in optimizer.param_groups if any(p is weight for p in g["params"]))
    for key, value in optimizer.state.get(weight, {}).items():
        if isinstance(value, torch.Tensor) and value.shape == weight.shape and not value.is_sparse:
            bad = ids[value.index_select(0, ids).isnan().any(dim=1)]
            first = group.get("initial_accumulator_value", 0.0) if key == "sum" else 0.0
            value.index_fill_(0, bad, first)


def _nonzero_rows(value: torch.Tensor) -> torch.Tensor:
    if value.is_sparse:
        return value.coalesce().indices()[0]
    return torch.nonzero((value != 0).any(dim=1)).flatten()


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
            f"{table.name}: a step of {name} on one row depends on all rows of the table, but a "
            f"client that retrieves rows lacks most rows: {_REMEDY}"
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
            f"{table.name}: {name} keeps {key!r} as {type(value).__name__}, and torchfsl cannot "
            f"read its rows separately: {_REMEDY}"
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

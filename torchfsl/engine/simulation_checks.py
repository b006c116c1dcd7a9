"""What `simulate` refuses before its first round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torchfsl.errors import ParameterError, expect_a, expect_able
from torchfsl.submodel.plan import SubmodelPlan, check_number
from torchfsl.submodel.update import check_weight, is_whole

Data = TypeVar("Data")


def check_makers(engine: object, handle: object, plan: object, train: object) -> None:
    """Refuse arguments in another's place."""
    how = "simulate(engine, handle, clients, train=..., rounds=...)"
    expect_able(("attach", "advise"), engine, "engine", f"pass a SubmodelEngine first, {how}")
    expect_able(
        ("inventory", "begin_round"),
        handle,
        "handle",
        f"pass what engine.attach gave second, {how}",
    )
    expect_a(
        (SubmodelPlan, type(None)), plan, "plan", "pass what engine.plan(handle, ...) gave, whose "
        "options are its arguments, or None for one that fits every client",
    )  # fmt: skip
    expect_able(("__call__",), train, "train", "pass a function that takes a client's data")


def as_number(function: str, given: Any, remedy: str) -> float:
    """What a function of the caller's returned.

    Raises:
        ParameterError: no number, nor a tensor of one.
    """
    try:
        if not isinstance(given, str | bytes):
            return float(given)
    except (TypeError, ValueError, RuntimeError):
        pass
    kind = "None" if given is None else f"a value of type {type(given).__name__}"
    raise ParameterError(f"{function}() gives {kind}: let it return {remedy}")


def mean_loss(losses: Mapping[int, float]) -> float:
    """The mean of those that are finite; NaN where none is."""
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    return math.fsum(finite) / len(finite) if finite else math.nan


def check_arguments(
    data: Mapping[int, Any], size: int, rounds: int, evaluate_every: int, state: str, seed: int
) -> None:
    """Refuse arguments that are none; `size` clients a round."""
    for client in data:
        check_number("a key of clients", client)
    for name, number in (("clients_per_round", size), ("rounds", rounds),
                         ("evaluate_every", evaluate_every), ("seed", seed)):  # fmt: skip
        check_number(name, number)
    if not 1 <= size <= len(data):
        raise ParameterError(
            f"{size} clients a round of {len(data)}: give clients, and clients_per_round in "
            f"1..{len(data)}"
        )
    if rounds < 1 or evaluate_every < 1:
        raise ParameterError("rounds and evaluate_every are at least 1")
    if state not in ("fresh", "own"):
        raise ParameterError(f"optimizer_state is {state!r}: choose 'fresh' or 'own'")


def weights_of(data: Mapping[int, Data], weight: Callable[[Data], int]) -> dict[int, int]:
    """Every client's weight; those of a plan that is to be made are not checked elsewhere."""
    found: dict[int, int] = {}
    for client, one in data.items():
        given = weight(one)
        if not is_whole(given) or given < 1:
            raise ParameterError(
                f"client {client}: weight() gives {given!r}; give whole numbers from 1, such as "
                "the number of its examples"
            )
        found[client] = int(given)
    return found


def check_plan(plan: SubmodelPlan, size: int, rounds: int, weights: Mapping[int, int]) -> None:
    """Refuse what a round under this plan would only refuse in its middle."""
    if plan.max_rounds and rounds > plan.max_rounds:
        raise ParameterError(
            f"rounds is {rounds}, and the plan opens max_rounds = {plan.max_rounds}: choose fewer "
            "rounds, or make the plan for them"
        )
    if not plan.min_clients <= size <= plan.max_clients:
        raise ParameterError(
            f"clients_per_round is {size}, the plan opens rounds of min_clients = "
            f"{plan.min_clients} to max_clients = {plan.max_clients}: choose a number in between, "
            "or make the plan for it"
        )
    for client, weight in weights.items():
        try:
            check_weight(plan, weight)
        except ParameterError as error:
            raise ParameterError(f"client {client}: {error}") from error

"""Checks of all servers of rounds: numbers that rise, steps in order, sums applied once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from torchfsl.errors import ProtocolError
from torchfsl.submodel.plan_fields import check_number


class Abandons(Protocol):
    """A server that can end a round unopened."""

    def abandon_round(self) -> None:
        """End it, whatever its state."""


@contextlib.contextmanager
def abandoned_on_error(
    *servers: Abandons, on: type[BaseException] = BaseException
) -> Iterator[None]:
    """End the round at all servers if the block fails so: they are then ready for the next one."""
    try:
        yield
    except on:
        for server in servers:
            server.abandon_round()
        raise


def new_round_number(given: object, last_round: int) -> int:
    """The number of a round to be opened.

    Raises:
        ParameterError: no whole number in [0, 2**64).
        ProtocolError: spent.
    """
    number = check_number("round_number", given)
    if number <= last_round:
        raise ProtocolError(
            f"the round number is {number}, and the last one was {last_round}: choose a number "
            f"above {last_round}",
            code="round-number-used",
        )
    return number


def expect_state(state: Enum, needed: Enum) -> None:
    """Refuse a step in another state than it needs.

    Raises:
        ProtocolError: the round is in another one.
    """
    if state is not needed:
        now = "no round has begun" if state.value == "idle" else f"the round is {state.value}"
        wants = f"this step needs a round that is {needed.value}"
        if needed.value == "idle":
            wants = "another round can begin only when it has ended"
        raise ProtocolError(
            f"{now}, and {wants}",
            code="round-open" if state.value == "open" else "wrong-step",
        )


class ApplyOnce:
    """Leave to apply the sums of a round, once each time that it is given."""

    def __init__(self) -> None:
        """Not given."""
        self.given = False

    def take(self) -> None:
        """Use it up.

        Raises:
            ProtocolError: it was not given, or used before.
        """
        if not self.given:
            raise ProtocolError(
                "the aggregate of this round was already applied, or the round did not reveal one: "
                "begin the next round",
                code="already-applied",
            )
        self.given = False

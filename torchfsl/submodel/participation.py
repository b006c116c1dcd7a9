"""How often a client's reports may be in sums, and how far apart, as one server counts it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission, whole_numbers
from torchfsl.submodel import taps as correlation
from torchfsl.submodel.plan import SubmodelPlan

log = logging.getLogger("torchfsl.privacy")


class Participation:
    """Rounds are counted by the server's index: those in which its share may have left it.

    Attributes:
        counts: by client number its reports in sums.
        last: by client number the index of the last one.
    """

    def __init__(self, most: int, separation: int) -> None:
        """No client has reported; `most` is 0 for any number."""
        self._most, self._separation = most, separation
        self.counts: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def check(self, client: int, index: int) -> None:
        """Refuse a report that the plan does not allow in this round.

        Raises:
            RejectedSubmission: the client has sent all, or comes too early.
        """
        if 0 < self._most <= self.counts.get(client, 0):
            raise RejectedSubmission(
                f"client {client} has sent all of its max_participations = {self._most} reports: "
                "leave out this client in this round and in later rounds",
                code="participations-spent",
            )
        wait = self.last.get(client, index - self._separation) + self._separation - index
        if wait > 0:
            raise RejectedSubmission(
                f"client {client} participates too early: leave out this client until {wait} more "
                "rounds have ended with an aggregate",
                code="too-early",
            )

    def allows(self, client: int, index: int) -> bool:
        """Whether `check` passes."""
        try:
            self.check(client, index)
        except RejectedSubmission:
            return False
        return True

    def charged(self, index: int) -> list[int]:
        """Clients whose last report was in the round of this index."""
        return [client for client, place in self.last.items() if place == index]

    def charge(self, clients: Iterable[int], index: int) -> None:
        """Count the reports of a round whose share may leave now."""
        if self._most or self._separation > 1:
            for client in clients:
                self.counts[client] = self.counts.get(client, 0) + 1
                self.last[client] = index


def check_rounds(plan: SubmodelPlan, opened: int) -> None:
    """Refuse a round beyond the plan's.

    Raises:
        ProtocolError: as many rounds as the plan allows were opened.
    """
    if 0 < plan.max_rounds <= opened:
        raise ProtocolError(
            f"all max_rounds = {plan.max_rounds} rounds of the plan were opened: stop here, or "
            "make a new Federated and plan, whose privacy budget adds to the spent budget",
            code="rounds-spent",
        )


def limits_of(rounds: int, most: int, apart: int, band: int | None) -> tuple[dict[str, Any], int]:
    """Fields of the plan that limit participation, and over how many rounds noise is correlated.

    Raises:
        ParameterError: a number is out of range.
    """
    most, apart = whole_numbers(max_participations=most, min_separation=apart)
    if most < 0 or not 1 <= apart <= rounds:
        raise ParameterError(
            f"max_participations is {most} and min_separation is {apart}: choose "
            f"max_participations of 0 or more, and min_separation from 1 to {rounds}, the number "
            "of rounds",
            code="participation-limit",
        )
    band = min(apart, correlation.MAX_BAND, rounds) if band is None else band
    if not 1 <= band <= min(apart, correlation.MAX_BAND):
        raise ParameterError(
            f"the noise is correlated over band={band} rounds, and a client may report again after "
            f"min_separation={apart} rounds: choose a band from 1 to "
            f"{min(apart, correlation.MAX_BAND)}{', or a larger min_separation' * (band > 1)}",
            code="participation-limit",
        )
    if not most and apart == 1:
        return {"max_rounds": rounds}, 1  # servers open no more than are charged
    fits = -(-rounds // apart)
    if most > fits:
        log.warning("in %d rounds, a client that waits %d rounds between reports can send %d: "
                    "max_participations is lowered to %d", rounds, apart, fits, fits)  # fmt: skip
    most = min(most or fits, fits)
    return {"max_rounds": rounds, "max_participations": most, "min_separation": apart}, band


def check_clients(plan: SubmodelPlan, rounds: int, count: int, apart: int, clients: int) -> None:
    """Refuse rounds that so many clients cannot fill.

    Raises:
        ParameterError: with numbers that they can.
    """
    each = plan.max_clients
    if rounds * each > count * clients or apart * each > clients:
        fits, fewer = count * clients // each, min(count * clients // rounds, clients // apart)
        ways = [f"max_clients={fewer}"] if fewer >= plan.min_clients else []
        ways += [f"rounds={fits}"] if apart <= fits < rounds and apart * each <= clients else []
        lower = " with a lower min_separation" if apart > 1 else ""
        ways += ["more clients", f"or a higher max_participations{lower}"]
        raise ParameterError(
            f"{clients} clients cannot fill {rounds} rounds of {each} with max_participations="
            f"{count} and min_separation={apart}. Remedies: {', '.join(ways)}",
            code="participation-limit",
        )

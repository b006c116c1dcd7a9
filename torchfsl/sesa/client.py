"""A client: which submodels it trains is coded for the others, what it learnt is masked.

        client j                            server                          client i
           | -- HELLO (key) ----------------> |  <---------------- HELLO (key) -- |
           | <------------------ COHORT ----- |  ----- COHORT ------------------> |
           | -- SHARES (boxes) -------------> |                                   |
           | <------------------- MODEL ----- |         and client i the same     |
           |    trains                        |                                   |
           | -- MASKED (x = g - r) ---------> |                                   |
           |                                  |  closes: who submitted survives   |
           | <------- SURVIVORS, RELAY ------ |  ------- SURVIVORS, RELAY ------> |
           | -- ANSWER (psi) ---------------> |  opens from K + T answers         |

All randomness is fresh in every round. A client answers for one set of survivors: two sets would
give the server the difference of two sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy.typing as npt

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.sesa import messages
from torchfsl.sesa.channels import Channels
from torchfsl.sesa.client_round import ClientRound
from torchfsl.sesa.cohort import Cohort
from torchfsl.sesa.messages import Kind
from torchfsl.sesa.sesa_plan import SesaPlan
from torchfsl.sesa.transport import Line, Transport
from torchfsl.submodel.plan_fields import check_number


class Client:
    """A client of a task.

    Args:
        plan: the public plan.
        server: the way to the server.
        client_id: its number, in [0, 2**64).
        width: the number of its width in `plan.widths`; public.

    Attributes:
        line: its end of the way to the server in its last round, which counts bytes.
    """

    def __init__(self, plan: SesaPlan, server: Transport, *, client_id: int, width: int) -> None:
        """Not in a round yet.

        Raises:
            ParameterError: if the plan lacks the width, or `client_id` is out of range.
        """
        if type(width) is not int or not 0 <= width < len(plan.widths):
            raise ParameterError(
                f"width is {width!r}, expected a whole number from 0 to {len(plan.widths) - 1}, "
                "the index of a width in the plan"
            )
        self.plan, self.width = plan, width
        self.client_id = check_number("client_id", client_id)
        self._server = server
        self.line = Line(plan, server, self.client_id, -1)
        self._channels: Channels | None = None

    def __repr__(self) -> str:
        return f"Client(client_id={self.client_id}, width={self.width})"

    def enter(self, round_number: int) -> None:
        """Ask for a place in the round, with a fresh key; before the server seals the cohort.

        Args:
            round_number: number of the round.
        """
        number = check_number("round_number", round_number)
        self.line = Line(self.plan, self._server, self.client_id, number)
        self._channels = Channels()
        self.line.send(Kind.HELLO, messages.HELLO.pack(self.width, self._channels.public))

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> ClientRound:
        """Code which submodels this client trains, for the others of the sealed cohort.

        Args:
            round_number: the round that it entered.
            indices: by segment that is not dense its submodels, as many as its width owns. Under a
                plan that allows every submodel to be isolated, fewer will do; the rest is filled up
                with submodels that get zeros.

        Returns:
            The client in this round.

        Raises:
            ParameterError: indices that do not fit the plan; zeros were handed in. Or fewer than
                its width owns; nothing was sent, and the client has dropped out.
            ProtocolError: not entered, started before, or a cohort that the plan refuses.
        """
        channels, self._channels = self._channels, None
        if channels is None or round_number != self.line.round_number:
            raise ProtocolError(
                f"client {self.client_id} has not entered round {round_number}, or has already "
                "started this round: call enter() before the server closes the cohort, and "
                "start_round() once",
                code="not-in-cohort",
            )
        cohort = Cohort.decode(self.plan, self.line.fetch(Kind.COHORT).body)
        place = cohort.places.get(self.client_id)
        own = None if place is None else cohort.members[place]
        if own is None or (own.width, own.key) != (self.width, channels.public):
            raise ProtocolError(
                "the cohort from the server lacks this client with its width and key: enter the "
                "next round",
                code="not-in-cohort",
            )
        return ClientRound(self.line, cohort, channels, indices or {})

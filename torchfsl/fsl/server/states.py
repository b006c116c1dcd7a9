"""The states of a round at one server, and the steps between them."""

from __future__ import annotations

from enum import Enum
from typing import Final

from torchfsl.errors import ParameterError, ProtocolError, expect_a
from torchfsl.fsl.dpf.keys import FETCH_ROUND
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel import rounds
from torchfsl.submodel.server_model import ServerModel


class RoundState(Enum):
    """The states of a server in a round."""

    IDLE = "idle"
    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    AGREED = "agreed"
    VERIFIED = "verified"
    COMMITTED = "committed"
    AUDITING = "auditing"
    COUNTED = "counted"
    REVEALED = "revealed"
    HALTED = "halted"


class Step(Enum):
    """Steps of a server in a round, with the states before and after: methods of `Server`.

        step         the peer has sent   this server sends   before      after
        open_round                       ROUND_STATE         IDLE        OPENING
        start        ROUND_STATE                             OPENING     OPEN
        receive      a relay, or a client its message        OPEN        OPEN
        relay                            a relay             OPEN        OPEN
        reply                            to a client         OPEN        OPEN
        close_round                      REPORT_SET          OPEN        CLOSED
        agree        REPORT_SET          VERDICTS            CLOSED      AGREED
        verify       VERDICTS                                AGREED      VERIFIED
        commit                           SHARE_COMMIT        VERIFIED    COMMITTED
        hear_commit  SHARE_COMMIT                            COMMITTED   AUDITING
        reveal       SHARE_COMMIT        SHARE               COMMITTED   REVEALED
        reveal_counts  SHARE_COMMIT      COUNTS              COMMITTED   COUNTED
        reveal_kept  COUNTS              SHARE               COUNTED     REVEALED
        open         SHARE                                   REVEALED    IDLE
        apply                                                IDLE        IDLE

    `reveal_counts` and `reveal_kept` are in place of `reveal` where `min_contributors` is above 1.
    `hear_commit` is there under an audit; `reveal` or `reveal_counts` then comes after it, from
    AUDITING, and takes the peer's AUDIT_PASS.
    A step in another state is a ProtocolError and changes nothing. `abandon_round` leads from any
    state but HALTED to IDLE, as too few reports or a peer's share that does not fit do. Different
    models lead from `start` to HALTED, a sum that cannot be from `open`. Nothing leads out of it.
    """

    OPEN_ROUND = ("open_round", RoundState.IDLE, RoundState.OPENING)
    START = ("start", RoundState.OPENING, RoundState.OPEN)
    RECEIVE = ("receive", RoundState.OPEN, RoundState.OPEN)
    RELAY = ("relay", RoundState.OPEN, RoundState.OPEN)
    REPLY = ("reply", RoundState.OPEN, RoundState.OPEN)
    CLOSE_ROUND = ("close_round", RoundState.OPEN, RoundState.CLOSED)
    AGREE = ("agree", RoundState.CLOSED, RoundState.AGREED)
    VERIFY = ("verify", RoundState.AGREED, RoundState.VERIFIED)
    COMMIT = ("commit", RoundState.VERIFIED, RoundState.COMMITTED)
    HEAR_COMMIT = ("hear_commit", RoundState.COMMITTED, RoundState.AUDITING)
    REVEAL = ("reveal", RoundState.COMMITTED, RoundState.REVEALED)
    REVEAL_COUNTS = ("reveal_counts", RoundState.COMMITTED, RoundState.COUNTED)
    REVEAL_KEPT = ("reveal_kept", RoundState.COUNTED, RoundState.REVEALED)
    OPEN = ("open", RoundState.REVEALED, RoundState.IDLE)
    APPLY = ("apply", RoundState.IDLE, RoundState.IDLE)

    def __init__(self, method: str, before: RoundState, after: RoundState) -> None:
        """`method` of `Server` makes the step."""
        self.method, self.before, self.after = method, before, after


INSTEAD: Final = (
    "save, between rounds, plan.to_json(), model.state, model.optimizer.state(), last_round and "
    "rounds_opened, and make Server(party, plan=..., model=..., last_round=..., rounds_opened=...)"
)
"""Of pickling a server."""


def check_parts(party: object, plan: object, model: object) -> None:
    """Refuse what no server is made of.

    Raises:
        ParameterError: with what to pass instead.
    """
    if party not in (0, 1):
        raise ParameterError(f"party is {party!r}: choose 0 or 1", code="out-of-range")
    expect_a(
        Plan,
        plan,
        "plan",
        "pass fed.plan, of torchfsl.Federated(...), or torchfsl.Plan.from_json(text)",
    )
    expect_a(
        ServerModel,
        model,
        "model",
        "pass ServerModel(fed.server_state()), made once for each server",
    )


def new_round_number(given: object, last_round: int) -> int:
    """The number of a round to be opened.

    Raises:
        ParameterError: no whole number in [0, 2**64).
        ProtocolError: spent, or the one number that no round has.
    """
    number = rounds.new_round_number(given, last_round)
    if number == FETCH_ROUND:
        raise ProtocolError(
            f"round {number} is reserved for fetches: choose another number",
            code="round-number-reserved",
        )
    return number

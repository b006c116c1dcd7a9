"""Steps of a round between the servers, and the states that they lead a server through.

In a step each server sends one message of the same kind to the other. A server stores its message
before it sends it, and the other's message before that message counts. Server 0 asks and server 1
answers, so both go through the same table. A server reads the other's message of a step only once
its own message is fixed.

    step          before     own is stored   the peer's counts   what is new on disk
    ROUND_STATE              OPENING         OPEN                the number, our model's digest
    REPORT_SET    OPEN       CLOSED          AGREED              our coin and list, then our folds
    VERDICTS      AGREED     AGREED          VERIFIED            the peer's folds: who passed
    SHARE_COMMIT  VERIFIED   COMMITTED       REVEALED            our share with its noise, our salt
    SHARE         REVEALED   REVEALED        OPENED              the peer's share

If `min_contributors` is above 1, the servers open the counts before the values:

    SHARE_COMMIT  VERIFIED   COMMITTED       COUNTED             our share and salt, then our counts
    COUNTS        COUNTED    COUNTED         REVEALED            the peer's counts, then our rows

Under an audit the auditors act between SHARE_COMMIT and the step after it. AUDIT_PASS comes from
the other server's auditor and is the only step without a message of this server:

    SHARE_COMMIT  VERIFIED   COMMITTED       AUDITING            our share, our sealed transcript
    AUDIT_PASS    AUDITING                   as SHARE_COMMIT     the pass for the other server

The states are those of `torchfsl.fsl.server.states`, whose table has the methods of `Server` that
lead through them. In OPENED, however, a `Server` is idle again. OPENED ends as APPLIED once the
next model is on disk. A failure ends a round as UNOPENED, and so can its coordinator before
REVEALED. A server takes a step only once all earlier steps count. A refused step leaves nothing
behind. A round that ends after REVEALED counts as opened, because its share may have left.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan


class StoredState(StrEnum):
    """A round's state in a ledger: named as the server's, with the value that is stored and shown.

    Values are on disk and in answers to the coordinator: they stay what they are.
    """

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"
    AGREED = "agreed"
    VERIFIED = "verified"
    COMMITTED = "aggregated"
    """This server has committed to its share."""
    AUDITING = "auditing"
    """Both have, and the other server's auditor has not passed it yet: nothing has left."""
    COUNTED = "counted"
    """Both have, and open counts first: this server's share of those may have left it."""
    REVEALED = "committed"
    """Both have: this server's share may have left it."""
    OPENED = "opened"
    APPLIED = "applied"
    UNOPENED = "unopened"

    @property
    def has_ended(self) -> bool:
        """Whether no step of the round is to come."""
        return self in (StoredState.APPLIED, StoredState.UNOPENED)


STATE_AFTER: Final = {
    Kind.ROUND_STATE: StoredState.OPEN,
    Kind.REPORT_SET: StoredState.AGREED,
    Kind.VERDICTS: StoredState.VERIFIED,
    Kind.SHARE_COMMIT: StoredState.REVEALED,
    Kind.SHARE: StoredState.OPENED,
}
"""By step, in order, a round's state once the peer's message counts."""

STEPS: Final = tuple(STATE_AFTER)
"""Messages of the servers to each other in a round, in order."""

_COUNTS_FIRST: Final = {
    **{kind: STATE_AFTER[kind] for kind in STEPS[: STEPS.index(Kind.SHARE_COMMIT)]},
    Kind.SHARE_COMMIT: StoredState.COUNTED,
    Kind.COUNTS: StoredState.REVEALED,
    Kind.SHARE: StoredState.OPENED,
}


def _audited(steps: Mapping[Kind, StoredState]) -> dict[Kind, StoredState]:
    """The same with AUDIT_PASS behind SHARE_COMMIT, whose state after it takes over."""
    found: dict[Kind, StoredState] = {}
    for kind, state in steps.items():
        found[kind] = state
        if kind is Kind.SHARE_COMMIT:
            found |= {kind: StoredState.AUDITING, Kind.AUDIT_PASS: state}
    return found


_AUDITED: Final = {first: _audited(_COUNTS_FIRST if first else STATE_AFTER) for first in (0, 1)}


def steps_of(plan: Plan) -> Mapping[Kind, StoredState]:
    """`STATE_AFTER` of a plan: its steps in order, with the state after each."""
    if plan.audited:
        return _AUDITED[plan.opens_counts_first]
    return _COUNTS_FIRST if plan.opens_counts_first else STATE_AFTER


def fixing_step(plan: Plan) -> Kind:
    """The step that counts before this server's share may leave it."""
    return Kind.AUDIT_PASS if plan.audited else Kind.SHARE_COMMIT


OPEN_STATES: Final = tuple(state for state in StoredState if not state.has_ended)
"""States of a round that has not ended, in order."""

BEFORE_COMMITMENTS: Final = OPEN_STATES[: OPEN_STATES.index(StoredState.AUDITING)]
"""States of an audited round in which this server does not know both commitments."""

SHARE_LEFT: Final = "this server's share may have left"
"""In the stored reason of a round that ended unopened in one of the states below."""

SHARE_MAY_HAVE_LEFT: Final = (StoredState.COUNTED, StoredState.REVEALED, StoredState.OPENED)
"""States in which the peer may hold this server's share of counts or sums, and so those."""

"""The servers' messages to each other in a round, each once and for this round alone."""

from __future__ import annotations

from torchfsl.errors import ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ReportSet, ShareBody, Verdicts
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.commitments import SALT_BYTES
from torchfsl.service.state.ledger import REMEDY, Ledger, LedgerError


class Transcript:
    """The steps of a ledger as server `party` says and hears them."""

    def __init__(self, ledger: Ledger, party: int) -> None:
        self._ledger, self._party = ledger, party

    def said(self, number: int, kind: Kind) -> bytes | None:
        """This server's message for a step, or None."""
        return self._ledger.step(number, kind, sent=True)

    def heard(self, number: int, kind: Kind) -> bytes | None:
        """The peer's message for a step, or None."""
        return self._ledger.step(number, kind, sent=False)

    def say(self, number: int, kind: Kind, message: bytes) -> None:
        """Store what this server says, once.

        Raises:
            LedgerError: it has said something else before.
        """
        stored = self.said(number, kind)
        if stored is None:
            self._ledger.put_step(number, kind, message, sent=True)
        elif stored != message:
            raise LedgerError(f"round {number}: the stored {kind.name} has changed: {REMEDY}")

    def keep_share(self, plan: Plan, number: int, salt: bytes, share: Buffer) -> None:
        """Store what is behind this server's commitment, with it in one transaction.

        As SHARE, which the peer gets once it has committed too; but if counts are opened first,
        SHARE is still to be made from it.
        """
        if plan.opens_counts_first:
            self._ledger.put_setting("share", salt + share)
        else:
            said = ShareBody(salt, share).message(plan, 1 - self._party, number)
            self.say(number, Kind.SHARE, said)

    def kept_share(self, plan: Plan, number: int) -> tuple[bytes, bytes]:
        """Salt and share of a commitment that was stored; empty ones before."""
        if self.said(number, Kind.SHARE_COMMIT) is None:
            return b"", b""
        if plan.opens_counts_first:
            kept = self._ledger.setting("share") or b""
            return kept[:SALT_BYTES], kept[SALT_BYTES:]
        said = self.said(number, Kind.SHARE)
        assert said is not None
        body = ShareBody.read(plan, said)
        return body.salt, bytes(body.sums)

    def check(self, plan: Plan, number: int, kind: Kind, theirs: bytes) -> None:
        """Refuse what the peer cannot mean for this step of this server. Stores nothing.

        A message that passes is stored, and read again by a server that is started again. So its
        elements are also looked at here.

        Raises:
            DecodeError: malformed, of another kind or plan.
            ProtocolError: for another server or round, or a second, different message.
        """
        message = messages.decode(plan, theirs, kind)
        if (message.party, message.round_number) != (self._party, number):
            raise ProtocolError(
                f"expected a message for server {self._party} in round {number}, got one for "
                f"server {message.party} in round {message.round_number}: "
                "check the order of the two servers"
            )
        if kind is Kind.VERDICTS:
            Verdicts.decode(plan, message.body)
        if self.heard(number, kind) not in (None, theirs):
            raise ProtocolError(
                f"the other server sent two different {kind.name} messages for round {number}: ask "
                "its operator whether an older state was put back"
            )

    def hear(self, number: int, kind: Kind, theirs: bytes) -> None:
        """Store the peer's message for a step of a running round, once it was checked."""
        if self.heard(number, kind) is None:
            self._ledger.running_round(number)
            self._ledger.put_step(number, kind, theirs, sent=False)

    def peer_counts(self, plan: Plan, number: int, client: int) -> bool:
        """Whether the peer has said that a client's report is complete in a round that closed."""
        theirs = self.heard(number, Kind.REPORT_SET)
        if theirs is None:
            return False
        return any(client == entry for entry, _ in ReportSet.read(plan, theirs).entries)

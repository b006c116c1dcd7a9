"""The auditors of both implementations, which must say the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.support.audited import SIGN_KEYS as SIGN_KEYS
from tests.support.audited import audited as audited
from tests.support.audited import auditors
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.plan.plan import Plan

RAW = tuple(bytes([number]) * 32 for number in range(1, 5))
"""Private keys of server 0, server 1, and their auditors, as the blocks take them."""


class Judges:
    """The auditors of a plan by both implementations, which must say the same.

    Args:
        spec: the blocks.
        plan: with an audit.
        own: the plan as the blocks have it.
    """

    def __init__(self, spec: ModuleType, plan: Plan, own: Any) -> None:
        self.spec, self.theirs = spec, auditors(plan)
        self.ours = [spec.Auditor(own, b, RAW[2 + b]) for b in (0, 1)]
        self.offered: list[Any] = [None, None]

    def offer(self, b: int) -> Any:
        """Rounds whose noise both auditors of server `b` hold."""
        theirs, ours = self.theirs[b].offer(), self.ours[b].offer()
        assert (theirs is None, sorted(theirs or ())) == (ours is None, sorted(ours or ()))
        self.offered[b] = theirs
        return theirs

    def shown(self, b: int, theirs: Any, ours: Any, commit: bytes) -> bytes:
        """The transcript that server `b` of each implementation shows."""
        data = b"".join(transcript.parts(theirs, commit))
        assert data == self.spec.transcript(ours)
        return data

    def outcome(self, b: int, data: bytes) -> str:
        """The step that both auditors name, or how both refuse."""
        found: Any = None
        own: Any = None
        try:
            found = self.theirs[b].replay(data, self.offered[b])
            said = str(found.step)
        except ProtocolError as error:  # DecodeError is none
            said = f"refused: {error.code}"
        except Error:
            said = "no transcript"
        try:
            own = self.ours[b].replay(data, self.offered[b])
            step = own["step"]
        except self.spec.Unopened:
            step = "unopened"
        except self.spec.Malformed:
            step = "no transcript"
        assert step == ("unopened" if said.startswith("refused") else said), (said, step)
        if found is not None:
            parts = found.record, bytes([found.party]), found.commitment
            assert (own["round"], own["parts"]) == (found.round_number, parts)
        return said

    def passed(self, b: int, data: bytes) -> bytes:
        """AUDIT_PASS of an honest server; the other server takes it."""
        finding = self.theirs[b].replay(data, self.offered[b])
        message = self.theirs[b].sign(finding)
        assert message == self.ours[b].sign(self.ours[b].replay(data, self.offered[b]))
        number = finding.round_number
        self.theirs[b].keep(number)
        self.ours[b].keep(number)
        return message

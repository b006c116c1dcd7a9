"""Plans with an audit, and the auditors of both implementations.

A valid plan with an audit also has proofs. Until the pages specify these, the plans here have none:
`audited` and `read` leave out this one rule, and all else of an audit is compared.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from tests.specification import pages
from tests.support.audited import SIGN_KEYS as SIGN_KEYS
from tests.support.audited import audited as with_audit
from tests.support.audited import auditors
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl.audit import transcript
from torchfsl.fsl.plan import plan as plan_module
from torchfsl.fsl.plan.plan import Plan

RAW = tuple(bytes([number]) * 32 for number in range(1, 5))
"""Private keys of server 0, server 1, and their auditors, as the blocks take them."""
_RULE = r'need\((\d+), plan.audit != "open" or plan.proofs == "norm"\)'
(WITHOUT_PROOFS,) = map(int, re.findall(_RULE, (pages.FOLDER / "plan.md").read_text()))
"""The rule that an audit needs proofs of the norm."""


@contextlib.contextmanager
def without_proofs(spec: ModuleType | None = None) -> Iterator[None]:
    """Inside, the library and the blocks leave that rule out, and no other one."""
    check = plan_module._check_audit

    def as_proven(plan: Plan) -> None:
        names = "audit", "audit_keys", "auditors", "audited"
        fields: Any = SimpleNamespace(**{name: getattr(plan, name) for name in names})
        fields.proofs = "norm"
        check(fields)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(plan_module, "_check_audit", as_proven))
        if spec is not None:
            need = spec.need
            free = lambda rule, holds: need(rule, holds or rule == WITHOUT_PROOFS)  # noqa: E731
            stack.enter_context(mock.patch.object(spec, "need", free))
        yield


def audited(plan: Plan) -> Plan:
    """The plan with an audit, without proofs."""
    with without_proofs():
        return with_audit(plan)


def read(spec: ModuleType, plan: Plan) -> Any:
    """The plan as the blocks read it."""
    with without_proofs(spec):
        return spec.read_plan(plan.to_json())


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

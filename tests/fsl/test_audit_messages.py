"""Messages of plans with an audit: what each kind has more, and every other length or version."""

from __future__ import annotations

import dataclasses

import pytest

from tests.fsl.test_messages import bodies_of
from tests.fsl.test_proofs import small
from tests.support.audited import audited
from torchfsl.errors import DecodeError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import Body
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION

HEADER = 64
PLAIN = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3)
BAND = dataclasses.replace(PLAIN, noise_taps=(16, 8, 6), min_separation=3, max_rounds=9)
FEW = dataclasses.replace(PLAIN, min_contributors=2)
PLANS = pytest.mark.parametrize(
    ("plan", "taps"), [(PLAIN, 0), (BAND, 3), (FEW, 0)], ids=["plain", "correlated", "counts first"]
)
BODIES = {body.kind: body for body in bodies_of(Body)}


def more(taps: int) -> dict[Kind, int]:
    """Bytes of each kind that are there for the audit, in docs/fsl.md."""
    return {
        Kind.REPORT: 32, Kind.REPORT_COMMIT: 32,  # digest of what the other server alone is sent
        Kind.ROUND_STATE: 3 * 32 + 8 * taps,  # promises; noise index, and rounds of past noise
        Kind.VERDICTS: 32,  # noise coin
        Kind.SHARE_COMMIT: 64, Kind.AUDIT_PASS: 64,  # signatures
    }  # fmt: skip


@PLANS
def test_an_audit_makes_these_messages_longer_by_so_much(plan: Plan, taps: int) -> None:
    for kind in Kind:
        lengths = [messages.lengths(one)[kind] for one in (audited(plan), plan)]
        assert lengths[0].fixed - lengths[1].fixed == more(taps).get(kind, 0), kind.name
        assert (lengths[0].each, lengths[0].most - lengths[0].fixed) == (
            lengths[1].each,
            lengths[1].most - lengths[1].fixed,
        ), kind.name


def sized(plan: Plan, kind: Kind, size: int) -> bytes:
    """A message whose header tells the length of its body, right or not."""
    fixed = messages.encode(plan, kind, 0, 5, 2, bytes(messages.lengths(plan)[kind].fixed))
    return fixed[:24] + size.to_bytes(8, "little") + fixed[32:HEADER] + bytes(size)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
@PLANS
def test_other_lengths_and_versions_are_decode_errors(plan: Plan, taps: int, kind: Kind) -> None:
    plan, body = audited(plan), BODIES[kind]
    fixed, each, most = messages.lengths(plan)[kind]
    right = {fixed + count * each for count in (0, 1, most)}
    for size in right:
        data = sized(plan, kind, size)
        assert body.read(plan, data).message(plan, 0, 5, 2) == data
        for version in (0, WIRE_VERSION - 1, WIRE_VERSION + 1, 65535):
            with pytest.raises(DecodeError, match=f"wire version {version}"):
                body.read(plan, data[:4] + version.to_bytes(2, "little") + data[6:])
        for cut in {data[:-1], data + b"\0", data[:HEADER], data[: HEADER - 1], b""} - {data}:
            with pytest.raises(DecodeError):
                body.read(plan, cut)
    wrong = {size + off for size in right for off in (-64, -32, -8, -1, 1, 8, 32, 64)}
    wrong |= {size - more(taps).get(kind, 0) for size in right} | {0, fixed + (most + 1) * each}
    for size in wrong - {fixed + count * each for count in range(most + 1)}:
        if size >= 0:
            with pytest.raises(DecodeError):
                body.read(plan, sized(plan, kind, size))

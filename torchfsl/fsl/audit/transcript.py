"""Transcripts: the part of a round that a server shows its auditor. Its share follows from it.

The header of `submodel.framing` with magic "TFSA", then pieces, each behind its length in eight
little-endian bytes: own and peer's ROUND_STATE, REPORT_SET and VERDICTS, in this order, the own
SHARE_COMMIT, the noise secret (32), the salt, and every agreed report in the order of the set:

    client 8, opening round 8, nonce 16, hint nonce 16, master seed 16,
    digest of what the other server alone was sent 32, early trees, public share, masked part

Early trees are those of the round or of the session; the masked part is there if it came to this
server. Lengths of reports follow from the plan. The last piece is the server's signature (64) of
the digest of header and pieces before. Without it an auditor could alter a report and say that the
server showed it so. Secret: with the peer's share a transcript tells everything.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.crypto.signing import SIGNATURE_BYTES, is_signed
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ShareCommit, Verdicts
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.noise import ring_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import proof_private_bytes
from torchfsl.fsl.server import filing
from torchfsl.fsl.server.audited import RECORDED, AuditedRound, Secrets
from torchfsl.fsl.server.commitments import SALT_BYTES
from torchfsl.fsl.server.reports import Report, TreeRecord
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.uploads import ReportBody, ReportRelay, TreesRelay, masked_parts
from torchfsl.submodel import framing

VERSION: Final = 2
_LENGTH: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<QQ16s16s16s32s")
_NUM_MESSAGES: Final = 2 * len(RECORDED) + 1
_SIGNED_BYTES: Final = _LENGTH.size + SIGNATURE_BYTES


class TranscriptKind(IntEnum):
    """Kinds of messages in a header."""

    TRANSCRIPT = 1


_FRAMING: Final[framing.Framing[Plan, TranscriptKind]] = framing.Framing(
    b"TFSA", VERSION, TranscriptKind, "an audit of FSL", parties=(0, 1)
)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A transcript whose encoding has been checked, and nothing else.

    Attributes:
        audit: the record, as the server shows it.
        said: its signed commitment.
        noise, salt: secrets behind its share.
        reports: by client, in the order of the set.
        digest, signature: of all before, by its server if `is_signed`.
    """

    audit: AuditedRound
    said: ShareCommit
    noise: bytes = field(repr=False)
    salt: bytes = field(repr=False)
    reports: dict[int, Report] = field(repr=False)
    digest: bytes
    signature: bytes

    @property
    def is_signed(self) -> bool:
        """Whether the server has signed its record, and the transcript as it is."""
        audit = self.audit
        key = bytes.fromhex(audit.plan.audit_keys[audit.party])
        signed = is_signed(key, self.signature, kdf.LABEL_TRANSCRIPT, self.digest)
        return signed and audit.is_signed(audit.party, self.said)


def parts(server: Server, share_commit: bytes) -> list[Buffer]:
    """The transcript of a server that has just committed, in pieces; large ones uncopied.

    Args:
        server: in state COMMITTED, its messages not forgotten.
        share_commit: what its `commit` gave.

    Raises:
        ProtocolError: it is in another state, the plan has no audit, or a report has changed on
            its disk, for which an auditor would name it.
    """
    salt, _ = server.committed()
    audit, key = server.audit, server.sign_key
    if audit is None or key is None:
        raise ProtocolError(
            "the plan has audit='none', so its servers write no transcripts", code="wrong-step"
        )
    for report in audit.reports.values():
        report.check_unchanged(server.party)
    both = (server.party, 1 - server.party)
    said = [audit.record[kind, speaker] for kind in RECORDED for speaker in both]
    pieces: list[tuple[Buffer, ...]] = [(m,) for m in (*said, share_commit)]
    pieces += [(Secrets.decode(server.secrets).noise,), (salt,)]
    pieces += [_report_parts(server, report) for report in audit.reports.values()]
    framed = [(_LENGTH.pack(sum(map(len, piece))), *piece) for piece in pieces]
    body = [part for piece in framed for part in piece]
    about = server.party, server.last_round, 0
    size = sum(map(len, body)) + _SIGNED_BYTES
    head = _FRAMING.head(server.plan, TranscriptKind.TRANSCRIPT, size, *about)
    signature = key.sign(kdf.LABEL_TRANSCRIPT, _digest(head, *body))
    return [head, *body, _LENGTH.pack(SIGNATURE_BYTES), signature]


def _digest(*pieces: Buffer) -> bytes:
    return kdf.digest(kdf.LABEL_TRANSCRIPT, pieces=pieces)


def transcript_bytes(plan: Plan, reports: int) -> int:
    """Most bytes of a round's transcript at one server, for a number of agreed reports."""
    entries = plan.max_clients * messages.SET_ENTRY.size
    verdicts = messages.max_bytes(plan, Kind.VERDICTS)
    each = _LENGTH.size + max(_report_bytes(plan, party, party) for party in (0, 1))
    return 4096 + 2 * (entries + verdicts) + reports * each


def auditor_bytes(plan: Plan, reports: int) -> int:
    """Most bytes that an auditor stores. Past noise twice and a transcript, 0 without an audit."""
    return 2 * ring_bytes(plan) + transcript_bytes(plan, reports) if plan.audited else 0


def decode(plan: Plan, data: Buffer, party: int) -> Transcript:
    """A transcript from server `party`, for this plan.

    Raises:
        DecodeError: if the bytes are not a transcript. No other error is raised.
    """
    message = _FRAMING.decode(plan, data, TranscriptKind.TRANSCRIPT)
    if not plan.audited or message.party != party:
        raise DecodeError(
            f"the bytes are not a transcript of server {party} under this plan", code="another-plan"
        )
    pieces = list(_cut(message.body))
    audit = AuditedRound(plan, message.party, message.round_number)
    if len(pieces) < _NUM_MESSAGES + 3:
        raise DecodeError(
            f"the transcript has {len(pieces)} pieces, expected {_NUM_MESSAGES + 3} or more",
            code="length",
        )
    speakers = [(k, s) for k in RECORDED for s in (message.party, 1 - message.party)]
    for (kind, speaker), piece in zip(speakers, pieces, strict=False):
        _check_message(plan, audit, kind, speaker, piece)
        audit.note(speaker, bytes(piece))
    said = pieces[_NUM_MESSAGES - 1]
    _check_message(plan, audit, Kind.SHARE_COMMIT, message.party, said)
    noise, salt = (bytes(piece) for piece in pieces[_NUM_MESSAGES : _NUM_MESSAGES + 2])
    size, signature = SALT_BYTES if plan.opens_counts_first else DIGEST_BYTES, bytes(pieces[-1])
    if (len(noise), len(salt), len(signature)) != (DIGEST_BYTES, size, SIGNATURE_BYTES):
        raise DecodeError(
            "the secrets or the signature of the transcript have a wrong length", code="length"
        )
    reports = [_report(plan, audit, piece) for piece in pieces[_NUM_MESSAGES + 2 : -1]]
    by_client = {report.client: report for report in reports}
    if len(by_client) != len(reports):
        raise DecodeError("the transcript has two reports of one client", code="not-a-message")
    digest = _digest(memoryview(data)[:-_SIGNED_BYTES])
    return Transcript(
        audit, ShareCommit.read(plan, said), noise, salt, by_client, digest, signature
    )


def _cut(body: memoryview) -> Iterator[memoryview]:
    start = 0
    while start < len(body):
        if len(body) - start < _LENGTH.size:
            raise DecodeError("the transcript ends inside the length of a piece", code="length")
        (size,) = _LENGTH.unpack_from(body, start)
        start += _LENGTH.size
        if size > len(body) - start:
            raise DecodeError("the transcript ends inside a piece", code="length")
        yield body[start : start + size]
        start += size


def _check_message(
    plan: Plan, audit: AuditedRound, kind: Kind, speaker: int, piece: memoryview
) -> None:
    message = messages.decode(plan, piece, kind)
    if (message.party, message.round_number) != (1 - speaker, audit.round_number):
        raise DecodeError(
            f"the {kind.name} in the transcript is of another server or round", code="wrong-round"
        )
    if kind is Kind.VERDICTS:
        Verdicts.read(plan, piece)


def _report_bytes(plan: Plan, party: int, public_party: int) -> int:
    masked = sum(map(plan.dense_bytes, plan.dense)) + proof_private_bytes(plan.statement)
    public = sum(s.tree_bytes for s in plan.early) + messages.public_report_bytes(plan)
    return _HEAD.size + public + (masked if party == public_party else 0)


def _report_parts(server: Server, report: Report) -> tuple[Buffer, ...]:
    trees, seed = report.trees, report.trees.master_seed
    assert seed is not None
    assert report.public is not None
    head = _HEAD.pack(
        report.client, trees.opening_round, report.nonce, report.hint_nonce, seed,
        report.private[1 - server.party],
    )  # fmt: skip
    early = trees.public if server.plan.early else b""
    return (head, early or b"", report.public, *report.masked)


def _report(plan: Plan, audit: AuditedRound, piece: memoryview) -> Report:
    """A report as its server held it, ready to be computed with."""
    if len(piece) < _HEAD.size:
        raise DecodeError(
            f"a report in the transcript has {len(piece)} bytes, expected {_HEAD.size} or more",
            code="length",
        )
    client, opened, nonce, hint_nonce, seed, told = _HEAD.unpack_from(piece)
    party, public_party = audit.party, client % 2
    if len(piece) != _report_bytes(plan, party, public_party):
        raise DecodeError(
            f"a report in the transcript has {len(piece)} bytes, expected "
            f"{_report_bytes(plan, party, public_party)}",
            code="length",
        )
    sizes = [_HEAD.size, sum(s.tree_bytes for s in plan.early), messages.public_report_bytes(plan)]
    stops = [*itertools.accumulate(sizes), len(piece)]
    early, public, masked = (piece[a:b] for a, b in itertools.pairwise(stops))
    trees = TreeRecord(
        nonce=nonce if plan.early else b"", public=early if plan.early else None,
        opening_round=opened, master_seed=seed,
    )  # fmt: skip
    report = Report(
        plan=plan, round_number=audit.round_number, client=client, trees=trees, model=b"",
        nonce=nonce, hint_nonce=hint_nonce, public=public,
    )  # fmt: skip
    body: ReportBody | ReportRelay = ReportRelay(nonce, hint_nonce, (public,))
    if party == public_party:
        report.masked = masked_parts(plan, masked)
        body = ReportBody(nonce, seed, hint_nonce, b"", told, (public,), report.masked)
    filing.check_encoding(plan, body)
    context = report.context
    if plan.early:
        filing.check_encoding(plan, TreesRelay(nonce, (early,)))
        trees.commitment = context.trees.commitment(early)
    report.commitment = context.commitment(public)
    own = context.private_digest(seed, party, context.masked_digest(*report.masked))
    report.private = (own, told) if party == 0 else (told, own)
    return report


assert _HEAD.size == 2 * 8 + 3 * SEED_BYTES + DIGEST_BYTES

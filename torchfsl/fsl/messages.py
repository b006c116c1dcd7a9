"""The wire format: every message's layout, exact length and checks. Version 4.

A message is a 64-byte header and a body. All integers are little-endian.

    0  magic "TFSL"      4  wire version      6  kind      7  party (sender or addressee, 0 or 1)
    8  round            16  client           24  body length          32  plan digest (32 bytes)

Bodies (sizes are functions of the plan alone, so a length tells nothing about a client):

    TREES          nonce 16, master seed 16, tag 16, early trees                client to S_a
    TREES_COMMIT   nonce 16, master seed 16, tag 16, commitment 32              client to S_b
    TREES_RELAY    nonce 16, trees                                              S_a to S_b
    ANSWER         XOR of selected rows, and tags, by segment, digest 32 of
                   the model's rows; sealed                                     server to client
    REPORT         nonce 16, master seed 16, hint nonce 16, tag 16,
                   public part, masked dense values, masked proof               client to S_a
    REPORT_COMMIT  nonce 16, master seed 16, hint nonce 16, tag 16,
                   commitment 32                                                client to S_b
    REPORT_RELAY   nonce 16, hint nonce 16, public part                         S_a to S_b
    MODEL          digests 32 + 32, tensors outside retrieving segments         server to client
    MODEL_DIGEST   digests 32 + 32                                              server to client
    ROUND_STATE    digests 32 + 32 of the model                                 server to server
    REPORT_SET     coin 32, count entries of client 8, digest 32                server to server
    VERDICTS       count folds of 16, each with what is opened of a proof       server to server
    SHARE_COMMIT   digest of the share, salted                                  server to server
    SHARE          salt 32, gathered sums                                       server to server
    COUNTS         salt 32, root 32, gathered counts                            server to server
    FETCH          nonce 16, master seed 16, tag 16, trees to fetch with, and
                   words of 16 where answers carry no tags (`dpf.bits`)         client to S_a
    FETCH_COMMIT   nonce 16, master seed 16, tag 16, commitment 32              client to S_b
    FETCH_RELAY    nonce 16, the same                                           S_a to S_b
    FETCH_ANSWER   digests 32 + 32, the answer sealed                           S_b to client
    FETCH_MODEL    the same, tensors outside retrieving segments                S_a to client

A master seed has 16 bytes, or 64 where the plan names the servers' public keys: sealed to that of
the addressee, once for every set of trees (`TreeContext.seal_info`). A tag is under the master seed
beside it and covers all of the upload (`TreeContext.upload_tag`). S_a is server (client mod 2).
Early trees are those of the retrieving segments, or of all segments in a session (`max_epochs`
above 1), where they go up once and TREES is not sent in later rounds. The public part of a report
is the trees of all other segments, then the hints of all, in plan order, then, under `proofs`,
carry trees and their hints; a masked proof is slack values, squares and the proof
(`plan.statement`). COUNTS is there only under `min_contributors` above 1; SHARE is then salt 32 and
a slot for each position, which `commitments` describes. A tree is its correction words and, if the
plan verifies, its 32-byte check word. An answer is sealed under a key from its sender's master
seed: 16 bytes more (`crypto.aead`). Digests and commitments are those of `kdf.digest`; `bodies` and
`uploads` have the fields.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Container
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from torchfsl.crypto.aead import SEAL_BYTES
from torchfsl.crypto.hpke import HPKE_BYTES
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import proof_private_bytes, proof_public_bytes, verdict_bytes
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES, WIRE_VERSION
from torchfsl.submodel.segments import in_the_clear

Buffer: TypeAlias = bytes | memoryview

_HEADER: Final = struct.Struct("<4sHBBQQQ32s")
_MAGIC: Final = b"TFSL"
HEADER_BYTES: Final = _HEADER.size
SET_ENTRY: Final = struct.Struct("<Q32s")


class Kind(IntEnum):
    """Message kinds."""

    TREES = 1
    TREES_COMMIT = 2
    TREES_RELAY = 3
    ANSWER = 4
    REPORT = 5
    REPORT_COMMIT = 6
    REPORT_RELAY = 7
    MODEL = 8
    MODEL_DIGEST = 9
    ROUND_STATE = 10
    REPORT_SET = 11
    VERDICTS = 12
    SHARE_COMMIT = 13
    SHARE = 14
    FETCH = 15
    FETCH_COMMIT = 16
    FETCH_RELAY = 17
    FETCH_ANSWER = 18
    FETCH_MODEL = 19
    COUNTS = 20


_KINDS: Final = {int(kind): kind for kind in Kind}
_WITH_MASTER_SEED: Final = frozenset(
    (
        Kind.TREES,
        Kind.TREES_COMMIT,
        Kind.REPORT,
        Kind.REPORT_COMMIT,
        Kind.FETCH,
        Kind.FETCH_COMMIT,
    )
)
"""What comes from clients: nonce, then the master seed."""


def _variable(plan: Plan, kind: Kind) -> tuple[int, int]:
    """Fixed bytes and bytes a client of a message whose length varies."""
    verdicts = 0, verdict_bytes(plan.statement)
    return verdicts if kind is Kind.VERDICTS else (DIGEST_BYTES, SET_ENTRY.size)


def master_seed_bytes(plan: Plan) -> int:
    """Length of a master seed as it travels."""
    return SEED_BYTES + (HPKE_BYTES if plan.server_keys else 0)


def public_report_bytes(plan: Plan) -> int:
    """Length of a report's public part."""
    trees = sum(s.tree_bytes for s in plan.late) + proof_public_bytes(plan.statement)
    return trees + sum(plan.hint_bytes(s) for s in plan.with_trees)


def share_bytes(plan: Plan) -> int:
    """Length of one server's gathered sums."""
    return sum(sum_bytes(plan, segment) for segment in plan.segments)


def counts_bytes(plan: Plan) -> int:
    """Length of one server's gathered counts, where they are opened first."""
    return sum(s.m * plan.ring_bytes(s) for s in plan.with_trees)


def said_bytes(plan: Plan, segment: TreeSegment) -> int:
    """Length of a segment in SHARE where counts are opened first: a row or its digest a slot."""
    if segment.is_dense:
        return SEED_BYTES + sum_bytes(plan, segment)
    return segment.m * max(DIGEST_BYTES, SEED_BYTES + segment.tau * plan.ring_bytes(segment))


def said_share_bytes(plan: Plan) -> int:
    """Length of what SHARE says of the sums."""
    slots = sum(said_bytes(plan, segment) for segment in plan.segments)
    return slots if plan.opens_counts_first else share_bytes(plan)


def sum_bytes(plan: Plan, segment: TreeSegment) -> int:
    """Length of one segment's part of the gathered sums."""
    return plan.sum_values(segment) * plan.ring_bytes(segment)


@functools.lru_cache(maxsize=128)  # asked for at every message
def body_bytes(plan: Plan, kind: Kind) -> int | None:
    """Exact body length of a kind under the plan; None where a count of clients varies."""
    trees = sum(s.tree_bytes for s in plan.early)
    masked = sum(plan.dense_bytes(s) for s in plan.dense) + proof_private_bytes(plan.statement)
    public = public_report_bytes(plan)
    secret = master_seed_bytes(plan)
    fetched = sum(s.fetch_bytes for s in plan.retrieving)
    answers = SEAL_BYTES + DIGEST_BYTES + sum(s.answer_bytes for s in plan.segments)
    fetch_answers = SEAL_BYTES + DIGEST_BYTES + sum(s.fetch_answer_bytes for s in plan.retrieving)
    clear = sum(segment.download_bytes for segment in in_the_clear(plan.segments))
    sizes = {
        Kind.TREES: 2 * SEED_BYTES + secret + trees,
        Kind.TREES_COMMIT: 2 * SEED_BYTES + secret + DIGEST_BYTES,
        Kind.TREES_RELAY: SEED_BYTES + trees,
        Kind.ANSWER: answers,
        Kind.REPORT: 3 * SEED_BYTES + secret + public + masked,
        Kind.REPORT_COMMIT: 3 * SEED_BYTES + secret + DIGEST_BYTES,
        Kind.REPORT_RELAY: 2 * SEED_BYTES + public,
        Kind.MODEL: 2 * DIGEST_BYTES + clear,
        Kind.MODEL_DIGEST: 2 * DIGEST_BYTES,
        Kind.ROUND_STATE: 2 * DIGEST_BYTES,
        Kind.FETCH: 2 * SEED_BYTES + secret + fetched,
        Kind.FETCH_COMMIT: 2 * SEED_BYTES + secret + DIGEST_BYTES,
        Kind.FETCH_RELAY: SEED_BYTES + fetched,
        Kind.FETCH_ANSWER: 2 * DIGEST_BYTES + fetch_answers,
        Kind.FETCH_MODEL: 2 * DIGEST_BYTES + fetch_answers + clear,
        Kind.SHARE_COMMIT: DIGEST_BYTES,
        Kind.SHARE: DIGEST_BYTES + said_share_bytes(plan),
        Kind.COUNTS: 2 * DIGEST_BYTES + counts_bytes(plan),
    }
    return sizes.get(kind)


def max_bytes(plan: Plan, kind: Kind) -> int:
    """Length of the longest message of a kind under the plan, header included."""
    body = body_bytes(plan, kind)
    if body is None:
        fixed, entry = _variable(plan, kind)
        body = fixed + entry * plan.max_clients
    return HEADER_BYTES + body


class Message(NamedTuple):
    """A decoded message: header fields and a view of the body."""

    kind: Kind
    party: int
    round_number: int
    client: int
    body: memoryview


def encode(
    plan: Plan, kind: Kind, party: int, round_number: int, client: int, *parts: Buffer
) -> bytes:
    """A message of `kind` whose body is the parts in order.

    Raises:
        ParameterError: round or client outside [0, 2**64).
    """
    return b"".join((header(plan, kind, party, round_number, client, *parts), *parts))


def header(
    plan: Plan, kind: Kind, party: int, round_number: int, client: int, *parts: Buffer
) -> bytes:
    """The header of a message whose body is the parts; see `encode`."""
    if not (0 <= round_number < 1 << 64 and 0 <= client < 1 << 64):
        raise ParameterError("round and client numbers lie in [0, 2**64)", code="out-of-range")
    size = sum(len(part) for part in parts)
    expected = body_bytes(plan, kind)
    assert expected is None or size == expected, (kind, size, expected)
    return _HEADER.pack(_MAGIC, WIRE_VERSION, kind, party, round_number, client, size, plan.digest)


def decode(plan: Plan, data: Buffer, *expected: Kind, header: Header | None = None) -> Message:
    """Check a peer's message completely before anything is allocated for it.

    `header` is that of a message whose header was checked before, by `decode_header`.

    Raises:
        DecodeError: wrong magic, version, kind, party, length or plan.
    """
    if not HEADER_BYTES <= len(data) <= MAX_MESSAGE_BYTES:
        raise DecodeError(f"a message of {len(data)} bytes is too short or too long", code="length")
    head = header or decode_header(plan, data, *expected)
    if len(data) != head.total_bytes:
        raise DecodeError(
            f"{head.kind.name}: a message of {len(data)} bytes, expected {head.total_bytes}",
            code="length")  # fmt: skip
    body = memoryview(data)[HEADER_BYTES:]
    return Message(head.kind, head.party, head.round_number, head.client, body)


class Peek(NamedTuple):
    """Where a message belongs, by its header alone."""

    kind: Kind
    round_number: int
    client: int


def peek(data: Buffer) -> Peek:
    """Where a message belongs that was checked before, or will be; nothing else is looked at.

    Raises:
        DecodeError: shorter than a header, or of an unknown kind.
    """
    if len(data) < HEADER_BYTES:
        raise DecodeError(f"a header of {len(data)} bytes; it has {HEADER_BYTES}", code="length")
    _, _, code, _, round_number, client, _, _ = _HEADER.unpack_from(data)
    if code not in _KINDS:
        raise DecodeError(f"message kind {code} is unknown", code="wrong-kind")
    return Peek(_KINDS[code], round_number, client)


def is_one_of(data: Buffer, kinds: Container[int]) -> bool:
    """Whether a header names one of these kinds; nothing else is looked at."""
    return len(data) >= HEADER_BYTES and _HEADER.unpack_from(data)[2] in kinds


def master_seed_span(data: Buffer) -> tuple[int, int] | None:
    """Where the master seed lies in a message, for a store that wipes it; None if it has none.

    Of a sealed one these are the first bytes of the encapsulated key, without which nothing opens.
    """
    start = HEADER_BYTES + SEED_BYTES
    stop = start + SEED_BYTES
    if len(data) < stop or _HEADER.unpack_from(data)[2] not in _WITH_MASTER_SEED:
        return None
    return start, stop


class Header(NamedTuple):
    """A checked header; `total_bytes` is the length of the message it begins."""

    kind: Kind
    party: int
    round_number: int
    client: int
    total_bytes: int


def decode_header(plan: Plan, data: Buffer, *expected: Kind) -> Header:
    """Check a message by its first 64 bytes, so that a long one is refused before it arrives.

    Raises:
        DecodeError: wrong magic, version, kind, party, body length or plan.
    """
    if len(data) < HEADER_BYTES:
        raise DecodeError(f"a header of {len(data)} bytes; it has {HEADER_BYTES}", code="length")
    magic, version, code, party, round_number, client, size, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError("not a torchfsl message", code="not-a-message")
    if version != WIRE_VERSION:
        raise DecodeError(
            f"message of wire version {version}, this side speaks {WIRE_VERSION}: upgrade the "
            f"{'receiver' if version > WIRE_VERSION else 'sender'}", code="version")  # fmt: skip
    kind = _KINDS.get(code)
    if kind is None or kind not in expected or party not in (0, 1):
        raise DecodeError(f"message kind {code} of party {party}; expected one of "
                          f"{', '.join(k.name for k in expected)}", code="wrong-kind")  # fmt: skip
    if digest != plan.digest:
        raise DecodeError("the message belongs to another plan: fetch the current plan",
                          code="another-plan")  # fmt: skip
    wanted = body_bytes(plan, kind)
    if wanted is None:
        fixed, entry = _variable(plan, kind)
        fits = size >= fixed and (size - fixed) % entry == 0
        wanted = size if fits and size <= fixed + entry * plan.max_clients else -1
    if size != wanted:
        raise DecodeError(f"{kind.name}: body of {size} bytes, expected {wanted}", code="length")
    return Header(kind, party, round_number, client, HEADER_BYTES + size)

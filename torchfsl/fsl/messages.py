"""The wire format: every message's layout, exact length and checks. Version 4.

A message is the 64-byte header of `submodel.framing`, with magic "TFSL" and a party, sender or
addressee, of 0 or 1, and a body. All integers are little-endian.

Bodies (sizes are functions of the plan alone, so a length tells nothing about a client):

    TREES          nonce 16, master seed 16, tag 16, early trees                client to S_a
    TREES_COMMIT   nonce 16, master seed 16, tag 16, commitment 32              client to S_b
    TREES_RELAY    nonce 16, trees                                              S_a to S_b
    ANSWER         XOR of selected rows, and tags, by segment, digest 32 of
                   the model's rows; sealed                                     server to client
    REPORT         nonce 16, master seed 16, hint nonce 16, tag 16, private 32,
                   public share, masked dense values, masked proof               client to S_a
    REPORT_COMMIT  nonce 16, master seed 16, hint nonce 16, tag 16, private 32,
                   commitment 32                                                client to S_b
    REPORT_RELAY   nonce 16, hint nonce 16, public share                         S_a to S_b
    MODEL          digests 32 + 32, tensors outside retrieving segments         server to client
    MODEL_DIGEST   digests 32 + 32                                              server to client
    ROUND_STATE    digests 32 + 32 of the model, promises 96,
                   noise index 8, rounds of past noise 8 each                   server to server
    REPORT_SET     coin 32, count entries of client 8, digest 32                server to server
    VERDICTS       count folds of 16, each with what is opened of a proof,
                   noise coin 32                                                server to server
    SHARE_COMMIT   digest of the share, salted, signature 64                    server to server
    AUDIT_PASS     signature 64 of this server's auditor                        server to server
    SHARE          salt 32, gathered sums                                       server to server
    COUNTS         salt 32, root 32, gathered counts                            server to server
    FETCH          nonce 16, master seed 16, tag 16, trees to fetch with, and
                   words of 16 where answers carry no tags (`dpf.bits`)         client to S_a
    FETCH_COMMIT   nonce 16, master seed 16, tag 16, commitment 32              client to S_b
    FETCH_RELAY    nonce 16, the same                                           S_a to S_b
    FETCH_ANSWER   digests 32 + 32, the answer sealed                           S_b to client
    FETCH_MODEL    the same, tensors outside retrieving segments                S_a to client

A master seed has 16 bytes, or 64 if the plan names the servers' public keys. The seed is then
sealed to the addressee's key, once for every set of trees (`TreeContext.seal_info`). A tag is under
the master seed of its message and covers all of the upload (`TreeContext.upload_tag`). S_a is
server (client mod 2). Early trees are those of the retrieving segments. In a session (`max_epochs`
above 1) they are those of all segments, and TREES is sent once and not in later rounds. The
public share of a report is the trees of all other segments, then the hints of all, in plan order.
Under `proofs`, carry trees and their hints follow. A masked proof is slack values, bits of the
carry weights and the proofs (`plan.statement`). `private` is there only under `audit`: the digest
of what the other server alone gets (`ReportContext.private_digest`). The tag also covers `private`.
Promises, noise coin, signature and AUDIT_PASS are also there only under `audit`. Noise index and
rounds need `noise_taps` in addition (`server.audited`). COUNTS is there only under
`min_contributors` above 1. SHARE is then salt 32 and a slot for each position, see `commitments`. A
tree is its correction words and, if the plan verifies, its 32-byte check word. An answer is sealed
under a key from its sender's master seed: 16 bytes more (`crypto.aead`). Digests and commitments
are those of `kdf.digest`. `bodies` and `uploads` have the fields.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Container, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

from torchfsl.crypto.aead import SEAL_BYTES
from torchfsl.crypto.hpke import HPKE_BYTES
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.crypto.signing import SIGNATURE_BYTES
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import proof_private_bytes, proof_public_bytes, verdict_bytes
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.submodel import framing
from torchfsl.submodel.framing import HEADER_BYTES as HEADER_BYTES
from torchfsl.submodel.framing import Buffer as Buffer
from torchfsl.submodel.framing import Length
from torchfsl.submodel.segments import in_the_clear

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
    AUDIT_PASS = 21


Message: TypeAlias = framing.Message[Kind]
Header: TypeAlias = framing.Header[Kind]

_WITH_MASTER_SEED: Final = frozenset(
    {Kind.TREES, Kind.TREES_COMMIT, Kind.REPORT, Kind.REPORT_COMMIT, Kind.FETCH, Kind.FETCH_COMMIT}
)
"""Kinds of messages from clients: nonce, then the master seed."""


def master_seed_bytes(plan: Plan) -> int:
    """Length of a master seed as it travels."""
    return SEED_BYTES + (HPKE_BYTES if plan.server_keys else 0)


def private_bytes(plan: Plan) -> int:
    """Length of a report's digest of the part that goes to the other server alone."""
    return DIGEST_BYTES if plan.audited else 0


def coin_bytes(plan: Plan) -> int:
    """Length of the noise coin in VERDICTS."""
    return DIGEST_BYTES if plan.audited else 0


def noise_bytes(plan: Plan) -> int:
    """Length of the noise index and the rounds of past noise in ROUND_STATE."""
    return 8 * len(plan.noise_taps) if plan.audited else 0


def public_report_bytes(plan: Plan) -> int:
    """Length of a report's public share."""
    trees = sum(s.tree_bytes for s in plan.late) + proof_public_bytes(plan.statement)
    return trees + sum(plan.hint_bytes(s) for s in plan.with_trees)


def share_bytes(plan: Plan) -> int:
    """Length of one server's gathered sums."""
    return sum(sum_bytes(plan, segment) for segment in plan.segments)


def counts_bytes(plan: Plan) -> int:
    """Length of one server's gathered counts, where they are opened first."""
    return sum(s.m * plan.ring_bytes(s) for s in plan.with_trees)


def slot_bytes(plan: Plan, segment: TreeSegment) -> int:
    """Length of a segment in SHARE where counts are opened first: a row or its digest a slot."""
    if segment.is_dense:
        return SEED_BYTES + sum_bytes(plan, segment)
    return segment.m * max(DIGEST_BYTES, SEED_BYTES + segment.tau * plan.ring_bytes(segment))


def slots_bytes(plan: Plan) -> int:
    """Length of the sums in SHARE: slots where counts are opened first."""
    slots = sum(slot_bytes(plan, segment) for segment in plan.segments)
    return slots if plan.opens_counts_first else share_bytes(plan)


def sum_bytes(plan: Plan, segment: TreeSegment) -> int:
    """Length of one segment's part of the gathered sums."""
    return plan.sum_values(segment) * plan.ring_bytes(segment)


@functools.lru_cache(maxsize=16)  # asked for at every message
def lengths(plan: Plan) -> Mapping[Kind, Length]:
    """The lengths of all kinds under the plan."""
    trees = sum(s.tree_bytes for s in plan.early)
    masked = sum(plan.dense_bytes(s) for s in plan.dense) + proof_private_bytes(plan.statement)
    public = public_report_bytes(plan)
    secret = master_seed_bytes(plan)
    heads = 3 * SEED_BYTES + secret + private_bytes(plan)
    fetched = sum(s.fetch_bytes for s in plan.retrieving)
    answers = SEAL_BYTES + DIGEST_BYTES + sum(s.answer_bytes for s in plan.segments)
    fetch_answers = SEAL_BYTES + DIGEST_BYTES + sum(s.fetch_answer_bytes for s in plan.retrieving)
    clear = sum(segment.download_bytes for segment in in_the_clear(plan.segments))
    promises, signature = 3 * coin_bytes(plan), SIGNATURE_BYTES * plan.audited
    return {
        Kind.TREES: Length(2 * SEED_BYTES + secret + trees),
        Kind.TREES_COMMIT: Length(2 * SEED_BYTES + secret + DIGEST_BYTES),
        Kind.TREES_RELAY: Length(SEED_BYTES + trees),
        Kind.ANSWER: Length(answers),
        Kind.REPORT: Length(heads + public + masked),
        Kind.REPORT_COMMIT: Length(heads + DIGEST_BYTES),
        Kind.REPORT_RELAY: Length(2 * SEED_BYTES + public),
        Kind.MODEL: Length(2 * DIGEST_BYTES + clear),
        Kind.MODEL_DIGEST: Length(2 * DIGEST_BYTES),
        Kind.ROUND_STATE: Length(2 * DIGEST_BYTES + promises + noise_bytes(plan)),
        Kind.REPORT_SET: Length(DIGEST_BYTES, SET_ENTRY.size, plan.max_clients),
        Kind.VERDICTS: Length(coin_bytes(plan), verdict_bytes(plan.statement), plan.max_clients),
        Kind.FETCH: Length(2 * SEED_BYTES + secret + fetched),
        Kind.FETCH_COMMIT: Length(2 * SEED_BYTES + secret + DIGEST_BYTES),
        Kind.FETCH_RELAY: Length(SEED_BYTES + fetched),
        Kind.FETCH_ANSWER: Length(2 * DIGEST_BYTES + fetch_answers),
        Kind.FETCH_MODEL: Length(2 * DIGEST_BYTES + fetch_answers + clear),
        Kind.SHARE_COMMIT: Length(DIGEST_BYTES + signature),
        Kind.AUDIT_PASS: Length(signature),
        Kind.SHARE: Length(DIGEST_BYTES + slots_bytes(plan)),
        Kind.COUNTS: Length(2 * DIGEST_BYTES + counts_bytes(plan)),
    }


_FRAMING: Final = framing.Framing(b"TFSL", WIRE_VERSION, Kind, "FSL", lengths, parties=(0, 1))
encode, header = _FRAMING.encode, _FRAMING.header
decode, decode_header, peek = _FRAMING.decode, _FRAMING.decode_header, _FRAMING.peek


def body_bytes(plan: Plan, kind: Kind) -> int | None:
    """Exact body length of a kind under the plan; None where a count of clients varies."""
    length = lengths(plan)[kind]
    return None if length.each else length.fixed


def max_bytes(plan: Plan, kind: Kind) -> int:
    """Length of the longest message of a kind under the plan, header included."""
    return HEADER_BYTES + lengths(plan)[kind].most


def is_one_of(data: Buffer, kinds: Container[int]) -> bool:
    """Whether a header names one of these kinds; nothing else is looked at."""
    return framing.kind_code(data) in kinds


def master_seed_span(data: Buffer) -> tuple[int, int] | None:
    """The place of a message's master seed, for a store that wipes it; None if it has none.

    Of a sealed one these are the first bytes of the encapsulated key, without which nothing opens.
    """
    start = HEADER_BYTES + SEED_BYTES
    stop = start + SEED_BYTES
    return (start, stop) if len(data) >= stop and is_one_of(data, _WITH_MASTER_SEED) else None

"""Keys of one client's trees and reports, every one bound to its whole context.

The AES keys of the tree, of Conv, of the check and of the tags are public and fresh for every set
of trees or every report (derived from the client's nonces), which keeps the number of secret
blocks under one key small (multi-user security of the fixed-key hash). The roots and the dense
mask come from the master seed of one server, the only secret a client sends it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, NamedTuple

from torchfsl.crypto import field128, kdf
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.kernels.portable.proofs import Words
from torchfsl.types import Bytes

FETCH_ROUND: Final = (1 << 64) - 1
"""In place of the round of trees that fetch without one; no server opens a round of it."""


@dataclass(frozen=True)
class TreeContext:
    """The context that a client's trees are bound to. All public.

    Attributes:
        plan: the task; its digest covers version, suite, session and every parameter.
        opening_round: the round in which the trees go up, in [0, 2**64).
        client: in [0, 2**64).
        nonce: 16 random bytes chosen by the client for these trees.
    """

    plan: Plan
    opening_round: int
    client: int
    nonce: bytes

    @functools.cached_property  # part of every key's context
    def encoded(self) -> bytes:
        """The context as framed bytes."""
        return kdf.frame(
            self.plan.digest,
            self.opening_round.to_bytes(8, "little"),
            self.client.to_bytes(8, "little"),
            self.nonce,
        )

    def tree_key(self, segment: TreeSegment) -> bytes:
        """K_tree, public, 16 bytes."""
        return self._derive(kdf.LABEL_TREE, segment)

    def check_key(self, segment: TreeSegment) -> bytes:
        """K_check, public, 16 bytes."""
        return self._derive(kdf.LABEL_CHECK, segment)

    def mac_key(self, segment: TreeSegment, round_number: int) -> bytes:
        """K_mac of one round's retrieval, public, 16 bytes: tags of two rounds share no key."""
        return self._derive(kdf.LABEL_AUTHENTICATE, segment, round_number.to_bytes(8, "little"))

    def bits_key(self, segment: TreeSegment) -> bytes:
        """K_bits of trees that fetch by one bit a row, public, 16 bytes."""
        return self._derive(kdf.LABEL_BITS, segment)

    def roots(self, segment: TreeSegment, master_seed: bytes, party: int) -> Bytes:
        """Root states `[num_trees, 16]` of one party, bins before stash; control bit = party."""
        return _roots(segment, master_seed, party, self._segment(segment))

    def answer_key(
        self, master_seed: bytes, party: int, round_number: int, bound: bytes = b""
    ) -> bytes:
        """Under which one party seals its answer of one round, 16 bytes. Secret.

        The key seals one text: trees, model and so the answer are fixed with the round. Outside
        rounds nothing fixes them, so there `bound` is the trees' commitment and model digests:
        a replay with other trees, or after the model changed, is sealed under another key.
        """
        fixed = (self.encoded, bytes([party]), round_number.to_bytes(8, "little"))
        context = kdf.frame(*fixed, bound) if bound else kdf.frame(*fixed)
        return kdf.derive(master_seed, kdf.LABEL_ANSWER, context)

    def seal_info(self, party: int) -> bytes:
        """The bytes that bind a master seed which is sealed to a party's public key."""
        client = self.client.to_bytes(8, "little")
        return kdf.frame(kdf.LABEL_SEED, self.plan.digest, bytes([party]), client, self.nonce)

    def commitment(self, *public_part: bytes | memoryview) -> bytes:
        """The client's commitment to the trees, for the other server: `kdf.digest`, 32 bytes.

        The public share may come in pieces, cut anywhere; it is empty if there are none.
        """
        return kdf.digest(kdf.LABEL_COMMITMENT, b"trees", self.encoded, pieces=public_part)

    def fetch_commitment(self, *public_part: bytes | memoryview) -> bytes:
        """The same of trees that fetch without a round, so that neither passes for the other."""
        return kdf.digest(kdf.LABEL_COMMITMENT, b"fetch", self.encoded, pieces=public_part)

    def upload_tag(self, master_seed: bytes, party: int, *digests: bytes) -> bytes:
        """The tag that ties an upload to the party that drew its master seed; 16 bytes.

        `digests` are those of all else in it: the commitment, and of a report's masked values.
        """
        return upload_tag(self.encoded, master_seed, party, *digests)

    @property
    def public_party(self) -> int:
        """The server that gets public shares from the client; the other gets their hashes."""
        return self.client % 2

    def _segment(self, segment: TreeSegment, *more: bytes) -> bytes:
        return kdf.frame(self.encoded, segment.name.encode(), *more)

    def _derive(self, label: bytes, segment: TreeSegment, *more: bytes) -> bytes:
        return kdf.derive(self.nonce, label, self._segment(segment, *more))


class CarryKeys(NamedTuple):
    """K_tree, K_check and K_conv of a report's carry trees, public, 16 bytes each."""

    tree: bytes
    check: bytes
    convert: bytes


@dataclass(frozen=True)
class ReportContext:
    """The context that one report (one epoch's hints and dense shares) is bound to. All public.

    Attributes:
        trees: the context of the trees under the hints.
        round_number: the epoch; at least `trees.opening_round`.
        hint_nonce: 16 random bytes, fresh for every report: two hints never share a key, so a
            resend after retraining, or a client restored from an old snapshot, leaks nothing.
    """

    trees: TreeContext
    round_number: int
    hint_nonce: bytes

    @functools.cached_property  # part of every key's context
    def encoded(self) -> bytes:
        """The context as framed bytes."""
        epoch = self.round_number.to_bytes(8, "little")
        return kdf.frame(self.trees.encoded, epoch, self.hint_nonce)

    def roots(self, segment: TreeSegment, master_seed: bytes, party: int) -> Bytes:
        """As `TreeContext.roots`, for trees that travel in the report itself.

        They are bound to its nonce, so that a process restored from a snapshot taken inside the
        round never sends two trees from one root.
        """
        return _roots(segment, master_seed, party, kdf.frame(self.encoded, segment.name.encode()))

    def convert_key(self, segment: TreeSegment) -> bytes:
        """K_conv of this report's hints, public, 16 bytes."""
        context = kdf.frame(self.encoded, segment.name.encode())
        return kdf.derive(self.hint_nonce, kdf.LABEL_CONVERT, context)

    def carry_keys(self, segment: TreeSegment) -> CarryKeys:
        """Public keys of the report's carry trees, which are new in every report."""
        context = kdf.frame(self.encoded, segment.name.encode())
        labels = kdf.LABEL_TREE, kdf.LABEL_CHECK, kdf.LABEL_CONVERT
        return CarryKeys(*(kdf.derive(self.hint_nonce, label, context) for label in labels))

    def proof_mask(self, master_seed: bytes, party: int) -> tuple[Bytes, Words]:
        """One party's masks of slack, `[values, l/8]`, and of the proof's field elements.

        As `dense_mask`; of plans with proofs.
        """
        statement = self.trees.plan.statement
        assert statement is not None
        keys = (
            kdf.derive(master_seed, kdf.LABEL_PROOF, kdf.frame(self.encoded, what, bytes([party])))
            for what in (b"slack", b"elements")
        )
        width = statement.ring_bits // 8
        slack = kdf.stream(next(keys), statement.slack_bytes).reshape(-1, width)
        return slack, field128.uniform(next(keys), statement.num_elements)

    def dense_mask(self, segment: TreeSegment, master_seed: bytes, party: int) -> Bytes:
        """One party's mask of a dense segment, `[values, l/8]`: uniform, fresh every report.

        Both masks apply, so the message is the addressee's share minus the addressee's mask. A
        party that carries it and later reads a server's share of the sum cannot subtract the two.
        """
        plan = self.trees.plan
        context = kdf.frame(self.encoded, segment.name.encode(), bytes([party]))
        key = kdf.derive(master_seed, kdf.LABEL_DENSE, context)
        return kdf.stream(key, plan.dense_bytes(segment)).reshape(-1, plan.ring_bytes(segment))

    def commitment(self, *public_part: bytes | memoryview) -> bytes:
        """The client's commitment to the report, for the other server: `kdf.digest`, 32 bytes.

        The public share may come in pieces, cut anywhere; it is empty if there are none.
        """
        return kdf.digest(kdf.LABEL_COMMITMENT, b"report", self.encoded, pieces=public_part)

    def masked_digest(self, *masked: bytes | memoryview) -> bytes:
        """What `upload_tag` covers of the dense segments' masked values, cut anywhere: 32 bytes."""
        return kdf.digest(kdf.LABEL_UPLOAD, pieces=masked)

    def private_digest(self, master_seed: bytes, party: int, hidden: bytes) -> bytes:
        """Digest of all that `party` alone gets, for the other server: 32 bytes.

        It hides the seed and binds it, with the masked values, of which `hidden` is the
        `masked_digest`: of none at the server that gets none.
        """
        return kdf.digest(kdf.LABEL_PRIVATE, self.encoded, bytes([party]), master_seed, hidden)

    def upload_tag(self, master_seed: bytes, party: int, *digests: bytes) -> bytes:
        """As `TreeContext.upload_tag`; also of the model's digests, if the client downloaded it."""
        return upload_tag(self.encoded, master_seed, party, *digests)


def upload_tag(context: bytes, master_seed: bytes, party: int, *digests: bytes) -> bytes:
    """HKDF as a MAC: nothing else is derived under this label."""
    return kdf.derive(master_seed, kdf.LABEL_UPLOAD, kdf.frame(context, bytes([party]), *digests))


def _roots(segment: TreeSegment, master_seed: bytes, party: int, context: bytes) -> Bytes:
    key = kdf.derive(master_seed, kdf.LABEL_ROOTS, context)
    states = kdf.stream(key, 16 * segment.num_trees).reshape(-1, 16)
    control = states[:, 0]
    if party:
        control |= 1
    else:
        control &= 0xFE
    return states

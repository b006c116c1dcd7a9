"""Bodies of a client's uploads: its trees and its report, and what servers relay of them.

Each body begins with its heads: nonces and, from a client, a master seed and a tag under this seed.
A public share may be given in pieces, cut anywhere. A public share that was read is in one piece.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self, TypeAlias

from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import Body, Pieces, by_segment
from torchfsl.fsl.messages import Buffer, Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Statement, proof_private_bytes, proof_public_bytes


class Upload(Body):
    """A server's file of one client, from itself or relayed: heads, and what they are for.

    `seed` of those that come from a client is the server's master seed as it travels, sealed under
    plans with server keys; `tag` shows that all of it is from whoever drew the seed, see
    `TreeContext.upload_tag`. Without it, whoever carries both messages could alter a public share
    and its commitment alike.
    """

    __slots__ = ()
    num_heads: ClassVar[int]
    nonce: bytes

    @property
    def head(self) -> bytes:
        """Nonces, master seed and tag, as they lie in the body."""
        return b"".join(self.parts()[: self.num_heads])

    @classmethod
    def _heads(cls, plan: Plan, view: memoryview) -> tuple[list[bytes], memoryview]:
        """Nonces, master seed and tag, and what comes after them."""
        sizes = [SEED_BYTES] * cls.num_heads
        if "seed" in cls.__match_args__:
            sizes[1] = messages.master_seed_bytes(plan)
        if "private" in cls.__match_args__:
            sizes[-1] = messages.private_bytes(plan)
        stops = list(itertools.accumulate(sizes))
        heads = [bytes(view[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)]
        return heads, view[stops[-1] :]

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        """Heads, and what they are for."""
        heads, rest = cls._heads(plan, view)
        make: Any = cls
        body: Self = make(*heads, (rest,) if "public" in cls.__match_args__ else bytes(rest))
        return body


@dataclass(frozen=True, slots=True)
class TreesBody(Upload):
    """Early trees, from their client."""

    kind, num_heads = Kind.TREES, 3
    nonce: bytes
    seed: bytes = field(repr=False)
    tag: bytes
    public: Pieces = field(repr=False)


@dataclass(frozen=True, slots=True)
class TreesCommit(Upload):
    """Commitment to early trees, from their client to the other server."""

    kind, num_heads = Kind.TREES_COMMIT, 3
    nonce: bytes
    seed: bytes = field(repr=False)
    tag: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class TreesRelay(Upload):
    """Early trees, from the server that got them."""

    kind, num_heads = Kind.TREES_RELAY, 1
    nonce: bytes
    public: Pieces = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReportBody(Upload):
    """A report, from its client: late trees and hints, and the dense segments' masked values.

    Under a plan with proofs the public share ends in carry trees, and `masked` in the proof. Under
    one with an audit `private` binds what the other server alone gets. Else it is empty.
    """

    kind, num_heads = Kind.REPORT, 5
    nonce: bytes
    seed: bytes = field(repr=False)
    hint_nonce: bytes
    tag: bytes
    private: bytes
    public: Pieces = field(repr=False)
    masked: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        heads, rest = cls._heads(plan, view)
        size = messages.public_report_bytes(plan)
        make: Any = cls
        body: Self = make(*heads, (rest[:size],), masked_parts(plan, rest[size:]))
        return body


@dataclass(frozen=True, slots=True)
class ReportCommit(Upload):
    """Commitment to a report's public share, from its client to the other server."""

    kind, num_heads = Kind.REPORT_COMMIT, 5
    nonce: bytes
    seed: bytes = field(repr=False)
    hint_nonce: bytes
    tag: bytes
    private: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class ReportRelay(Upload):
    """A report's public share, from the server that got it."""

    kind, num_heads = Kind.REPORT_RELAY, 2
    nonce: bytes
    hint_nonce: bytes
    public: Pieces = field(repr=False)


class FetchBody(TreesBody):
    """Trees of a fetch without a round, from their client."""

    __slots__ = ()
    kind = Kind.FETCH


class FetchCommit(TreesCommit):
    """Commitment to them, from their client to the other server."""

    __slots__ = ()
    kind = Kind.FETCH_COMMIT


class FetchRelay(TreesRelay):
    """The trees, from the server that got them."""

    __slots__ = ()
    kind = Kind.FETCH_RELAY


FETCHES: Final[dict[Kind, type[FetchBody] | type[FetchCommit] | type[FetchRelay]]] = {
    Kind.FETCH: FetchBody,
    Kind.FETCH_COMMIT: FetchCommit,
    Kind.FETCH_RELAY: FetchRelay,
}
"""Bodies that a server takes without a round, by kind."""

AnyTrees: TypeAlias = TreesBody | TreesCommit | TreesRelay
AnyReport: TypeAlias = ReportBody | ReportCommit | ReportRelay
UPLOADS: Final[dict[Kind, type[AnyTrees] | type[AnyReport]]] = {
    body.kind: body
    for body in (TreesBody, TreesCommit, TreesRelay, ReportBody, ReportCommit, ReportRelay)
}
"""Bodies that a server files, by kind."""


def early_trees(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The public share of trees, by segment."""
    return by_segment(plan.early, _tree_bytes, memoryview(public))


def fetch_trees(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The public share of a fetch, by segment: trees and, where it is by bits, their words."""
    return by_segment(plan.retrieving, lambda segment: segment.fetch_bytes, memoryview(public))


def late_trees(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The trees in the public share of a report, by segment."""
    return by_segment(plan.late, _tree_bytes, memoryview(public))


def hints(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The hints in the public share of a report, by segment."""
    start = sum(segment.tree_bytes for segment in plan.late)
    return by_segment(plan.with_trees, plan.hint_bytes, memoryview(public)[start:])


def masked_parts(plan: Plan, masked: memoryview) -> Pieces:
    """The masked part of a report: of each dense segment and, under proofs, of the proof."""
    parts = by_segment(plan.dense, plan.dense_bytes, masked)
    first = len(masked) - proof_private_bytes(plan.statement)
    return (*parts.values(), *((masked[first:],) if plan.statement else ()))


def carries(plan: Plan, public: Buffer) -> memoryview:
    """Carry trees and their hints in the public share of a report, under a plan with proofs."""
    view = memoryview(public)
    return view[len(view) - proof_public_bytes(plan.statement) :]


def slack_and_elements(statement: Statement, proof: Buffer) -> tuple[memoryview, memoryview]:
    """The masked proof of a report: slack values, field elements."""
    view = memoryview(proof)
    return view[: statement.slack_bytes], view[statement.slack_bytes :]


def _tree_bytes(segment: TreeSegment) -> int:
    return segment.tree_bytes

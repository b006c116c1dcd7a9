"""Bodies of messages: what each one says, and the only place where one is cut.

`body.message(...)` is the whole message; `SomeBody.read` takes one from a peer and checks header
and length first. The layouts are in the table of `messages`: a body's fields lie in the order in
which its class names them. Large parts of a body that was read are views of the message. A public
part may be given in pieces, cut anywhere; one that was read is in one piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import FOLD_BYTES, SET_ENTRY, Buffer, Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan

Pieces: TypeAlias = tuple[Buffer, ...]


class Body(ABC):
    """What one kind of message says."""

    __slots__ = ()
    __match_args__: tuple[str, ...]  # a dataclass's fields in order
    kind: ClassVar[Kind]

    def parts(self) -> Pieces:
        """The body's bytes in order, large ones uncopied."""
        values = (getattr(self, name) for name in self.__match_args__)
        return tuple(p for v in values for p in (v if isinstance(v, tuple) else (v,)))

    def message(self, plan: Plan, party: int, round_number: int, client: int = 0) -> bytes:
        """The message that carries this body; see `messages.encode`."""
        return messages.encode(plan, self.kind, party, round_number, client, *self.parts())

    @classmethod
    def read(cls, plan: Plan, data: Buffer) -> Self:
        """The body of a message of this kind.

        Raises:
            DecodeError: see `messages.decode`.
        """
        return cls.decode(plan, messages.decode(plan, data, cls.kind).body)

    @classmethod
    def decode(cls, plan: Plan, view: memoryview) -> Self:
        """Inverse of `parts`, for a view whose length `messages.decode` has checked."""
        return cls._cut(plan, view)

    @classmethod
    @abstractmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self: ...


# --- what a client tells of its trees and its report, and what is relayed of it -----------------


class Filing(Body):
    """What a server files of one client, from itself or relayed: seeds, then what they are for."""

    __slots__ = ()
    num_seeds: ClassVar[int]
    nonce: bytes

    @property
    def head(self) -> bytes:
        """The nonces and the master seed, as they lie in the body."""
        return b"".join(self.parts()[: self.num_seeds])

    @classmethod
    def _after_seeds(cls, view: memoryview) -> memoryview:
        return view[cls.num_seeds * SEED_BYTES :]


def _seed(view: memoryview, number: int) -> bytes:
    """One of the seeds that a body begins with."""
    return bytes(view[number * SEED_BYTES : (number + 1) * SEED_BYTES])


@dataclass(frozen=True, slots=True)
class TreesBody(Filing):
    """Early trees, from their client."""

    kind, num_seeds = Kind.TREES, 2
    nonce: bytes
    master_seed: bytes = field(repr=False)
    public: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(_seed(view, 0), _seed(view, 1), (cls._after_seeds(view),))


@dataclass(frozen=True, slots=True)
class TreesCommit(Filing):
    """Commitment to early trees, from their client to the other server."""

    kind, num_seeds = Kind.TREES_COMMIT, 2
    nonce: bytes
    master_seed: bytes = field(repr=False)
    commitment: bytes

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(_seed(view, 0), _seed(view, 1), bytes(cls._after_seeds(view)))


@dataclass(frozen=True, slots=True)
class TreesRelay(Filing):
    """Early trees, from the server that got them."""

    kind, num_seeds = Kind.TREES_RELAY, 1
    nonce: bytes
    public: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(_seed(view, 0), (cls._after_seeds(view),))


@dataclass(frozen=True, slots=True)
class ReportBody(Filing):
    """A report, from its client: late trees and hints, and the dense segments' masked values."""

    kind, num_seeds = Kind.REPORT, 3
    nonce: bytes
    master_seed: bytes = field(repr=False)
    hint_nonce: bytes
    public: Pieces = field(repr=False)
    masked: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        rest = cls._after_seeds(view)
        size = messages.public_report_bytes(plan)
        masked = _by_segment(plan.dense, plan.dense_bytes, rest[size:])
        return cls(
            _seed(view, 0), _seed(view, 1), _seed(view, 2), (rest[:size],), tuple(masked.values())
        )


@dataclass(frozen=True, slots=True)
class ReportCommit(Filing):
    """Commitment to a report's public part, from its client to the other server."""

    kind, num_seeds = Kind.REPORT_COMMIT, 3
    nonce: bytes
    master_seed: bytes = field(repr=False)
    hint_nonce: bytes
    commitment: bytes

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(_seed(view, 0), _seed(view, 1), _seed(view, 2), bytes(cls._after_seeds(view)))


@dataclass(frozen=True, slots=True)
class ReportRelay(Filing):
    """A report's public part, from the server that got it."""

    kind, num_seeds = Kind.REPORT_RELAY, 2
    nonce: bytes
    hint_nonce: bytes
    public: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(_seed(view, 0), _seed(view, 1), (cls._after_seeds(view),))


AnyTrees: TypeAlias = TreesBody | TreesCommit | TreesRelay
AnyReport: TypeAlias = ReportBody | ReportCommit | ReportRelay
FILINGS: Final[dict[Kind, type[AnyTrees] | type[AnyReport]]] = {
    body.kind: body
    for body in (TreesBody, TreesCommit, TreesRelay, ReportBody, ReportCommit, ReportRelay)
}
"""What a server files, by kind."""


def early_trees(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The public part of trees, by segment."""
    return _by_segment(plan.early, _tree_bytes, memoryview(public))


def late_trees(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The trees in the public part of a report, by segment."""
    return _by_segment(plan.late, _tree_bytes, memoryview(public))


def hints(plan: Plan, public: Buffer) -> dict[str, memoryview]:
    """The hints in the public part of a report, by segment."""
    start = sum(segment.tree_bytes for segment in plan.late)
    return _by_segment(plan.with_trees, plan.hint_bytes, memoryview(public)[start:])


def _tree_bytes(segment: TreeSegment) -> int:
    return segment.tree_bytes


def _by_segment(
    segments: Iterable[TreeSegment], size: Callable[[TreeSegment], int], view: memoryview
) -> dict[str, memoryview]:
    """Views of the segments' parts, which lie in a row."""
    views, start = {}, 0
    for segment in segments:
        stop = start + size(segment)
        views[segment.name] = view[start:stop]
        start = stop
    return views


# --- what a server tells a client ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerBody(Body):
    """Answers of a retrieval, segment by segment; one that was read has one piece for each."""

    kind = Kind.ANSWER
    answers: Pieces = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        answers = _by_segment(plan.retrieving, lambda segment: segment.answer_bytes, view)
        return cls(tuple(answers.values()))


@dataclass(frozen=True, slots=True)
class ModelDigest(Body):
    """Digests of a model: of the tensors in the clear, and of the rows that can be retrieved."""

    kind = Kind.MODEL_DIGEST
    clear: bytes
    rows: bytes

    @classmethod
    def of(cls, clear: bytes, rows: bytes) -> Self:
        """The digests of these bytes."""
        return cls(_clear_digest(clear), kdf.digest(kdf.LABEL_MODEL, b"rows", rows))

    def equals(self, other: ModelDigest) -> bool:
        """Whether it is the same model; in time that does not depend on the digests."""
        return kdf.digests_equal(b"".join(self.parts()), b"".join(other.parts()))

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view[:DIGEST_BYTES]), bytes(view[DIGEST_BYTES : 2 * DIGEST_BYTES]))


class RoundDigest(ModelDigest):
    """The same, from server to server at the beginning of a round."""

    __slots__ = ()
    kind = Kind.ROUND_STATE


@dataclass(frozen=True, slots=True)
class ModelBody(Body):
    """The clear part of a model, behind the model's digests."""

    kind = Kind.MODEL
    digests: ModelDigest
    clear: Buffer = field(repr=False)

    def parts(self) -> Pieces:
        """See `Body.parts`."""
        return (*self.digests.parts(), self.clear)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(ModelDigest.decode(plan, view), view[2 * DIGEST_BYTES :])

    def tensors(self, plan: Plan, other: ModelDigest) -> dict[str, npt.NDArray[np.generic]]:
        """The clear tensors, checked against the other server's digests.

        Raises:
            ProtocolError: the servers hold different models, or the bytes do not fit the digest.
        """
        own = ModelDigest(_clear_digest(self.clear), self.digests.rows)
        if not (self.digests.equals(other) and self.digests.equals(own)):
            raise ProtocolError("the two servers hold different models: nothing may go on")
        tensors: dict[str, npt.NDArray[np.generic]] = {}
        start = 0
        for tensor in plan.clear_tensors:
            dtype = np.dtype(tensor.dtype).newbyteorder("<")
            values = np.frombuffer(self.clear, dtype, tensor.numel, start)
            tensors[tensor.name] = values.reshape(tensor.shape).astype(tensor.dtype)
            start += tensor.numel * tensor.item_bytes
        return tensors


def _clear_digest(clear: Buffer) -> bytes:
    return kdf.digest(kdf.LABEL_MODEL, b"clear", clear)


# --- what a server tells the other one ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReportSet(Body):
    """This server's coin and its complete reports: client and digest of each."""

    kind = Kind.REPORT_SET
    coin: bytes
    entries: tuple[tuple[int, bytes], ...]

    def parts(self) -> Pieces:
        """See `Body.parts`."""
        return (self.coin, *(SET_ENTRY.pack(*entry) for entry in self.entries))

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        entries = SET_ENTRY.iter_unpack(view[DIGEST_BYTES:])
        return cls(bytes(view[:DIGEST_BYTES]), tuple((int(c), digest) for c, digest in entries))


@dataclass(frozen=True, slots=True)
class Verdicts(Body):
    """The folds of the agreed reports, in the order of the set."""

    kind = Kind.VERDICTS
    folds: tuple[bytes, ...]

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        starts = range(0, len(view), FOLD_BYTES)
        return cls(tuple(bytes(view[start : start + FOLD_BYTES]) for start in starts))


@dataclass(frozen=True, slots=True)
class ShareCommit(Body):
    """Commitment to a share."""

    kind = Kind.SHARE_COMMIT
    commitment: bytes

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view))


@dataclass(frozen=True, slots=True)
class ShareBody(Body):
    """The salt of the commitment, and this server's share of the sums. Secret until both commit."""

    kind = Kind.SHARE
    salt: bytes = field(repr=False)
    sums: Buffer = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view[:DIGEST_BYTES]), view[DIGEST_BYTES:])


def share_by_segment(plan: Plan, sums: Buffer) -> dict[str, memoryview]:
    """A share of the sums, by segment: `[m, W/8]` with trees, `[values, l/8]` dense."""
    view = memoryview(sums)
    ordered = (*plan.with_trees, *plan.dense)
    return _by_segment(ordered, lambda segment: messages.sum_bytes(plan, segment), view)

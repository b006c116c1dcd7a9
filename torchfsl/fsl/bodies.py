"""Bodies of messages: what each one says, and the only place where one is cut.

`body.message(...)` is the whole message; `SomeBody.read` takes one from a peer and checks header
and length first. The layouts are in the table of `messages`: a body's fields lie in the order in
which its class names them. Large parts of a body that was read are views of the message. Here are
the bodies that come from servers; `uploads` has those that come from clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import aead, field128, kdf
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.messages import SET_ENTRY, Buffer, Kind
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import verdict_bytes
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.submodel.halves import heard
from torchfsl.submodel.segments import in_the_clear

Pieces: TypeAlias = tuple[Buffer, ...]


class Addressee(Protocol):
    """A server, as far as the other server's messages are addressed to it."""

    plan: Plan
    party: int
    last_round: int


class Body:
    """The contents of one kind of message."""

    __slots__ = ()
    __match_args__: tuple[str, ...]  # a dataclass's fields in order
    kind: ClassVar[Kind]

    def parts(self) -> Pieces:
        """The body's bytes in order, large ones uncopied."""
        values = (getattr(self, name) for name in self.__match_args__)
        pieces = (value.parts() if isinstance(value, Body) else value for value in values)
        return tuple(p for v in pieces for p in (v if isinstance(v, tuple) else (v,)))

    def message(self, plan: Plan, party: int, round_number: int, client: int = 0) -> bytes:
        """The message that carries this body; see `messages.encode`."""
        return messages.encode(plan, self.kind, party, round_number, client, *self.parts())

    def head_of_message(self, plan: Plan, party: int, round_number: int, client: int) -> bytes:
        """The message without its last part, which is large and goes on its way uncopied."""
        parts = self.parts()
        head = messages.header(plan, self.kind, party, round_number, client, *parts)
        return b"".join((head, *parts[:-1]))

    @classmethod
    def read(cls, plan: Plan, data: Buffer) -> Self:
        """The body of a message of this kind.

        Raises:
            DecodeError: see `messages.decode`.
        """
        return cls.decode(plan, messages.decode(plan, data, cls.kind).body)

    @classmethod
    def from_peer(cls, server: Addressee, data: Buffer) -> Self:
        """The body of the other server's message for this step.

        Raises:
            DecodeError: see `messages.decode`.
            ProtocolError: it is for another server or round.
        """
        message = messages.decode(server.plan, data, cls.kind)
        if (message.party, message.round_number) != (server.party, server.last_round):
            raise ProtocolError(
                "the peer's message is for another server or round: "
                "talk to the operator of the other server"
            )
        return cls.decode(server.plan, message.body)

    @classmethod
    def decode(cls, plan: Plan, view: memoryview) -> Self:
        """Inverse of `parts`, for a view whose length `messages.decode` has checked."""
        return cls._cut(plan, view)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        """Fields of `DIGEST_BYTES`, and the last one, which takes what is left."""
        starts = range(0, DIGEST_BYTES * (len(cls.__match_args__) - 1), DIGEST_BYTES)
        heads = [bytes(view[start : start + DIGEST_BYTES]) for start in starts]
        make: Any = cls
        body: Self = make(*heads, view[DIGEST_BYTES * len(heads) :])
        return body


def by_segment(
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
    """Answers of a retrieval and the digest of the model's rows, sealed.

    Both servers' answers in the clear are the rows.
    """

    kind = Kind.ANSWER
    sealed: Buffer = field(repr=False)

    @classmethod
    def seal(cls, key: bytes, answers: Iterable[Buffer]) -> Self:
        """Answers segment by segment and the digest, under `TreeContext.answer_key`."""
        return cls(aead.seal_once(key, b"".join(answers)))

    def unseal(self, plan: Plan, key: bytes, *, fetched: bool = False) -> Pieces:
        """The answers, of a round or fetched outside it, a piece for each segment, and the digest.

        Raises:
            ProtocolError: they were sealed under another key, or altered.
        """
        view = memoryview(aead.unseal(key, self.sealed))
        answers = by_segment(
            plan.retrieving, lambda s: s.fetch_answer_bytes if fetched else s.answer_bytes, view
        )
        return *answers.values(), view[-DIGEST_BYTES:]


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
        return kdf.digests_equal(self.clear + self.rows, other.clear + other.rows)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view[:DIGEST_BYTES]), bytes(view[DIGEST_BYTES : 2 * DIGEST_BYTES]))


@dataclass(frozen=True, slots=True)
class FetchAnswer(Body):
    """An answer without a round, behind the digests of the model that it is from."""

    kind = Kind.FETCH_ANSWER
    digests: ModelDigest
    answer: AnswerBody

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        digests = ModelDigest.decode(plan, view)
        return cls(digests, AnswerBody.decode(plan, view[2 * DIGEST_BYTES :]))


@dataclass(frozen=True, slots=True)
class FetchModel(Body):
    """The same, and the tensors in the clear."""

    kind = Kind.FETCH_MODEL
    answer: FetchAnswer
    clear: Buffer = field(repr=False)

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        size = messages.body_bytes(plan, Kind.FETCH_ANSWER)
        return cls(FetchAnswer.decode(plan, view[:size]), view[size:])


@dataclass(frozen=True, slots=True)
class RoundDigest(ModelDigest):
    """The same, from server to server at the beginning of a round.

    Under an audit also the promises of a server, and `noise` where it is correlated: the noise
    index and, by lag, the round whose noise counts, 8 bytes each. See `server.audited`.
    """

    kind = Kind.ROUND_STATE
    promises: bytes = b""
    noise: bytes = b""

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        stops = 0, DIGEST_BYTES, 2 * DIGEST_BYTES, len(view) - messages.noise_bytes(plan), len(view)
        return cls(*(bytes(view[start:stop]) for start, stop in itertools.pairwise(stops)))


@dataclass(frozen=True, slots=True)
class ModelBody(Body):
    """The clear part of a model, behind the model's digests."""

    kind = Kind.MODEL
    digests: ModelDigest
    clear: Buffer = field(repr=False)

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
            raise ProtocolError(
                "the two servers hold different models, so this client stops: report this to "
                "both operators",
                code="models-differ",
            )
        tensors: dict[str, npt.NDArray[np.generic]] = {}
        start = 0
        for segment in in_the_clear(plan.segments):
            for tensor in segment.tensors:
                stop = start + tensor.numel * segment.item_bytes(tensor)
                values = heard(self.clear[start:stop], segment.download, tensor.dtype)
                tensors[tensor.name] = values.reshape(tensor.shape)
                start = stop
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
    """Of each agreed report the fold and what is opened of its proof, in the order of the set.

    Under an audit the noise coin of this server stands behind them.
    """

    kind = Kind.VERDICTS
    verdicts: tuple[bytes, ...]
    noise_coin: bytes = b""

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        size, end = verdict_bytes(plan.statement), len(view) - messages.coin_bytes(plan)
        parts = [bytes(view[start : start + size]) for start in range(0, end, size)]
        for part in parts:
            field128.checked(part[FOLD_BYTES:])  # canonical, or no message at all
        return cls(tuple(parts), bytes(view[end:]))


@dataclass(frozen=True, slots=True)
class ShareCommit(Body):
    """Commitment to a share; under an audit signed, with the record of the round."""

    kind = Kind.SHARE_COMMIT
    commitment: bytes
    signature: bytes = b""

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view[:DIGEST_BYTES]), bytes(view[DIGEST_BYTES:]))


@dataclass(frozen=True, slots=True)
class AuditPass(Body):
    """Signature of this server's auditor, whose replay agreed with the commitment."""

    kind = Kind.AUDIT_PASS
    signature: bytes

    @classmethod
    def _cut(cls, plan: Plan, view: memoryview) -> Self:
        return cls(bytes(view))


@dataclass(frozen=True, slots=True)
class ShareBody(Body):
    """The salt of the commitment, and this server's share of the sums. Secret until both commit."""

    kind = Kind.SHARE
    salt: bytes = field(repr=False)
    sums: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True)
class CountsBody(Body):
    """The salt of the commitment, the root over all rows, and this server's share of the counts."""

    kind = Kind.COUNTS
    salt: bytes = field(repr=False)
    root: bytes
    counts: Buffer = field(repr=False)


def share_by_segment(plan: Plan, sums: Buffer) -> dict[str, memoryview]:
    """A share of the sums, by segment: `[m, W/8]` with trees, `[values, l/8]` dense."""
    view = memoryview(sums)
    ordered = (*plan.with_trees, *plan.dense)
    return by_segment(ordered, lambda segment: messages.sum_bytes(plan, segment), view)

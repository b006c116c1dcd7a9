"""The header in front of every message, whatever the protocol, and the lengths of bodies.

    0  magic             4  wire version      6  kind      7  party
    8  round            16  client           24  body length          32  plan digest (32 bytes)

All integers are little-endian. A protocol says which magic, version, kinds and parties it has, how
long its bodies are, and what they hold. One whose messages are about more than a round and a client
lays bytes 4 to 23 out for itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from torchfsl.errors import DecodeError, ParameterError

Kind = TypeVar("Kind", bound=IntEnum)
AnyPlan = TypeVar("AnyPlan", bound=Any)
Buffer: TypeAlias = bytes | memoryview

_LAYOUT: Final = struct.Struct("<4sHBBQQQ32s")
_KIND_AT: Final = 6
HEADER_BYTES: Final = _LAYOUT.size
MAX_MESSAGE_BYTES: Final = 1 << 32
"""Upper limit of one message, which plans keep."""


class Length(NamedTuple):
    """Bytes of a kind's bodies: `fixed`, and `each` for every one of at most `clients` clients."""

    fixed: int
    each: int = 0
    clients: int = 0

    @property
    def most(self) -> int:
        """Of the longest body."""
        return self.fixed + self.each * self.clients

    def allows(self, size: int) -> bool:
        """Whether a body may have so many bytes."""
        varies = self.each and (size - self.fixed) % self.each == 0
        return size == self.fixed or bool(varies and self.fixed <= size <= self.most)


class Header(NamedTuple, Generic[Kind]):
    """A checked header; `total_bytes` is the length of the message it begins."""

    kind: Kind
    party: int
    round_number: int
    client: int
    total_bytes: int


class Message(NamedTuple, Generic[Kind]):
    """A message whose header has been checked, with a view of the body."""

    kind: Kind
    party: int
    round_number: int
    client: int
    body: memoryview
    head: bytes


class Peek(NamedTuple, Generic[Kind]):
    """Kind, round and client of a message, by its header alone."""

    kind: Kind
    round_number: int
    client: int


@dataclass(frozen=True, slots=True)
class Framing(Generic[AnyPlan, Kind]):
    """The common part of the headers of a protocol.

    Attributes:
        magic: four bytes.
        version: of the wire.
        kinds: of messages, with numbers in [0, 256).
        system: that has these messages, for errors.
        lengths: under a plan, of the kinds whose length follows from it.
        parties: numbers that the header may name; senders or addressees.
        layout: of the header, if it is another.
    """

    magic: bytes
    version: int
    kinds: type[Kind]
    system: str
    lengths: Callable[[AnyPlan], Mapping[Kind, Length]] = lambda plan: {}
    parties: Container[int] = (0,)
    layout: struct.Struct = _LAYOUT

    def head(self, plan: AnyPlan, kind: Kind, size: int, *about: int) -> bytes:
        """The header of a message with a body of `size` bytes; `about` is what the layout names."""
        length = self.lengths(plan).get(kind)
        assert length is None or length.each or size == length.fixed, (kind, size, length)
        return self.layout.pack(self.magic, self.version, kind, *about, size, plan.digest)

    def header(
        self, plan: AnyPlan, kind: Kind, party: int, round_number: int, client: int, *parts: Buffer
    ) -> bytes:
        """The header of a message whose body is the parts; see `encode`."""
        if not (0 <= round_number < 1 << 64 and 0 <= client < 1 << 64):
            raise ParameterError(
                "expected round and client numbers from 0 to 2**64 - 1", code="out-of-range"
            )
        return self.head(plan, kind, sum(map(len, parts)), party, round_number, client)

    def encode(
        self, plan: AnyPlan, kind: Kind, party: int, round_number: int, client: int, *parts: Buffer
    ) -> bytes:
        """A message of `kind` whose body is the parts in order.

        Raises:
            ParameterError: round or client outside [0, 2**64).
        """
        return b"".join((self.header(plan, kind, party, round_number, client, *parts), *parts))

    def opened(
        self, plan: AnyPlan, data: Buffer, expected: Collection[Kind]
    ) -> tuple[Kind, list[int], int]:
        """Kind, what the message is about, and the length of its body, which is not checked.

        Raises:
            DecodeError: wrong magic, version, kind or plan.
        """
        if len(data) < HEADER_BYTES:
            raise DecodeError(
                f"expected a header of {HEADER_BYTES} bytes, got {len(data)} bytes", code="length"
            )
        magic, version, code, *about, size, digest = self.layout.unpack_from(data)
        if magic != self.magic:
            raise DecodeError(
                f"expected a message of {self.system}, got other bytes: check which program sent "
                "them",
                code="not-a-message",
            )
        if version != self.version:
            raise DecodeError(
                f"the message has wire version {version}, expected {self.version}: upgrade the "
                f"{'receiver' if version > self.version else 'sender'}",
                code="version",
            )
        if code not in expected:
            names = ", ".join(kind.name for kind in expected)
            raise DecodeError(
                f"expected a message of kind {names}, got kind {code}", code="wrong-kind"
            )
        if digest != plan.digest:
            raise DecodeError(
                "the message belongs to another plan: fetch the current plan", code="another-plan"
            )
        return self.kinds(code), about, size

    def decode_header(self, plan: AnyPlan, data: Buffer, *expected: Kind) -> Header[Kind]:
        """Check a message by its first 64 bytes, so that a long one is refused before it arrives.

        Args:
            plan: the public plan.
            data: a peer's bytes.
            *expected: kinds that may come now.

        Raises:
            DecodeError: wrong magic, version, kind, party, body length or plan.
        """
        kind, (party, round_number, client), size = self.opened(plan, data, expected)
        if party not in self.parties:
            raise DecodeError(
                f"{kind.name}: the header names party {party}, which {self.system} does not have: "
                "check which program sent the message",
                code="wrong-kind",
            )
        length = self.lengths(plan).get(kind)
        if length and not length.allows(size):
            raise DecodeError(
                f"{kind.name}: body of {size} bytes, expected {length.most}", code="length"
            )
        return Header(kind, party, round_number, client, HEADER_BYTES + size)

    def decode(
        self, plan: AnyPlan, data: Buffer, *expected: Kind, header: Header[Kind] | None = None
    ) -> Message[Kind]:
        """Check a peer's message completely before anything is allocated for it.

        Args:
            plan: the public plan.
            data: a peer's bytes.
            *expected: kinds that may come now.
            header: of a message whose header was checked before, by `decode_header`.

        Raises:
            DecodeError: wrong magic, version, kind, party, length or plan. The length of a body
                that does not follow from the plan is for `expect_bytes`.
        """
        checked = header or self.decode_header(plan, data, *expected)
        kind, party, round_number, client, total = checked
        check_whole(kind, data, total)
        head, body = bytes(data[:HEADER_BYTES]), memoryview(data)[HEADER_BYTES:]
        return Message(kind, party, round_number, client, body, head)

    def peek(self, data: Buffer) -> Peek[Kind]:
        """Kind, round and client of a message that was checked before, or will be; nothing else.

        Raises:
            DecodeError: shorter than a header, or of an unknown kind.
        """
        code = kind_code(data)
        if code not in set(self.kinds):
            raise DecodeError(
                f"expected a header of {HEADER_BYTES} bytes with one of the message kinds of "
                f"{self.system}, got {len(data)} bytes and kind {code}",
                code="wrong-kind",
            )
        _, _, _, _, round_number, client, _, _ = self.layout.unpack_from(data)
        return Peek(self.kinds(code), round_number, client)


def kind_code(data: Buffer) -> int | None:
    """The number of its kind in a header of the usual layout; None if there is no whole header."""
    return data[_KIND_AT] if len(data) >= HEADER_BYTES else None


def check_whole(kind: IntEnum, data: Buffer, total: int) -> None:
    """Check that a message has the length that its header names.

    Raises:
        DecodeError: it has another.
    """
    if len(data) != total:
        raise DecodeError(
            f"{kind.name}: a message of {len(data)} bytes, expected {total}", code="length"
        )


def expect_bytes(message: Message[Kind], size: int) -> None:
    """Check the exact length of a body, before anything is made of it.

    Raises:
        DecodeError: it is another.
    """
    check_whole(message.kind, message.body, size)

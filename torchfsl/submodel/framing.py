"""The header in front of every message of one server, and of an aggregator and a key holder.

    0  magic             4  wire version      6  kind      7  zero
    8  round            16  client           24  body length          32  plan digest (32 bytes)

All integers are little-endian. A protocol says which magic, version and kinds it has, and what the
bodies hold.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, NamedTuple, TypeVar

from torchfsl.errors import DecodeError

Kind = TypeVar("Kind", bound=IntEnum)

_HEADER: Final = struct.Struct("<4sHBBQQQ32s")
HEADER_BYTES: Final = _HEADER.size
MAX_MESSAGE_BYTES: Final = 1 << 32
"""Largest body."""


class Message(NamedTuple, Generic[Kind]):
    """A message whose header has been checked, with a view of the body."""

    kind: Kind
    round_number: int
    client: int
    body: memoryview
    head: bytes


@dataclass(frozen=True, slots=True)
class Framing(Generic[Kind]):
    """What the headers of a protocol have in common.

    Attributes:
        magic: four bytes.
        version: of the wire.
        kinds: of messages, with numbers in [0, 256).
        between: whose messages these are, for errors.
    """

    magic: bytes
    version: int
    kinds: type[Kind]
    between: str

    def head(self, digest: bytes, kind: Kind, round_number: int, client: int, size: int) -> bytes:
        """The header of a message with a body of `size` bytes under the plan of that digest."""
        fields = (self.magic, self.version, kind, 0, round_number, client, size, digest)
        return _HEADER.pack(*fields)

    def decode(self, digest: bytes, data: bytes | memoryview, *expected: Kind) -> Message[Kind]:
        """Check a message's header and that it is whole; the body's length is for `expect_bytes`.

        Args:
            digest: of the plan.
            data: a peer's bytes.
            *expected: kinds that may come now.

        Raises:
            DecodeError: wrong magic, version, kind, length or plan.
        """
        if not HEADER_BYTES <= len(data) <= HEADER_BYTES + MAX_MESSAGE_BYTES:
            raise DecodeError(
                f"a message of {len(data)} bytes is too short or too long", code="length"
            )
        magic, version, code, zero, number, client, size, plan = _HEADER.unpack_from(data)
        if magic != self.magic or zero:
            raise DecodeError(f"not a torchfsl message of {self.between}", code="not-a-message")
        if version != self.version:
            raise DecodeError(
                f"message of wire version {version}, this side speaks {self.version}: upgrade the "
                f"{'receiver' if version > self.version else 'sender'}",
                code="version",
            )
        if code not in expected:
            names = ", ".join(kind.name for kind in expected)
            raise DecodeError(f"message kind {code}; expected one of {names}", code="wrong-kind")
        kind = self.kinds(code)
        if plan != digest:
            raise DecodeError(
                "the message belongs to another plan: fetch the current plan", code="another-plan"
            )
        if len(data) != HEADER_BYTES + size:
            raise DecodeError(
                f"{kind.name}: a message of {len(data)} bytes, its header says "
                f"{HEADER_BYTES + size}",
                code="length",
            )
        view = memoryview(data)
        return Message(kind, number, client, view[HEADER_BYTES:], bytes(view[:HEADER_BYTES]))


def expect_bytes(message: Message[Kind], size: int) -> None:
    """Check the exact length of a body, before anything is made of it.

    Raises:
        DecodeError: it is another.
    """
    if len(message.body) != size:
        raise DecodeError(
            f"{message.kind.name}: a body of {len(message.body)} bytes, expected {size}",
            code="length",
        )

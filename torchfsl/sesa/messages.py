"""The wire format of one server: layout, exact length, checks of each message. Version 1.

A message is the 64-byte header of `submodel.framing`, with magic "TSES", and a body. All integers
are little-endian; a number of the field has four bytes and is below its modulus.

Bodies for a client of width w that owns k_s submodels of `size_s` values each in segment s. The
cohort has n members and U survivors:

    HELLO       width 4, X25519 key 32                                           client to server
    COHORT      n members: client 8, width 4, X25519 key 32                      server to client
    MODEL       every tensor of the plan                                         server to client
    SHARES      salt 16, a box for each other member in order                    client to server
    MASKED      x: by segment k_s * size_s numbers                               client to server
    SURVIVORS   x of the survivors, by segment and within it by survivor,
                then n bytes, 1 for each survivor and 0 for others               server to client
    RELAY       for each other survivor in order: its salt 16, its box           server to client
    ANSWER      survivors' digest 32, psi: by segment size_s numbers             client to server

A box is a ciphertext of ChaCha20-Poly1305 with its 16-byte tag. A box for one of the T members
after the sender (cyclically) holds a 16-byte seed. A box for another member holds k_s + size_s
numbers per segment s: phi, then varphi. The choice of a client's submodels changes no length; their
number is public.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from torchfsl.crypto import kdf
from torchfsl.crypto.field import WORD_BYTES
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import DecodeError
from torchfsl.sesa.cohort import KEY_BYTES, MEMBER, Cohort
from torchfsl.sesa.sesa_plan import LABEL_SURVIVORS, WIRE_VERSION, SesaPlan
from torchfsl.submodel import framing
from torchfsl.submodel.framing import HEADER_BYTES as HEADER_BYTES
from torchfsl.submodel.framing import Buffer, Length
from torchfsl.submodel.framing import expect_bytes as expect_bytes
from torchfsl.submodel.whole_model import model_bytes

HELLO: Final = struct.Struct(f"<I{KEY_BYTES}s")
TAG_BYTES: Final = 16


class Kind(IntEnum):
    """Message kinds, in the order of the table above."""

    HELLO, COHORT, MODEL, SHARES, MASKED, SURVIVORS, RELAY, ANSWER = range(1, 9)


Message: TypeAlias = framing.Message[Kind]


@functools.lru_cache(maxsize=16)
def lengths(plan: SesaPlan) -> Mapping[Kind, Length]:
    """The lengths of the kinds that follow from the plan; those of others from a cohort, below."""
    return {
        Kind.HELLO: Length(HELLO.size),
        Kind.COHORT: Length(0, MEMBER.size, plan.max_clients),
        Kind.MODEL: Length(model_bytes(plan)),
        Kind.ANSWER: Length(DIGEST_BYTES + WORD_BYTES * plan.sum_values),
    }


_FRAMING: Final = framing.Framing(b"TSES", WIRE_VERSION, Kind, "SESA", lengths)
decode = _FRAMING.decode


def encode(plan: SesaPlan, kind: Kind, round_number: int, client: int, *parts: Buffer) -> bytes:
    """A message of `kind` whose body is the parts in order."""
    return _FRAMING.encode(plan, kind, 0, round_number, client, *parts)


# --- exact lengths of bodies under a cohort -------------------------------------------------------


def box_bytes(cohort: Cohort, sender: int, recipient: int) -> int:
    """Length of the box from one place to another."""
    if recipient in cohort.seeded(sender):
        return SEED_BYTES + TAG_BYTES
    return _evaluations_bytes(cohort, sender)


def _evaluations_bytes(cohort: Cohort, sender: int) -> int:
    """Length of a box that holds numbers."""
    return WORD_BYTES * cohort.plan.share_values(cohort.width(sender)) + TAG_BYTES


def box_span(cohort: Cohort, sender: int, recipient: int) -> slice:
    """The range of the box from one place to another in the body of SHARES."""
    before = [place for place in range(recipient) if place != sender]
    num_streams = len(set(before) & set(cohort.seeded(sender)))
    start = SEED_BYTES + num_streams * (SEED_BYTES + TAG_BYTES)
    start += (len(before) - num_streams) * _evaluations_bytes(cohort, sender)
    return slice(start, start + box_bytes(cohort, sender, recipient))


def shares_bytes(cohort: Cohort, sender: int) -> int:
    """Length of SHARES from the member at `sender`."""
    num_streams = cohort.plan.collusion
    streams = num_streams * (SEED_BYTES + TAG_BYTES)
    num_evaluated = len(cohort) - 1 - num_streams
    return SEED_BYTES + streams + num_evaluated * _evaluations_bytes(cohort, sender)


def masked_bytes(plan: SesaPlan, width: int) -> int:
    """Length of MASKED from a client of that width."""
    return WORD_BYTES * plan.masked_values(width)


def survivors_bytes(cohort: Cohort, survivors: Sequence[int]) -> int:
    """Length of SURVIVORS."""
    masked = sum(masked_bytes(cohort.plan, cohort.width(place)) for place in survivors)
    return masked + len(cohort)


def relay_bytes(cohort: Cohort, survivors: Sequence[int], recipient: int) -> int:
    """Length of RELAY to the survivor at `recipient`."""
    others = [place for place in survivors if place != recipient]
    return sum(SEED_BYTES + box_bytes(cohort, place, recipient) for place in others)


# --- bodies ---------------------------------------------------------------------------------------


def encode_mask(cohort: Cohort, survivors: Sequence[int]) -> bytes:
    """The survivors as one byte a member."""
    chosen = set(survivors)
    return bytes(place in chosen for place in range(len(cohort)))


def decode_survivors(cohort: Cohort, message: Message) -> tuple[tuple[int, ...], memoryview]:
    """Places of the survivors, and the bytes of their x.

    Raises:
        DecodeError: bytes other than 0 and 1, or another length than such survivors have.
    """
    if len(message.body) < len(cohort):
        raise DecodeError(
            f"SURVIVORS: a body of {len(message.body)} bytes is too short", code="length"
        )
    masked, mask = message.body[: -len(cohort)], bytes(message.body[-len(cohort) :])
    if mask.strip(b"\0\1"):
        raise DecodeError("SURVIVORS: expected 0 or 1 for each client")
    survivors = tuple(place for place, marked in enumerate(mask) if marked)
    expect_bytes(message, survivors_bytes(cohort, survivors))
    return survivors, masked


def survivors_digest(cohort: Cohort, round_number: int, survivors: Sequence[int]) -> bytes:
    """The digest that binds an answer to plan, round, cohort and survivors: 32 bytes."""
    return kdf.digest(
        LABEL_SURVIVORS,
        cohort.plan.digest,
        round_number.to_bytes(8, "little"),
        cohort.encode(),
        encode_mask(cohort, survivors),
    )

"""The wire format of aggregator and key holder: layout, length, checks of each message.

A message is the 64-byte header of `submodel.framing`, with magic "TSEF", and a body. All integers
are little-endian. Bodies, with c ciphertexts of f bytes each, d values (weight included) of w whole
bytes each, and n clients:

    KEY         the public key, f' bytes                          key holder to everybody, once
    MODEL       every tensor of the plan                          aggregator to client
    UPDATE      digest 32, c f bytes of ciphertexts               client to aggregator
    RECEIPT     digest of UPDATE 32, Ed25519 signature 64         aggregator to client
    SUM         digest 32, signature 64, n times (client 8,
                digest of its UPDATE 32), then c f bytes          aggregator to key holder
    VALUE       digest 32, signature 64, digest of SUM 32,
                d w bytes of numbers                              key holder to aggregator

f is 31,000 at 2048 slots and 89,088 at 4096. SEAL accepts an altered byte in a ciphertext, and any
bytes behind a ciphertext. So a frame has its exact length. Each message with ciphertexts or opened
values also begins with a digest over the header and all that follows except the signature. Between
both servers the sender signs the digest with a key that the plan names. So a server refuses a party
that takes the other server's place. A client's digest only finds accidents; TLS identifies clients.
KEY, SUM and VALUE have client 0.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import DecodeError, RejectedSubmission
from torchfsl.sefl.sefl_plan import (
    LABEL_KEY,
    LABEL_OPENING,
    LABEL_RECEIPT,
    LABEL_SIGNED,
    LABEL_SUBMISSION,
    LABEL_VALUE,
    WIRE_VERSION,
    SeflPlan,
)
from torchfsl.submodel import framing
from torchfsl.submodel.framing import HEADER_BYTES as HEADER_BYTES
from torchfsl.submodel.framing import Buffer, Length
from torchfsl.submodel.whole_model import model_bytes

_NAMED: Final = struct.Struct(f"<Q{DIGEST_BYTES}s")
SIGNATURE_BYTES: Final = 64


class Kind(IntEnum):
    """Message kinds, in the order of the table above."""

    KEY, MODEL, UPDATE, RECEIPT, SUM, VALUE = range(1, 7)


Message: TypeAlias = framing.Message[Kind]
_LABELS: Final = {Kind.UPDATE: LABEL_SUBMISSION, Kind.SUM: LABEL_OPENING, Kind.VALUE: LABEL_VALUE}
"""Of the digests that messages begin with."""
_SIGNED: Final = frozenset((Kind.SUM, Kind.VALUE))


def ciphertext_bytes(plan: SeflPlan) -> int:
    """All ciphertexts of an update, or of a sum."""
    return plan.ciphertexts * plan.scheme.ring.ciphertext_bytes


@functools.lru_cache(maxsize=16)
def lengths(plan: SeflPlan) -> Mapping[Kind, Length]:
    """The lengths of all kinds under the plan."""
    front = DIGEST_BYTES + SIGNATURE_BYTES
    return {
        Kind.KEY: Length(plan.scheme.ring.key_bytes),
        Kind.MODEL: Length(model_bytes(plan)),
        Kind.UPDATE: Length(DIGEST_BYTES + ciphertext_bytes(plan)),
        Kind.RECEIPT: Length(front),
        Kind.SUM: Length(front + ciphertext_bytes(plan), _NAMED.size, plan.max_clients),
        Kind.VALUE: Length(front + DIGEST_BYTES + plan.num_values * plan.scheme.slot_bytes),
    }


_FRAMING: Final = framing.Framing(b"TSEF", WIRE_VERSION, Kind, "SEFL", lengths)
decode = _FRAMING.decode


class Named(NamedTuple):
    """A client in a sum, and the digest of the update that counts there."""

    client: int
    digest: bytes


def encode(
    plan: SeflPlan,
    kind: Kind,
    round_number: int,
    client: int,
    *parts: Buffer,
    signing: Ed25519PrivateKey | None = None,
) -> bytes:
    """A message of `kind` whose body is the parts in order, behind their digest if it has one.

    Args:
        plan: with keys, except in tests.
        kind: of the message.
        round_number: of the round; 0 in KEY.
        client: addressee or sender; 0 between both servers.
        *parts: of the body.
        signing: the sender's key; SUM and VALUE need it, no other kind has one.
    """
    assert (signing is not None) == (kind in _SIGNED)
    front = (DIGEST_BYTES if kind in _LABELS else 0) + (SIGNATURE_BYTES if signing else 0)
    size = front + sum(len(part) for part in parts)
    head = _FRAMING.head(plan, kind, size, 0, round_number, client)
    if kind not in _LABELS:
        return b"".join((head, *parts))
    digest = kdf.digest(_LABELS[kind], head, pieces=parts)
    signed = signing.sign(kdf.frame(LABEL_SIGNED, digest)) if signing else b""
    return b"".join((head, digest, signed, *parts))


def digested(message: Message) -> tuple[bytes, memoryview]:
    """The digest that a message begins with, and the rest of its body, a signature left out.

    Raises:
        DecodeError: the digest is of something else.
    """
    front = DIGEST_BYTES + (SIGNATURE_BYTES if message.kind in _SIGNED else 0)
    digest, rest = bytes(message.body[:DIGEST_BYTES]), message.body[front:]
    computed = kdf.digest(_LABELS[message.kind], message.head, pieces=(rest,))
    if not kdf.digests_equal(digest, computed):
        raise DecodeError(f"{message.kind.name}: the digest does not match the message")
    return digest, rest


def check_signature(message: Message, key: str) -> None:
    """Check who sent a SUM or VALUE, whose digest has been checked.

    Args:
        message: with its whole body.
        key: the sender's Ed25519 key in hex, as the plan has it.

    Raises:
        RejectedSubmission: it is not signed under that key.
    """
    digest = bytes(message.body[:DIGEST_BYTES])
    signed = bytes(message.body[DIGEST_BYTES : DIGEST_BYTES + SIGNATURE_BYTES])
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
            signed, kdf.frame(LABEL_SIGNED, digest)
        )
    except InvalidSignature as error:
        raise RejectedSubmission(
            f"{message.kind.name}: the signature is not from the server in the plan",
            code="wrong-signature",
        ) from error


# --- bodies ---------------------------------------------------------------------------------------


def key_digest(public_key: bytes) -> bytes:
    """The name of a public key in a plan: 32 bytes."""
    return kdf.digest(LABEL_KEY, public_key)


def receipt_text(plan: SeflPlan, round_number: int, named: Named) -> bytes:
    """The bytes that the aggregator signs for a client: plan, round, client and its update."""
    return kdf.frame(
        LABEL_RECEIPT, plan.digest, round_number.to_bytes(8, "little"), _NAMED.pack(*named)
    )


def encode_names(names: list[Named]) -> bytes:
    """The clients of a sum, in the order given."""
    return b"".join(_NAMED.pack(*named) for named in names)


def decode_names(plan: SeflPlan, message: Message) -> tuple[list[Named], memoryview]:
    """The clients of a SUM, strictly increasing, and its ciphertexts; the digest is checked.

    Raises:
        DecodeError: another order or digest.
    """
    count = (len(message.body) - lengths(plan)[Kind.SUM].fixed) // _NAMED.size
    _, rest = digested(message)
    names = [Named(*_NAMED.unpack_from(rest, n * _NAMED.size)) for n in range(count)]
    if any(a.client >= b.client for a, b in itertools.pairwise(names)):
        raise DecodeError("SUM: expected client numbers in increasing order")
    return names, rest[count * _NAMED.size :]

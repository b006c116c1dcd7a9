"""The wire format of aggregator and key holder: every message's layout, exact length and checks.

A message is a 64-byte header and a body. All integers are little-endian.

    0  magic "TSEF"      4  wire version      6  kind      7  zero
    8  round            16  client           24  body length          32  plan digest (32 bytes)

Bodies; c ciphertexts of f bytes each, d values (weight included) of w whole bytes, n clients:

    KEY         the public key, f' bytes                          key holder to everybody, once
    MODEL       every tensor of the plan                          aggregator to client
    UPDATE      digest 32, c f bytes of ciphertexts               client to aggregator
    RECEIPT     digest of UPDATE 32, Ed25519 signature 64         aggregator to client
    SUM         digest 32, n times: client 8, digest of its
                UPDATE 32; then c f bytes of ciphertexts          aggregator to key holder
    VALUE       digest of SUM 32, d w bytes of numbers            key holder to aggregator

f is 31,000 at 2048 slots and 89,088 at 4096. SEAL accepts an altered byte in a ciphertext, and
anything behind one: a frame has its exact length, and each message that holds ciphertexts begins
with a digest over header and all that follows. A digest only finds accidents and what happens
between two honest ends; who may speak to whom is for TLS. KEY, SUM and VALUE have client 0.
"""

from __future__ import annotations

import itertools
import struct
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import DecodeError
from torchfsl.sefl.plan import (
    LABEL_KEY,
    LABEL_OPENING,
    LABEL_RECEIPT,
    LABEL_SUBMISSION,
    MAX_MESSAGE_BYTES,
    WIRE_VERSION,
    SeflPlan,
)
from torchfsl.submodel.segments import tensor_spans
from torchfsl.types import Array

_HEADER: Final = struct.Struct("<4sHBBQQQ32s")
_MAGIC: Final = b"TSEF"
_NAMED: Final = struct.Struct(f"<Q{DIGEST_BYTES}s")
HEADER_BYTES: Final = _HEADER.size
SIGNATURE_BYTES: Final = 64


class Kind(IntEnum):
    """Message kinds."""

    KEY = 1
    MODEL = 2
    UPDATE = 3
    RECEIPT = 4
    SUM = 5
    VALUE = 6


_KINDS: Final = {int(kind): kind for kind in Kind}
_LABELS: Final = {Kind.UPDATE: LABEL_SUBMISSION, Kind.SUM: LABEL_OPENING}


class Message(NamedTuple):
    """A message whose header has been checked, with a view of the body."""

    kind: Kind
    round_number: int
    client: int
    body: memoryview
    head: bytes


class Named(NamedTuple):
    """A client in a sum, and the digest of the update that counts there."""

    client: int
    digest: bytes


def encode(
    plan: SeflPlan, kind: Kind, round_number: int, client: int, *parts: bytes | memoryview
) -> bytes:
    """A message of `kind` whose body is the parts in order, behind their digest if it has one."""
    sized = sum(len(part) for part in parts) + (DIGEST_BYTES if kind in _LABELS else 0)
    head = _HEADER.pack(_MAGIC, WIRE_VERSION, kind, 0, round_number, client, sized, plan.digest)
    if kind in _LABELS:
        parts = (kdf.digest(_LABELS[kind], head, pieces=parts), *parts)
    return b"".join((head, *parts))


def decode(plan: SeflPlan, data: bytes | memoryview, *expected: Kind) -> Message:
    """Check a message's header and that it is whole; the body's length is for `expect_bytes`.

    Raises:
        DecodeError: wrong magic, version, kind, length or plan.
    """
    if not HEADER_BYTES <= len(data) <= HEADER_BYTES + MAX_MESSAGE_BYTES:
        raise DecodeError(f"a message of {len(data)} bytes is too short or too long")
    magic, version, code, zero, round_number, client, size, digest = _HEADER.unpack_from(data)
    if magic != _MAGIC or zero:
        raise DecodeError("not a torchfsl message of an aggregator and a key holder")
    if version != WIRE_VERSION:
        raise DecodeError(
            f"message of wire version {version}, this side speaks {WIRE_VERSION}: upgrade the "
            f"{'receiver' if version > WIRE_VERSION else 'sender'}"
        )
    kind = _KINDS.get(code)
    if kind is None or kind not in expected:
        names = ", ".join(k.name for k in expected)
        raise DecodeError(f"message kind {code}; expected one of {names}")
    if digest != plan.digest:
        raise DecodeError("the message belongs to another plan: fetch the current plan")
    if len(data) != HEADER_BYTES + size:
        raise DecodeError(
            f"{kind.name}: a message of {len(data)} bytes, its header says {HEADER_BYTES + size}"
        )
    view = memoryview(data)
    return Message(kind, round_number, client, view[HEADER_BYTES:], bytes(view[:HEADER_BYTES]))


def expect_bytes(message: Message, size: int) -> None:
    """Check the exact length of a body, before anything is made of it.

    Raises:
        DecodeError: it is another.
    """
    if len(message.body) != size:
        raise DecodeError(
            f"{message.kind.name}: a body of {len(message.body)} bytes, expected {size}"
        )


def digested(message: Message) -> tuple[bytes, memoryview]:
    """The digest that a message begins with, and the rest of its body.

    Raises:
        DecodeError: the digest is of something else.
    """
    digest, rest = bytes(message.body[:DIGEST_BYTES]), message.body[DIGEST_BYTES:]
    found = kdf.digest(_LABELS[message.kind], message.head, pieces=(rest,))
    if not kdf.digests_equal(digest, found):
        raise DecodeError(f"{message.kind.name}: its digest is of other bytes")
    return digest, rest


# --- exact lengths of bodies ----------------------------------------------------------------------


def ciphertext_bytes(plan: SeflPlan) -> int:
    """All ciphertexts of an update, or of a sum."""
    return plan.ciphertexts * plan.scheme.ring.ciphertext_bytes


def model_bytes(plan: SeflPlan) -> int:
    """Length of MODEL."""
    return sum(t.numel * t.item_bytes for s in plan.segments for t in s.tensors)


def update_bytes(plan: SeflPlan) -> int:
    """Length of UPDATE."""
    return DIGEST_BYTES + ciphertext_bytes(plan)


def receipt_bytes() -> int:
    """Length of RECEIPT."""
    return DIGEST_BYTES + SIGNATURE_BYTES


def sum_bytes(plan: SeflPlan, num_clients: int) -> int:
    """Length of SUM."""
    return DIGEST_BYTES + num_clients * _NAMED.size + ciphertext_bytes(plan)


def value_bytes(plan: SeflPlan) -> int:
    """Length of VALUE."""
    return DIGEST_BYTES + plan.num_values * plan.scheme.slot_bytes


# --- bodies ---------------------------------------------------------------------------------------


def key_digest(public_key: bytes) -> bytes:
    """What a plan names a public key by: 32 bytes."""
    return kdf.digest(LABEL_KEY, public_key)


def receipt_text(plan: SeflPlan, round_number: int, named: Named) -> bytes:
    """What the aggregator signs for a client: plan, round, client and its update."""
    return kdf.frame(
        LABEL_RECEIPT, plan.digest, round_number.to_bytes(8, "little"), _NAMED.pack(*named)
    )


def encode_names(names: list[Named]) -> bytes:
    """The clients of a sum, in the order given."""
    return b"".join(_NAMED.pack(*named) for named in names)


def decode_names(plan: SeflPlan, message: Message) -> tuple[list[Named], memoryview]:
    """The clients of a SUM, strictly increasing, and its ciphertexts; the digest is checked.

    Raises:
        DecodeError: another length, order or digest.
    """
    count, left = divmod(len(message.body) - sum_bytes(plan, 0), _NAMED.size)
    if left or not 0 <= count <= plan.max_clients:
        raise DecodeError(f"SUM: a body of {len(message.body)} bytes is of no number of clients")
    _, rest = digested(message)
    names = [Named(*_NAMED.unpack_from(rest, n * _NAMED.size)) for n in range(count)]
    if any(a.client >= b.client for a, b in itertools.pairwise(names)):
        raise DecodeError("SUM: its clients are not strictly increasing")
    return names, rest[count * _NAMED.size :]


def encode_model(plan: SeflPlan, state: dict[str, Array]) -> list[bytes]:
    """The body of MODEL in pieces: all tensors in plan order, little-endian."""
    pieces = []
    for segment in plan.segments:
        for tensor in segment.tensors:
            value = np.ascontiguousarray(state[tensor.name])
            pieces.append(value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes())
    return pieces


def decode_model(plan: SeflPlan, message: Message) -> dict[str, Array]:
    """By name every tensor of the plan.

    Raises:
        DecodeError: another length.
    """
    expect_bytes(message, model_bytes(plan))
    tensors: dict[str, Array] = {}
    start = 0
    for segment in plan.segments:
        for tensor, _ in tensor_spans(segment):
            stop = start + tensor.numel * tensor.item_bytes
            dtype = np.dtype(tensor.dtype).newbyteorder("<")
            values = np.frombuffer(bytes(message.body[start:stop]), dtype=dtype)
            tensors[tensor.name] = values.reshape(tensor.shape).astype(tensor.dtype)
            start = stop
    return tensors

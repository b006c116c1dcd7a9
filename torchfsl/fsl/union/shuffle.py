"""Private set union by shuffling, for index spaces too large to touch: construction B.

Each client encrypts its positions, padded to k_max, one by one to server 1 and hands them to
server 0, which shuffles everybody's and passes them on; server 1 decrypts, drops duplicates and
publishes the union. Server 0 sees no position, server 1 not whose it is; server 1 does see how
often each occurs. Cost: 72 bytes a position, whatever the size of the index space.

Server 0 could drop everyone but one client. So every ciphertext also carries a random *ticket*, and
server 1 gets the sum of each client's tickets under a random mask, server 0 the mask. Server 0
returns the sum of the masks: only if exactly the clients' ciphertexts came through do the tickets
add up. Server 0 knows no ticket, so it cannot make up for a missing one, not even together with
other clients, but with probability 2**-128; server 1 sees each sum under a uniform mask. (A hash of
each client's set of ciphertexts in place of the masked sum would undo the shuffle: server 1 could
solve for the subset that has it. `docs/psu.md`.) Derived for this project, not reviewed.

    SUBMISSION  mask 16, k_max ciphertexts of 72                             client to server 0
    TICKETS     masked sum of tickets 16                                     client to server 1
    ROSTER      count clients of 8                                           server 1 to server 0
    BATCH       sum of masks 16, count 8, count clients of 8, ciphertexts    server 0 to server 1

All behind a 48-byte header: magic "TFSU", wire version 4, kind 1, zero 1, client 8, context 32.
A ciphertext is HPKE (RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM) of
position 8 (2**64 - 1 pads), ticket 16, with the context as info. Integers are little-endian.
"""

from __future__ import annotations

import itertools
import logging
import struct
from enum import IntEnum
from typing import Final

import numpy as np

from torchfsl.crypto import hpke, kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.hpke import SealKey
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.types import Indices

log = logging.getLogger("torchfsl.union.shuffle")

CIPHERTEXT_BYTES: Final = 72
_HEADER: Final = struct.Struct("<4sHBBQ32s")
_MAGIC: Final = b"TFSU"
_PLAINTEXT: Final = struct.Struct("<Q16s")
_PADDING: Final = (1 << 64) - 1
_MODULUS: Final = 1 << (8 * SEED_BYTES)


class _Kind(IntEnum):
    SUBMISSION = 1
    TICKETS = 2
    ROSTER = 3
    BATCH = 4


def client_bytes(segment: TreeSegment) -> int:
    """Upload of one client to both servers together."""
    return 2 * (_HEADER.size + SEED_BYTES) + segment.k_max * CIPHERTEXT_BYTES


def encrypt(
    plan: Plan, segment: TreeSegment, round_number: int, client: int, indices: Indices, key: bytes
) -> tuple[bytes, bytes]:
    """A client's messages to server 0 and to server 1.

    Args:
        plan: of the task.
        segment: whose positions are united.
        round_number: of the union, in [0, 2**64), used once.
        client: its number.
        indices: `int64[k]`, at most k_max, as `update.check_indices` returns them.
        key: server 1's public key, 32 bytes, authentic.

    Raises:
        ParameterError: more than k_max positions.
    """
    if len(indices) > segment.k_max:
        raise ParameterError(
            f"{len(indices)} positions; the plan allows {segment.k_max}", code="too-many-rows"
        )
    context = _context(plan, segment, round_number)
    padded = [*indices.tolist(), *[_PADDING] * (segment.k_max - len(indices))]
    tickets = [random_bytes(SEED_BYTES) for _ in padded]
    ciphertexts = [
        hpke.seal(key, context, _PLAINTEXT.pack(position, ticket))
        for position, ticket in zip(padded, tickets, strict=True)
    ]
    mask = random_bytes(SEED_BYTES)
    return (
        _encode(_Kind.SUBMISSION, client, context, mask, *ciphertexts),
        _encode(_Kind.TICKETS, client, context, _sum([mask, *tickets])),
    )


class _Collector:
    """What both servers share: one message of each client, all of one union."""

    def __init__(self, plan: Plan, segment: TreeSegment, round_number: int) -> None:
        self._plan, self._segment = plan, segment
        self._context = _context(plan, segment, round_number)
        self._bodies: dict[int, bytes] = {}
        self._closed = False

    def _file(self, message: bytes, kind: _Kind, size: int) -> None:
        if self._closed:
            raise RejectedSubmission("this union is closed")
        client, body = _decode(message, kind, self._context)
        if len(body) != size:
            raise DecodeError(
                f"{kind.name}: body of {len(body)} bytes, expected {size}", code="length"
            )
        known = self._bodies.get(client)
        if known is None and len(self._bodies) >= self._plan.max_clients:
            raise RejectedSubmission(
                f"the union is full: {self._plan.max_clients} clients", code="round-full"
            )
        if known not in (None, body):
            raise RejectedSubmission(
                f"client {client}: a second, different message", code="conflicting-message"
            )
        self._bodies[client] = body


class Shuffler(_Collector):
    """Server 0: takes everybody's ciphertexts and passes them on in random order, once."""

    def receive(self, message: bytes) -> None:
        """Take a client's SUBMISSION.

        Raises:
            DecodeError: not one of this union.
            RejectedSubmission: a second one, too many clients, or too late.
        """
        size = SEED_BYTES + self._segment.k_max * CIPHERTEXT_BYTES
        self._file(message, _Kind.SUBMISSION, size)

    def batch(self, roster: bytes) -> bytes:
        """The BATCH of the clients that both servers have, given server 1's ROSTER.

        Raises:
            DecodeError: not a roster of this union.
            ProtocolError: fewer than `min_clients`, or asked for a second time.
        """
        if self._closed:
            raise ProtocolError("a union is shuffled once")
        clients = _clients(_decode(roster, _Kind.ROSTER, self._context)[1])
        common = sorted(set(clients) & set(self._bodies))
        _check_count(self._plan, len(common))
        self._closed = True
        bodies = [self._bodies[client] for client in common]
        rows = np.frombuffer(b"".join(body[SEED_BYTES:] for body in bodies), dtype=np.uint8)
        rows = rows.reshape(-1, CIPHERTEXT_BYTES)
        # A uniform order up to ties of 128-bit keys: sort by fresh ones from the operating system.
        keys = np.frombuffer(random_bytes(16 * len(rows)), dtype="<u8").reshape(-1, 2)
        shuffled = rows[np.lexsort((keys[:, 0], keys[:, 1]))]
        return _encode(
            _Kind.BATCH,
            0,
            self._context,
            _sum([body[:SEED_BYTES] for body in bodies]),
            len(common).to_bytes(8, "little"),
            np.array(common, dtype="<u8").tobytes(),
            shuffled.tobytes(),
        )


class Opener(_Collector):
    """Server 1: decrypts the shuffled positions and publishes the union, once."""

    def __init__(self, plan: Plan, segment: TreeSegment, round_number: int) -> None:
        """Draw a key of this union's own."""
        super().__init__(plan, segment, round_number)
        self._key = SealKey.generate()
        self._opened = False

    @property
    def public_key(self) -> bytes:
        """For the clients, 32 bytes."""
        return self._key.public

    def receive(self, message: bytes) -> None:
        """Take a client's TICKETS; raises what `Shuffler.receive` does."""
        self._file(message, _Kind.TICKETS, SEED_BYTES)

    def roster(self) -> bytes:
        """Take no more; the clients heard of, for server 0."""
        self._closed = True
        numbers = np.array(sorted(self._bodies), dtype="<u8").tobytes()
        return _encode(_Kind.ROSTER, 0, self._context, numbers)

    def open(self, batch: bytes) -> Indices:
        """The union, `int64`, increasing.

        Raises:
            DecodeError: not a batch of this union.
            ProtocolError: too few or unknown clients, or a ciphertext was dropped, added, repeated
                or altered; nothing is published and this union is over.
        """
        if self._opened or not self._closed:
            raise ProtocolError("a union is opened once, after its roster is closed")
        body = _decode(batch, _Kind.BATCH, self._context)[1]
        start = SEED_BYTES + 8
        count = int.from_bytes(body[SEED_BYTES:start], "little")
        size = self._segment.k_max * CIPHERTEXT_BYTES
        if len(body) < start or len(body) != start + count * (8 + size):
            raise DecodeError(
                f"BATCH: body of {len(body)} bytes for {count} clients", code="length"
            )
        clients = _clients(body[start : start + 8 * count])
        if not set(clients) <= set(self._bodies):
            raise ProtocolError("server 0 names clients that server 1 has not heard of")
        _check_count(self._plan, count)
        self._opened = True
        positions, tickets = self._decrypt(body[start + 8 * count :])
        self._check_tickets(clients, body[:SEED_BYTES], tickets)
        return self._published(positions)

    def _decrypt(self, ciphertexts: bytes) -> tuple[list[int], list[bytes]]:
        positions, tickets = [], []
        for start in range(0, len(ciphertexts), CIPHERTEXT_BYTES):
            part = ciphertexts[start : start + CIPHERTEXT_BYTES]
            try:
                plain = self._key.unseal(self._context, part)
            except ProtocolError:
                raise ProtocolError("a ciphertext does not decrypt: the union is void") from None
            position, ticket = _PLAINTEXT.unpack(plain)
            positions.append(position)
            tickets.append(ticket)
        return positions, tickets

    def _check_tickets(self, clients: list[int], masks: bytes, tickets: list[bytes]) -> None:
        expected = _sum([self._bodies[client] for client in clients])
        if not kdf.digests_equal(expected, _sum([masks, *tickets])):
            raise ProtocolError(
                "the tickets do not add up: ciphertexts were dropped, added or repeated; the union "
                "is void"
            )

    def _published(self, positions: list[int]) -> Indices:
        real = np.array([p for p in positions if p != _PADDING], dtype=np.uint64)
        inside = real < self._segment.index_space
        if not np.all(inside):
            log.warning("%d positions outside the index space", np.count_nonzero(~inside))
        return np.unique(real[inside]).astype(np.int64)


def _context(plan: Plan, segment: TreeSegment, round_number: int) -> bytes:
    if not 0 <= round_number < 1 << 64:
        raise ParameterError("round numbers lie in [0, 2**64)", code="out-of-range")
    epoch = round_number.to_bytes(8, "little")
    return kdf.digest(kdf.LABEL_UNION, plan.digest, segment.name.encode(), epoch)


def _encode(kind: _Kind, client: int, context: bytes, *parts: bytes) -> bytes:
    return b"".join((_HEADER.pack(_MAGIC, WIRE_VERSION, kind, 0, client, context), *parts))


def _decode(message: bytes, kind: _Kind, context: bytes) -> tuple[int, bytes]:
    if len(message) < _HEADER.size:
        raise DecodeError(f"a message of {len(message)} bytes is too short", code="length")
    magic, version, found, zero, client, bound_to = _HEADER.unpack_from(message)
    if (magic, version, found, zero) != (_MAGIC, WIRE_VERSION, kind, 0):
        raise DecodeError(
            f"not a {kind.name} message of wire version {WIRE_VERSION}", code="not-a-message"
        )
    if bound_to != context:
        raise DecodeError(
            "the message belongs to another plan, segment or round", code="another-plan"
        )
    return client, message[_HEADER.size :]


def _clients(body: bytes) -> list[int]:
    if len(body) % 8:
        raise DecodeError("a list of clients has 8 bytes each")
    clients: list[int] = np.frombuffer(body, dtype="<u8").tolist()
    if any(low >= high for low, high in itertools.pairwise(clients)):
        raise DecodeError("a list of clients is strictly increasing")
    return clients


def _check_count(plan: Plan, count: int) -> None:
    if count < plan.min_clients:
        raise ProtocolError(
            f"{count} clients in the union, the plan wants {plan.min_clients}",
            code="too-few-reports",
        )


def _sum(values: list[bytes]) -> bytes:
    total = sum(int.from_bytes(value, "little") for value in values) % _MODULUS
    return total.to_bytes(SEED_BYTES, "little")

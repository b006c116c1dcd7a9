"""Authenticated encryption between clients through the server, which must not read it.

Every client draws an X25519 key for every round. The key of a box is derived from both clients'
keys, the plan, the round, sender, recipient and a salt of the sender's message. The key encrypts
nothing else, so the nonce is zero. The shares of one sender are worthless to fewer than T + 1
recipients, but the server carries all shares. Against the server they are as strong as X25519,
HKDF-SHA256 and ChaCha20-Poly1305.

A server that hands out its own keys reads everything. Operators who run clients over a network must
bind keys to clients by other means (certificates, a key directory). The protocol assumes this.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import DecodeError, RejectedSubmission
from torchfsl.sesa.cohort import KEY_BYTES, Cohort
from torchfsl.sesa.sesa_plan import LABEL_CHANNEL

_NONCE = bytes(12)


def check_key(key: bytes) -> None:
    """Refuse a public key with which every secret is zero, because no client could use it.

    Raises:
        DecodeError: the key is of small order.
    """
    _exchanged(X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES)), key)  # any private key does


def _exchanged(secret: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise DecodeError(
            "the X25519 public key of a client is not secure (small order)"
        ) from error


class Box(NamedTuple):
    """A round's box from one place of a cohort to another; a salt serves one message."""

    cohort: Cohort
    round_number: int
    sender: int
    recipient: int
    salt: bytes


class Channels:
    """One client's boxes to and from the others of a round.

    Args:
        secret: 32 bytes for X25519, from the operating system when None.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        """Load the key `secret`, or draw one."""
        drawn = random_bytes(KEY_BYTES) if secret is None else secret
        self._secret = X25519PrivateKey.from_private_bytes(drawn)
        self.public = self._secret.public_key().public_bytes_raw()
        self._agreed: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"Channels(public={self.public.hex()})"

    def seal(self, box: Box, content: bytes) -> bytes:
        """The ciphertext of a box from this client.

        Raises:
            DecodeError: the recipient's key is of small order.
        """
        key = self._key(box, box.cohort.members[box.recipient].key)
        return ChaCha20Poly1305(key).encrypt(_NONCE, content, None)

    def open(self, box: Box, sealed: bytes | memoryview) -> bytes:
        """The content of a box for this client.

        Raises:
            RejectedSubmission: the box was altered, or is for another client, round or plan.
            DecodeError: the sender's key is of small order.
        """
        sender = box.cohort.members[box.sender]
        try:
            return ChaCha20Poly1305(self._key(box, sender.key)).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            raise RejectedSubmission(
                f"the share from client {sender.client} failed its authentication: it was altered "
                "on the way",
                code="altered-message",
            ) from None

    def _key(self, box: Box, peer: bytes) -> bytes:
        ends = [box.cohort.members[place] for place in (box.sender, box.recipient)]
        context = kdf.frame(
            box.cohort.plan.digest,
            box.round_number.to_bytes(8, "little"),
            *(end.client.to_bytes(8, "little") + end.key for end in ends),
            box.salt,
        )
        return kdf.derive(self._shared(peer), LABEL_CHANNEL, context, KEY_BYTES)

    def _shared(self, peer: bytes) -> bytes:
        """The secret shared with the owner of that key, in both directions."""
        if peer not in self._agreed:
            self._agreed[peer] = _exchanged(self._secret, peer)
        return self._agreed[peer]

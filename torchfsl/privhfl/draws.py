"""Randomness that two parties share without a message; they use every draw once.

There are two kinds of seeds: QA of a querying and an answering party, and SQ of the server and the
querying party. Each seed comes from an X25519 exchange of keys for which the parties' certificates
vouch. A server that could substitute its own keys would know QA, and with QA everything. The
paper's plain Diffie-Hellman allows this.

Every draw has a separate key. It is derived from the pair's seed, the plan, both clients, the
version of the answering party's weights, iteration, batch, node and purpose. No party counts draws,
so the parties cannot get out of step. A second request for the same draw raises an error.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.errors import DecodeError, ProtocolError

LABEL_QA: Final = b"torchfsl querying QA"
LABEL_SQ: Final = b"torchfsl querying SQ"
LABEL_OWN: Final = b"torchfsl querying own"
LABEL_DRAW: Final = b"torchfsl querying draw"

KEY_BYTES: Final = 32


class Identity:
    """A party's X25519 key.

    Args:
        secret: 32 bytes, from the operating system when None.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        drawn = random_bytes(KEY_BYTES) if secret is None else secret
        self._secret = X25519PrivateKey.from_private_bytes(drawn)
        self.public = self._secret.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity({self.public.hex()})"

    def pair(self, label: bytes, peer: bytes, digest: bytes) -> bytes:
        """The seed shared with the owner of `peer` for one use under one plan, 16 bytes.

        Both ends compute the same: public keys enter in order of their bytes.

        Raises:
            DecodeError: the peer's key is of small order.
        """
        try:
            secret = self._secret.exchange(X25519PublicKey.from_public_bytes(peer))
        except ValueError as error:
            raise DecodeError(
                "the X25519 public key of a client is malformed or not secure (small order)"
            ) from error
        low, high = sorted((self.public, peer))
        return kdf.derive(secret, label, kdf.frame(digest, low, high))


class Draws:
    """The keys of one pair in one context; each is given out once.

    Args:
        seed: the pair's, 16 bytes.
        context: names everything that the draws belong to.
    """

    def __init__(self, seed: bytes, context: bytes) -> None:
        self._key = kdf.derive(seed, LABEL_DRAW, context)
        self._given: set[tuple[int, str]] = set()

    def __repr__(self) -> str:
        return f"Draws({len(self._given)} given)"

    def key(self, node: int, purpose: str) -> bytes:
        """The 16-byte key of one draw.

        Raises:
            ProtocolError: it was given out already.
        """
        if (node, purpose) in self._given:
            raise ProtocolError(
                f"the random values {purpose!r} of node {node} were already used: start a new batch"
            )
        self._given.add((node, purpose))
        context = kdf.frame(node.to_bytes(8, "little"), purpose.encode())
        return kdf.derive(self._key, LABEL_DRAW, context)


class Pair:
    """Draws that one party shares with another, by context; each context is opened once.

    Args:
        seed: the pair's, 16 bytes.
        roles: the clients' numbers, querying party first.
    """

    def __init__(self, seed: bytes, querying: int, answering: int) -> None:
        self._seed = seed
        self._who = querying.to_bytes(8, "little") + answering.to_bytes(8, "little")
        self._opened: set[bytes] = set()

    def __repr__(self) -> str:
        return f"Pair({len(self._opened)} contexts)"

    def weights(self, version: int) -> Draws:
        """Masks of the weights of one version."""
        return self._open(b"weights", version.to_bytes(8, "little"))

    def batch(self, version: int, iteration: int, batch: int) -> Draws:
        """Everything of one batch of queries."""
        numbers = (version, iteration, batch)
        return self._open(b"batch", b"".join(n.to_bytes(8, "little") for n in numbers))

    def _open(self, what: bytes, numbers: bytes) -> Draws:
        context = kdf.frame(what, self._who, numbers)
        if context in self._opened:
            name = "version" if what == b"weights" else "batch"
            raise ProtocolError(
                f"the masks of this {name} were already used, and a mask is secure only once: "
                f"begin a new {name} with a higher number"
            )
        self._opened.add(context)
        return Draws(self._seed, context)

"""Encryption to a public key, once: HPKE (RFC 9180), base mode.

DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM. A sealed text is the encapsulated key (32
bytes) and the ciphertext with its tag: `HPKE_BYTES` longer than the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from torchfsl.crypto import aead
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.kdf import SEED_BYTES
from torchfsl.crypto.private_key import PrivateKey
from torchfsl.errors import ParameterError, ProtocolError

HPKE_BYTES: Final = 48
"""By how much a sealed text is longer."""

_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_128_GCM)


class SealKey(PrivateKey):
    """A private key that opens what was sealed to its public one. Secret."""

    _private: X25519PrivateKey
    kind, use = X25519PrivateKey, "sealing (X25519)"

    @classmethod
    def from_raw(cls, raw: bytes) -> Self:
        """A key from its 32 private bytes, as `raw` gives them."""
        return cls(X25519PrivateKey.from_private_bytes(raw))

    @property
    def raw(self) -> bytes:
        """The private key, 32 bytes. Secret."""
        return self._private.private_bytes_raw()

    def unseal(self, info: bytes, sealed: bytes) -> bytes:
        """Inverse of `seal`.

        Raises:
            ProtocolError: it was sealed to another key or with other info, or altered.
        """
        try:
            return _SUITE.decrypt(sealed, self._private, info=info)
        except (InvalidTag, ValueError):
            raise ProtocolError(
                "this key cannot open the sealed message: the message was altered, or sealed for "
                "another key"
            ) from None

    def unseal_pieces(self, info: bytes, sealed: bytes) -> bytes:
        """Inverse of `seal_pieces`, joined; raises as `unseal`."""
        key = self.unseal(info, sealed[: SEED_BYTES + HPKE_BYTES])
        return aead.unseal_pieces(key, memoryview(sealed)[SEED_BYTES + HPKE_BYTES :])


def seal_pieces(public: bytes, info: bytes, parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The joined parts for the holder of the public key alone; raises as `seal`.

    The key of `aead.seal_pieces` is sealed, and goes ahead.
    """
    key = random_bytes(SEED_BYTES)
    yield seal(public, info, key)
    yield from aead.seal_pieces(key, parts)


def seal(public: bytes, info: bytes, text: bytes) -> bytes:
    """`text` for the holder of the public key alone, bound to `info`.

    Raises:
        ParameterError: `public` is no X25519 key, or one of small order.
    """
    try:
        return _SUITE.encrypt(text, X25519PublicKey.from_public_bytes(public), info=info)
    except ValueError:
        raise ParameterError(
            f"{public.hex()} is not a public key: use the X25519 key of the server or auditor"
        ) from None

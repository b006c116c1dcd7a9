"""Signatures: Ed25519 (RFC 8032), over text whose first part is a label."""

from __future__ import annotations

from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from torchfsl.crypto.kdf import frame
from torchfsl.errors import ParameterError

SIGNATURE_BYTES: Final = 64


class SignKey:
    """A private key for signatures. Secret."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        """See `generate`."""
        self._private = private

    def __repr__(self) -> str:
        return f"SignKey({self.public.hex()})"

    @classmethod
    def generate(cls) -> Self:
        """A fresh key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """A key from a file.

        Raises:
            ParameterError: it is no Ed25519 key in PEM, without a password.
        """
        try:
            private = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError) as error:
            raise ParameterError(f"not a private key: {error}") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise ParameterError("not a private key for signatures: these are Ed25519")
        return cls(private)

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, label: bytes, *parts: bytes) -> bytes:
        """A signature of `SIGNATURE_BYTES` over the framed label and parts."""
        return self._private.sign(frame(label, *parts))


def is_signed(public: bytes, signature: bytes, label: bytes, *parts: bytes) -> bool:
    """Whether `SignKey.sign` of the holder of this public key made the signature."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, frame(label, *parts))
    except (InvalidSignature, ValueError):
        return False
    return True

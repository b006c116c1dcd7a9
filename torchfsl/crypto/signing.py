"""Signatures: Ed25519 (RFC 8032), over text whose first part is a label."""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from torchfsl.crypto.kdf import frame
from torchfsl.crypto.private_key import PrivateKey

SIGNATURE_BYTES: Final = 64


class SignKey(PrivateKey):
    """A private key for signatures. Secret."""

    _private: Ed25519PrivateKey
    kind, use = Ed25519PrivateKey, "signatures (Ed25519)"

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

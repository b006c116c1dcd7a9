"""Authenticated encryption under keys that are used once: AES-128-GCM (NIST SP 800-38D)."""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from torchfsl.errors import ProtocolError

SEAL_BYTES: Final = 16
"""By how much a sealed text is longer."""

_NONCE: Final = bytes(12)


def seal_once(key: bytes, text: bytes | memoryview) -> bytes:
    """`text`, encrypted and authenticated under a 16-byte key that seals this one text only.

    The nonce is constant: a second, different text under the same key would be open to anybody.
    """
    return AESGCM(key).encrypt(_NONCE, text, None)


def unseal(key: bytes, sealed: bytes | memoryview) -> bytes:
    """Inverse of `seal_once`.

    Raises:
        ProtocolError: it was sealed under another key, or altered.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise ProtocolError(
            "a sealed message does not fit its seal: it was altered", code="altered-message"
        ) from None

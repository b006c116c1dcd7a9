"""Authenticated encryption under keys that are used once: AES-128-GCM (NIST SP 800-38D).

A long text is sealed in pieces of `PIECE_BYTES`, each under a separate key that is derived
from the text's key, the number of the piece, and whether it is the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from torchfsl.crypto import kdf
from torchfsl.errors import ProtocolError

SEAL_BYTES: Final = 16
"""By how much a sealed text is longer."""

PIECE_BYTES: Final = 1 << 20
"""Of all pieces but the last, before they are sealed."""

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
            "a sealed message was altered on the way, so its authentication fails: participate in "
            "the next round, or fetch again",
            code="altered-message",
        ) from None


def seal_pieces(key: bytes, parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """The joined parts, sealed piece by piece under a 16-byte key that seals this one text only."""
    waiting, number = bytearray(), 0
    for part in parts:
        view = memoryview(part)
        while view:
            room = PIECE_BYTES - len(waiting)
            if not room:  # full, and more comes: it is not the last one
                yield seal_once(_piece_key(key, number, is_last=False), bytes(waiting))
                waiting, number, room = bytearray(), number + 1, PIECE_BYTES
            waiting += view[:room]
            view = view[room:]
    yield seal_once(_piece_key(key, number, is_last=True), bytes(waiting))


def unseal_pieces(key: bytes, sealed: bytes | memoryview) -> bytes:
    """Inverse of `seal_pieces`, joined.

    Raises:
        ProtocolError: it was sealed under another key, altered, cut or continued.
    """
    view, size, texts = memoryview(sealed), PIECE_BYTES + SEAL_BYTES, []
    count = max(1, -(-len(view) // size))
    for number in range(count):
        piece = view[size * number : size * (number + 1)]
        texts.append(unseal(_piece_key(key, number, is_last=number == count - 1), piece))
    return b"".join(texts)


def _piece_key(key: bytes, number: int, *, is_last: bool) -> bytes:
    context = kdf.frame(number.to_bytes(8, "little"), bytes([is_last]))
    return kdf.derive(key, kdf.LABEL_PIECE, context)

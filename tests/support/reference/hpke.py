"""HPKE's base mode with a given ephemeral key, from RFC 9180, sections 4 and 5."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_KEM, _SUITE = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x01"


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    mac = hmac.HMAC(salt or bytes(32), hashes.SHA256())
    mac.update(b"HPKE-v1" + suite + label + secret)
    return mac.finalize()


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, size: int) -> bytes:
    text = size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return HKDFExpand(hashes.SHA256(), size, text).derive(prk)


def seal(ephemeral: bytes, public: bytes, info: bytes, text: bytes) -> bytes:
    """As `torchfsl.crypto.hpke.seal`, under an ephemeral key of 32 bytes."""
    private = X25519PrivateKey.from_private_bytes(ephemeral)
    sent = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    prk = _extract(_KEM, b"", b"eae_prk", shared)
    secret = _expand(_KEM, prk, b"shared_secret", sent + public, 32)
    context = b"\0" + _extract(_SUITE, b"", b"psk_id_hash", b"")
    context += _extract(_SUITE, b"", b"info_hash", info)
    key_secret = _extract(_SUITE, secret, b"secret", b"")
    key = _expand(_SUITE, key_secret, b"key", context, 16)
    nonce = _expand(_SUITE, key_secret, b"base_nonce", context, 12)
    return sent + AESGCM(key).encrypt(nonce, text, None)

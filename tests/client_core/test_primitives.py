"""The core's cryptography against the vectors of the RFCs and against the package cryptography."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.client_core import Core
from tests.support.reference import hpke as reference
from torchfsl.crypto import kdf
from torchfsl.crypto.hpke import SealKey
from torchfsl.submodel.norm_bound import four_squares


def hkdf(core: Core, salt: bytes, secret: bytes, info: bytes, size: int) -> bytes:
    out = ctypes.create_string_buffer(size)
    parts = [word for part in (salt, secret, info) for word in (part, ctypes.c_size_t(len(part)))]
    core.lib.tfsl_test_hkdf(*parts, out, ctypes.c_size_t(size))
    return out.raw


def x25519(core: Core, scalar: bytes, point: bytes) -> bytes | None:
    out = ctypes.create_string_buffer(32)
    return out.raw if core.lib.tfsl_test_x25519(scalar, point, out) else None


def test_hkdf_of_rfc_5869(core: Core) -> None:
    secret, salt, info = bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA))
    wanted = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    assert hkdf(core, salt, secret, info, 32).hex() == wanted
    long = (bytes(range(0x60, 0xB0)), bytes(range(0x50)), bytes(range(0xB0, 0x100)))
    wanted = "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
    assert hkdf(core, *long, 32).hex() == wanted
    wanted = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert hkdf(core, b"", secret, b"", 32).hex() == wanted


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 63, 64, 119, 1000, 1 << 20, (3 << 20) + 5])
def test_digests_are_those_of_kdf(core: Core, size: int) -> None:
    data, out = np.random.default_rng(size).bytes(size), ctypes.create_string_buffer(32)
    sizes = ctypes.c_size_t(5), ctypes.c_size_t(size)
    core.lib.tfsl_test_digest(b"label", sizes[0], data, sizes[1], out)
    assert out.raw == kdf.digest(b"label", pieces=[data])


def test_x25519_of_rfc_7748(core: Core) -> None:
    cases = [
        ("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
         "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
         "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
        ("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
         "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
         "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"),
    ]  # fmt: skip
    for scalar, point, wanted in cases:
        found = x25519(core, bytes.fromhex(scalar), bytes.fromhex(point))
        assert found is not None
        assert found.hex() == wanted
    k = u = (9).to_bytes(32, "little")
    for _ in range(1000):
        k, u = x25519(core, k, u) or b"", k
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_x25519_is_that_of_the_package_and_refuses_small_order(core: Core) -> None:
    rng, p = np.random.default_rng(0), 2**255 - 19
    points = [rng.bytes(32) for _ in range(200)]
    points += [(p + i).to_bytes(32, "little") for i in (2, 9, 18)]  # not canonical
    for point in points:
        scalar = rng.bytes(32)
        wanted = X25519PrivateKey.from_private_bytes(scalar).exchange(
            X25519PublicKey.from_public_bytes(point)
        )
        assert x25519(core, scalar, point) == wanted
    for small in (0, 1, p - 1, p, p + 1):
        assert x25519(core, rng.bytes(32), small.to_bytes(32, "little")) is None


def seal(core: Core, ephemeral: bytes, public: bytes, info: bytes, text: bytes) -> bytes | None:
    out = ctypes.create_string_buffer(48 + len(text))
    sizes = ctypes.c_size_t(len(info)), ctypes.c_size_t(len(text))
    made = core.lib.tfsl_test_hpke(ephemeral, public, info, sizes[0], text, sizes[1], out)
    return out.raw if made else None


def test_hpke_of_rfc_9180_and_of_the_servers(core: Core) -> None:
    public = "3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"
    ephemeral = "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736"
    text = b"Beauty is truth, truth beauty"
    given = bytes.fromhex(ephemeral), bytes.fromhex(public), b"Ode on a Grecian Urn", text
    sealed = seal(core, *given)
    assert sealed == reference.seal(*given)
    # A.1.1, of which the tag is under another associated text.
    wanted = (
        "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218"
    )
    assert sealed[: 32 + len(text)].hex() == wanted
    key, rng = SealKey.generate(), np.random.default_rng(1)
    for size in (0, 1, 16, 33):
        own = seal(core, rng.bytes(32), key.public, b"info", text[:1] * size)
        assert own is not None
        assert key.unseal(b"info", own) == text[:1] * size
    assert seal(core, rng.bytes(32), bytes(32), b"", text) is None


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100, 4096, 4097, 70_000])
def test_gcm_opens_what_was_sealed_and_nothing_else(core: Core, size: int) -> None:
    rng = np.random.default_rng(size)
    key, nonce, text = rng.bytes(16), rng.bytes(12), rng.bytes(size)
    sealed, out = AESGCM(key).encrypt(nonce, text, None), ctypes.create_string_buffer(size + 1)

    def opens(data: bytes) -> bool:
        length = ctypes.c_size_t(len(data))
        return bool(core.lib.tfsl_test_gcm_open(key, nonce, data, length, out))

    assert opens(sealed)
    assert out.raw[:size] == text
    for place in {0, size // 2, size, size + 15}:
        altered = bytearray(sealed)
        altered[place] ^= 1 << place % 8
        assert not opens(bytes(altered))
    assert not opens(sealed[:-1])
    assert not opens(b"")


def test_four_squares_are_those_of_the_reference(core: Core) -> None:
    rng, out = np.random.default_rng(2), (ctypes.c_uint64 * 4)()
    totals = [*range(200), *(int.from_bytes(rng.bytes(n % 12), "little") for n in range(200))]
    for total in totals:
        low, high = ctypes.c_uint64(total & (1 << 64) - 1), ctypes.c_uint64(total >> 64)
        core.lib.tfsl_test_four_squares(low, high, out)
        assert tuple(out) == four_squares(total)

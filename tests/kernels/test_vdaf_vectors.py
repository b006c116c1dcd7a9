"""The fixed-key AES hash and the tree meet the VDAF draft's test vectors.

The vectors lie beside the checkout, in ../shared/data/vectors: XofFixedKeyAes128.json and
IdpfBBCGGI21_0.json of cfrg/draft-irtf-cfrg-vdaf at 5203892540a95e564dfa978345d16b40baf3c65d.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.reference import idpf_reference
from tests.support.reference.idpf_reference import FIELD64, FIELD255, Idpf
from tests.support.reference.turboshake_reference import turboshake128
from torchfsl.kernels import portable
from torchfsl.kernels.backends import kernels

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "vectors"
DRAFT_VERSION = 18
FIELD128 = (1 << 128) - 7 * (1 << 66) + 1


def load(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.json"
    if not path.exists():
        pytest.skip(f"{path} is absent: get {name}.json from cfrg/draft-irtf-cfrg-vdaf, test_vec")
    vector: dict[str, Any] = json.loads(path.read_text())
    return vector


def as_blocks(data: bytes) -> Any:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, 16)


# --- TurboSHAKE128, which makes the draft's keys ---------------------------------------------


@pytest.mark.parametrize(
    ("message", "domain", "length", "end", "expected"),
    [
        (b"", 0x1F, 64, 64, "1e415f1c5983aff2169217277d17bb538cd945a397ddec541f1ce41af2c1b74c"
                            "3e8ccae2a4dae56c84a04c2385c03c15e8193bdf58737363321691c05462c8df"),
        (b"", 0x1F, 10032, 32, "a3b9b0385900ce761f22aed548e754da10a5242d62e8c658e3f3a923a7555607"),
        (b"\xff", 0x06, 32, 32, "8ec9c66465ed0d4a6c35d13506718d687a25cb05c74cca1e42501abd83874a67"),
    ],
    ids=["empty", "empty, long", "one byte"],
)  # fmt: skip
def test_turboshake_meets_rfc_9861(
    message: bytes, domain: int, length: int, end: int, expected: str
) -> None:
    assert turboshake128(message, domain, length)[-end:].hex() == expected


# --- the hash ---------------------------------------------------------------------------------


def test_the_hash_expands_the_drafts_seed_bit_for_bit() -> None:
    vector = load("XofFixedKeyAes128")
    seed, separation, binder = (bytes.fromhex(vector[k]) for k in ("seed", "dst", "binder"))
    expected = bytes.fromhex(vector["expanded_vec_field128"])
    key = idpf_reference.aes_key(separation, binder)
    count = vector["length"]
    assert len(expected) == 16 * count
    numbers = b"".join(i.to_bytes(16, "little") for i in range(count))
    hashed = portable.trees.mmo_hash(key, as_blocks(numbers) ^ as_blocks(seed)).tobytes()
    # No element of this vector was rejected, so the field vector is the stream itself.
    assert all(
        int.from_bytes(hashed[i : i + 16], "little") < FIELD128 for i in range(0, len(hashed), 16)
    )
    assert hashed == expected
    assert hashed[:16].hex() == vector["derived_seed"]
    # Conv is the same stream: its seeds have a zero lowest bit, and so has this one.
    assert seed[0] & 1 == 0
    for backend in (portable, kernels()):
        assert backend.convert(key, as_blocks(seed), len(expected)).tobytes() == expected
    reference = idpf_reference.aes_stream(seed, separation, binder)
    assert idpf_reference.take(reference, len(expected)) == expected


# --- the tree ---------------------------------------------------------------------------------


def test_the_tree_reproduces_the_drafts_public_share() -> None:
    vector = load("IdpfBBCGGI21_0")
    idpf, alpha, beta, keys = unpack(vector)
    words = idpf.gen(alpha, beta, keys)
    assert idpf.encode(words).hex() == vector["public_share"]


def unpack(vector: dict[str, Any]) -> tuple[Idpf, list[int], list[list[int]], tuple[bytes, bytes]]:
    nonce, context = bytes.fromhex(vector["nonce"]), bytes.fromhex(vector["ctx"])
    leaf = [int(value) for value in vector["beta_leaf"]]
    beta = [[int(value) for value in values] for values in vector["beta_inner"]] + [leaf]
    idpf = Idpf(vector["bits"], len(leaf), context, nonce, DRAFT_VERSION)
    first, second = (bytes.fromhex(key) for key in vector["keys"])
    return idpf, [int(bit) for bit in vector["alpha"]], beta, (first, second)


def test_shares_of_the_drafts_keys_add_to_beta_on_the_path_and_to_zero_elsewhere() -> None:
    idpf, alpha, beta, keys = unpack(load("IdpfBBCGGI21_0"))
    words = idpf.gen(alpha, beta, keys)
    for level in range(idpf.bits):
        modulus = FIELD64 if level < idpf.bits - 1 else FIELD255
        for other in range(level + 1):
            prefix = alpha[: level + 1]
            shares = [idpf.eval(party, words, keys[party], prefix) for party in (0, 1)]
            assert [(x + y) % modulus for x, y in zip(*shares, strict=True)] == beta[level]
            prefix = [*alpha[:other], 1 - alpha[other], *alpha[other + 1 : level + 1]]
            shares = [idpf.eval(party, words, keys[party], prefix) for party in (0, 1)]
            assert [(x + y) % modulus for x, y in zip(*shares, strict=True)] == [0, 0]


def test_every_prefix_of_every_alpha_of_a_small_tree_is_right() -> None:
    idpf = Idpf(3, 1, b"a test", bytes(range(16)), DRAFT_VERSION)
    keys = (bytes(range(16)), bytes(range(16, 32)))
    beta = [[1000], [FIELD64 - 1], [1 << 200]]
    for alpha in itertools.product((0, 1), repeat=3):
        words = idpf.gen(alpha, beta, keys)
        for length in (1, 2, 3):
            for prefix in itertools.product((0, 1), repeat=length):
                shares = [idpf.eval(party, words, keys[party], prefix) for party in (0, 1)]
                total = (shares[0][0] + shares[1][0]) % idpf.modulus(length - 1)
                assert total == (beta[length - 1][0] if prefix == alpha[:length] else 0)

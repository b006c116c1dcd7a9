"""Exact sums of BFV ciphertexts: the noise rule, and what bytes of a peer are refused."""

from __future__ import annotations

import numpy as np
import pytest

from torchfsl.crypto.bfv_parameters import Scheme, is_prime, least_modulus
from torchfsl.crypto.homomorphic import Ciphertexts, KeyPair, PublicKey
from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission

pytest.importorskip("tenseal", reason="needs the extra homomorphic")


def scheme_of(bits: int, ciphertexts: int, degree: int = 2048) -> Scheme:
    """The least modulus in the upper half of so many bits."""
    return Scheme(degree, least_modulus(degree, 3 << (bits - 3)), ciphertexts)


def test_noise_rule_refuses_what_could_fail() -> None:
    """Moduli of 33, 35 and 37 bits pass with 1,000 clients and a mask, 38 bits do not."""
    for bits in (33, 35, 37):
        assert scheme_of(bits, 1001).modulus.bit_length() == bits
    with pytest.raises(ParameterError, match="4096 slots"):
        scheme_of(38, 1001)
    assert scheme_of(50, 1001, 4096).modulus.bit_length() == 50
    with pytest.raises(ParameterError, match="fewer clients"):
        scheme_of(60, 1001, 4096)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [33, 35, 37])
def test_noise_of_a_thousand_ciphertexts_leaves_the_sum_exact(bits: int) -> None:
    scheme = scheme_of(bits, 1001)
    keys = KeyPair(scheme)
    key = PublicKey(scheme, keys.public)
    draw = np.random.default_rng(bits)
    values = draw.integers(0, scheme.modulus, 2048, dtype=np.uint64)
    total, plain = key.encrypt(values), values.astype(object)
    for _ in range(1000):
        values = draw.integers(0, scheme.modulus, 2048, dtype=np.uint64)
        total.add(key.encrypt(values))
        plain = (plain + values.astype(object)) % scheme.modulus
    assert keys.noise_budget(total) >= 1
    assert np.array_equal(keys.decrypt(total), plain.astype(np.uint64))


@pytest.mark.parametrize("bound", [1 << 58, (1 << 63) - 1, 1 << 80])
def test_sums_beyond_every_ring_are_refused_before_a_prime_is_looked_for(bound: int) -> None:
    with pytest.raises(ParameterError, match="exceed all available parameters"):
        least_modulus(2048, bound)


def test_moduli_are_primes_that_slots_need() -> None:
    for degree, bound in ((2048, 1), (2048, 1 << 30), (4096, 1 << 47)):
        found = least_modulus(degree, bound)
        assert found > 2 * bound
        assert found % (2 * degree) == 1
        assert is_prime(found)
    small = [n for n in range(200) if is_prime(n)]
    assert small == [n for n in range(2, 200) if all(n % d for d in range(2, n))]
    assert not is_prime(3215031751)  # fools the bases 2, 3, 5 and 7
    for degree, modulus in ((1024, 12289), (2048, 12288), (2048, 5)):
        with pytest.raises(ParameterError):
            Scheme(degree, modulus, 2)


@pytest.mark.parametrize("degree", [2048, 4096])
def test_bytes_that_are_no_ciphertext_are_refused(degree: int) -> None:
    scheme = scheme_of(31, 11, degree)
    keys = KeyPair(scheme)
    good = PublicKey(scheme, keys.public).encrypt(np.zeros(degree, np.uint64)).encode()
    size = scheme.ring.ciphertext_bytes
    assert len(good) == size
    stop = 4 + int.from_bytes(good[:4], "little")
    trailing = bytearray(good)
    trailing[-1] = 1
    longer = (stop - 4 + 1).to_bytes(4, "little") + good[4:]
    shorter = (stop - 4 - 1).to_bytes(4, "little") + good[4 : stop - 1] + bytes(size - stop + 1)
    huge = (1 << 31).to_bytes(4, "little") + good[4:]
    for bad in (good[:-1], good + b"\0", bytes(size), bytes(trailing), longer, shorter, huge, b""):
        with pytest.raises(DecodeError):
            Ciphertexts.decode(scheme, bad, 1)
    other = scheme_of(33, 11, degree)
    with pytest.raises(DecodeError):  # another modulus is another context
        Ciphertexts.decode(other, good, 1)
    with pytest.raises(DecodeError):
        PublicKey(scheme, good[:1000].ljust(scheme.ring.key_bytes, b"\0"))


def test_a_ciphertext_under_another_key_is_refused() -> None:
    scheme = scheme_of(33, 11)
    keys, others = KeyPair(scheme), KeyPair(scheme)
    foreign = PublicKey(scheme, others.public).encrypt(np.zeros(2048, np.uint64))
    with pytest.raises(RejectedSubmission, match="another key"):
        keys.decrypt(foreign)
    assert "secret" not in repr(keys)


def test_values_must_fill_slots_and_lie_below_the_modulus() -> None:
    scheme = scheme_of(33, 11)
    key = PublicKey(scheme, KeyPair(scheme).public)
    for values in (
        np.zeros(100, np.uint64),
        np.zeros(0, np.uint64),
        np.full(2048, scheme.modulus, np.uint64),
    ):
        with pytest.raises(ParameterError):
            key.encrypt(values)

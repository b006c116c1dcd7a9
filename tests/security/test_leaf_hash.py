"""The leaf hash: two leaves of a tree must not fit one check word.

A client who grinds roots can bring about any one relation of 127 bits between the states of two
sibling leaves in 2**64 steps (a birthday between the two master seeds, in a tree of one level). So
no rule may exist that turns states at one leaf into states at the other with the same check word.
The tweaked pair AES(p xor tau_i) xor p, p = AES(sigma(v)), has such a rule; the tests hand the
attacker the states that he would have to grind for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from torchfsl.crypto import kdf
from torchfsl.fsl.dpf import checks
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable.trees import bits_of, permute

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
KEY = bytes(range(16))
TREE, LEFT, RIGHT = 5, 0, 1


def sigma(blocks: Bytes) -> Bytes:
    return np.concatenate([blocks[..., 8:], blocks[..., 8:] ^ blocks[..., :8]], axis=-1)


def sigma_inverse(blocks: Bytes) -> Bytes:
    return np.concatenate([blocks[..., 8:] ^ blocks[..., :8], blocks[..., :8]], axis=-1)


def inverse(key: bytes, blocks: Bytes) -> Bytes:
    """AES decryption, which anyone can do: the key is public."""
    decryptor = Cipher(algorithms.AES128(key), modes.ECB()).decryptor()  # noqa: S305
    return np.frombuffer(decryptor.update(blocks.tobytes()), np.uint8).reshape(blocks.shape)


def tweak(leaf: int, half: int) -> Bytes:
    out = np.zeros(16, dtype=np.uint8)
    out[0], out[8], out[12] = leaf, TREE, half
    return out


def tweaked_pair(key: bytes, states: Bytes, trees: Numbers, leaves: Numbers) -> Bytes:
    """The hash with the rule."""
    inner = permute(key, sigma(states))
    halves = [
        permute(key, inner ^ np.stack([tweak(int(leaf), half) for leaf in leaves])) ^ inner
        for half in (0, 1)
    ]
    return np.concatenate(halves, axis=1)


def states_of(rng: np.random.Generator, count: int) -> Bytes:
    return rng.integers(256, size=(count, 16), dtype=np.uint8)


def partner(states: Bytes) -> Bytes:
    """States at the right leaf that relate to those at the left one, for the tweaked pair."""
    shift = tweak(LEFT, 0) ^ tweak(RIGHT, 0)
    return sigma_inverse(inverse(KEY, permute(KEY, sigma(states)) ^ shift))


def partner_of_ours(states: Bytes) -> Bytes:
    """The same rule tried on ours: equal inputs of the second permutation at both leaves."""
    first = permute(KEY, portable_checks._LEAF_KEY_INPUTS)[0].tobytes()
    return inverse(first, permute(first, states) ^ tweak(LEFT, 0) ^ tweak(RIGHT, 0))


def words(leaf_hash: object, first: Bytes, second: Bytes, leaf: int) -> Bytes:
    where = np.full(len(first), TREE), np.full(len(first), leaf)
    return leaf_hash(KEY, first, *where) ^ leaf_hash(KEY, second, *where)  # type: ignore[operator]


def test_a_shifted_pair_of_states_shares_its_check_word_under_the_tweaked_pair() -> None:
    rng = np.random.default_rng(0)
    mine, theirs = states_of(rng, 100), states_of(rng, 100)
    left = words(tweaked_pair, mine, theirs, LEFT)
    assert np.array_equal(left, words(tweaked_pair, partner(mine), partner(theirs), RIGHT))
    assert np.array_equal(left, words(tweaked_pair, partner(theirs), partner(mine), RIGHT))


@pytest.mark.parametrize("rule", [partner, partner_of_ours, lambda states: states])
def test_no_such_rule_holds_for_our_hash(rule: object) -> None:
    rng = np.random.default_rng(1)
    mine, theirs = states_of(rng, 100), states_of(rng, 100)
    left = words(portable_checks.leaf_hash, mine, theirs, LEFT)
    shifted = rule(mine), rule(theirs)  # type: ignore[operator]
    for pair in (shifted, shifted[::-1]):
        right = words(portable_checks.leaf_hash, *pair, RIGHT)
        equal = left.reshape(-1, 2, 16) == right.reshape(-1, 2, 16)
        assert not np.any(np.all(equal, axis=2)), "a whole half agrees"


def fold(states: Bytes, check: Bytes) -> bytes:
    masks = kdf.stream(KEY, 16 * (2 * checks.LOW_LEAVES + 2)).reshape(-1, 16)
    low = masks[2:].reshape(checks.LOW_LEAVES, 2, 16)
    nothing = np.empty((1, 1, 16), dtype=np.uint8), np.empty((1, 1), dtype=np.uint8)
    return portable_checks.verify(
        KEY, KEY, states[None], *nothing, 2, check, TREE, bytes(16), masks[:1], low, masks[1:2]
    )


@pytest.mark.parametrize("leaf_hash", [tweaked_pair, portable_checks.leaf_hash])
def test_two_leaves_that_differ_pass_the_check_under_the_rule_and_not_under_ours(
    leaf_hash: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable_checks, "leaf_hash", leaf_hash)
    monkeypatch.setattr(portable_checks, "tree_eval", lambda key, roots, *rest: roots)
    rng = np.random.default_rng(2)
    while True:  # control bits must differ at both leaves: one try in four
        mine, theirs = states_of(rng, 1), states_of(rng, 1)
        party0 = np.concatenate([mine, partner(theirs)])
        party1 = np.concatenate([theirs, partner(mine)])
        if np.all(bits_of(party0) != bits_of(party1)):
            break
    check = words(leaf_hash, mine, theirs, LEFT)
    agree = fold(party0, check) == fold(party1, check)
    assert agree == (leaf_hash is tweaked_pair)


def test_the_hash_depends_on_tree_leaf_and_control_bit() -> None:
    states = states_of(np.random.default_rng(3), 1)
    other_bit = states.copy()
    other_bit[0, 0] ^= 1
    one, two = np.array([1]), np.array([2])
    hashes = [
        portable_checks.leaf_hash(KEY, states, one, one),
        portable_checks.leaf_hash(KEY, states, one, two),
        portable_checks.leaf_hash(KEY, states, two, one),
        portable_checks.leaf_hash(KEY, other_bit, one, one),
        portable_checks.leaf_hash(bytes(16), states, one, one),
    ]
    assert len({half.tobytes() for h in hashes for half in h.reshape(2, 16)}) == 10

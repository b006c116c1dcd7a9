"""The leaf hash: two leaves of a tree must not fit one check word.

A client who grinds roots can bring about any one relation of 127 bits between the states of two
sibling leaves in 2**64 steps (a birthday between the two master seeds, in a tree of one level). So
no rule may exist that turns states at one leaf into states at the other with the same check word.
The tweaked pair AES(p xor tau_i) xor p, p = AES(sigma(v)), has such a rule for both halves of the
word. Ours has one for the first half: the second must do without, and does. The tests hand the
attacker the states that he would have to grind for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scripts.attacks import leaf_relation
from scripts.attacks.leaf_relation import KEY, LEFT, RIGHT, check_words, inverse, related, tweak
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable.trees import bits_of, permute

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


def sigma(blocks: Bytes) -> Bytes:
    return np.concatenate([blocks[..., 8:], blocks[..., 8:] ^ blocks[..., :8]], axis=-1)


def sigma_inverse(blocks: Bytes) -> Bytes:
    return np.concatenate([blocks[..., 8:] ^ blocks[..., :8], blocks[..., :8]], axis=-1)


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


def test_a_shifted_pair_of_states_shares_its_check_word_under_the_tweaked_pair() -> None:
    rng = np.random.default_rng(0)
    mine, theirs = states_of(rng, 100), states_of(rng, 100)
    left = check_words(tweaked_pair, mine, theirs, LEFT)
    assert np.array_equal(left, check_words(tweaked_pair, partner(mine), partner(theirs), RIGHT))
    assert np.array_equal(left, check_words(tweaked_pair, partner(theirs), partner(mine), RIGHT))


def test_the_first_half_of_our_hash_has_a_relation_and_the_second_none() -> None:
    mine = states_of(np.random.default_rng(1), 100)
    theirs = related(mine)
    left = check_words(portable_checks.leaf_hash, mine, theirs, LEFT)
    right = check_words(portable_checks.leaf_hash, theirs, mine, RIGHT)
    assert np.array_equal(left[:, :16], right[:, :16])
    assert not np.any(np.all(left[:, 16:] == right[:, 16:], axis=1))
    # The half that has to hold looks random: half of the 12,800 bits differ, within 7 deviations.
    differing = int(np.unpackbits(left[:, 16:] ^ right[:, 16:]).sum())
    assert abs(differing - 6400) < 7 * np.sqrt(12800) / 2


@pytest.mark.parametrize("rule", [partner, related, lambda states: states])
def test_no_half_agrees_for_states_that_are_not_partners_of_each_other(rule: object) -> None:
    rng = np.random.default_rng(1)
    mine, theirs = states_of(rng, 100), states_of(rng, 100)
    left = check_words(portable_checks.leaf_hash, mine, theirs, LEFT)
    shifted = rule(mine), rule(theirs)  # type: ignore[operator]
    for pair in (shifted, shifted[::-1]):
        right = check_words(portable_checks.leaf_hash, *pair, RIGHT)
        equal = left.reshape(-1, 2, 16) == right.reshape(-1, 2, 16)
        assert not np.any(np.all(equal, axis=2)), "a whole half agrees"


def test_two_leaves_pass_under_half_of_the_hash_and_not_under_the_whole() -> None:
    result = leaf_relation.leaf_relation()
    assert result.worked_off
    assert not result.worked_on


@pytest.mark.parametrize("leaf_hash", [tweaked_pair, portable_checks.leaf_hash])
def test_two_leaves_that_differ_pass_the_check_under_the_rule_and_not_under_ours(
    leaf_hash: object,
) -> None:
    rng = np.random.default_rng(2)
    while True:  # control bits must differ at both leaves: one try in four
        mine, theirs = states_of(rng, 1), states_of(rng, 1)
        party0 = np.concatenate([mine, partner(theirs)])
        party1 = np.concatenate([theirs, partner(mine)])
        if np.all(bits_of(party0) != bits_of(party1)):
            break
    agree = leaf_relation.passes(leaf_hash, party0, party1)
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

"""Forged tags of answers on a small variant, counted against the bound of specification/tags.md."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.attacks import forged_tags
from scripts.attacks.forged_tags import (
    CHANCE,
    FORGERS,
    LEAVES,
    PRODUCTS,
    Forger,
    Retrievals,
    keyed_digest,
    passed,
    same_sum,
    sum_digest,
)

COUNT = 20_000


def most(count: int) -> float:
    """Forgeries that pass by the bound, and six standard deviations."""
    return CHANCE * count + 6 * (CHANCE * count) ** 0.5


@pytest.mark.parametrize("forger", FORGERS)
def test_forgeries_pass_no_more_often_than_the_bound_says_whatever_leaf_is_selected(
    forger: Forger,
) -> None:
    first, tried_first, elsewhere = passed(forger, keyed_digest, COUNT, 3)
    assert first <= most(tried_first)
    assert elsewhere <= most(COUNT - tried_first)


def test_a_tag_alone_never_passes() -> None:
    assert passed(forged_tags.tag_alone, keyed_digest, COUNT, 4)[::2] == (0, 0)


def test_honest_answers_always_pass() -> None:
    seen = Retrievals.draw(COUNT, 5)
    for digest in (keyed_digest, sum_digest):
        assert np.all(seen.accepts(digest, *seen.answer(0, digest, seen.rows)))


def test_where_digests_are_sums_every_alteration_that_keeps_them_passes() -> None:
    first, tried_first, elsewhere = passed(same_sum, sum_digest, COUNT, 6)
    assert (first, elsewhere) == (tried_first, COUNT - tried_first)


def test_each_offset_of_a_tag_fits_one_value_of_the_unknown_secret() -> None:
    """All secrets of the other server, all offsets of the tag, at every selected leaf."""
    one = Retrievals.draw(1, 8)
    assert len(set(PRODUCTS[7].tolist())) == 256
    for alpha in range(LEAVES):
        secrets = np.arange(256, dtype=np.uint8)
        seen = Retrievals(
            *(np.repeat(part, 256, axis=0) for part in (one.rows, one.own, one.bits)),
            np.full(256, alpha),
            secrets,
        )
        answers, tags = seen.answer(0, keyed_digest, seen.rows)
        answers[:, 1] ^= 3
        row = one.rows[0, alpha].copy()
        row[1] ^= 3
        differ = bool(keyed_digest(row) != keyed_digest(one.rows[0, alpha]))
        for offset in range(256):
            taken = int(np.sum(seen.accepts(keyed_digest, answers, tags ^ np.uint8(offset))))
            assert taken == (1 if differ else 256 * (offset == 0))


def test_a_server_that_searches_digests_of_one_byte_finds_a_second_row() -> None:
    """What 2**128 tries a row would be: it is the length of the digest that forbids it."""
    seen = Retrievals.draw(1, 9)
    row = seen.rows[0, seen.alpha[0]]
    others = row ^ np.arange(1, 4097, dtype="<u2").view(np.uint8).reshape(-1, 2)
    found = others[keyed_digest(others) == keyed_digest(row)]
    assert len(found)
    answers, tags = seen.answer(0, keyed_digest, seen.rows)
    assert seen.accepts(keyed_digest, answers ^ (found[0] ^ row), tags)[0]

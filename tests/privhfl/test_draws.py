"""Every draw serves once, and is bound to all that it belongs to."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.privhfl.small import federation, images, networks
from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.privhfl.draws import LABEL_QA, LABEL_SQ, Identity, Pair
from torchfsl.privhfl.messages import Kind, kind_of


def test_a_context_is_opened_once() -> None:
    pair = Pair(b"s" * 16, 0, 1)
    pair.batch(1, 0, 0)
    pair.weights(1)
    for again in (lambda: pair.batch(1, 0, 0), lambda: pair.weights(1)):
        with pytest.raises(ProtocolError, match="already used"):
            again()


def test_a_draw_is_given_once() -> None:
    draws = Pair(b"s" * 16, 0, 1).batch(1, 0, 0)
    draws.key(3, "rho")
    with pytest.raises(ProtocolError, match="already used"):
        draws.key(3, "rho")


def test_every_part_of_a_context_changes_the_draw() -> None:
    base = {"querying": 0, "answering": 1, "version": 1, "iteration": 0, "batch": 0}
    variants = [base, *({**base, name: value + 1} for name, value in base.items())]
    keys = [
        Pair(seed, v["querying"], v["answering"])
        .batch(v["version"], v["iteration"], v["batch"])
        .key(node, purpose)
        for v in variants
        for seed in (b"s" * 16, b"t" * 16)
        for node in (0, 1)
        for purpose in ("wire", "rho")
    ]
    keys += [Pair(b"s" * 16, 0, 1).weights(n).key(0, "wire") for n in (1, 2)]
    assert len(set(keys)) == len(keys)


def test_both_ends_of_an_exchange_agree_and_others_do_not() -> None:
    one, other, third = Identity(), Identity(), Identity()
    seed = one.pair(LABEL_QA, other.public, b"plan")
    assert seed == other.pair(LABEL_QA, one.public, b"plan")
    assert seed != third.pair(LABEL_QA, one.public, b"plan")
    assert seed != one.pair(LABEL_QA, other.public, b"plane")
    assert seed != one.pair(LABEL_SQ, other.public, b"plan")
    assert one.public.hex() in repr(one)
    assert "secret" not in repr(one)


def test_a_key_of_small_order_is_refused() -> None:
    with pytest.raises(DecodeError, match="small order"):
        Identity().pair(LABEL_QA, bytes(32), b"plan")


def test_a_batch_is_dealt_for_once() -> None:
    querying = federation(networks())
    querying.ask(0, [1], images(2))
    asking = querying._asking[0]
    with pytest.raises(ProtocolError, match="already dealt"):
        asking.deal(0, 0, [1])


def test_changed_weights_get_fresh_masks_and_equal_ones_are_not_sent_again() -> None:
    modules = networks()
    sent: list[bytes] = []
    querying = federation(modules)
    querying._watch = lambda link, client, data: sent.append(data)
    querying.ask(0, [1], images(2))
    querying.load(1, modules[1], images(16, seed=1))
    querying.ask(0, [1], images(2), 1)
    changed = copy.deepcopy(modules[1])
    with torch.no_grad():
        next(changed.parameters())[0, 0, 0, 0] += 0.5
    querying.load(1, changed, images(16, seed=1))
    querying.ask(0, [1], images(2), 2)
    weights = [data for data in sent if kind_of(data) == Kind.WEIGHTS]
    assert len(weights) == 2
    bodies = [torch.frombuffer(bytearray(w[72:]), dtype=torch.int32) for w in weights]
    plain = [q.weights for q in (querying._networks[1],)]
    assert plain
    difference = bodies[1] - bodies[0]
    assert int((difference == 0).sum()) <= 1  # under one mask, all but what changed would be 0


def test_a_version_that_is_not_above_the_last_is_refused() -> None:
    modules = networks()
    querying = federation(modules)
    with torch.no_grad():
        next(modules[1].parameters())[0, 0, 0, 0] += 0.5
    with pytest.raises(ParameterError, match="above the last"):
        querying.load(1, modules[1], images(16), version=1)
    querying.load(1, modules[1], images(16), version=7)
    assert querying.answering[1].version == 7


def test_without_a_seed_two_runs_share_nothing() -> None:
    seen = []
    for _ in range(2):
        querying = federation(networks(), seed=None)
        querying._watch = lambda link, client, data: seen.append(data)
        querying.ask(0, [1], images(2))
    half = len(seen) // 2
    assert all(a[64:] != b[64:] for a, b in zip(seen[:half], seen[half:], strict=True)
               if kind_of(a) != Kind.READY)  # fmt: skip

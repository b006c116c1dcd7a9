"""Secrets of a client: never the same twice, never printed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.federation import (
    make_plan,
    make_segment,
    mixed_plan,
    open_wire,
    random_update,
    start,
)
from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_below
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.kernels.backends import kernels


def test_all_roots_of_a_client_differ() -> None:
    """Between parties, segments of equal shape, bins and stash, rounds and clients."""
    shape = {"k_max": 3, "theta": 4, "stash": 2}
    plan = make_plan(
        make_segment("a", "scalars", (20,), **shape),  # type: ignore[arg-type]
        make_segment("b", "scalars", (20,), **shape),  # type: ignore[arg-type]
        make_segment("c", "scalars", (20,), k_max=3),
    )
    seen: list[bytes] = []
    for round_number, client_id in ((1, 0), (1, 1), (2, 0)):
        trees = ClientTrees(plan, client_id, round_number)
        report = ReportContext(trees.context, round_number, bytes(16))
        sources = (trees.context, report)  # trees that travel early, and late
        for source, segment, party in itertools.product(sources, plan.segments, (0, 1)):
            roots = source.roots(segment, trees.master_seeds[party], party)
            assert roots.shape == (segment.num_trees, 16)
            assert np.all(roots[:, 0] & 1 == party)
            seen += [root.tobytes() for root in roots]
    cleared = {bytes([root[0] & 0xFE]) + root[1:] for root in seen}
    assert len(cleared) == len(seen) == 3 * 2 * 2 * (17 + 17 + 3)


def test_one_seed_gives_other_roots_in_any_other_context() -> None:
    plan, other = mixed_plan(), mixed_plan(min_clients=2)
    contexts = [
        TreeContext(plan, 1, 2, bytes(16)),
        TreeContext(plan, 2, 2, bytes(16)),
        TreeContext(plan, 1, 3, bytes(16)),
        TreeContext(plan, 1, 2, bytes(15) + b"\x01"),
        TreeContext(other, 1, 2, bytes(16)),
    ]
    keys: list[bytes] = []
    for context in contexts:
        segments = [s for s in context.plan.segments if s.policy != "dense"]
        keys += [context.roots(s, bytes(16), 0).tobytes()[:16] for s in segments]
        keys += [context.tree_key(s) for s in segments]
        keys += [context.check_key(s) for s in segments]
        keys += [context.mac_key(s, r) for s in segments for r in (1, 2)]
        keys.append(context.commitment(b"public"))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("cuts", [[], [0], [7], [3, 3, 9], [0, 11]])
def test_a_commitment_does_not_depend_on_how_the_public_part_is_cut(cuts: list[int]) -> None:
    trees = TreeContext(mixed_plan(), 1, 2, bytes(16))
    public = b"public part"
    ends = [0, *cuts, len(public)]
    pieces = [memoryview(public)[a:b] for a, b in itertools.pairwise(ends)]
    for context in (trees, ReportContext(trees, 1, bytes(16))):
        assert context.commitment(*pieces) == context.commitment(public)
        assert context.commitment() == context.commitment(b"") != context.commitment(public)
        kind = b"trees" if context is trees else b"report"
        plain = kdf.digest(kdf.LABEL_COMMITMENT, kind, context.encoded, public)
        assert context.commitment(public) == plain


def test_a_digest_frames_its_pieces_as_one_part() -> None:
    assert kdf.digest(b"label", b"a", pieces=[b"b", b"", b"c"]) == kdf.digest(b"label", b"a", b"bc")
    assert kdf.digest(b"label", b"a", pieces=()) == kdf.digest(b"label", b"a", b"")
    assert kdf.digest(b"label", b"a", pieces=()) != kdf.digest(b"label", b"a")


def test_the_dense_mask_differs_by_nonce_round_client_segment_seed_and_party() -> None:
    plan = make_plan(make_segment("a", "dense", (40,)), make_segment("b", "dense", (40,)))
    one, two = plan.segments
    tree = TreeContext(plan, 1, 2, bytes(16))
    nonce = bytes(range(16))
    masks = [
        ReportContext(tree, 1, nonce).dense_mask(one, bytes(16), 0),
        ReportContext(tree, 1, nonce).dense_mask(two, bytes(16), 0),
        ReportContext(tree, 1, nonce).dense_mask(one, bytes(15) + b"\x01", 0),
        ReportContext(tree, 1, bytes(16)).dense_mask(one, bytes(16), 0),
        ReportContext(tree, 2, nonce).dense_mask(one, bytes(16), 0),
        ReportContext(TreeContext(plan, 1, 3, bytes(16)), 1, nonce).dense_mask(one, bytes(16), 0),
        ReportContext(TreeContext(plan, 1, 2, nonce), 1, nonce).dense_mask(one, bytes(16), 0),
        ReportContext(tree, 1, nonce).dense_mask(one, bytes(16), 1),
    ]
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    for one_mask, other in itertools.combinations(masks, 2):
        assert np.mean(one_mask == other) < 0.1
    again = ReportContext(tree, 1, nonce).dense_mask(one, bytes(16), 0)
    assert np.array_equal(again, masks[0])


def test_hint_keys_differ_by_nonce_round_and_segment() -> None:
    plan = mixed_plan()
    tree = TreeContext(plan, 1, 2, bytes(16))
    keys = [
        ReportContext(tree, round_number, nonce).convert_key(segment)
        for round_number in (1, 2)
        for nonce in (bytes(16), bytes(range(16)))
        for segment in plan.segments
    ]
    assert len(set(keys)) == len(keys)


def test_dummies_select_random_positions_of_their_whole_domain() -> None:
    """Seen by one who evaluates both keys: where the parties' states differ."""
    plan = make_plan(make_segment("s", "scalars", (600,), k_max=3, theta=6, stash=3))
    segment, chosen = plan.segments[0], []
    for _ in range(2):
        trees = ClientTrees(plan, 0, 1)
        parts = trees.grow(segment, np.empty(0, dtype=np.int64))
        key = trees.context.tree_key(segment)
        roots = [trees.context.roots(segment, trees.master_seeds[b], b) for b in (0, 1)]
        where = []
        for (group, span), part in zip(dpf.split(segment), parts, strict=True):
            states = [
                kernels().tree_eval(key, r[span], part.cw, part.cw_right, group.num_leaves)
                for r in roots
            ]
            differs = np.any(states[0] != states[1], axis=2)
            assert np.all(differs.sum(axis=1) == 1)
            where.append(differs.argmax(axis=1))
        chosen.append(where)
    bins = np.concatenate([where[0] for where in chosen])
    counts = np.bincount(bins, minlength=6)
    assert len(bins) == 600
    assert np.all(np.abs(counts - 100) < 6 * np.sqrt(100))
    assert not np.array_equal(chosen[0][0], chosen[1][0])
    assert len({*chosen[0][1].tolist(), *chosen[1][1].tolist()}) >= 4


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 2**31 + 11, 2**32 - 5, 2**32])
def test_secret_integers_are_128_random_bits_modulo_their_bound(
    bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.random.default_rng(bound).bytes(16 * 50) + bytes(16) + b"\xff" * 16
    monkeypatch.setattr("os.urandom", lambda size: data[:size])
    drawn = random_below(bound, 52)
    wanted = [int.from_bytes(data[i : i + 16], "little") % bound for i in range(0, len(data), 16)]
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == wanted


def test_secrets_never_appear_in_a_repr() -> None:
    plan = mixed_plan()
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0), rows=4)
    session = start(wire, 2, update)
    session.submit(update)
    trees = session._trees
    selections = [trees.selection(s) for s in plan.segments if s.policy != "dense"]
    books = [server.reports for server in servers]
    objects: list[Any] = [
        session, trees, session._context, *selections, *update.values(), books,
        [book._reports for book in books], [book.complete() for book in books], servers,
        wire.events,
    ]  # fmt: skip
    for server in servers:
        loaded = LoadedReport(server.party, server.reports.complete()[2])
        objects += [loaded.trees(s) for s in plan.with_trees]
    for selection in selections:
        objects += [selection.placement, selection.leaves]
    text = " ".join(repr(thing) for thing in objects)
    secrets = [*trees.master_seeds]
    secrets += [s.leaves.leaf0[0].tobytes() for s in selections]
    for secret in secrets:
        assert repr(secret)[2:-1] not in text
        assert secret.hex() not in text
        assert str(np.frombuffer(secret, np.uint8)[:6])[1:-1] not in text
    assert "array(" not in text
    fixed = make_plan(make_segment("s", "scalars", (9,), k_max=2), max_epochs=2)
    session_of_rounds = Client(fixed, wire, client_id=2).open_session(indices={"s": [4, 8]})
    assert repr(session_of_rounds) == "Session(client=2, epochs=0)"

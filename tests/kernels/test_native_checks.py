"""The native kernels of the two checks against the portable ones, byte for byte, on every path."""

from __future__ import annotations

import functools
import hashlib
import json
from types import ModuleType

import numpy as np
import pytest

from tests.kernels.test_native_kernels import (
    CPU_PATHS,
    K_TREE,
    Bytes,
    make_trees,
    native,
    random_bytes,
    run_with_path,
)
from tests.support.federation import (
    assert_exact,
    make_servers,
    mixed_plan,
    play_round,
    random_update,
)
from torchfsl.kernels import portable

K_CHECK, K_FOLD, K_MAC = bytes(range(16, 32)), bytes(range(32, 48)), bytes(range(48, 64))

# Trees, leaves and the number of the first tree: no depth, ragged vectors and domains, trees that
# are cut into subtrees, more leaves than one row of high masks serves, several registers of trees
# in several stages.
SHAPES = [
    (1, 1, 0),
    (5, 1, 7),
    (3, 2, 0),
    (7, 3, 1000),
    (9, 9, 0),
    (16, 60, 2**32 - 16),
    (17, 61, 5),
    (33, 130, 0),
    (2, 1025, 3),
    (6, 1500, 1),
    (20, 600, 9),
    (19, 1500, 4),
    (1, 9001, 594),
    (2, 5000, 0),
]

# Bytes of a row block: less than a word, ragged and whole words of one to many registers, blocks of
# several rows.
ROW_BYTES = (1, 16, 24, 40, 72, 100, 112, 144, 300)


def masks(rng: np.random.Generator, num_trees: int, num_leaves: int) -> tuple[Bytes, ...]:
    """D, E and F of `verify`."""
    num_high = -(-num_leaves // 1024)
    return (
        random_bytes(rng, num_trees, 16),
        random_bytes(rng, 1024, 2, 16),
        random_bytes(rng, num_high, 16),
    )


def digests_of(kernels: ModuleType, table: Bytes, num_threads: int = 1) -> Bytes:
    """Those of a table's rows, under any key."""
    rows = table.reshape(-1, table.shape[2])
    found: Bytes = kernels.row_digests(K_CHECK, rows, num_threads).reshape(*table.shape[:2], 16)
    return found


def digests(kernels: ModuleType, num_threads: int) -> dict[str, str]:
    """Digest of the output of every kernel on fixed inputs."""
    rng = np.random.default_rng(5)
    out: dict[str, str] = {}

    def note(name: str, *parts: bytes) -> None:
        out[name] = hashlib.sha256(b"".join(parts)).hexdigest()

    for number, (num_trees, num_leaves, first_tree) in enumerate(SHAPES):
        trees = make_trees(num_leaves, num_trees, seed=9)
        label = f"{num_trees} x {num_leaves}"
        words = kernels.check_gen(K_CHECK, *trees.leaves, trees.alpha, first_tree)
        note(f"check_gen {label}", words.tobytes())
        deltas = masks(rng, num_trees, num_leaves)
        public = trees.public(number % 2)
        check = (words, first_tree, K_FOLD, *deltas, num_threads)
        note(f"verify {label}", kernels.verify(K_TREE, K_CHECK, *public, *check))
        for row_bytes in ROW_BYTES if num_leaves < 1000 else ROW_BYTES[number % 2 + 3 : 5]:
            shared = row_bytes % 3 == 0
            table = random_bytes(rng, 1 if shared else num_trees, num_leaves, row_bytes)
            own = digests_of(kernels, table, num_threads)
            answers, tags = kernels.authenticate(K_TREE, K_MAC, *public, table, own, num_threads)
            note(f"authenticate {label}, {row_bytes}", answers.tobytes(), tags.tobytes())
            requests = [(K_TREE, K_MAC, *public[:3]), (K_CHECK, K_TREE, *trees.public(1)[:3])]
            both = kernels.authenticate_batch(requests, num_leaves, table, own, num_threads)
            assert both[0][0].tobytes() == answers.tobytes()
            assert both[0][1].tobytes() == tags.tobytes()
            note(f"the second of two {label}, {row_bytes}", *(a.tobytes() for a in both[1]))
    for num_trees, row_bytes in ((1, 3), (3, 16), (70, 72), (5, 1000), (2, 9000)):
        leaves = random_bytes(rng, num_trees, 16), random_bytes(rng, num_trees, 16)
        rows = random_bytes(rng, num_trees, row_bytes)
        own = kernels.row_digests(K_CHECK, rows)
        note(f"digests {num_trees} x {row_bytes}", own.tobytes())
        note(f"tags {num_trees} x {row_bytes}", kernels.tags(K_MAC, *leaves, own).tobytes())
    return out


@functools.cache
def expected() -> dict[str, str]:
    return digests(portable, 1)


@pytest.mark.parametrize("cpu_path", CPU_PATHS)
def test_every_cpu_path_gives_the_portable_bytes(cpu_path: str) -> None:
    code = (
        "import json, tests.kernels.test_native_checks as t;"
        "print(json.dumps([t.native.cpu_path(), t.digests(t.native, 1), t.digests(t.native, 2)]))"
    )
    done = run_with_path(cpu_path, code)
    if done.returncode and "this machine offers" in done.stderr:
        pytest.skip(f"this machine has no {cpu_path}")
    assert done.returncode == 0, done.stderr
    name, one_thread, two_threads = json.loads(done.stdout)
    assert name == cpu_path
    assert one_thread == expected()
    assert two_threads == expected()


@pytest.mark.parametrize(("num_trees", "num_leaves"), [(300, 240), (90, 700), (1, 100_000)])
def test_honest_parties_agree_whatever_the_threads(num_trees: int, num_leaves: int) -> None:
    """Laws: equal folds; tags and answers that XOR to those of the selected row."""
    rng = np.random.default_rng(num_trees)
    trees = make_trees(num_leaves, num_trees)
    words = native.check_gen(K_CHECK, *trees.leaves, trees.alpha, 0)
    deltas = masks(rng, num_trees, num_leaves)
    table = random_bytes(rng, num_trees, num_leaves, 20)
    rows = table[np.arange(num_trees), trees.alpha.astype(np.int64)]
    every, own = digests_of(native, table), native.row_digests(K_CHECK, rows)
    tags = native.tags(K_MAC, *trees.leaves, own)
    folds = set()
    for num_threads in (1, 2, 3, 0):
        again = native.check_gen(K_CHECK, *trees.leaves, trees.alpha, 0, num_threads)
        np.testing.assert_array_equal(again, words)
        np.testing.assert_array_equal(native.tags(K_MAC, *trees.leaves, own, num_threads), tags)
        np.testing.assert_array_equal(digests_of(native, table, num_threads), every)
        parts = []
        for party in (0, 1):
            public = trees.public(party)
            check = (words, 0, K_FOLD, *deltas, num_threads)
            folds.add(native.verify(K_TREE, K_CHECK, *public, *check))
            parts.append(native.authenticate(K_TREE, K_MAC, *public, table, every, num_threads))
        np.testing.assert_array_equal(parts[0][0] ^ parts[1][0], rows)
        np.testing.assert_array_equal(parts[0][1] ^ parts[1][1], tags)
    assert len(folds) == 1


def test_many_requests_take_the_parts_of_a_table_in_turn() -> None:
    """Tables of several parts, for whole trees and for subtrees of one."""
    for num_trees, num_leaves, row_bytes in ((70, 1000, 144), (1, 70_000, 72), (3, 9_001, 256)):
        rng = np.random.default_rng(num_trees)
        table = random_bytes(rng, num_trees, num_leaves, row_bytes)
        own = digests_of(native, table, 2)
        requests = []
        for seed in range(3):
            trees = make_trees(num_leaves, num_trees, seed=seed)
            requests.append((rng.bytes(16), rng.bytes(16), *trees.public(seed % 2)[:3]))
        for num_threads in (1, 2, 5):
            found = native.authenticate_batch(requests, num_leaves, table, own, num_threads)
            for request, (answers, tags) in zip(requests, found, strict=True):
                alone = native.authenticate(*request, num_leaves, table, own, num_threads)
                np.testing.assert_array_equal(answers, alone[0])
                np.testing.assert_array_equal(tags, alone[1])
    assert native.authenticate_batch([], num_leaves, table, own) == []


def test_requests_of_a_batch_have_one_shape() -> None:
    good, fewer = make_trees(10, 3), make_trees(10, 2)
    table, own = np.zeros((1, 10, 5), dtype=np.uint8), np.zeros((1, 10, 16), dtype=np.uint8)
    first = (K_TREE, K_MAC, *good.public(0)[:3])
    for second, error in (
        ((K_TREE, K_MAC, *fewer.public(0)[:3]), ValueError),
        (first[:4], ValueError),
        ((K_TREE, b"short", *first[2:]), ValueError),
        (None, Exception),
    ):
        with pytest.raises(error):
            native.authenticate_batch([first, second], 10, table, own)


def test_a_second_different_leaf_changes_the_fold() -> None:
    rng = np.random.default_rng(2)
    trees = make_trees(200, 40)
    words = native.check_gen(K_CHECK, *trees.leaves, trees.alpha, 0)
    deltas = masks(rng, 40, 200)
    cw = trees.cw.copy()
    cw[7, 39, 5] ^= 1  # of the last level: party 1's leaves with a set bit on the path differ

    def fold(party: int, cw: Bytes) -> bytes:
        public = trees.roots[party], cw, trees.cw_right, 200, words, 0, K_FOLD
        return native.verify(K_TREE, K_CHECK, *public, *deltas, 1)

    assert fold(0, trees.cw) == fold(1, trees.cw)
    assert fold(0, cw) != fold(1, cw)
    words[3, 31] ^= 0x80
    assert fold(0, trees.cw) != fold(1, trees.cw)


def test_further_rows_of_high_masks_are_ignored() -> None:
    trees = make_trees(50, 3)
    words = native.check_gen(K_CHECK, *trees.leaves, trees.alpha, 0)
    low_tables = masks(np.random.default_rng(0), 3, 3000)
    folds = [
        native.verify(
            K_TREE, K_CHECK, *trees.public(0), words, 0, K_FOLD, *low_tables[:2],
            low_tables[2][:rows], 1,
        )
        for rows in (1, 3)
    ]  # fmt: skip
    assert folds[0] == folds[1]


@pytest.mark.parametrize("lane", ["none", "weight"])
@pytest.mark.parametrize("secure", [True, False])
def test_native_rounds_are_exact(monkeypatch: pytest.MonkeyPatch, lane: str, secure: bool) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", "native")
    plan = mixed_plan(secure=secure, lane=lane)  # type: ignore[arg-type]
    servers = make_servers(plan)
    rng = np.random.default_rng(3)
    for round_number in (1, 2):
        updates = {client: random_update(plan, rng) for client in (0, 1, 5)}
        opened, contributions = play_round(servers, round_number, updates)
        assert_exact(plan, opened, contributions)
    assert servers[0].model.digest() == servers[1].model.digest()


def test_a_client_and_a_server_of_the_other_backend_understand_the_native_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Server 0 runs native kernels, server 1 and the clients portable ones."""
    monkeypatch.setenv("TORCHFSL_BACKEND", "portable")
    plan = mixed_plan()
    servers = make_servers(plan)
    for name in ("agree", "commit", "reply"):
        original = getattr(servers[0], name)

        def natively(*args: object, call: object = original) -> object:
            monkeypatch.setenv("TORCHFSL_BACKEND", "native")
            try:
                return call(*args)  # type: ignore[operator]
            finally:
                monkeypatch.setenv("TORCHFSL_BACKEND", "portable")

        monkeypatch.setattr(servers[0], name, natively)
    rng = np.random.default_rng(4)
    updates = {client: random_update(plan, rng) for client in (0, 1, 6)}
    opened, contributions = play_round(servers, 1, updates)
    assert_exact(plan, opened, contributions)

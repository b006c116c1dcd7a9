"""The native kernels against the slow reference, bit for bit, on every CPU path of this machine."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.reference import dpf_reference as oracle
from torchfsl.kernels import portable

native = pytest.importorskip("torchfsl.kernels._native", reason="the native extension is not built")

Bytes = npt.NDArray[np.uint8]
ROOT = Path(__file__).resolve().parents[2]
CPU_PATHS = ("portable", "aesni", "vaes256", "vaes512", "arm")
WIDTHS = (2, 3, 4, 6, 8, 16)
K_TREE, K_CONVERT = bytes(range(16)), bytes(range(100, 116))


class Trees(NamedTuple):
    """T native trees over `num_leaves` leaves."""

    num_leaves: int
    alpha: npt.NDArray[np.uint64]
    roots: tuple[Bytes, Bytes]
    cw: Bytes
    cw_right: Bytes
    leaves: tuple[Bytes, Bytes]

    def public(self, party: int) -> tuple[Bytes, Bytes, Bytes, int]:
        return self.roots[party], self.cw, self.cw_right, self.num_leaves

    def words(self, tree: int) -> list[oracle.CorrectionWord]:
        """Correction words of one tree in the reference's form."""
        return [
            oracle.CorrectionWord(
                oracle.seed(bytes(row[tree])), int(row[tree, 0] & 1), int(right[tree])
            )
            for row, right in zip(self.cw, self.cw_right, strict=True)
        ]

    def state(self, party: int, tree: int, leaf: int) -> bytes:
        """One leaf state by the reference."""
        root = bytes(self.roots[party][tree])
        return oracle.leaf_state(K_TREE, root, self.words(tree), leaf)


def random_bytes(rng: np.random.Generator, *shape: int) -> Bytes:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def random_roots(rng: np.random.Generator, num_trees: int) -> tuple[Bytes, Bytes]:
    roots = random_bytes(rng, num_trees, 16), random_bytes(rng, num_trees, 16)
    roots[0][:, 0] &= 0xFE
    roots[1][:, 0] |= 0x01
    return roots


def make_trees(num_leaves: int, alpha: list[int] | int, seed: int = 0) -> Trees:
    """Trees with the given alphas, or that many trees with random ones."""
    rng = np.random.default_rng([seed, num_leaves])
    if isinstance(alpha, int):
        alpha = list(rng.integers(0, num_leaves, alpha))
    chosen = np.array(alpha, dtype=np.uint64)
    roots = random_roots(rng, len(chosen))
    depth = oracle.depth_of(num_leaves)
    cw, cw_right, leaf0, leaf1 = native.tree_gen(K_TREE, *roots, chosen, depth)
    return Trees(num_leaves, chosen, roots, cw, cw_right, (leaf0, leaf1))


def lanes(data: Bytes, width: int) -> list[int]:
    return oracle.to_lanes(data.tobytes(), width)


@pytest.mark.parametrize("num_leaves", range(1, 10))
def test_trees_agree_with_the_reference_at_every_alpha_and_leaf(num_leaves: int) -> None:
    trees = make_trees(num_leaves, list(range(num_leaves)))
    depth = oracle.depth_of(num_leaves)
    for tree in range(num_leaves):
        roots = [bytes(root[tree]) for root in trees.roots]
        words, leaf0, leaf1 = oracle.tree_gen(K_TREE, *roots, tree, depth)
        assert trees.words(tree) == words
        assert (bytes(trees.leaves[0][tree]), bytes(trees.leaves[1][tree])) == (leaf0, leaf1)
    for party in (0, 1):
        states = native.tree_eval(K_TREE, *trees.public(party))
        for tree in range(num_leaves):
            for leaf in range(num_leaves):
                assert bytes(states[tree, leaf]) == trees.state(party, tree, leaf)


@pytest.mark.parametrize(
    ("num_trees", "num_leaves"),
    [(1, 240), (2, 61), (3, 60), (4, 128), (5, 129), (15, 100), (17, 33), (33, 30), (3, 600)],
)
def test_larger_trees_agree_with_the_reference(num_trees: int, num_leaves: int) -> None:
    trees = make_trees(num_leaves, num_trees)
    depth = oracle.depth_of(num_leaves)
    for tree in {0, num_trees // 2, num_trees - 1}:
        roots = [bytes(root[tree]) for root in trees.roots]
        words, leaf0, leaf1 = oracle.tree_gen(K_TREE, *roots, int(trees.alpha[tree]), depth)
        assert trees.words(tree) == words
        assert (bytes(trees.leaves[0][tree]), bytes(trees.leaves[1][tree])) == (leaf0, leaf1)
        for party in (0, 1):
            states = native.tree_eval(K_TREE, *trees.public(party))
            for leaf in range(0, num_leaves, 1 + num_leaves // 300):
                assert bytes(states[tree, leaf]) == trees.state(party, tree, leaf)


@pytest.mark.parametrize(
    ("num_trees", "num_leaves"), [(0, 1), (0, 5), (1, 1), (70, 240), (9, 300), (3, 1025), (2, 9000)]
)
def test_parties_differ_at_alpha_alone(num_trees: int, num_leaves: int) -> None:
    trees = make_trees(num_leaves, num_trees)
    states = [native.tree_eval(K_TREE, *trees.public(party)) for party in (0, 1)]
    differs = (states[0] != states[1]).any(axis=2)
    expected = np.arange(num_leaves)[None, :] == trees.alpha[:, None].astype(np.int64)
    np.testing.assert_array_equal(differs, expected)
    bits = (states[0] ^ states[1])[..., 0] & 1
    np.testing.assert_array_equal(bits.astype(bool), expected)
    for party in (0, 1):
        np.testing.assert_array_equal(states[party][expected], trees.leaves[party])


@pytest.mark.parametrize("num_leaves", [70_001, 1 << 17])
def test_single_deep_trees_agree_with_the_reference_at_sampled_leaves(num_leaves: int) -> None:
    trees = make_trees(num_leaves, 1)
    states = native.tree_eval(K_TREE, *trees.public(1))
    sample = np.random.default_rng(1).integers(0, num_leaves, 100)
    for leaf in {0, num_leaves - 1, int(trees.alpha[0]), *map(int, sample)}:
        assert bytes(states[0, leaf]) == trees.state(1, 0, leaf)


def test_trees_do_not_depend_on_the_batch_they_are_made_in() -> None:
    trees = make_trees(100, 37)
    for tree in range(37):
        one = slice(tree, tree + 1)
        roots = trees.roots[0][one], trees.roots[1][one]
        cw, cw_right, leaf0, leaf1 = native.tree_gen(K_TREE, *roots, trees.alpha[one], 7)
        np.testing.assert_array_equal(cw, trees.cw[:, one])
        np.testing.assert_array_equal(cw_right, trees.cw_right[:, one])
        np.testing.assert_array_equal(leaf0, trees.leaves[0][one])
        np.testing.assert_array_equal(leaf1, trees.leaves[1][one])


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 8, 15, 16, 17, 32, 47, 64, 72, 80, 300, 2500])
def test_convert_agrees_with_the_reference(num_bytes: int) -> None:
    for count in (0, 1, 3, 4, 70):
        states = random_bytes(np.random.default_rng(count), count, 16)
        out = native.convert(K_CONVERT, states, num_bytes)
        assert out.shape == (count, num_bytes)
        for row in range(0, count, 9):
            expected = oracle.convert(K_CONVERT, bytes(states[row]), num_bytes)
            assert bytes(out[row]) == expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nu", [0, 1, 2, 3])
def test_hints_agree_with_the_reference(width: int, nu: int) -> None:
    rng = np.random.default_rng([width, nu])
    for num_trees, num_values in ((1, 1), (5, 2), (70, 1), (6, 9), (3, 40)):
        leaves = random_bytes(rng, num_trees, 16), random_bytes(rng, num_trees, 16)
        values = random_bytes(rng, num_trees, num_values * width)
        slots = rng.integers(0, 1 << nu, num_trees, dtype=np.uint64)
        hints = native.hint_gen(K_CONVERT, *leaves, values, slots, nu, width)
        for tree in range(0, num_trees, 4):
            states = [bytes(leaf[tree]) for leaf in leaves]
            row, slot = bytes(values[tree]), int(slots[tree])
            expected = oracle.hint_gen(K_CONVERT, *states, row, slot, nu, width)
            assert bytes(hints[tree]) == expected


# Payloads of each kind of addition: packed small ones, whole blocks, and the general case.
PAYLOADS = {
    2: (2, 4, 8, 16, 18, 66, 110),
    3: (3, 9, 24, 48, 66),
    4: (4, 8, 12, 32, 60, 64, 72, 136, 260),
    6: (6, 12, 54, 96),
    8: (8, 16, 24, 32, 40, 64, 72, 80, 120, 136),
    16: (16, 32, 48, 64, 144),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("party", [0, 1])
def test_accumulate_agrees_with_the_reference(width: int, party: int) -> None:
    rng = np.random.default_rng([width, party])
    for payload in PAYLOADS[width]:
        for num_trees, num_leaves in ((1, 1), (5, 3), (2, 70), (17, 6)):
            trees = make_trees(num_leaves, num_trees, payload)
            hints = random_bytes(rng, num_trees, payload)
            before = random_bytes(rng, num_trees, num_leaves, payload)
            acc = before.copy()
            native.accumulate(K_TREE, K_CONVERT, *trees.public(party), hints, party, width, acc, 1)
            for tree in range(0, num_trees, 4):
                for leaf in range(0, num_leaves, 1 + num_leaves // 30):
                    state = trees.state(party, tree, leaf)
                    share = oracle.leaf_value(K_CONVERT, state, bytes(hints[tree]), party, width)
                    old, new = lanes(before[tree, leaf], width), lanes(acc[tree, leaf], width)
                    total = [a + b for a, b in zip(old, oracle.to_lanes(share, width), strict=True)]
                    assert oracle.from_lanes(new, width) == oracle.from_lanes(total, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nu", [0, 1, 2, 3])
def test_accumulations_sum_to_beta_at_alpha_and_zero_elsewhere(width: int, nu: int) -> None:
    rng = np.random.default_rng([width, nu, 7])
    for num_trees, num_leaves, num_values in ((1, 1, 1), (13, 61, 1), (6, 240, 3), (2, 5, 18)):
        trees = make_trees(num_leaves, num_trees, nu)
        row_bytes = num_values * width
        values = random_bytes(rng, num_trees, row_bytes)
        slots = rng.integers(0, 1 << nu, num_trees, dtype=np.uint64)
        hints = native.hint_gen(K_CONVERT, *trees.leaves, values, slots, nu, width)
        acc = np.zeros((num_trees, num_leaves, hints.shape[1]), dtype=np.uint8)
        for party in (0, 1):
            native.accumulate(K_TREE, K_CONVERT, *trees.public(party), hints, party, width, acc, 1)
        rows = acc.reshape(num_trees, num_leaves << nu, row_bytes)
        expected = np.zeros_like(rows)
        chosen = (trees.alpha << np.uint64(nu)) + slots
        expected[np.arange(num_trees), chosen.astype(np.int64)] = values
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("row_bytes", [1, 4, 16, 72, 100, 300])
def test_answers_xor_to_the_row(row_bytes: int) -> None:
    rng = np.random.default_rng(row_bytes)
    for num_trees, num_leaves, shared in ((5, 1, False), (9, 61, False), (7, 240, True)):
        trees = make_trees(num_leaves, num_trees)
        table = random_bytes(rng, 1 if shared else num_trees, num_leaves, row_bytes)
        answers = [native.answer(K_TREE, *trees.public(p), table, 1) for p in (0, 1)]
        which = np.zeros(num_trees, np.int64) if shared else np.arange(num_trees)
        expected = table[which, trees.alpha.astype(np.int64)]
        np.testing.assert_array_equal(answers[0] ^ answers[1], expected)
        one = np.zeros(row_bytes, dtype=np.uint8)
        for leaf in range(num_leaves):
            if oracle.control_bit(trees.state(0, 0, leaf)):
                one ^= table[0, leaf]
        np.testing.assert_array_equal(answers[0][0], one)


@pytest.mark.parametrize(("num_trees", "num_leaves"), [(300, 240), (90, 700), (1, 100_000)])
def test_the_number_of_threads_changes_nothing(num_trees: int, num_leaves: int) -> None:
    rng = np.random.default_rng(num_trees)
    trees = make_trees(num_leaves, num_trees)
    hints = random_bytes(rng, num_trees, 8)
    before = random_bytes(rng, num_trees, num_leaves, 8)
    slots = rng.integers(0, num_leaves, (3, 50_000), dtype=np.uint32)
    results = []
    values, nothing = random_bytes(rng, num_trees, 8), np.zeros(num_trees, dtype=np.uint64)
    for num_threads in (1, 2, 3, 0):
        acc = before.copy()
        public = trees.public(1)
        made = native.tree_gen(K_TREE, *trees.roots, trees.alpha, len(trees.cw), num_threads)
        hinted = native.hint_gen(K_CONVERT, *made[2:], values, nothing, 0, 4, num_threads)
        states = native.tree_eval(K_TREE, *public, num_threads)
        native.accumulate(K_TREE, K_CONVERT, *public, hints, 1, 4, acc, num_threads)
        answers = native.answer(K_TREE, *public, before, num_threads)
        gathered = np.zeros((50_000, 8), dtype=np.uint8)
        native.gather(before[0], slots, gathered, 4, num_threads)
        results.append((acc, answers, gathered, *made, hinted, states))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("width", WIDTHS)
def test_gather_sums_the_chosen_rows(width: int, dtype: type) -> None:
    rng = np.random.default_rng(width)
    for num_values, num_rows in ((1, 40), (3, 1), (5, 0), (9, 100)):
        acc = random_bytes(rng, 23, num_values * width)
        slots = rng.integers(0, 23, (3, num_rows)).astype(dtype)
        before = random_bytes(rng, num_rows, num_values * width)
        out = before.copy()
        native.gather(acc, slots, out, width, 1)
        for x in range(num_rows):
            rows = [before[x], *(acc[int(slot)] for slot in slots[:, x])]
            total = [sum(column) for column in zip(*(lanes(r, width) for r in rows), strict=True)]
            assert bytes(out[x]) == oracle.from_lanes(total, width)


@pytest.mark.parametrize("row_bytes", [2, 64, 72])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_gather_sums_many_rows(row_bytes: int, num_threads: int) -> None:
    """Narrow rows in such numbers are summed one sum at a time, wide ones tile by tile."""
    rng = np.random.default_rng(row_bytes)
    num_rows = (1 << 20) + 11
    acc = rng.integers(0, 1 << 16, (1000, row_bytes // 2), dtype=np.uint16)
    slots = rng.integers(0, len(acc), (3, num_rows), dtype=np.uint32)
    out = np.ones((num_rows, row_bytes // 2), dtype=np.uint16)
    expected = out + acc[slots[0]] + acc[slots[1]] + acc[slots[2]]
    native.gather(acc.view(np.uint8), slots, out.view(np.uint8), 2, num_threads)
    np.testing.assert_array_equal(out, expected)


def test_gather_refuses_a_slot_outside_before_it_writes() -> None:
    acc, out = np.ones((4, 8), dtype=np.uint8), np.zeros((5, 8), dtype=np.uint8)
    slots = np.array([[0, 1, 2, 3, 4]], dtype=np.uint32)
    with pytest.raises(ValueError, match="outside"):
        native.gather(acc, slots, out, 8)
    assert not out.any()


@pytest.mark.parametrize(
    ("num_items", "num_bins"), [(0, 0), (1, 1), (4, 3), (20, 18), (100, 90), (300, 390), (500, 300)]
)
def test_match_agrees_with_the_reference(num_items: int, num_bins: int) -> None:
    for seed in range(8):
        rng = np.random.default_rng([seed, num_items])
        candidates = rng.integers(0, max(num_bins, 1), (3, num_items), dtype=np.uint32)
        expected = oracle.match([tuple(map(int, column)) for column in candidates.T], num_bins)
        found = native.match(candidates, num_bins)
        assert found.dtype == np.int64
        assert found.tolist() == expected


@pytest.mark.parametrize("size", [0, 1, 2, 33_000, 70_000, 300_000])
@pytest.mark.parametrize("kept", [2**64 - 1, 2**63 | 7, 2**64 - 2**46, 0])
def test_the_order_of_keys_is_numpys_stable_one_whatever_the_threads(size: int, kept: int) -> None:
    """Different keys, few different ones, ones that differ in their first 18 bits alone, equal."""
    keys = np.random.default_rng(size).integers(0, 2**64, size, dtype=np.uint64) & np.uint64(kept)
    for num_threads in (1, 2, 3):
        order = native.stable_order(keys, num_threads)
        np.testing.assert_array_equal(order, portable.stable_order(keys))


def test_match_is_maximal() -> None:
    scipy_csgraph = pytest.importorskip("scipy.sparse.csgraph")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(3)
    candidates = rng.integers(0, 900, (3, 1000), dtype=np.uint32)
    edges = (np.ones(3000), (np.tile(np.arange(1000), 3), candidates.ravel()))
    graph = sparse.csr_matrix(edges, shape=(1000, 900))
    best = scipy_csgraph.maximum_bipartite_matching(graph, perm_type="column")
    found = native.match(candidates, 900)
    placed = found[found >= 0]
    assert len(placed) == (best >= 0).sum() == len(set(placed.tolist()))
    assert all(found[i] in candidates[:, i] for i in np.flatnonzero(found >= 0))


def digests() -> dict[str, str]:
    """Digest of every kernel's output on fixed inputs that reach all code of a path."""
    rng = np.random.default_rng(11)
    out: dict[str, str] = {}

    def note(name: str, *arrays: Bytes) -> None:
        out[name] = hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()

    shapes = [(n, m) for n in (1, 2, 3, 5, 16, 21) for m in (1, 2, 7, 60, 128, 240, 513)]
    for num_trees, num_leaves in [*shapes, (1, 9000), (2, 20_000)]:
        trees = make_trees(num_leaves, num_trees)
        label = f"{num_trees} x {num_leaves}"
        note(f"tree_gen {label}", trees.cw, trees.cw_right, *trees.leaves)
        note(f"tree_eval {label}", native.tree_eval(K_TREE, *trees.public(1)))
        roots, cw, cw_right, _ = trees.public(1)
        note(f"tree_path {label}", *native.tree_path(K_TREE, roots, cw, cw_right, trees.alpha, 2))
        row_bytes = int(rng.integers(1, 400)) if num_leaves < 1000 else 40
        table = random_bytes(rng, num_trees, num_leaves, row_bytes)
        note(f"answer {label}", native.answer(K_TREE, *trees.public(0), table, 2))
        words = random_bytes(rng, num_trees, 16)
        rows = random_bytes(rng, 1, 128 * num_leaves - num_leaves % 90, 1 + row_bytes % 90)
        by_bits = native.answer_bits(K_TREE, K_CONVERT, roots, cw, cw_right, words, rows, 2)
        note(f"answer_bits {label}", by_bits)
        for width in WIDTHS:
            for payload in PAYLOADS[width] if num_leaves < 200 else PAYLOADS[width][:2]:
                values = random_bytes(rng, num_trees, payload)
                slots = np.zeros(num_trees, dtype=np.uint64)
                hints = native.hint_gen(K_CONVERT, *trees.leaves, values, slots, 0, width)
                acc = random_bytes(rng, num_trees, num_leaves, payload)
                public = trees.public(1)
                native.accumulate(K_TREE, K_CONVERT, *public, hints, 1, width, acc, 1)
                note(f"accumulate {label}, {width}, {payload}", hints, acc)
    for num_bytes in (1, 8, 16, 72, 400):
        states = random_bytes(rng, 77, 16)
        note(f"convert {num_bytes}", native.convert(K_CONVERT, states, num_bytes))
    return out


@functools.cache
def own_digests() -> dict[str, str]:
    return digests()


def run_with_path(cpu_path: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TORCHFSL_CPU_PATH": cpu_path}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("cpu_path", CPU_PATHS)
def test_every_cpu_path_gives_the_same_bytes(cpu_path: str) -> None:
    code = (
        "import json, tests.kernels.test_native_kernels as t;"
        "print(json.dumps([t.native.cpu_path(), t.digests()]))"
    )
    done = run_with_path(cpu_path, code)
    if done.returncode and "this machine offers" in done.stderr:
        pytest.skip(f"this machine has no {cpu_path}")
    assert done.returncode == 0, done.stderr
    name, found = json.loads(done.stdout)
    assert name == cpu_path
    assert found == own_digests()


def test_an_unknown_cpu_path_is_refused() -> None:
    done = run_with_path("fastest", "from torchfsl.kernels import _native; _native.cpu_path()")
    assert done.returncode != 0
    assert "ValueError: TORCHFSL_CPU_PATH is 'fastest'; this machine offers" in done.stderr


def test_aes_ceiling_measures_something() -> None:
    assert native.cpu_path() in CPU_PATHS
    assert 0 < native.aes_ceiling(100_000, 1) < 60

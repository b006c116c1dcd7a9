"""The native kernels refuse malformed arguments with ValueError, before they touch anything."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from tests.kernels.test_native_kernels import K_CONVERT, K_TREE, ROOT, make_trees, native


def good_calls() -> dict[str, dict[str, object]]:
    """One valid call of every kernel that takes arrays, by keyword."""
    trees = make_trees(10, 3)
    public = {
        "roots": trees.roots[0],
        "cw": trees.cw,
        "cw_right": trees.cw_right,
        "num_leaves": 10,
    }
    hints = np.zeros((3, 24), dtype=np.uint8)
    blocks = np.zeros((3, 16), dtype=np.uint8)
    return {
        "tree_gen": {
            "key": K_TREE,
            "roots0": trees.roots[0],
            "roots1": trees.roots[1],
            "alpha": trees.alpha,
            "depth": 4,
        },
        "tree_eval": {"key": K_TREE, **public},
        "tree_path": {
            "key": K_TREE,
            **{name: value for name, value in public.items() if name != "num_leaves"},
            "x": trees.alpha,
        },
        "convert": {"key": K_CONVERT, "states": trees.leaves[0], "num_bytes": 24},
        "hint_gen": {
            "key": K_CONVERT,
            "leaf0": trees.leaves[0],
            "leaf1": trees.leaves[1],
            "values": hints,
            "slots": np.zeros(3, dtype=np.uint64),
            "nu": 2,
            "width": 8,
        },
        "accumulate": {
            "key_tree": K_TREE,
            "key_convert": K_CONVERT,
            **public,
            "hints": hints,
            "party": 0,
            "width": 8,
            "acc": np.zeros((3, 10, 24), dtype=np.uint8),
            "num_threads": 1,
        },
        "answer": {
            "key_tree": K_TREE,
            **public,
            "table": np.zeros((3, 10, 5), dtype=np.uint8),
            "num_threads": 1,
        },
        "answer_bits": {
            "key_tree": K_TREE,
            "key_bits": K_CONVERT,
            **{name: value for name, value in public.items() if name != "num_leaves"},
            "words": blocks,
            "table": np.zeros((3, 1200, 5), dtype=np.uint8),
            "num_threads": 1,
        },
        "check_gen": {
            "key": K_CONVERT,
            "leaf0": trees.leaves[0],
            "leaf1": trees.leaves[1],
            "leaf": trees.alpha,
            "first_tree": 0,
        },
        "verify": {
            "key_tree": K_TREE,
            "key_check": K_CONVERT,
            **public,
            "check_words": np.zeros((3, 32), dtype=np.uint8),
            "first_tree": 0,
            "key_fold": K_CONVERT,
            "delta_trees": blocks,
            "delta_low": np.zeros((1024, 2, 16), dtype=np.uint8),
            "delta_high": np.zeros((1, 16), dtype=np.uint8),
            "num_threads": 1,
        },
        "authenticate": {
            "key_tree": K_TREE,
            "key_mac": K_CONVERT,
            **public,
            "table": np.zeros((3, 10, 5), dtype=np.uint8),
            "digests": np.zeros((3, 10, 16), dtype=np.uint8),
            "num_threads": 1,
        },
        "row_digests": {"key": K_CONVERT, "rows": hints},
        "tags": {
            "key_mac": K_CONVERT,
            "leaf0": trees.leaves[0],
            "leaf1": trees.leaves[1],
            "digests": blocks,
        },
        "gather": {
            "acc": np.zeros((9, 24), dtype=np.uint8),
            "slots": np.zeros((3, 4), dtype=np.uint32),
            "out": np.zeros((4, 24), dtype=np.uint8),
            "width": 8,
            "num_threads": 1,
        },
        "stable_order": {"keys": trees.alpha},
        "match": {"candidates": np.zeros((3, 4), dtype=np.uint32), "num_bins": 5},
    }


ARRAYS = [
    (kernel, name)
    for kernel, call in good_calls().items()
    for name, value in call.items()
    if isinstance(value, np.ndarray)
]


@pytest.mark.parametrize(("kernel", "name"), ARRAYS)
def test_malformed_arrays_are_refused(kernel: str, name: str) -> None:
    call = good_calls()[kernel]
    getattr(native, kernel)(**call)
    good = call[name]
    assert isinstance(good, np.ndarray)
    malformed = [
        good.astype(np.int8),
        good.astype(np.float64),
        good[None],
        np.zeros((), dtype=good.dtype),
        np.repeat(good, 2, axis=-1)[..., ::2],
        np.asfortranarray(np.repeat(good, 2, axis=0)) if good.ndim > 1 else good[::-1],
    ]
    grown = np.concatenate([good, good[-1:]])
    growable = {
        ("convert", "states"),
        ("row_digests", "rows"),
        ("stable_order", "keys"),
        ("gather", "acc"),
        ("gather", "slots"),
        ("verify", "delta_high"),
    }
    if (kernel, name) not in growable:
        malformed.append(grown)
    for bad in malformed:
        with pytest.raises(ValueError, match=r"must|aligned"):
            getattr(native, kernel)(**{**call, name: bad})


@pytest.mark.parametrize(
    ("kernel", "changes"),
    [
        ("tree_gen", {"key": b"short"}),
        ("tree_gen", {"depth": -1}),
        ("tree_gen", {"depth": 57}),
        ("tree_gen", {"depth": 1 << 40}),
        ("tree_gen", {"alpha": np.array([0, 16, 0], dtype=np.uint64)}),
        ("tree_gen", {"alpha": np.array([0, 2**64 - 1, 0], dtype=np.uint64)}),
        ("tree_gen", {"roots1": np.zeros((3, 16), dtype=np.uint8)}),
        ("tree_gen", {"roots0": np.ones((3, 16), dtype=np.uint8)}),
        ("tree_eval", {"num_leaves": 0}),
        ("tree_eval", {"num_leaves": -5}),
        ("tree_eval", {"num_leaves": 17}),
        ("tree_eval", {"num_leaves": 8}),
        ("tree_eval", {"num_leaves": 1 << 62}),
        ("tree_eval", {"cw_right": np.full((4, 3), 2, dtype=np.uint8)}),
        ("tree_path", {"x": np.array([0, 16, 0], dtype=np.uint64)}),
        ("tree_path", {"cw_right": np.full((4, 3), 2, dtype=np.uint8)}),
        ("tree_path", {"num_threads": -1}),
        ("convert", {"num_bytes": 0}),
        ("convert", {"num_bytes": -1}),
        ("convert", {"num_bytes": 1 << 62}),
        ("hint_gen", {"nu": -1}),
        ("hint_gen", {"nu": 60}),
        ("hint_gen", {"width": 5}),
        ("hint_gen", {"width": 16}),
        ("hint_gen", {"slots": np.array([0, 4, 0], dtype=np.uint64)}),
        ("accumulate", {"party": 2}),
        ("accumulate", {"party": -1}),
        ("accumulate", {"width": 0}),
        ("accumulate", {"width": 16}),
        ("accumulate", {"num_threads": -1}),
        ("accumulate", {"num_threads": 1 << 40}),
        ("accumulate", {"num_leaves": 9}),
        ("answer", {"num_leaves": 11}),
        ("answer", {"table": np.zeros((2, 10, 5), dtype=np.uint8)}),
        ("answer_bits", {"key_bits": b"short"}),
        ("answer_bits", {"table": np.zeros((3, 0, 5), dtype=np.uint8)}),
        ("answer_bits", {"table": np.zeros((3, 3000, 5), dtype=np.uint8)}),
        ("answer_bits", {"table": np.zeros((2, 1200, 5), dtype=np.uint8)}),
        ("answer_bits", {"num_threads": -1}),
        ("check_gen", {"key": b""}),
        ("check_gen", {"first_tree": -1}),
        ("check_gen", {"first_tree": 2**32 - 2}),
        ("check_gen", {"first_tree": 2**62}),
        ("verify", {"key_check": bytes(17)}),
        ("verify", {"key_fold": bytes(15)}),
        ("verify", {"num_leaves": 17}),
        ("verify", {"first_tree": -1}),
        ("verify", {"first_tree": 2**32}),
        ("verify", {"delta_high": np.zeros((0, 16), dtype=np.uint8)}),
        ("verify", {"delta_high": np.zeros((1, 32), dtype=np.uint8)}),
        ("verify", {"num_threads": 1025}),
        ("authenticate", {"key_mac": b"short"}),
        ("authenticate", {"num_leaves": 9}),
        ("authenticate", {"table": np.zeros((2, 10, 5), dtype=np.uint8)}),
        ("authenticate", {"table": np.zeros((3, 10, 0), dtype=np.uint8)}),
        ("authenticate", {"num_threads": -1}),
        ("tags", {"key_mac": b"short"}),
        ("row_digests", {"key": b"short"}),
        ("row_digests", {"rows": np.zeros((3, 0), dtype=np.uint8)}),
        ("row_digests", {"num_threads": -1}),
        ("authenticate", {"digests": np.zeros((1, 10, 16), dtype=np.uint8)}),
        ("tags", {"digests": np.zeros((3, 15), dtype=np.uint8)}),
        ("gather", {"width": 7}),
        ("stable_order", {"num_threads": -1}),
        ("match", {"num_bins": 0}),
        ("match", {"num_bins": -1}),
        ("match", {"num_bins": 1 << 40}),
    ],
)
def test_values_out_of_range_are_refused(kernel: str, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|has|have|not|other"):
        getattr(native, kernel)(**{**good_calls()[kernel], **changes})


def test_a_read_only_accumulator_is_refused() -> None:
    call = good_calls()["accumulate"]
    acc = call["acc"]
    assert isinstance(acc, np.ndarray)
    acc.setflags(write=False)
    with pytest.raises(TypeError):
        native.accumulate(**call)


def test_read_only_inputs_are_accepted() -> None:
    call = good_calls()["tree_eval"]
    for value in call.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    assert native.tree_eval(**call).shape == (3, 10, 16)


def test_the_stub_declares_what_the_extension_has() -> None:
    stub = ast.parse((ROOT / "torchfsl" / "kernels" / "_native.pyi").read_text())
    declared = {f.name: f for f in stub.body if isinstance(f, ast.FunctionDef)}
    present = {name for name in dir(native) if not name.startswith("_")}
    assert set(declared) == present
    for name, function in declared.items():
        signature = getattr(native, name).__doc__.splitlines()[0]
        parameters = signature[signature.index("(") + 1 : signature.rindex(") ->")]
        order = [argument.arg for argument in function.args.args]
        positions = [f", {parameters}".find(f", {argument}: ") for argument in order]
        assert positions == sorted(positions)
        assert -1 not in positions

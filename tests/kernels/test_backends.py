"""Both backends produce the same bytes: whole rounds, kernel by kernel, with any threads."""

from __future__ import annotations

import ast
import hashlib
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchfsl
from tests.fsl.test_round import federations
from tests.support.federation import (
    Wire,
    dense_plan,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    random_update,
    submit,
    wanted_rows,
)
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round
from torchfsl.kernels import backends, portable
from torchfsl.kernels.ring import RING_BITS

Bytes = npt.NDArray[np.uint8]

try:
    native: Any = backends._import_native()
    reason = ""
except ImportError as error:
    native, reason = None, f"the native extension is not built: {error}"
needs_native = pytest.mark.skipif(native is None, reason=reason)


# --- the choice -----------------------------------------------------------------------------------


def test_the_active_backend_has_a_name_and_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", "portable")
    assert torchfsl.backend() == "portable"
    assert backends.kernels() is portable
    monkeypatch.delenv("TORCHFSL_BACKEND")
    assert torchfsl.backend() == ("portable" if native is None else "native")


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", "gpu")
    with pytest.raises(ParameterError, match="auto, portable or native"):
        torchfsl.backend()


def test_a_backend_is_never_changed_silently(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the extension `native` is an error and `auto` a warning."""
    monkeypatch.setitem(sys.modules, "torchfsl.kernels._native", None)
    choose = backends._load.__wrapped__
    with pytest.raises(ParameterError, match="reinstall torchfsl"):
        choose("native")
    with caplog.at_level(logging.WARNING, "torchfsl.backends"):
        assert choose("auto") == ("portable", portable)
    assert "portable" in caplog.text


def test_an_extension_older_than_the_library_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = ModuleType("torchfsl.kernels._native")
    old.tree_gen = portable.tree_gen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchfsl.kernels._native", old)
    choose = backends._load.__wrapped__
    with pytest.raises(ParameterError, match=r"older than torchfsl and lacks .* such as"):
        choose("native")
    with caplog.at_level(logging.WARNING, "torchfsl.backends"):
        assert choose("auto") == ("portable", portable)
    assert "older than torchfsl" in caplog.text


@pytest.mark.parametrize("threads", ["0", "-1", "two", "", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    monkeypatch.setenv("TORCHFSL_THREADS", threads)
    with pytest.raises(ParameterError, match="TORCHFSL_THREADS"):
        backends.num_threads()


def test_every_kernel_that_the_library_calls_is_there() -> None:
    called: set[str] = set()
    for path in Path(torchfsl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Call)
                and isinstance(node.value.func, ast.Name)
                and node.value.func.id == "kernels"
            ):
                called.add(node.attr)
    assert called <= set(backends.KERNELS)
    for module in (portable, native):
        assert module is None or all(hasattr(module, name) for name in backends.KERNELS)


# --- whole rounds ---------------------------------------------------------------------------------


def transcript(
    plan: Plan, clients: dict[int, int], seed: int, rounds: int = 1
) -> tuple[list[bytes], Any]:
    """Every byte that anybody sends in these rounds, and what the last one opened."""
    servers = make_servers(plan)
    said: list[bytes] = []
    rng = np.random.default_rng(seed)
    sessions = {}
    opened = None
    for round_number in range(1, rounds + 1):
        states = [server.open_round(round_number) for server in servers]
        servers[0].start(states[1])
        servers[1].start(states[0])
        wire = Wire(servers)
        for client_id, weight in clients.items():
            update = random_update(plan, rng)
            client = Client(plan, wire, client_id=client_id)
            if plan.max_epochs > 1:
                if client_id not in sessions:
                    fixed = {s.name: np.arange(s.k_max) for s in plan.early}
                    sessions[client_id] = client.open_session(indices=fixed)
                sessions[client_id].start_round(round_number).abort()
                continue
            session = client.start_round(round_number, indices=wanted_rows(plan, update))
            if plan.retrieving:
                session.retrieve()
            session.submit(update, weight=weight)
        said += states + [event.data for event in wire.events]
        one, two = servers
        sets = [one.close_round(), two.close_round()]
        folds = [one.agree(sets[1]), two.agree(sets[0])]
        one.verify(folds[1])
        two.verify(folds[0])
        commitments = [one.commit(), two.commit()]
        shares = [one.reveal(commitments[1]), two.reveal(commitments[0])]
        opened = one.open(shares[1])
        assert two.open(shares[0]).clients == opened.clients
        for server in servers:
            server.apply(opened)
        said += [*sets, *folds, *commitments, *shares, servers[0].model.digest()]
    return said, opened


class Entropy:
    """The operating system's generator, made repeatable."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_128(self._count.to_bytes(8, "little")).digest(size)


def transcripts(plan: Plan, clients: dict[int, int], seed: int, rounds: int = 1) -> list[Any]:
    """The same rounds on both backends."""
    both = []
    for name in ("portable", "native"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCHFSL_BACKEND", name)
            patch.setattr("os.urandom", Entropy())
            assert torchfsl.backend() == name
            both.append(transcript(plan, clients, seed, rounds)[0])
    return both


PLANS = {
    "mixed": mixed_plan(),
    "semi-honest": mixed_plan(secure=False),
    "weight": mixed_plan(lane="weight"),
    "dense": dense_plan(),
    "session": make_plan(
        make_segment("t", "rows", (30, 3), k_max=3, tau=3, theta=4, stash=1), max_epochs=3
    ),
    "many leaves": make_plan(make_segment("s", "scalars", (5000,), k_max=3, theta=1700, stash=1)),
    "wide rows": make_plan(
        make_segment("t", "rows", (40, 300), k_max=5, tau=300, theta=11, retrieve=True)
    ),
    **{
        f"{bits} bits": make_plan(
            make_segment("t", "rows", (40, 5), k_max=5, tau=5, theta=7, nu=1, stash=2,
                         retrieve=True),
            encoding=FixedPoint(bits, 4, 8.0),
        )
        for bits in RING_BITS
    },
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("name", list(PLANS))
def test_a_whole_round_has_the_same_bytes_on_both_backends(name: str) -> None:
    plan = PLANS[name]
    one, two = transcripts(plan, {0: 1, 3: 1}, seed=1, rounds=2)
    assert len(one) > 10
    assert one == two


@needs_native
@given(federations())
def test_any_round_has_the_same_bytes_on_both_backends(
    federation: tuple[Plan, dict[int, int], int],
) -> None:
    plan, weights, seed = federation
    one, two = transcripts(plan, weights, seed)
    assert one == two


@needs_native
def test_a_client_on_one_backend_and_servers_on_the_other_understand_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = PLANS["mixed"]
    for clients, servers_side in (("portable", "native"), ("native", "portable")):
        monkeypatch.setenv("TORCHFSL_BACKEND", clients)
        servers = make_servers(plan)
        states = [server.open_round(1) for server in servers]
        servers[0].start(states[1])
        servers[1].start(states[0])
        update = random_update(plan, np.random.default_rng(0))
        submit(Wire(servers), 0, 1, update)
        monkeypatch.setenv("TORCHFSL_BACKEND", servers_side)
        opened = finish_round(servers)
        rows = update["table"].indices
        assert rows is not None
        assert np.array_equal(opened.sums["table"][rows], update["table"].values)


# --- kernel by kernel -----------------------------------------------------------------------------


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, int]:
    return {
        "trees": draw(st.integers(1, 9)),
        "leaves": draw(st.one_of(st.integers(1, 40), st.integers(41, 1500))),
        "nu": draw(st.integers(0, 3)),
        "values": draw(st.integers(1, 20)),
        "width": draw(st.sampled_from(RING_BITS)) // 8,
        "threads": draw(st.integers(1, 3)),
        "party": draw(st.integers(0, 1)),
        "row_bytes": draw(st.integers(1, 100)),
        "seed": draw(st.integers(0, 2**32)),
    }


def run_kernels(module: ModuleType, shape: dict[str, int]) -> dict[str, Any]:
    """Every kernel's output on random inputs of the shape."""
    rng = np.random.default_rng(shape["seed"])
    trees, leaves, width, threads = (shape[n] for n in ("trees", "leaves", "width", "threads"))

    def noise(*size: int) -> Bytes:
        return rng.integers(0, 256, size).astype(np.uint8)

    keys = [noise(16).tobytes() for _ in range(3)]
    roots = [noise(trees, 16) for _ in range(2)]
    for party, states in enumerate(roots):
        states[:, 0] = (states[:, 0] & 0xFE) | party
    alpha = rng.integers(0, leaves, trees).astype(np.uint64)
    slots = rng.integers(0, 1 << shape["nu"], trees).astype(np.uint64)
    depth = (leaves - 1).bit_length()
    cw, right, leaf0, leaf1 = module.tree_gen(keys[0], roots[0], roots[1], alpha, depth)
    public = (roots[shape["party"]], cw, right, leaves)
    row = noise(trees, shape["values"] * width)
    blocks = -(-40 * leaves // 128)  # of 128 rows each
    bit_trees = (roots[0], *module.tree_gen(keys[0], *roots, alpha * 0, (blocks - 1).bit_length()))
    bit_trees = bit_trees[:3]
    hints = module.hint_gen(keys[1], leaf0, leaf1, row, slots, shape["nu"], width)
    acc = noise(trees, leaves, hints.shape[1])
    start = acc.copy()
    module.accumulate(keys[0], keys[1], *public, hints, shape["party"], width, acc, threads)
    tables = [noise(count, leaves, shape["row_bytes"]) for count in (1, trees)]
    gathered = noise(50, shape["values"] * width)
    places = rng.integers(0, trees * leaves, (3, 50)).astype(np.uint32)
    source = noise(trees * leaves, shape["values"] * width)
    module.gather(source, places, gathered, width, threads)
    check = module.check_gen(keys[2], leaf0, leaf1, alpha, 5)
    low, high = noise(1024, 2, 16), noise(-(-leaves // 1024), 16)
    fold = module.verify(
        keys[0], keys[2], *public, check, 5, keys[1], noise(trees, 16), low, high, threads
    )
    candidates = rng.integers(0, 7, (3, trees)).astype(np.uint32)
    candidates += np.array([[0], [7], [14]], dtype=np.uint32)
    return {
        "tree_gen": [cw, right, leaf0, leaf1],
        "tree_eval": module.tree_eval(keys[0], *public),
        "tree_path": [*module.tree_path(keys[0], *public[:3], alpha, threads)],
        "convert": module.convert(keys[1], leaf0, shape["row_bytes"]),
        "hint_gen": hints,
        "accumulate": [start, acc],
        "answer": [module.answer(keys[0], *public, table, threads) for table in tables],
        "answer_bits": [
            module.answer_bits(
                keys[0],
                keys[2],
                *bit_trees,
                noise(trees, 16),
                np.repeat(table, 40, axis=1),
                threads,
            )
            for table in tables
        ],
        "authenticate": [
            part
            for table in tables
            for part in module.authenticate(
                keys[0], keys[2], *public, table, noise(*table.shape[:2], 16), threads
            )
        ],
        "row_digests": module.row_digests(keys[1], tables[1][:, 0].copy(), threads),
        "tags": module.tags(keys[2], leaf0, leaf1, noise(trees, 16)),
        "gather": gathered,
        "check_gen": check,
        "verify": np.frombuffer(fold, dtype=np.uint8),
        "match": module.match(candidates, 21),
        "stable_order": module.stable_order(alpha, threads),
    }


@needs_native
@given(shapes())
def test_every_kernel_has_the_same_bytes_on_both_backends(shape: dict[str, int]) -> None:
    one, two = run_kernels(portable, shape), run_kernels(native, shape)
    for name, expected in one.items():
        outputs = expected if isinstance(expected, list) else [expected]
        others = two[name] if isinstance(expected, list) else [two[name]]
        for output, other in zip(outputs, others, strict=True):
            assert output.dtype == other.dtype, name
            assert output.shape == other.shape, name
            assert np.array_equal(output, other), name


@pytest.mark.parametrize("module", [m for m in (portable, native) if m is not None])
def test_the_inputs_of_the_kernels_stay_as_they_were(module: ModuleType) -> None:
    """Only `acc` is written; native code could write to arrays that NumPy holds for read-only."""
    pairs: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []

    def keep(*arrays: npt.NDArray[Any]) -> None:
        for array in arrays:
            array.flags.writeable = False
            pairs.append((array, array.copy()))

    roots = [np.full((2, 16), fill, dtype=np.uint8) for fill in (2, 3)]
    alpha = np.array([1, 2], dtype=np.uint64)
    table = np.arange(15, dtype=np.uint8).reshape(1, 3, 5)
    values, slots = np.ones((2, 4), dtype=np.uint8), np.zeros(2, dtype=np.uint64)
    keep(*roots, alpha, table, values, slots)
    cw, right, leaf0, leaf1 = module.tree_gen(bytes(16), roots[0], roots[1], alpha, 2)
    keep(cw, right, leaf0, leaf1)
    hints = module.hint_gen(bytes(16), leaf0, leaf1, values, slots, 0, 4)
    keep(hints)
    module.tree_eval(bytes(16), roots[0], cw, right, 3)
    module.answer(bytes(16), roots[0], cw, right, 3, table, 1)
    acc = np.zeros((2, 3, 4), dtype=np.uint8)
    module.accumulate(bytes(16), bytes(16), roots[0], cw, right, 3, hints, 0, 4, acc, 1)
    for array, before in pairs:
        np.testing.assert_array_equal(array, before)

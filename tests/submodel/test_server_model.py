"""The model at a server: obvious formulas, and the same bits whatever the machine does."""

from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import raises
from tests.support.federation import make_plan, make_segment, make_state
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel import server_model
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel, state_digest
from torchfsl.submodel.server_optimizers import (
    ServerAdam,
    ServerFTRL,
    ServerLazyAdam,
    ServerOptimizer,
    ServerRowAdagrad,
    ServerSGD,
)

PLAN = make_plan(
    make_segment("rows", "rows", (5, 3), (4, 3), k_max=4, tau=3),
    make_segment("blocks", "blocks", (7,), (2, 5), k_max=2, tau=4),
    make_segment("bias", "dense", (6,), dtype="float64"),
    encoding=FixedPoint(32, 10, 4.0),
)


def opened_of(plan: Plan, seed: int, num_clients: int = 3) -> Opened:
    rng = np.random.default_rng(seed)
    sums = {s.name: rng.integers(-9000, 9000, (s.m, s.tau)) for s in plan.segments}
    lanes = {
        s.name: rng.integers(0, 4, s.m)
        for s in plan.segments
        if plan.lane != "none" and s.policy != "dense"
    }
    weight = 11 if plan.lane == "weight" else num_clients
    return Opened(sums, lanes, num_clients, weight, tuple(range(num_clients)))


def changes_of(plan: Plan, opened: Opened, divide: bool = True) -> dict[str, list[float]]:
    """By tensor, the flat mean change: position by position, in Python floats."""
    changes: dict[str, list[float]] = {}
    for segment in plan.segments:
        flat: list[float] = []
        for position in range(segment.m):
            by = float(opened.num_clients)
            if segment.policy == "dense":
                by = float(opened.total_weight)
            elif segment.name in opened.lanes:
                by = float(max(int(opened.lanes[segment.name][position]), 1))
            for value in opened.sums[segment.name][position].tolist():
                real = value / 2.0**plan.encoding.frac_bits
                flat.append(real / by if divide else real)
        for tensor in segment.tensors:
            padded = -(-tensor.numel // segment.tau) * segment.tau
            changes[tensor.name], flat = flat[: tensor.numel], flat[padded:]
    return changes


def as_tensor(plan: Plan, name: str, flat: list[float]) -> np.ndarray:
    spec = next(t for s in plan.segments for t in s.tensors if t.name == name)
    return np.array(flat, dtype=np.float64).astype(spec.dtype).reshape(spec.shape)


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_sgd_is_the_formula_bit_for_bit(source: Any, reduce: Any, lane: Any) -> None:
    plan = make_plan(*PLAN.segments, encoding=PLAN.encoding, lane=lane,
                     max_weight=5 if lane == "weight" else 1)  # fmt: skip
    state = make_state(plan)
    model = ServerModel(state, ServerSGD(0.25), source=source, reduce=reduce)
    opened = opened_of(plan, 1)
    model.apply(plan, opened)
    sign = 1.0 if source == "delta" else -1.0
    for name, change in changes_of(plan, opened, reduce == "mean").items():
        before = state[name].reshape(-1).tolist()
        wanted = [p + sign * 0.25 * c for p, c in zip(before, change, strict=True)]
        assert model.state[name].tobytes() == as_tensor(plan, name, wanted).tobytes(), name


def test_averaging_adds_the_mean_change_to_the_model() -> None:
    state = make_state(PLAN)
    model = ServerModel(state)
    opened = opened_of(PLAN, 2)
    model.apply(PLAN, opened)
    for name, change in changes_of(PLAN, opened).items():
        before = state[name].reshape(-1).tolist()
        wanted = as_tensor(PLAN, name, [p + c for p, c in zip(before, change, strict=True)])
        assert np.array_equal(model.state[name], wanted)


def test_momentum_is_the_formula_bit_for_bit() -> None:
    state = make_state(PLAN)
    model = ServerModel(state, ServerSGD(0.5, momentum=0.9), source="gradient")
    velocity: dict[str, list[float]] = {}
    wanted = {name: value.reshape(-1).tolist() for name, value in state.items()}
    for seed in range(3):
        opened = opened_of(PLAN, seed)
        model.apply(PLAN, opened)
        for name, gradient in changes_of(PLAN, opened).items():
            old = velocity.get(name, [0.0] * len(gradient))
            velocity[name] = [0.9 * v + g for v, g in zip(old, gradient, strict=True)]
            step = [p - 0.5 * v for p, v in zip(wanted[name], velocity[name], strict=True)]
            wanted[name] = as_tensor(PLAN, name, step).reshape(-1).tolist()
            assert np.array_equal(model.state[name], as_tensor(PLAN, name, wanted[name]))


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_a_falling_rate_is_the_formula_bit_for_bit(momentum: float) -> None:
    """The rate multiplies the velocity, it is no part of it."""
    state = make_state(PLAN)
    optimizer = ServerSGD(0.5, momentum=momentum, lr_decay=0.75, lr_decay_rounds=2)
    model = ServerModel(state, optimizer, source="gradient")
    velocity: dict[str, list[float]] = {}
    wanted = {name: value.reshape(-1).tolist() for name, value in state.items()}
    for seed, rate in enumerate([0.5, 0.5, 0.5 * 0.75, 0.5 * 0.75, 0.5 * (0.75 * 0.75)]):
        opened = opened_of(PLAN, seed)
        model.apply(PLAN, opened)
        for name, gradient in changes_of(PLAN, opened).items():
            old = velocity.get(name, [0.0] * len(gradient))
            velocity[name] = [momentum * v + g for v, g in zip(old, gradient, strict=True)]
            step = [p - rate * v for p, v in zip(wanted[name], velocity[name], strict=True)]
            wanted[name] = as_tensor(PLAN, name, step).reshape(-1).tolist()
            assert np.array_equal(model.state[name], as_tensor(PLAN, name, wanted[name]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, r"choose one in \[0, 1\)"),
        ({"momentum": math.nan}, "momentum is nan"),
        ({"momentum": "0.9"}, "momentum is '0.9'"),
        ({"lr_decay": 0.0}, "lr_decay is 0.0"),
        ({"lr_decay": 1.5}, r"a factor in \(0, 1\]"),
        ({"lr_decay": True}, "lr_decay is True"),
        ({"lr_decay": 0.5, "lr_decay_rounds": 0}, "a whole number of 1 or more"),
        ({"lr_decay": 0.5, "lr_decay_rounds": True}, "lr_decay_rounds is True"),
        ({"lr_decay": 0.5, "lr_decay_rounds": 2.5}, "lr_decay_rounds is 2.5"),
    ],
)
def test_settings_of_sgd_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ServerSGD(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": math.nan}, "rate is nan"),
        ({"lr": True}, "lr of the server optimizer is not a number"),
        ({"beta1": 1.0}, r"both in \[0, 1\)"),
        ({"beta2": -0.1}, r"both in \[0, 1\)"),
        ({"eps": 0.0}, "0 / 0"),
        ({"eps": "1e-8"}, "eps of the server optimizer is not a number"),
        ({"momentum": 0.9}, "is adam: leave out both"),
    ],
)
def test_settings_of_adam_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        OptimizerSettings("adam", **settings)


def test_settings_build_the_optimizer_that_they_describe() -> None:
    adam = OptimizerSettings("adam", lr=0.1, beta1=0.8, beta2=0.99, eps=1e-6).build()
    assert isinstance(adam, ServerAdam)
    assert (adam.lr, adam.betas, adam.eps) == (0.1, (0.8, 0.99), 1e-6)
    sgd = OptimizerSettings(lr=0.5, momentum=0.9, lr_decay=0.5, lr_decay_rounds=3).build()
    assert isinstance(sgd, ServerSGD)
    assert (sgd.lr, sgd.momentum, sgd.lr_decay, sgd.lr_decay_rounds) == (0.5, 0.9, 0.5, 3)


def test_a_falling_rate_refuses_a_state_that_does_not_count_rounds() -> None:
    with raises(ParameterError, "optimizer-state"):
        ServerSGD(lr_decay=0.5).load_state(ServerSGD(momentum=0.9).state())


@pytest.mark.parametrize("source", ["delta", "gradient"])
def test_adam_is_the_formula(source: Any) -> None:
    """Kingma and Ba, Algorithm 1, with pow() from the C library, hence not to the last bit."""
    lr, beta1, beta2, eps = 0.1, 0.8, 0.99, 1e-6
    state = make_state(PLAN)
    model = ServerModel(state, ServerAdam(lr, betas=(beta1, beta2), eps=eps), source=source)
    names = [t.name for s in PLAN.segments for t in s.tensors]
    first = {name: [0.0] * state[name].size for name in names}
    second = {name: [0.0] * state[name].size for name in names}
    wanted = {name: state[name].reshape(-1).tolist() for name in names}
    for t in range(1, 6):
        opened = opened_of(PLAN, t)
        model.apply(PLAN, opened)
        for name, change in changes_of(PLAN, opened).items():
            for i, c in enumerate(change):
                g = c if source == "gradient" else -c
                first[name][i] = beta1 * first[name][i] + (1 - beta1) * g
                second[name][i] = beta2 * second[name][i] + (1 - beta2) * g * g
                mean = first[name][i] / (1 - beta1**t)
                spread = math.sqrt(second[name][i] / (1 - beta2**t))
                wanted[name][i] -= lr * mean / (spread + eps)
            tolerance = 1e-12 if state[name].dtype == np.float64 else 2e-6
            got = model.state[name].reshape(-1)
            assert np.allclose(got, wanted[name], rtol=tolerance, atol=tolerance), name


def stepped(optimizer: ServerOptimizer, start: list[float], gradients: list[list[float]]) -> Any:
    """A matrix of rows of two values after these steps."""
    value = np.array(start)
    for gradient in gradients:
        optimizer.advance()
        optimizer.rows_of("w", 2)
        optimizer.step("w", 0, len(value), value, np.array(gradient))
    return value


STEPS = [[0.5, -1.0, 0.0, 0.0], [0.25, 0.5, 0.0, -2.0], [0.0, 1.0, 0.0, 0.5]]
START = [0.3, -0.2, 0.7, 0.0]


@pytest.mark.parametrize("l1", [0.0, 0.4])
def test_ftrl_is_the_formula_and_leaves_alone_what_nobody_sent(l1: float) -> None:
    """McMahan et al. 2013, Algorithm 1, begun where its closed form gives the parameter."""
    alpha, beta, l2 = 0.2, 1.0, 0.3
    got = stepped(ServerFTRL(alpha, beta=beta, l1=l1, l2=l2), START, STEPS)
    for i, w in enumerate(START):
        z, n = -(w * (beta / alpha + l2) + math.copysign(l1, w) * (w != 0)), 0.0
        for g in (step[i] for step in STEPS):
            if g == 0:
                continue
            z += g - (math.sqrt(n + g * g) - math.sqrt(n)) / alpha * w
            n += g * g
            strength = (beta + math.sqrt(n)) / alpha + l2
            w = 0.0 if abs(z) <= l1 else -(z - math.copysign(l1, z)) / strength
        assert got[i] == pytest.approx(w, rel=1e-12, abs=1e-15)
    assert got[2] == START[2]
    for settings in ({"lr": 0.0}, {"beta": 0.0}, {"l1": -1.0}, {"l2": math.inf}):
        with pytest.raises(ParameterError, match="the servers'"):
            ServerFTRL(**settings)


def test_row_wise_adagrad_is_the_formula_and_keeps_one_sum_a_row() -> None:
    optimizer = ServerRowAdagrad(0.1, eps=1e-6)
    got = stepped(optimizer, START, STEPS)
    for row in (0, 1):
        total, w = 0.0, START[2 * row : 2 * row + 2]
        for step in STEPS:
            g = step[2 * row : 2 * row + 2]
            total += (g[0] ** 2 + g[1] ** 2) / 2
            w = [v - 0.1 * d / (math.sqrt(total) + 1e-6) for v, d in zip(w, g, strict=True)]
        assert got[2 * row : 2 * row + 2] == pytest.approx(w, rel=1e-12)
    assert optimizer.state()["rows/w"].shape == (2,)
    with pytest.raises(ParameterError, match="0 / 0"):
        ServerRowAdagrad(eps=0.0)


OPTIMIZERS: dict[str, Callable[[], ServerOptimizer]] = {
    "sgd": ServerSGD,
    "momentum": lambda: ServerSGD(0.1, momentum=0.9),
    "falling": lambda: ServerSGD(0.1, momentum=0.9, lr_decay=0.5, lr_decay_rounds=2),
    "adam": lambda: ServerAdam(0.01),
    "lazy-adam": lambda: ServerLazyAdam(0.01, rates={"t0": 0.03}),
    "ftrl": lambda: ServerFTRL(0.1, l1=0.01, l2=0.1),
    "row-adagrad": lambda: ServerRowAdagrad(0.1),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@given(chunk=st.integers(1, 20))
def test_the_result_does_not_depend_on_the_size_of_the_chunks(name: str, chunk: int) -> None:
    digests = set()
    before = server_model._CHUNK
    for size in (chunk, before):
        model = ServerModel(make_state(PLAN), OPTIMIZERS[name]())
        try:
            server_model._CHUNK = size
            for seed in range(3):
                model.apply(PLAN, opened_of(PLAN, seed))
        finally:
            server_model._CHUNK = before
        digests.add(model.digest())
    assert len(digests) == 1


ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import numpy as np
from tests.support.federation import make_plan, make_segment, make_servers
from tests.support.federation import play_round, random_update
from torchfsl.submodel.server_optimizers import ServerFTRL, ServerRowAdagrad
from torchfsl.submodel.server_optimizers import ServerLazyAdam
from torchfsl.submodel.server_optimizers import ServerAdam
plan = make_plan(
    make_segment("t", "rows", (3000, 9), k_max=40, tau=9, theta=30, stash=1, secure=False),
    make_segment("b", "dense", (9001,), dtype="float64"),
)
optimizers = (
    lambda: ServerAdam(0.03), lambda: ServerLazyAdam(0.03), lambda: ServerFTRL(0.1, l1=0.01),
    ServerRowAdagrad,
)
for make in optimizers:
    servers = make_servers(plan, optimizer=make)
    for round_number in (1, 2, 3):
        rng = np.random.default_rng(round_number)
        play_round(servers, round_number, {c: random_update(plan, rng) for c in (0, 1)})
    assert servers[0].model.digest() == servers[1].model.digest()
    print(servers[0].model.digest().hex())
"""


def simd_features() -> str:
    """What NumPy chose for this processor at run time beyond its baseline."""
    from numpy._core._multiarray_umath import (  # type: ignore[attr-defined]
        __cpu_dispatch__,
        __cpu_features__,
    )

    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))


def test_the_model_has_the_same_hash_on_any_processor_and_with_any_number_of_threads() -> None:
    """Three whole rounds with Adam, in fresh processes with other vector units and threads."""
    runs = {
        "default": ({"ATEN_CPU_CAPABILITY": "default"}, "1"),
        "native": ({}, "1"),
        "native, 2 threads": ({}, "2"),
        "default, 2 threads": ({"ATEN_CPU_CAPABILITY": "default"}, "2"),
        "no vector units": ({"NPY_DISABLE_CPU_FEATURES": simd_features()}, "1"),
    }
    environment = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    digests = {}
    for name, (extra, threads) in runs.items():
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHFSL_THREADS"), threads)
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env={**environment, **counts, **extra},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests[name] = done.stdout.strip()
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_restored_optimizer_goes_on_with_the_same_bits(name: str) -> None:
    straight = ServerModel(make_state(PLAN), OPTIMIZERS[name]())
    first = ServerModel(make_state(PLAN), OPTIMIZERS[name]())
    for seed in range(2):
        straight.apply(PLAN, opened_of(PLAN, seed))
        first.apply(PLAN, opened_of(PLAN, seed))
    stored, state = io.BytesIO(), io.BytesIO()
    np.savez(stored, allow_pickle=False, **first.optimizer.state())
    np.savez(state, allow_pickle=False, **first.state)
    optimizer = OPTIMIZERS[name]()
    stored.seek(0)
    state.seek(0)
    optimizer.load_state(dict(np.load(stored)))
    second = ServerModel(dict(np.load(state)), optimizer)
    for seed in range(2, 5):
        straight.apply(PLAN, opened_of(PLAN, seed))
        second.apply(PLAN, opened_of(PLAN, seed))
    assert straight.digest() == second.digest()
    assert state_digest(straight.optimizer.state()) == state_digest(optimizer.state())


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_memory_got_beforehand_changes_no_bit_and_is_not_in_the_state(name: str) -> None:
    usual, early = (ServerModel(make_state(PLAN), OPTIMIZERS[name]()) for _ in range(2))
    before = state_digest(early.optimizer.state())
    early.make_room(PLAN)
    assert state_digest(early.optimizer.state()) == before
    for seed in range(2):
        for model in (usual, early):
            model.apply(PLAN, opened_of(PLAN, seed))
        early.make_room(PLAN)  # later it changes nothing either
    assert usual.digest() == early.digest()
    assert state_digest(usual.optimizer.state()) == state_digest(early.optimizer.state())


@pytest.mark.parametrize("name", ["momentum", "adam", "ftrl", "row-adagrad"])
def test_a_checkpoint_is_a_snapshot_and_shares_nothing_with_the_optimizer(name: str) -> None:
    model = ServerModel(make_state(PLAN), OPTIMIZERS[name]())
    model.apply(PLAN, opened_of(PLAN, 0))
    taken = model.optimizer.state()
    before = state_digest(taken)
    restored = OPTIMIZERS[name]()
    restored.load_state(taken)
    model.apply(PLAN, opened_of(PLAN, 1))
    assert state_digest(taken) == before
    assert state_digest(restored.state()) == before


# --- the state ------------------------------------------------------------------------------------


def test_the_state_is_copied() -> None:
    state = make_state(PLAN)
    before = state_digest(state)
    ServerModel(state).apply(PLAN, opened_of(PLAN, 0))
    assert state_digest(state) == before


def test_tied_tensors_stay_tied() -> None:
    state = make_state(PLAN)
    state["tied"] = state["rows.0"]
    model = ServerModel(state)
    model.apply(PLAN, opened_of(PLAN, 0))
    assert model.state["tied"] is model.state["rows.0"]
    assert not np.array_equal(model.state["tied"], state["rows.0"])


def test_views_of_one_memory_that_differ_are_not_tied() -> None:
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    state = {
        "a": square,
        "transposed": square.T,
        "bits": square.view(np.int32),
        "strided": np.arange(32, dtype=np.float32)[::2].reshape(4, 4),
    }
    model = ServerModel(state)
    for name, value in state.items():
        assert model.state[name].dtype == value.dtype
        assert np.array_equal(model.state[name], value), name
        assert model.state[name].flags.c_contiguous


class Freshly(Mapping[str, Any]):
    """A mapping that makes a new array at every look, as a checkpoint file does."""

    def __getitem__(self, name: str) -> Any:
        return np.full(1000, float(name), dtype=np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter([str(i) for i in range(20)])

    def __len__(self) -> int:
        return 20


def test_arrays_made_on_the_fly_are_not_taken_for_tied() -> None:
    model = ServerModel(Freshly())
    for name, value in model.state.items():
        assert np.all(value == float(name))
    scalars = {str(i): np.float64(i) for i in range(20)}
    model = ServerModel(scalars)  # type: ignore[arg-type]
    assert [float(value) for value in model.state.values()] == [float(i) for i in range(20)]


def test_a_state_of_the_other_byte_order_is_the_same_model() -> None:
    state = make_state(PLAN)
    swapped = {name: value.astype(value.dtype.newbyteorder(">")) for name, value in state.items()}
    one, two = ServerModel(state), ServerModel(swapped)
    assert one.digest() == two.digest()
    for name in state:
        assert one.state[name].tobytes() == two.state[name].tobytes()


def test_the_rows_of_a_segment_are_its_tensors_one_after_the_other() -> None:
    model = ServerModel(make_state(PLAN))
    rows = model.rows(PLAN.segments[0])
    wanted = np.concatenate([model.state["rows.0"], model.state["rows.1"]])
    assert rows.shape == (9, 12)
    assert rows.tobytes() == wanted.tobytes()


def test_the_digest_depends_on_names_dtypes_shapes_and_bits() -> None:
    base = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["b"], "b": base["a"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].astype(np.float16), "b": base["b"]},
        {"a": base["a"].view(np.int32), "b": base["b"]},
        {"a": base["a"], "b": -base["b"]},
        {"a": base["a"]},
        {**base, "d": np.zeros(0, np.float32)},
        {**base, "d": np.zeros((), np.int64)},
    ]
    digests = {state_digest(state) for state in [base, *others]}
    assert len(digests) == len(others) + 1
    assert state_digest(dict(reversed(base.items()))) == state_digest(base)
    big = {name: value.astype(">f4") for name, value in base.items()}
    assert state_digest(big) == state_digest(base)


@pytest.mark.parametrize("options", [{"source": "weights"}, {"reduce": "median"}])
def test_an_unknown_way_to_apply_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        ServerModel({}, **options)


def test_a_position_that_nobody_changed_keeps_its_bits() -> None:
    """Under SGD without momentum: minus zero and tiny numbers included."""
    state = make_state(PLAN)
    state["rows.0"][0] = [-0.0, 1e-42, np.float32(3.4e38)]
    model = ServerModel(state)
    opened = opened_of(PLAN, 0)
    for total in opened.sums.values():
        total[...] = 0
    model.apply(PLAN, opened)
    for name in ("rows.1", "blocks.0", "bias.0"):
        assert model.state[name].tobytes() == state[name].tobytes()
    assert np.array_equal(model.state["rows.0"], state["rows.0"])


@pytest.mark.parametrize(
    "optimizer",
    [
        ServerSGD(2.0**15),
        ServerSGD(2.0**15, momentum=0.9, lr_decay=0.9999, lr_decay_rounds=1),
        ServerAdam(6e4),
    ],
    ids=["SGD", "falling rate, momentum", "Adam"],
)
def test_a_float16_overflow_is_noticed_before_anything_changes(optimizer: ServerOptimizer) -> None:
    plan = make_plan(
        make_segment("wide", "dense", (4,)),
        make_segment("rows", "rows", (5, 3), k_max=4, tau=3, dtype="float16"),
        encoding=PLAN.encoding,
    )
    names = [t.name for s in plan.segments for t in s.tensors]
    model = ServerModel(make_state(plan), optimizer)
    calm = {"wide": np.full((4, 1), 1), "rows": np.full((5, 3), 1)}
    model.apply(plan, Opened(calm, {}, 1, 1, (0,)))
    before, kept = model.digest(), optimizer.state()
    wild = {"wide": np.full((4, 1), 1), "rows": np.full((5, 3), 4000)}
    for _ in range(2):
        with pytest.raises(ProtocolError, match=rf"{names[1]}: .* 15 .*65504.*learning rate"):
            model.apply(plan, Opened(wild, {}, 1, 1, (0,)))
        assert model.digest() == before
        assert {n: v.tolist() for n, v in optimizer.state().items()} == {
            n: v.tolist() for n, v in kept.items()
        }
    back = {name: -value for name, value in calm.items()}
    model.apply(plan, Opened(back, {}, 1, 1, (0,)))
    assert all(np.isfinite(value).all() for value in model.state.values())


def test_a_float16_value_that_was_infinite_before_may_stay() -> None:
    plan = make_plan(make_segment("mask", "dense", (3,), dtype="float16"), encoding=PLAN.encoding)
    name = plan.segments[0].tensors[0].name
    model = ServerModel({name: np.array([-np.inf, 0, 1], dtype=np.float16)})
    model.apply(plan, Opened({"mask": np.full((3, 1), 1024)}, {}, 1, 1, (0,)))
    assert model.state[name].tolist() == [-np.inf, 1, 2]

"""Selection policies, and the law of the residual."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine_models import WIDE, scatter
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.engine.choosing import choose_blocks, choose_rows, flatten
from torchfsl.engine.policies import (
    BinTop,
    BlockTopK,
    Dense,
    Fixed,
    RandomK,
    RestPolicy,
    Rows,
    TopK,
    top,
)
from torchfsl.engine.residual import Residual
from torchfsl.engine.watch.table import TableChange
from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.submodel.bins import PublicBins
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import RawSegment, quantise

dyadic = st.integers(-(2**12), 2**12).map(lambda n: n / 2**6)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_top_takes_the_largest_and_breaks_ties_by_index(values: list[int], data: st.DataObject):
    k = data.draw(st.integers(0, len(values)))
    chosen = top(torch.tensor(values, dtype=torch.float64), k).tolist()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    assert chosen == sorted(order[:k])


@pytest.mark.parametrize("amount", [0, -1, 0.0, 1.5, True, -0.1])
def test_amounts_outside_their_range_are_refused(amount: float) -> None:
    for make in (TopK, BlockTopK, BinTop, RandomK):
        with pytest.raises(ParameterError, match="fraction"):
            make(amount)
    with pytest.raises(ParameterError, match="fraction"):
        Rows(top=amount)


def test_amounts_count_or_are_fractions_rounded_up() -> None:
    assert TopK(7).count(100) == 7
    assert TopK(0.07).count(100) == 7
    assert TopK(0.071).count(100) == 8
    assert TopK(0.001).count(100) == 1
    assert TopK(500).count(100) == 100
    assert TopK(1.0).count(100) == 100
    assert Dense().count(9) == 9
    assert Fixed([4, 2]).count(9) == 2


def test_nonsense_in_policies_is_refused() -> None:
    with pytest.raises(ParameterError, match="block"):
        BlockTopK(0.5, block=0)
    with pytest.raises(ParameterError, match="got both top and choose"):
        Rows(top=3, choose=RandomK(3))
    with pytest.raises(ParameterError, match="distinct"):
        Fixed([1, 1])
    with pytest.raises(ParameterError, match="distinct"):
        Fixed({"a.weight": [-1]})
    with pytest.raises(ParameterError, match="from 0 to 2"):
        Fixed([1, 3]).count(3)
    with pytest.raises(ParameterError, match="restrict"):
        Rows(untouched="ignore")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="scan"):
        Rows(find="guess")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="budget"):
        Rows(budget=0)


@given(st.integers(1, 60).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))), st.data())
@settings(max_examples=60, deadline=None)
def test_bin_top_takes_the_largest_of_each_bin(shape: tuple[int, int], data: st.DataObject) -> None:
    m, k = shape
    scores = data.draw(st.lists(st.integers(-3, 3), min_size=m, max_size=m))
    bins = PublicBins.of(bytes(32), "rest", m, k, data.draw(st.integers(0, 5)))
    totals = torch.tensor(scores, dtype=torch.float64)[:, None]
    chosen = BinTop(k).choose(totals, torch.from_numpy(bins.members())).tolist()
    expected = []
    for number in range(k):  # the obvious way: place by place, of equal ones the first
        places = np.arange(bins.start(number), bins.start(number + 1))
        own = [int(x) for x in bins.positions(places)]
        expected.append(max(own, key=lambda x: abs(scores[x])))
    assert chosen == sorted(expected)


def test_bins_of_another_round_hold_others_and_what_waits_goes_out() -> None:
    """Two large values of one bin: error feedback sends the second soon after the first."""
    policy, residual = BinTop(4), Residual()
    plan = blocks_plan(policy, 40)
    (segment,) = plan.segments
    large = plan.public_bins(segment, 0).members()[1, :2].tolist()
    change = torch.zeros(40, 1, dtype=torch.float64)
    change[large] = 1.0
    sent: set[int] = set()
    for number in range(3):
        bins = plan.public_bins(segment, number)
        raw = choose_blocks(segment, change, policy, residual, number, bins)
        sent |= {int(x) for x, v in zip(raw.indices, raw.values, strict=True) if v != 0}
        send(plan, {"rest": raw}, residual)
        assert len(sent & set(large)) == min(number + 1, 2)
        change = torch.zeros(40, 1, dtype=torch.float64)


def test_random_positions_depend_on_seed_and_round_only() -> None:
    policy = RandomK(5, seed=1)
    one, again = policy.positions(40, 5, 3), policy.positions(40, 5, 3)
    assert torch.equal(one, again)
    assert all(a < b for a, b in pairwise(one.tolist()))
    assert not torch.equal(one, policy.positions(40, 5, 4))
    assert not torch.equal(one, RandomK(5, seed=2).positions(40, 5, 3))
    seen = {int(i) for r in range(80) for i in policy.positions(40, 5, r)}
    assert seen == set(range(40))


def test_blocks_pad_each_tensor_on_its_own() -> None:
    flat = flatten([torch.arange(1.0, 6.0), torch.arange(6.0, 9.0).reshape(3, 1)], 2)
    assert flat.tolist() == [[1, 2], [3, 4], [5, 0], [6, 7], [8, 0]]


def blocks_plan(policy: RestPolicy, m: int, encoding: FixedPoint = WIDE) -> Plan:
    tensors = (TensorSpec("w", (m * policy.block,)),)
    spec = SegmentSpec("rest", policy.policy, tensors, policy.count(m), policy.block,
                       binned=isinstance(policy, BinTop))  # fmt: skip
    return build_plan([spec], encoding=encoding, max_clients=2, above_break_even="keep")


def rows_plan(m: int, tau: int, k_max: int, encoding: FixedPoint = WIDE) -> Plan:
    spec = SegmentSpec("rows", "rows", (TensorSpec("w", (m, tau)),), k_max, tau)
    return build_plan([spec], encoding=encoding, max_clients=2, above_break_even="keep")


def send(
    plan: Plan, raw: dict[str, RawSegment], residual: Residual, unmatched: list[int] | None = None
) -> np.ndarray:
    """What the servers decode; the residual is settled."""
    update, errors, _ = quantise(plan, raw)
    name = plan.segments[0].name
    lost = np.array(unmatched or [], dtype=np.int64)
    lost = np.intersect1d(lost, raw[name].indices)
    residual.settle(raw, errors, {name: lost})
    decoded = plan.encoding.dequantise(update[name].values)
    decoded[np.isin(raw[name].indices, lost)] = 0
    return scatter(plan, {name: RawSegment(raw[name].indices, decoded)})["w"]


coarse = FixedPoint(ring_bits=32, frac_bits=3, clip=2.0)


@settings(deadline=None)
@given(
    st.lists(st.lists(dyadic, min_size=12, max_size=12), min_size=1, max_size=5),
    st.sampled_from(
        [
            TopK(3),
            TopK(0.5),
            BlockTopK(2, block=2),
            RandomK(4),
            Fixed([0, 3, 5]),
            BinTop(4),
            BinTop(5, block=2),
        ]
    ),
    st.sampled_from([WIDE, coarse]),
    st.lists(st.integers(0, 11), max_size=4),
)
def test_sent_plus_residual_is_the_sum_of_the_changes(
    changes: list[list[float]], policy: RestPolicy, encoding: FixedPoint, unmatched: list[int]
) -> None:
    m = 12 // policy.block
    plan, residual = blocks_plan(policy, m, encoding), Residual()
    sent = np.zeros(12)
    for number, change in enumerate(changes):
        values = torch.tensor(change, dtype=torch.float64).reshape(m, policy.block)
        (segment,) = plan.segments
        bins = plan.public_bins(segment, number)
        raw = choose_blocks(segment, values, policy, residual, number, bins)
        assert len(raw.indices) <= plan.segments[0].k_max
        sent += send(plan, {"rest": raw}, residual, unmatched)
    owed = residual.dense("rest", (m, policy.block), torch.device("cpu"))
    np.testing.assert_array_equal(sent + owed.numpy().reshape(-1), np.sum(changes, axis=0))


row_changes = st.dictionaries(
    st.integers(0, 9), st.lists(dyadic, min_size=2, max_size=2), max_size=8
)


@settings(deadline=None)
@given(
    st.lists(row_changes, min_size=1, max_size=5),
    st.sampled_from([Rows(), Rows(top=2), Rows(choose=RandomK(3)), Rows(budget=1)]),
    st.sampled_from([WIDE, coarse]),
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(1, 10),
)
def test_sent_plus_residual_is_the_sum_of_the_changes_of_rows(
    changes: list[dict[int, list[float]]],
    rows: Rows,
    encoding: FixedPoint,
    unmatched: list[int],
    k_max: int,
) -> None:
    plan, residual = rows_plan(10, 2, k_max, encoding), Residual()
    segment, sent, total = plan.segments[0], np.zeros((10, 2)), np.zeros((10, 2))
    for number, change in enumerate(changes):
        ids = torch.tensor(sorted(change), dtype=torch.int64)
        values = torch.tensor([change[int(i)] for i in ids], dtype=torch.float64).reshape(-1, 2)
        total[ids.numpy()] += values.numpy()
        raw = choose_rows(segment, [(0, TableChange(ids, values))], rows, residual, number)
        assert len(raw.indices) <= k_max
        sent += send(plan, {"rows": raw}, residual, unmatched)
    owed = residual.rows("rows", 2, torch.device("cpu"))
    sent[owed.ids.numpy()] += owed.values.numpy()
    np.testing.assert_array_equal(sent, total)


def test_rows_beyond_the_budget_go_out_later_and_none_is_lost() -> None:
    plan, residual = rows_plan(10, 2, 2), Residual()
    values = torch.tensor([[1.0, 0], [3, 0], [2, 0]], dtype=torch.float64)
    change = TableChange(torch.tensor([4, 5, 6]), values)
    raw = choose_rows(plan.segments[0], [(0, change)], Rows(), residual, 0)
    assert raw.indices.tolist() == [5, 6]
    send(plan, {"rows": raw}, residual)
    assert residual.pending("rows").tolist() == [4]
    nothing = TableChange(torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=torch.float64))
    raw = choose_rows(plan.segments[0], [(0, nothing)], Rows(), residual, 1)
    assert raw.indices.tolist() == [4]
    send(plan, {"rows": raw}, residual)
    assert residual.pending("rows").tolist() == []


def test_without_a_residual_rows_beyond_the_budget_raise() -> None:
    plan = rows_plan(10, 2, 2)
    change = TableChange(torch.tensor([1, 2, 3]), torch.ones(3, 2, dtype=torch.float64))
    for residual, rows in ((None, Rows()), (Residual(), Rows(error_feedback=False))):
        with pytest.raises(ParameterError, match=r"3 rows changed.*may send 2.*rows_per_client"):
            choose_rows(plan.segments[0], [(0, change)], rows, residual, 0)


def test_rounding_errors_alone_do_not_make_a_row_pending() -> None:
    plan, residual = rows_plan(10, 2, 4, coarse), Residual()
    change = TableChange(torch.tensor([1]), torch.full((1, 2), 0.3, dtype=torch.float64))
    raw = choose_rows(plan.segments[0], [(0, change)], Rows(), residual, 0)
    send(plan, {"rows": raw}, residual)
    assert residual.num_bytes > 0
    assert residual.pending("rows").tolist() == []


def test_discard_keeps_the_residual_as_it_was() -> None:
    plan, residual = blocks_plan(TopK(1), 3), Residual()
    raw = choose_blocks(
        plan.segments[0], torch.tensor([[1.0], [2], [3]]).double(), TopK(1), residual, 0
    )
    send(plan, {"rest": raw}, residual)
    before = residual.state_dict()
    choose_blocks(plan.segments[0], torch.ones(3, 1).double(), TopK(1), residual, 1)
    residual.discard()
    assert torch.equal(residual.state_dict()["parts"]["rest"]["values"],
                       before["parts"]["rest"]["values"])  # fmt: skip
    assert before["parts"]["rest"]["values"].flatten().tolist() == [1, 2, 0]


def test_not_finite_values_are_refused_by_name() -> None:
    plan = blocks_plan(TopK(1), 3)
    for bad in (float("nan"), float("inf")):
        change = torch.tensor([[1.0], [bad], [0.0]]).double()
        with pytest.raises(ParameterError, match=r"^w \(segment .*NaN or infinite"):
            choose_blocks(plan.segments[0], change, TopK(1), None, 0)


def test_residual_state_survives_saving_and_loading() -> None:
    residual = Residual()
    plan = rows_plan(10, 2, 1)
    change = TableChange(torch.tensor([1, 7]), torch.rand(2, 2, dtype=torch.float64))
    raw = choose_rows(plan.segments[0], [(0, change)], Rows(), residual, 0)
    send(plan, {"rows": raw}, residual)
    file = io.BytesIO()
    torch.save(residual.state_dict(), file)
    file.seek(0)
    other = Residual()
    other.load_state_dict(torch.load(file, weights_only=True))
    mine, theirs = (r.rows("rows", 2, torch.device("cpu")) for r in (residual, other))
    assert torch.equal(mine.ids, theirs.ids)
    assert torch.equal(mine.values, theirs.values)
    assert torch.equal(mine.pending, theirs.pending)
    with pytest.raises(ParameterError, match="state_dict"):
        other.load_state_dict({"format": 99})
    with pytest.raises(ParameterError, match="other shapes"):
        other.rows("rows", 3, torch.device("cpu"))

"""The planner: every plan it makes is legal, the cheapest of its kind, and says what it costs."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.costs import client_bytes
from torchfsl.fsl.cuckoo.bounds import choose_layout, min_bins
from torchfsl.fsl.explain import explain
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.plan.proof_shape import MAX_CARRIES, num_carries
from torchfsl.submodel.plan import Lane, noise_tail
from torchfsl.submodel.segments import SegmentSpec, TensorSpec

SMALL = [*range(1, 41), 63, 64, 65, 66, 100, 127, 128, 192, 255, 256, 300]
LARGE = [1000, 4096, 32768, 148_000, 1 << 20, (1 << 24) + 1]


def plan_of(spec: SegmentSpec, **options: Any) -> Plan:
    fixed = {
        "encoding": FixedPoint(), "max_clients": 3, "above_break_even": "keep",
        "session": bytes(16), "hash_seed": bytes(32),
    }  # fmt: skip
    return build_plan([spec], **{**fixed, **options})


def scalars(m: int, k: int) -> SegmentSpec:
    return SegmentSpec("s", "scalars", (TensorSpec("t", (m,)),), k_max=k)


def assert_legal(segment: TreeSegment, m: int, k: int) -> None:
    """The rules, written down once more: what a peer checks and what safety needs."""
    assert (segment.m, segment.k_max) == (m, min(k, m))
    assert 1 << segment.nu <= 128
    if segment.mechanism == "full-domain":
        assert (segment.num_bins, segment.theta, segment.stash) == (0, 0, segment.k_max)
        assert segment.num_trees == segment.k_max
    else:
        bins = segment.num_bins // 3
        assert segment.num_bins == 3 * bins
        assert (bins - 1) * segment.theta < m <= bins * segment.theta
        full_bins, needed = m // segment.theta, min_bins(segment.k_max, segment.stash)
        assert segment.theta <= 3 or (needed is not None and full_bins >= needed)
    for group in segment.groups:
        assert (group.num_leaves - 1) << group.nu < group.domain <= group.num_leaves << group.nu
        assert group.num_leaves <= 1 << group.depth < 2 * max(group.num_leaves, 1)
    assert choose_layout(m, segment.k_max) is None or segment.mechanism == "dpf"


@pytest.mark.parametrize("m", SMALL)
def test_every_plan_of_a_small_index_space_is_legal(m: int) -> None:
    for k in range(1, m + 1):
        plan = plan_of(scalars(m, k))
        assert_legal(plan.segments[0], m, k)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("m", LARGE)
def test_plans_of_large_index_spaces_are_legal(m: int) -> None:
    for k in (1, 2, 63, 64, 65, 102, 419, 1023, 1024, 1025, 8192, 10_486, m // 100, m // 10, m):
        if 1 <= k <= min(m, 1 << 17):
            plan = plan_of(scalars(m, k))
            assert_legal(plan.segments[0], m, k)
            assert Plan.from_json(plan.to_json()) == plan


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 40),
    st.sampled_from([16, 32, 64, 128]),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.sampled_from(["none", "count"]),
)
def test_the_chosen_early_termination_is_the_cheapest(
    m: int, k: int, tau: int, bits: int, secure: bool, epochs: int, lane: str
) -> None:
    k = min(k, m)
    spec = SegmentSpec("s", "rows", (TensorSpec("t", (m, tau)),), k_max=k, tau=tau, retrieve=secure)
    plan = plan_of(
        spec, encoding=FixedPoint(bits, 4, 8.0), max_epochs=epochs, lane=lane,
        malicious_security=secure,
    )  # fmt: skip
    segment = plan.segments[0]
    assert_legal(segment, m, k)
    assert (segment.check_bytes, segment.tag_bytes) == ((32, 16) if secure else (0, 0))
    assert segment.nu == 0 or epochs == 1
    value_bits = (tau + plan.lane_values) * bits

    def cost(nu: int) -> int:
        total = 0
        for trees, domain in ((segment.num_bins, segment.theta), (segment.stash, m)):
            leaves = -(-domain // 2**nu)
            depth = (leaves - 1).bit_length() if trees else 0
            total += trees * (129 * depth + (value_bits << nu) + 8 * segment.check_bytes)
        return total

    allowed = [0] if epochs > 1 else [n for n in range(8) if n == 0 or 1 << n <= segment.theta]
    if segment.num_bins:
        assert cost(segment.nu) == min(cost(nu) for nu in allowed)


def test_the_documented_layouts_of_a_million_scalars() -> None:
    """One of 32 bits ends three levels early, a mega-element of 18 not at all."""
    plan = plan_of(scalars(1 << 20, 10_486), malicious_security=False)
    segment = plan.segments[0]
    assert (segment.nu, segment.stash) == (3, 0)
    assert 1.29 < segment.num_bins / segment.k_max < 1.34
    assert 1.5e6 < client_bytes(plan) < 1.6e6
    wide = SegmentSpec("s", "rows", (TensorSpec("t", (1 << 20, 18)),), k_max=10_486, tau=18)
    assert plan_of(wide, malicious_security=False).segments[0].nu == 0


def test_above_break_even_the_planner_raises_keeps_or_switches_as_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = scalars(1000, 500)
    with pytest.raises(ParameterError, match=r"'s'.*500 of 1000.*above_break_even='dense'"):
        plan_of(spec, above_break_even="error")
    assert plan_of(spec, above_break_even="keep").segments[0].mechanism == "dpf"
    with caplog.at_level(logging.WARNING, "torchfsl.planner"):
        dense = plan_of(spec, above_break_even="dense").segments[0]
    assert (dense.mechanism, dense.m, dense.tau) == ("dense", 1000, 1)
    assert "using dense shares" in caplog.text


def test_rows_to_be_retrieved_switch_to_dense_where_told_and_are_then_downloaded_whole() -> None:
    spec = SegmentSpec("s", "rows", (TensorSpec("t", (70, 1)),), k_max=70, tau=1, retrieve=True)
    with pytest.raises(ParameterError, match=r"\(t\).*above_break_even='dense'.*download"):
        plan_of(spec, above_break_even="error")
    segment = plan_of(spec, above_break_even="dense").segments[0]
    assert (segment.mechanism, segment.m, segment.retrieve) == ("dense", 70, False)


def test_another_word_for_above_break_even_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"above_break_even is 'rest'.*'error', 'dense'"):
        plan_of(scalars(1 << 20, 1000), above_break_even="rest")


def test_blocks_that_do_not_divide_their_tensor_switch_to_every_element() -> None:
    spec = SegmentSpec("s", "blocks", (TensorSpec("t", (101,)),), k_max=13, tau=8)
    dense = plan_of(spec, above_break_even="dense").segments[0]
    assert (dense.mechanism, dense.m) == ("dense", 101)


def test_below_break_even_nothing_is_said() -> None:
    plan_of(scalars(1 << 20, 1000), above_break_even="error")


@pytest.mark.parametrize(
    "spec",
    [
        SegmentSpec("s", "scalars", (TensorSpec("t", (9,)),)),
        SegmentSpec("s", "scalars", (TensorSpec("t", (9,)),), k_max=-1),
        SegmentSpec("s", "rows", (TensorSpec("t", (9, 2)),), k_max=1, tau=3),
        SegmentSpec("s", "scalars", (), k_max=1),
        SegmentSpec("s", "scalars", (TensorSpec("t", (0,)),), k_max=1),
        SegmentSpec("s", "blocks", (TensorSpec("t", (9,)),), k_max=1, tau=0),
        SegmentSpec("s", "scalars", (TensorSpec("t", (9,)),), k_max=1, tau=3),
        SegmentSpec("s", "blocks", (TensorSpec("t", (9,)),), k_max=1, tau=2, retrieve=True),
        SegmentSpec("s", "dense", ()),
        SegmentSpec("s", "scalars", (TensorSpec("t", (1 << 26,)),), k_max=1 << 26),
    ],
)
def test_a_wish_that_cannot_be_planned_is_refused(spec: SegmentSpec) -> None:
    with pytest.raises(ParameterError):
        plan_of(spec)


def test_secrets_of_a_plan_are_fresh_unless_given() -> None:
    one, two = (
        build_plan([scalars(9, 1)], encoding=FixedPoint(), max_clients=3, above_break_even="keep")
        for _ in range(2)
    )
    assert one.session != two.session
    assert one.hash_seed != two.hash_seed
    assert one.digest != two.digest
    assert plan_of(scalars(9, 1)).digest == plan_of(scalars(9, 1)).digest


def test_the_explanation_gives_the_bytes_of_every_segment_and_of_a_client() -> None:
    plan = build_plan(
        [scalars(5000, 70), SegmentSpec("bias", "dense", (TensorSpec("b", (12,)),))],
        encoding=FixedPoint(),
        max_clients=3,
        above_break_even="keep",
    )
    text = explain(plan)
    assert len({len(line) for line in text.splitlines()[:3]}) == 1
    assert f"uploads {client_bytes(plan):,} bytes" in text
    first = plan.segments[0]
    row = text.splitlines()[1].split()
    assert row[:3] == ["s", "scalars", "dpf"]
    assert row[3:10] == [
        str(n) for n in (5000, 1, 70, first.num_bins, first.theta, first.nu, first.stash)
    ]
    uploaded = first.tree_bytes + plan.hint_bytes(first)
    assert row[10:] == [str(uploaded), "20000", "20000", "t[5000]"]
    assert text.splitlines()[2].split()[10:] == ["48", "48", "48", "b[12]"]


def planned(lane: Lane = "none", ring_bits: int = 32, frac_bits: int = 8, **options: Any) -> Plan:
    spec = SegmentSpec("table", "rows", (TensorSpec("table", (4096, 4)),), 16, 4)
    encoding = FixedPoint(ring_bits=ring_bits, frac_bits=frac_bits, clip=4.0)
    return build_plan(
        [spec], encoding=encoding, max_clients=options.pop("max_clients", 8), lane=lane, **options
    )


@pytest.mark.parametrize(
    ("proofs", "options"),
    [
        ("none", {}),
        ("lanes", {"lane": "count"}),
        ("norm", {"l2_bound": 1 << 10}),
        ("norm", {"l2_bound": 1 << 10, "lane": "count"}),
        ("lanes", {"lane": "weight", "max_weight": 3}),
        ("norm", {"lane": "weight", "max_weight": 3, "l2_bound": 1 << 10}),
        ("none", {"lane": "weight", "max_weight": 3, "proofs": "none"}),
        ("none", {"lane": "count", "ring_bits": 64}),
        ("none", {"lane": "count", "malicious_security": False}),
        ("none", {"lane": "count", "l2_bound": 1 << 10, "proofs": "none"}),
        ("lanes", {"lane": "count", "l2_bound": 1 << 10, "proofs": "lanes"}),
    ],
)
def test_a_plan_proves_the_most_that_it_can_unless_told_otherwise(
    proofs: str, options: dict[str, Any]
) -> None:
    assert planned(**options).proofs == proofs


def test_segments_may_have_bounds_of_their_own() -> None:
    plan = planned(l2_bound=1 << 10, l2_bounds={"table": 500})
    assert [segment.l2_bound for segment in plan.segments] == [500]
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.digest != planned(l2_bound=1 << 10).digest
    assert "of table at most 500" in explain(plan)
    with pytest.raises(ParameterError, match="names \\['tables'\\]"):
        planned(l2_bound=1 << 10, l2_bounds={"tables": 500})
    for wrong in (7, 1025):
        with pytest.raises(
            ParameterError, match=rf"l2_bound is {wrong}: choose at least 8, .* at most 1024"
        ):
            planned(l2_bound=1 << 10, l2_bounds={"table": wrong})
    with pytest.raises(ParameterError, match=r"'table' has l2_bound 500, .*also pass l2_bound="):
        planned(l2_bounds={"table": 500})
    for odd in (10, [("table", 500)]):
        with pytest.raises(ParameterError, match=r"l2_bounds is .*pass a mapping"):
            planned(l2_bound=1 << 10, l2_bounds=odd)


@pytest.mark.parametrize("name", ["l2_bound", "max_weight"])
@pytest.mark.parametrize("value", [1.5, 4.0, "100"])
def test_numbers_of_a_plan_that_are_no_whole_ones_are_refused_by_name(
    name: str, value: Any
) -> None:
    with pytest.raises(
        ParameterError, match=rf"{name} is {value!r}, not an integer: (give|for a norm)"
    ):
        planned("weight", **{name: value})


def test_a_weight_out_of_place_names_limit_and_lane() -> None:
    for lane, weight in (("weight", 0), ("count", 5), ("none", 5)):
        with pytest.raises(ParameterError, match=rf"max_weight is {weight} with lane='{lane}'"):
            planned(lane, max_weight=weight)  # type: ignore[arg-type]


def test_what_cannot_be_proven_names_the_segment_and_the_setting() -> None:
    with pytest.raises(
        ParameterError, match=r"'table' has ring_bits=64.*at most 48.*proofs='none'"
    ):
        planned(lane="count", ring_bits=64, proofs="lanes")
    with pytest.raises(ParameterError, match=r"malicious_security=True.*proofs='none'"):
        planned(lane="count", malicious_security=False, proofs="lanes")
    table = SegmentSpec("table", "rows", (TensorSpec("table", (4096, 4)),), 16, 4)
    rest = SegmentSpec("rest", "dense", (TensorSpec("b", (20,)),), encoding=FixedPoint(16, 8, 0.5))
    encoding = FixedPoint(32, 16, 4.0)
    with pytest.raises(
        ParameterError,
        match=r"'rest' has frac_bits=8 and the plan 16.*proofs='none'",
    ):
        build_plan([table, rest], encoding=encoding, max_clients=8, l2_bound=1 << 10)
    rest = SegmentSpec(
        "rest", "dense", (TensorSpec("b", (20,)),), encoding=FixedPoint(16, 16, 0.01)
    )
    with pytest.raises(ParameterError, match=r"one ring for all segments.*proofs='none'"):
        build_plan([table, rest], encoding=encoding, max_clients=8, l2_bound=1 << 10)
    plan = build_plan([table, rest], encoding=encoding, max_clients=8, l2_bound=1 << 10,
                      proofs="none")  # fmt: skip
    assert plan.rings == {16, 32}


def test_explain_says_what_of_weights_is_proven() -> None:
    text = explain(planned("weight", max_weight=7, l2_bound=1 << 10))
    assert "at most 1024 times its weight" in text
    assert "weight 0 or the client's weight, a whole number up to 7" in text
    assert "sends one row in several trees, the norm" in text
    assert "is at most sqrt(16) times larger" in text


def test_a_bound_too_large_to_be_proven_is_refused_and_the_remedy_named() -> None:
    with pytest.raises(ParameterError, match=r"more ring_bits.*or pass proofs='none'"):
        planned(l2_bound=1 << 30)
    assert planned(l2_bound=1 << 30, proofs="none").proofs == "none"
    with pytest.raises(ParameterError) as info:
        planned(l2_bound=1 << 30)
    found = re.search(
        r"add up to (\d+), and proofs with ring_bits=\d+ allow (\d+): .* by (\d+)", str(info.value)
    )
    assert found is not None
    magnitudes, most, times = map(int, found.groups())
    assert num_carries(most, 32) == MAX_CARRIES
    with pytest.raises(ParameterError):
        num_carries(most + 1, 32)
    assert times == -(-magnitudes // most)
    alone: dict[str, Any] = {"max_clients": 1, "min_clients": 1}  # or sums could leave the ring
    assert planned(l2_bound=(1 << 30) // times, **alone).proofs == "norm"


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_bounds_whose_sums_could_leave_the_ring_are_refused_and_the_largest_named(
    lane: Lane,
) -> None:
    """Eight clients of weight up to five, a row in 16 full-domain trees: R = 16."""
    options: dict[str, Any] = {"lane": lane, "ring_bits": 24}
    weight, bound = 8, 1 << 18
    if lane == "weight":
        options["max_weight"], weight, bound = 5, 40, 1 << 16
    with pytest.raises(ParameterError, match=r"the sum of 8 reports can reach.*'none'$") as info:
        planned(l2_bound=bound, **options)
    found = re.search(
        r"can reach (\d+), but .* at most (\d+): .* l2_bound of at most (\d+) ", str(info.value)
    )
    assert found is not None
    reached, room, most = map(int, found.groups())
    assert (reached, room) == (4 * weight * bound, (1 << 23) - 1)
    assert 4 * weight * most <= room < 4 * weight * (most + 1)
    bits = {n: int(v) for n, v in re.findall(r"(ring_bits|frac_bits)=(\d+)", str(info.value))}
    wider = planned(
        lane, bits["ring_bits"], l2_bound=bound, max_weight=options.get("max_weight", 1)
    )
    assert (wider.proofs, bits["ring_bits"]) == ("norm", 32)
    same_norm = bound >> (8 - bits["frac_bits"])
    fewer = planned(l2_bound=same_norm, frac_bits=bits["frac_bits"], **options)
    assert (fewer.proofs, 8 * same_norm > 4 * most) == ("norm", True)
    assert planned(l2_bound=most, **options).proofs == "norm"
    with pytest.raises(ParameterError, match="reports can reach"):
        planned(l2_bound=most + 1, **options)
    assert planned(l2_bound=most + 1, proofs="none", **options).proofs == "none"
    options |= {"noise_sigma": 100, "lane_sigma": 100 * (lane != "none")}
    less = (room - noise_tail(100)) // (4 * weight)
    assert less < most
    assert planned(l2_bound=less, **options).proofs == "norm"
    with pytest.raises(ParameterError, match="reports can reach"):
        planned(l2_bound=less + 1, **options)


def test_proven_counts_whose_sums_could_leave_the_ring_are_refused() -> None:
    encoding = FixedPoint(16, 0, 1.0)
    spec = SegmentSpec("table", "rows", (TensorSpec("table", (4096, 4)),), 16, 4)
    for clients in (2047, 2048):  # 16 full-domain trees
        plan = functools.partial(
            build_plan, [spec], encoding=encoding, max_clients=clients, lane="count"
        )
        if 16 * clients < 1 << 15:
            assert plan().proofs == "lanes"
        else:
            with pytest.raises(ParameterError, match=r"2048 clients could reach 32768") as info:
                plan()
            assert re.findall(r"\w+_bits=\d+", str(info.value)) == ["ring_bits=24"]
            wider = FixedPoint(24, 0, 1.0)
            assert plan(encoding=wider).proofs == "lanes"
        assert plan(proofs="none").proofs == "none"

"""What a plan says about itself before anything is sent."""

from __future__ import annotations

from typing import Any

from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.costs import client_bytes, download_bytes
from torchfsl.fsl.explain import dense_upload, download, explain, upload
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.submodel.segments import SegmentSpec, TensorSpec


def plan_of(*specs: SegmentSpec, **options: Any) -> Plan:
    options = {"max_clients": 3, "above_break_even": "keep"} | options
    return build_plan(list(specs), encoding=FixedPoint(), **options)


TABLE = TensorSpec("item.weight", (200_000, 18))


def test_the_segments_add_up_to_what_a_client_sends_and_fetches() -> None:
    plan = plan_of(
        SegmentSpec("rows18", "rows", (TABLE,), 419, 18, True),
        SegmentSpec("rest", "dense", (TensorSpec("top.weight", (80, 200)),)),
    )
    sent = sum(upload(plan, s) for s in plan.segments)
    assert 0 < client_bytes(plan) - sent < 1000, "headers, nonces and commitments"
    fetched = sum(download(s) for s in plan.segments)
    assert 0 <= download_bytes(plan) - fetched < 1000
    text = explain(plan)
    assert "item.weight[200000,18]" in text
    assert str(dense_upload(plan, plan.segments[0])) in text


def test_a_segment_above_break_even_is_told_that_dense_is_cheaper() -> None:
    plan = plan_of(SegmentSpec("s", "scalars", (TensorSpec("w", (5000,)),), 2000))
    assert f"s: Dense() would upload 20000 bytes instead of {upload(plan, plan.segments[0])}" in (
        explain(plan)
    )


def test_rows_above_break_even_are_told_the_option_that_sends_them_dense() -> None:
    tensor = TensorSpec("w", (100, 4))
    plan = plan_of(SegmentSpec("s", "rows", (tensor,), 60, 4), above_break_even="keep")
    dense = plan_of(SegmentSpec("s", "rows", (tensor,), 60, 4), above_break_even="dense")
    (segment,), (other,) = plan.segments, dense.segments
    wanted = f"would upload {upload(dense, other)} bytes instead of {upload(plan, segment)}"
    assert f"s: make_plan(above_break_even='dense') {wanted}" in explain(plan)


def test_scalars_are_told_that_blocks_are_cheaper_and_the_figure_is_right() -> None:
    plan = plan_of(SegmentSpec("s", "scalars", (TensorSpec("w", (1 << 20,)),), 10_000))
    other = plan_of(SegmentSpec("s", "blocks", (TensorSpec("w", (1 << 20,)),), 313, 32))
    expected = upload(other, other.segments[0])
    line = next(x for x in explain(plan).splitlines() if "BlockTopK" in x)
    assert line.startswith(f"s: BlockTopK(313, block=32) would send as many values in {expected} ")


def test_explain_says_what_full_domain_means() -> None:
    few = explain(plan_of(SegmentSpec("rows18", "rows", (TABLE,), 12, 18, True)))
    assert "rows18: full-domain means one tree over all 200,000 positions for each of the 12" in few
    many = explain(plan_of(SegmentSpec("rows18", "rows", (TABLE,), 419, 18, True)))
    assert "full-domain" not in many


def test_a_large_dense_segment_is_told_of_blocks_and_a_small_one_is_not() -> None:
    large = plan_of(SegmentSpec("rest", "dense", (TensorSpec("w", (1 << 20,)),)))
    assert "rest: BlockTopK(0.05, block=32) would upload" in explain(large)
    small = plan_of(SegmentSpec("rest", "dense", (TensorSpec("w", (1 << 10,)),)))
    assert "BlockTopK" not in explain(small)


def test_tables_that_are_downloaded_whole_are_told_of_retrieval() -> None:
    whole = plan_of(SegmentSpec("rows18", "rows", (TABLE,), 419, 18))
    private = plan_of(SegmentSpec("rows18", "rows", (TABLE,), 419, 18, True))
    assert (
        f"rows18: retrieve=True would download {download(private.segments[0])} bytes instead of "
        f"{200_000 * 18 * 4}"
    ) in explain(whole)
    assert "retrieve=True" not in explain(private)


def test_a_good_plan_gets_no_advice() -> None:
    plan = plan_of(
        SegmentSpec("rows18", "rows", (TABLE,), 419, 18, True),
        SegmentSpec("rest", "blocks", (TensorSpec("w", (1 << 20,)),), 1000, 32),
    )
    assert len(explain(plan).splitlines()) == 7
    assert "instead of" not in explain(plan)


def test_it_says_how_values_of_each_segment_travel() -> None:
    narrow = FixedPoint(16, 8, 0.5)
    specs = [
        SegmentSpec("rows4", "rows", (TensorSpec("e", (500, 4)),), 5, 4, True),
        SegmentSpec("rest", "dense", (TensorSpec("w", (20,)),), encoding=narrow),
        SegmentSpec("*.bias", "dense", (TensorSpec("b", (4,)),), encoding=narrow),
    ]
    encoding = FixedPoint(32, 20, 4.0)
    text = explain(build_plan(specs, encoding=encoding, max_clients=9, download="float16"))
    said = [line for line in text.splitlines() if ": values in " in line]
    assert said == [
        "rows4: values in 32 bits, 20 of them behind the point, cut beyond 4, rounded nearest; "
        "downloads float16",
        "rest, *.bias: values in 16 bits, 8 of them behind the point, cut beyond 0.5, rounded "
        "nearest; downloads float16",
    ]

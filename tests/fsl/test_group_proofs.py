"""Under a clip by group reports prove the share of every group that is one segment."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest

from scripts.attacks.lying_clients import _slack_of
from scripts.parties import bench_plan
from tests.support.errors import raises
from tests.support.federation import Wire, assert_exact, make_servers, play_round, submit
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import ParameterError
from torchfsl.fsl.client import proof, round
from torchfsl.fsl.explain import explain
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import RawSegment, SegmentUpdate, Update, quantise

BOUND = 1 << 12
SHARE = BOUND // 2
"""Of four groups."""
OWN = SHARE + 3
"""With room for rounding."""

_TABLES = [
    SegmentSpec("table", "rows", (TensorSpec("table", (64, 4)),), tau=4, k_max=3),
    SegmentSpec("wide", "rows", (TensorSpec("wide", (40, 6)),), tau=6, k_max=2),
    SegmentSpec("blocks", "blocks", (TensorSpec("blocks", (99,)),), tau=3, k_max=2),
]
_REST = [SegmentSpec("rest", "dense", (TensorSpec("rest", (30,)),))]
_LONG = SegmentSpec("rest", "dense", (TensorSpec("rest", (1950,)),))
_SHARED = SegmentSpec(
    "table", "rows", (TensorSpec("one", (40, 4)), TensorSpec("two", (24, 4))), tau=4, k_max=3
)


def plan_of(specs: list[SegmentSpec], clip: str = "normalise", **options: Any) -> Plan:
    chosen: dict[str, Any] = {"l2_bound": BOUND, "clip": clip, "max_clients": 4} | options
    return bench_plan(specs, encoding=FixedPoint(32, 10, 8.0), **chosen)


def without_shares(plan: Plan) -> Plan:
    """The plan that proves the whole norm alone."""
    segments = tuple(dataclasses.replace(s, l2_bound=0) for s in plan.segments)
    return dataclasses.replace(plan, segments=segments)


def bounds(plan: Plan) -> dict[str, int]:
    return {s.name: s.l2_bound for s in plan.segments}


def test_every_group_of_one_segment_has_its_share_for_a_bound() -> None:
    plan = plan_of(_TABLES + _REST)
    assert bounds(plan) == dict.fromkeys(("table", "wide", "blocks", "rest"), OWN)
    assert Plan.from_json(plan.to_json()) == plan
    assert "has a share of 2048 in l2_bound. Reports prove all shares, with" in explain(plan)
    own = plan_of(_TABLES + _REST, l2_bounds={"rest": 100, "wide": BOUND})
    assert bounds(own) == {"table": OWN, "wide": BOUND, "blocks": OWN, "rest": 100}
    assert "Reports prove these shares, except that wide can reach 4096." in explain(own)


def test_tables_of_one_segment_and_dense_segments_keep_together_what_one_bound_can_say() -> None:
    more = SegmentSpec("buffers", "dense", (TensorSpec("buffers", (9,)),))
    plan = plan_of([_SHARED, *_REST, more])
    share, both = math.isqrt(BOUND**2 // 3 + 7) + 3, math.isqrt(2 * BOUND**2 // 3 + 3) + 3
    assert bounds(plan) == {"table": both, "rest": share, "buffers": share}
    reach = math.isqrt(2 * share**2)
    told = f"that one table of table can reach {both}, the dense part can reach {reach}."
    assert told in explain(plan)


@pytest.mark.parametrize(
    "options", [{"clip": "whole"}, {"proofs": "none"}, {"l2_bound": 0, "clip": "whole"}]
)
def test_without_a_clip_by_group_or_norm_proofs_segments_have_no_bound(
    options: dict[str, Any],
) -> None:
    plan = plan_of(_TABLES + _REST, **options)
    assert not any(bounds(plan).values())
    told = "Reports prove no share: choose proofs='norm' to prove them" in explain(plan)
    assert told == (plan.clip != "whole")


def test_dense_segments_alone_have_no_proofs_and_explain_does_not_advise_them() -> None:
    other = SegmentSpec("other", "dense", (TensorSpec("other", (9,)),))
    told = explain(plan_of([*_REST, other], proofs="none"))
    assert "Reports prove no share, because all segments are dense" in told
    assert "choose proofs='norm'" not in told


@pytest.mark.parametrize(("specs", "total"), [(_TABLES, False), (_TABLES + _REST, True)])
def test_weights_disclose_the_sum_over_all_reports_if_a_segment_is_dense(
    specs: list[SegmentSpec], total: bool
) -> None:
    plan = plan_of(specs, l2_bound=0, clip="whole", lane="weight", max_weight=3)
    assert ("each row and of all reports. " in plan.discloses()) == total


def test_of_one_group_the_whole_bound_is_the_share() -> None:
    assert bounds(plan_of([_TABLES[0]])) == {"table": 0}
    assert "Reports prove all shares" in explain(plan_of([_TABLES[0]]))
    assert bounds(plan_of([_SHARED])) == {"table": 0}
    assert "except that one table of table can reach 4096." in explain(plan_of([_SHARED]))


def test_a_share_that_rounding_alone_can_exceed_is_refused_with_a_bound_that_works() -> None:
    with raises(ParameterError, "bound-too-small") as caught:
        plan_of([*_TABLES, _LONG], l2_bound=45)
    assert "'rest' to 34 (l2_bound is 45)" in str(caught.value)
    assert "l2_bound of at least 90" in str(caught.value)
    assert bounds(plan_of([*_TABLES, _LONG], l2_bound=90))["rest"] == 53


def raw_of(plan: Plan, seed: int) -> dict[str, RawSegment]:
    """Groups of very different sizes."""
    rng, raw = np.random.default_rng(seed), {}
    for i, s in enumerate(plan.segments):
        rows = None if s.is_dense else np.sort(rng.choice(s.m, s.k_max, replace=False))
        raw[s.name] = RawSegment(rows, 10.0 ** (i - 1) * rng.normal(size=(s.k_max, s.tau)))
    return raw


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.parametrize("clip", ["clip", "normalise"])
@pytest.mark.parametrize("lane", ["none", "weight"])
def test_honest_clients_that_clip_by_group_pass_and_sums_are_exact(
    clip: str, lane: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", backend)
    plan = plan_of(_TABLES + _REST, clip, lane=lane, max_weight=3 if lane == "weight" else 1)
    updates = {c: quantise(plan, raw_of(plan, c))[0] for c in range(3)}
    for number, update in updates.items():  # the bounds take nothing from what clients send
        same = quantise(without_shares(plan), raw_of(plan, number))[0]
        assert all(np.array_equal(same[name].values, update[name].values) for name in update)
    weights = dict.fromkeys(updates, plan.max_weight)
    opened, sent = play_round(make_servers(plan), 1, updates, weights)
    assert_exact(plan, opened, sent)
    assert opened.clients == (0, 1, 2)
    for part in (part for update in updates.values() for part in update.values()):
        norm = float(np.linalg.norm(part.values))
        assert norm <= OWN
        assert clip == "clip" or norm > 0.999 * SHARE


def beyond(plan: Plan, name: str) -> Update:
    """Within the whole bound, and one unit beyond a share in one segment; zeros elsewhere."""
    update: Update = {}
    for s in plan.segments:
        values = np.zeros((s.k_max, s.tau), dtype=np.int64)
        values[0, 0] = (OWN + 1) * (s.name == name)
        update[s.name] = SegmentUpdate(None if s.is_dense else np.arange(s.k_max), values)
    return update


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.parametrize("name", ["table", "wide", "blocks", "rest"])
def test_a_client_within_the_whole_bound_and_beyond_a_share_is_refused_by_its_proof_alone(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", backend)
    plan = plan_of(_TABLES + _REST)
    for one, clients in ((plan, (0,)), (without_shares(plan), (0, 1))):
        servers = make_servers(one)
        begin_round(servers, 1)
        submit(Wire(servers), 0, 1, quantise(plan, raw_of(plan, 0))[0])
        with (
            mock.patch.object(round, "check_update", return_value=None),
            mock.patch.object(proof, "_slack", _slack_of),
        ):
            submit(Wire(servers), 1, 1, beyond(one, name))
        assert finish_round(servers).clients == clients

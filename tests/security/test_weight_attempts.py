"""Attempts on weights and on bounds of segments, by one who looks for what the proofs leave out."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from scripts.attacks.lies import BOUND, OWN, WEIGHT, Lie, plan_with
from scripts.attacks.lying_clients import CLIENTS, lying, round_with
from tests.support.federation import Wire, make_plan, make_segment, make_servers
from torchfsl.crypto import field128
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.field128 import MODULUS
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client import report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.report import DrawnReport
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.submodel.update import SegmentUpdate, Update

pytestmark = pytest.mark.usefixtures("sums_as_added")


@pytest.mark.parametrize("weight", range(-1, WEIGHT + 3))
def test_every_small_weight_and_lane_at_real_servers(weight: int) -> None:
    """Two trees say anything from -2 to 7: a report passes where both say 0 or its weight."""
    plan = dataclasses.replace(plan_with("lanes", lane="weight"), max_clients=150)
    pairs = list(itertools.product(range(-2, 8), repeat=2))
    servers = make_servers(plan)
    begin_round(servers, 1)
    update = {
        "table": SegmentUpdate(np.array([3]), np.ones((1, 2), dtype=np.int64)),
        "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64)),
    }

    def two(pair: tuple[int, int]) -> Any:
        def alter(values: np.ndarray) -> np.ndarray:
            values[:, 0] = 0
            values[:2, 0] = pair
            return values

        return alter

    for client, pair in enumerate(pairs):
        with lying(Lie((), two(pair), weight=weight)):
            Client(plan, Wire(servers), client_id=client).start_round(1).submit(update)
    Client(plan, Wire(servers), client_id=len(pairs)).start_round(1).submit(update)
    honest = tuple(
        client
        for client, pair in enumerate(pairs)
        if 0 <= weight <= WEIGHT and set(pair) <= {0, weight}
    )
    assert finish_round(servers).clients == (*honest, len(pairs))


def plan_of(**options: Any) -> Plan:
    plan = make_plan(
        make_segment("table", "rows", (32, 2), k_max=2, tau=2, theta=8, nu=2, stash=1, l2_bound=0),
        make_segment("bias", "dense", (3,)), make_segment("more", "dense", (2,)),
        encoding=FixedPoint(32, 0, 100.0), lane="weight", max_weight=WEIGHT,
    )  # fmt: skip
    bounds = {"table": OWN, "more": 60}
    segments = tuple(dataclasses.replace(s, l2_bound=bounds.get(s.name, 0)) for s in plan.segments)
    return dataclasses.replace(plan, segments=segments, proofs="norm", l2_bound=BOUND, **options)


def update_of(table: int, bias: int, more: int) -> Update:
    return {
        "table": SegmentUpdate(np.array([3]), np.array([[table, 0]])),
        "bias": SegmentUpdate(None, np.array([[bias], [0], [0]])),
        "more": SegmentUpdate(None, np.array([[more], [0]])),
    }


@pytest.mark.parametrize("weight", [1, 2, WEIGHT])
@pytest.mark.parametrize("rest", [0, 1])
@pytest.mark.parametrize("where", ["table", "more", "all"])
def test_bounds_of_segments_hold_to_the_unit_times_the_weight(
    where: str, rest: int, weight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All values in one of a segment's, and `rest` beside it."""
    values = {
        "table": (weight * OWN, 0, 0), "more": (0, 0, weight * 60), "all": (0, weight * BOUND, 0),
    }[where]  # fmt: skip
    real_whole = report._whole

    def table(given: np.ndarray) -> np.ndarray:
        held = given[:, 0] != 0
        given[held, 1:] = values[0], rest if where == "table" else 0
        return given

    def whole(trees: Any, segment: Any, part: Any, claimed: int) -> Any:
        made = real_whole(trees, segment, part, claimed)
        made[1:] = 0
        made[1] = values[1] if segment.name == "bias" else values[2]
        made[2] = rest if {"bias": "all"}.get(segment.name, "more") == where else 0
        return made

    plan = plan_of()
    servers = make_servers(plan)
    begin_round(servers, 1)
    Client(plan, Wire(servers), client_id=0).start_round(1).submit(update_of(5, 5, 5))
    monkeypatch.setattr(report, "_whole", whole)
    with lying(Lie((), table)):
        one = Client(plan, Wire(servers), client_id=1).start_round(1)
        one.submit(update_of(5, 5, 5), weight=weight)
    assert finish_round(servers).clients == ((0,) if rest else (0, 1))


@pytest.mark.parametrize("name", ["bias", "more"])
def test_every_dense_segment_is_held_to_the_weight(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_whole = report._whole

    def whole(trees: Any, segment: Any, part: Any, weight: int) -> Any:
        made = real_whole(trees, segment, part, weight)
        made[0] += segment.name == name
        return made

    plan = plan_of()
    servers = make_servers(plan)
    begin_round(servers, 1)
    Client(plan, Wire(servers), client_id=0).start_round(1).submit(update_of(5, 5, 5), weight=2)
    monkeypatch.setattr(report, "_whole", whole)
    Client(plan, Wire(servers), client_id=1).start_round(1).submit(update_of(5, 5, 5), weight=2)
    assert finish_round(servers).clients == (0,)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["random", "zeros", "largest"])
@pytest.mark.parametrize("part", ["weight", "proof of weights"])
def test_any_bytes_in_the_place_of_a_weight_or_its_proof_are_refused(
    part: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, real = plan_with("norm", lane="weight"), report._draw
    statement = plan.statement
    assert statement is not None
    size = 16 * statement.same_elements

    def altered(*given: Any) -> DrawnReport | None:
        made = real(*given)
        if made is None:
            return None
        mine = bytearray(made.masked[-1])
        if part == "weight":
            mine[16:20] = {"random": random_bytes(4), "zeros": bytes(4), "largest": b"\xff" * 4}[
                kind
            ]
        else:
            drawn = {"random": 3**99, "zeros": 0, "largest": MODULUS - 1}[kind] % MODULUS
            mine[-size:] = field128.to_bytes(field128.words([drawn] * (size // 16)))
        return dataclasses.replace(made, masked=(*made.masked[:-1], memoryview(mine)))

    servers = make_servers(plan)
    begin_round(servers, 1)
    update = {
        "table": SegmentUpdate(np.array([3]), np.ones((1, 2), dtype=np.int64)),
        "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64)),
    }
    Client(plan, Wire(servers), client_id=0).start_round(1).submit(update)
    monkeypatch.setattr(report, "_draw", altered)
    Client(plan, Wire(servers), client_id=1).start_round(1).submit(update)
    assert finish_round(servers).clients == (0,)


def test_a_client_of_weight_nothing_is_a_dummy() -> None:
    """Accepted, and adds nothing."""
    plan = plan_with("norm", lane="weight")
    opened = round_with(plan, Lie((), weight=0))
    assert CLIENTS in opened.clients
    assert opened.sums["table"][3].tolist() == [2 * CLIENTS * 80] * 2
    assert opened.total_weight == 2 * CLIENTS

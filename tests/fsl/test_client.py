"""A client on the wire: what servers see depends on the plan alone, whatever the client holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.federation import (
    Wire,
    assert_exact,
    dense_plan,
    make_plan,
    make_segment,
    mixed_plan,
    open_wire,
    random_update,
    start,
    submit,
    wanted_rows,
)
from tests.support.reference import plaintext
from torchfsl.errors import Error, ParameterError, ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round
from torchfsl.submodel.update import SegmentUpdate, Update

PLANS = {
    "mixed": mixed_plan(),
    "semi-honest": mixed_plan(secure=False),
    "weight": mixed_plan(lane="weight"),
    "dense": dense_plan(),
    "late trees": make_plan(make_segment("s", "scalars", (40,), k_max=6, theta=3, nu=1)),
}


@pytest.fixture(params=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]


def holding(rows: int, seed: int) -> Callable[[Wire, int], None]:
    def act(wire: Wire, client_id: int) -> None:
        update = random_update(wire.servers[0].plan, np.random.default_rng(seed), rows=rows)
        submit(wire, client_id, 1, update)

    return act


def zeros_only(wire: Wire, client_id: int) -> None:
    update = random_update(wire.servers[0].plan, np.random.default_rng(0), rows=1)
    submit(
        wire,
        client_id,
        1,
        {name: SegmentUpdate(part.indices, part.values * 0) for name, part in update.items()},
    )


def fewer_than_retrieved(wire: Wire, client_id: int) -> None:
    update = random_update(wire.servers[0].plan, np.random.default_rng(0))
    start(wire, client_id, update).submit(random_update_of_nothing(wire.servers[0].plan))


def random_update_of_nothing(plan: Plan) -> Update:
    return random_update(plan, np.random.default_rng(0), rows=0)


def fetching(wire: Wire, client_id: int) -> None:
    """A client that takes every step of a round."""
    update = random_update(wire.servers[0].plan, np.random.default_rng(1))
    session = start(wire, client_id, update)
    session.download()
    session.retrieve()
    session.submit(update)


def aborting(wire: Wire, client_id: int) -> None:
    start(wire, client_id, random_update(wire.servers[0].plan, np.random.default_rng(1))).abort()


class TrainingDivergedError(Exception):
    """Something private went wrong."""


def failing_inside(wire: Wire, client_id: int) -> None:
    update = random_update(wire.servers[0].plan, np.random.default_rng(1))
    with pytest.raises(TrainingDivergedError), start(wire, client_id, update):
        raise TrainingDivergedError


def submitting(spoil: Callable[[Plan, Update], Any]) -> Callable[[Wire, int], None]:
    """A client whose update is wrong: its caller gets the error, the servers dummies."""

    def act(wire: Wire, client_id: int) -> None:
        plan = wire.servers[0].plan
        update = random_update(plan, np.random.default_rng(2), rows=2)
        session = start(wire, client_id, update)
        with pytest.raises((Error, TypeError, AttributeError)):
            session.submit(spoil(plan, dict(update)))

    return act


def starting(spoil: Callable[[dict[str, Any]], Any]) -> Callable[[Wire, int], None]:
    """A client that asks for impossible rows."""

    def act(wire: Wire, client_id: int) -> None:
        plan = wire.servers[0].plan
        wanted = wanted_rows(plan, random_update(plan, np.random.default_rng(2), rows=2))
        client = Client(plan, wire, client_id=client_id)
        with pytest.raises((ValueError, TypeError)):
            client.start_round(1, indices=spoil(dict(wanted)))

    return act


def first_values(change: Callable[[np.ndarray], Any]) -> Callable[[Plan, Update], Any]:
    def spoil(plan: Plan, update: Update) -> Update:
        name = plan.segments[0].name
        update[name] = SegmentUpdate(update[name].indices, change(update[name].values))
        return update

    return spoil


def first_indices(change: Callable[[Any], Any]) -> Callable[[Plan, Update], Any]:
    def spoil(plan: Plan, update: Update) -> Update:
        name = plan.segments[0].name
        update[name] = SegmentUpdate(change(update[name].indices), update[name].values)
        return update

    return spoil


def too_many(plan: Plan, update: Update) -> Update:
    name, k = plan.segments[0].name, plan.segments[0].k_max + 1
    values = np.zeros((k, plan.segments[0].tau), dtype=np.int64)
    return {**update, name: SegmentUpdate(np.arange(k), values)}


WELL_BEHAVED = {
    "no rows": holding(0, 0),
    "one row": holding(1, 1),
    "another row": holding(1, 2),
    "full": holding(99, 3),
    "other rows": holding(99, 4),
    "zeros": zeros_only,
    "fewer than retrieved": fewer_than_retrieved,
}
FAILING: dict[str, Callable[[Wire, int], None]] = {
    "abort": aborting,
    "exception": failing_inside,
    "no update": submitting(lambda plan, update: {}),
    "update is None": submitting(lambda plan, update: None),
    "a part is None": submitting(lambda plan, update: dict.fromkeys(update)),
    "unknown segment": submitting(lambda plan, update: {**update, "more": None}),
    "missing segment": submitting(lambda plan, update: dict(list(update.items())[1:])),
    "too large": submitting(first_values(lambda v: v * 0 + 2**62)),
    "smallest integer": submitting(first_values(lambda v: np.full_like(v, -(2**63)))),
    "floats": submitting(first_values(lambda v: v.astype(np.float64))),
    "nan": submitting(first_values(lambda v: v * np.nan)),
    "narrow integers": submitting(first_values(lambda v: v.astype(np.int32))),
    "lists": submitting(first_values(lambda v: v.tolist())),
    "wrong shape": submitting(first_values(lambda v: np.concatenate([v, v]))),
    "transposed": submitting(first_values(lambda v: v.T[None])),
    "too many rows": submitting(too_many),
    "scalar indices": submitting(first_indices(lambda i: np.int64(3))),
    "negative index": submitting(first_indices(lambda i: np.array([-1, 0]))),
    "huge index": submitting(first_indices(lambda i: np.array([0, 2**63 - 1]))),
    "duplicate index": submitting(first_indices(lambda i: np.array([3, 3]))),
    "falling indices": submitting(first_indices(lambda i: np.array([3, 2]))),
    "float indices": submitting(first_indices(lambda i: np.array([1.0, 2.0]))),
    "list of indices": submitting(first_indices(lambda i: [0, 1])),
    "ragged indices": submitting(first_indices(lambda i: [[1], [2, 3]])),
}
FAILING_AT_START: dict[str, Callable[[Wire, int], None]] = {
    "start without rows": starting(lambda wanted: {}),
    "start with None": starting(lambda wanted: dict.fromkeys(wanted)),
    "start with unknown segment": starting(lambda wanted: {**wanted, "more": [1]}),
    "start with duplicates": starting(lambda wanted: {n: [1, 1] for n in wanted}),
    "start out of range": starting(lambda wanted: {n: [0, 21] for n in wanted}),
    "start negative": starting(lambda wanted: {n: [-1] for n in wanted}),
    "start too many": starting(lambda wanted: {n: list(range(5)) for n in wanted}),
    "start with floats": starting(lambda wanted: {n: [0.5] for n in wanted}),
    "start with nan": starting(lambda wanted: {n: [np.nan] for n in wanted}),
    "start ragged": starting(lambda wanted: {n: [[1], [2, 3]] for n in wanted}),
    "start with text": starting(lambda wanted: dict.fromkeys(wanted, "rows")),
    "start with huge": starting(lambda wanted: {n: [10**30] for n in wanted}),
}


def traffic(plan: Plan, act: Callable[[Wire, int], None], client_id: int) -> list[Any]:
    _, wire = open_wire(plan)
    act(wire, client_id)
    return wire.shape()


@pytest.mark.parametrize("client_id", [4, 7])
def test_traffic_does_not_depend_on_which_rows_a_client_holds_or_how_many(
    plan: Plan, client_id: int
) -> None:
    shapes = {name: traffic(plan, act, client_id) for name, act in WELL_BEHAVED.items()}
    assert all(shape == shapes["full"] for shape in shapes.values()), shapes
    assert len(shapes["full"]) == (6 if any(s.retrieve for s in plan.segments) else 3)


@pytest.mark.parametrize("what", list(FAILING))
def test_a_client_that_fails_inside_a_round_sends_the_usual_messages(plan: Plan, what: str) -> None:
    if what.endswith("indices") and plan.segments[0].policy == "dense":
        return
    usual = traffic(plan, WELL_BEHAVED["full"], 4)
    assert traffic(plan, FAILING[what], 4) == usual


@pytest.mark.parametrize("what", list(FAILING_AT_START))
def test_a_client_that_asks_for_impossible_rows_sends_the_usual_messages(what: str) -> None:
    usual = traffic(PLANS["mixed"], fetching, 5)
    assert traffic(PLANS["mixed"], FAILING_AT_START[what], 5) == usual


@pytest.mark.parametrize(
    "what", ["abort", "exception", "too large", "list of indices", "start too many"]
)
@pytest.mark.parametrize("name", ["mixed", "weight"])
def test_a_failed_client_adds_nothing_and_the_round_opens_exactly(name: str, what: str) -> None:
    plan = PLANS[name]
    servers, wire = open_wire(plan)
    good = [random_update(plan, np.random.default_rng(seed)) for seed in (0, 1)]
    submit(wire, 1, 1, good[0])
    {**FAILING, **FAILING_AT_START}[what](wire, 2)
    submit(wire, 3, 1, good[1])
    opened = finish_round(servers)
    assert opened.clients == (1, 2, 3)
    contributions = [plaintext.Contribution(update) for update in good]
    for segment, total in plaintext.sums(plan, contributions).items():
        assert np.array_equal(opened.sums[segment], total)
    for segment, total in plaintext.lanes(plan, contributions).items():
        assert np.array_equal(opened.lanes[segment], total)
    assert opened.total_weight == (2 if plan.lane == "weight" else 3)


def test_two_runs_with_the_same_update_share_no_bytes_but_headers() -> None:
    plan = PLANS["mixed"]
    wires = []
    for _ in range(2):
        _, wire = open_wire(plan)
        submit(wire, 3, 1, random_update(plan, np.random.default_rng(0)))
        wires.append(wire)
    for one, two in zip(wires[0].events, wires[1].events, strict=True):
        assert one.data[:64] == two.data[:64]
        body = np.frombuffer(one.data[64:], np.uint8), np.frombuffer(two.data[64:], np.uint8)
        equal = float(np.mean(body[0] == body[1]))
        assert equal < 0.08, one.kind.name


def test_each_server_gets_its_own_master_seed_and_never_the_others() -> None:
    plan = PLANS["mixed"]
    for client_id in (4, 5):
        _, wire = open_wire(plan)
        submit(wire, client_id, 1, random_update(plan, np.random.default_rng(0)))
        seeds: dict[int, set[bytes]] = {0: set(), 1: set()}
        for event in wire.events:
            if not event.is_relay:
                seeds[event.party].add(event.data[80:96])
        assert {len(found) for found in seeds.values()} == {1}
        assert seeds[0] != seeds[1]
        for event in wire.events:
            (other,) = seeds[1 - event.party]
            assert other not in event.data
            if event.is_relay:
                (own,) = seeds[event.party]
                assert own not in event.data


def test_public_parts_alternate_between_the_servers_by_client_number() -> None:
    plan = PLANS["mixed"]
    for client_id in (8, 9):
        _, wire = open_wire(plan)
        submit(wire, client_id, 1, random_update(plan, np.random.default_rng(0)))
        sent = {event.kind: event.party for event in wire.events}
        assert sent[Kind.REPORT] == sent[Kind.TREES] == client_id % 2
        assert sent[Kind.REPORT_COMMIT] == sent[Kind.TREES_COMMIT] == 1 - client_id % 2
        assert sent[Kind.REPORT_RELAY] == sent[Kind.TREES_RELAY] == 1 - client_id % 2


def test_a_round_is_submitted_once() -> None:
    plan = PLANS["mixed"]
    _, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0))
    session = start(wire, 2, update)
    session.submit(update)
    for again in (lambda: session.submit(update), session.abort):
        with pytest.raises(ProtocolError, match="already submitted"):
            again()
    assert len(wire.events) == 6


def test_rows_that_were_not_retrieved_cannot_be_submitted() -> None:
    plan = PLANS["mixed"]
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0), rows=2)
    elsewhere = SegmentUpdate(update["table"].indices ^ 1, update["table"].values)  # type: ignore[operator]
    session = start(wire, 2, update)
    with pytest.raises(ParameterError, match="outside the round's selection"):
        session.submit({**update, "table": elsewhere})
    opened = finish_round(servers)
    assert not opened.sums["table"].any()


@pytest.mark.parametrize("weight", [0, -1, 6, 2.5, 1.0, None, "2", np.float64(2), 2**70])
def test_a_weight_outside_the_plan_is_refused(weight: Any) -> None:
    plan = PLANS["weight"]
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0))
    with pytest.raises((ParameterError, TypeError)):
        start(wire, 2, update).submit(update, weight=weight)
    opened = finish_round(servers)
    assert opened.total_weight == 0
    assert not opened.sums["bias"].any()


@pytest.mark.parametrize("weight", [1, 5, np.int64(3), np.uint8(5)])
def test_values_and_lane_are_multiplied_by_the_weight(weight: Any) -> None:
    plan = PLANS["weight"]
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0), largest=True)
    submit(wire, 2, 1, update, weight=weight)
    opened = finish_round(servers)
    assert_exact(plan, opened, [plaintext.Contribution(update, int(weight))])


def test_a_masked_array_is_refused_since_it_would_be_weighted_in_part() -> None:
    plan = PLANS["weight"]
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0), largest=True)
    values = np.ma.MaskedArray(update["bias"].values, mask=update["bias"].values > 0)
    client = start(wire, 2, update)
    with pytest.raises(ParameterError, match="plain int64 array"):
        client.submit({**update, "bias": SegmentUpdate(None, values)}, weight=5)
    assert not finish_round(servers).sums["bias"].any()


def test_plans_with_and_without_sessions_are_not_mixed_up() -> None:
    plan = PLANS["mixed"]
    _, wire = open_wire(plan)
    with pytest.raises(ParameterError, match="max_epochs above 1"):
        Client(plan, wire, client_id=0).open_session(indices={})
    fixed = make_plan(make_segment("s", "scalars", (9,), k_max=2), max_epochs=2)
    with pytest.raises(ParameterError, match="open_session"):
        Client(fixed, wire, client_id=0).start_round(1)
    assert not wire.events

"""The core in real rounds beside Python's clients; its errors, and its silence."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.client_core.test_tape import cases, small_update
from tests.fsl.test_client import fetching
from tests.support.client_core import (
    DONE,
    DUMMY,
    FETCH,
    REPORT,
    SEND,
    SILENT,
    STATE,
    TRAIN,
    Core,
    CoreClient,
    CoreRound,
)
from tests.support.errors import raises
from tests.support.federation import (
    Event,
    Wire,
    assert_exact,
    make_plan,
    make_segment,
    make_state,
    mixed_plan,
    open_wire,
    random_update,
    submit,
    wanted_rows,
)
from tests.support.reference import plaintext
from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError
from torchfsl.fsl import bodies
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate, Update

PLANS = {
    "mixed": mixed_plan(),
    "semi-honest": mixed_plan(secure=False),
    "weight": mixed_plan(lane="weight"),
    "late trees": make_plan(make_segment("s", "scalars", (40,), k_max=6, theta=3, nu=1)),
    "dense": make_plan(make_segment("bias", "dense", (5,))),
    "proofs": Plan.from_json(cases()[3]),
    "norm": Plan.from_json(cases()[4]),
}
MIXED = PLANS["mixed"]


def begin(core: Core, wire: Wire, client: int, update: Update) -> CoreRound:
    plan = wire.servers[0].plan
    return CoreClient(core, plan, wire, client).start_round(1, indices=wanted_rows(plan, update))


@pytest.mark.parametrize("name", list(PLANS))
def test_a_round_of_both_kinds_of_clients_is_exact(core: Core, name: str) -> None:
    plan = PLANS[name]
    servers, wire = open_wire(plan)
    contributions = []
    for client in range(plan.max_clients):
        update = small_update(plan, np.random.default_rng(client))
        weight = min(plan.max_weight, 1 + client)
        contributions.append(plaintext.Contribution(update, weight))
        if client % 2:
            assert begin(core, wire, client, update).submit(update, weight=weight) == REPORT
        else:
            submit(wire, client, 1, update, weight=weight)
    assert_exact(plan, finish_round(servers), contributions)


def test_traffic_is_that_of_pythons_client(core: Core) -> None:
    _, theirs = open_wire(MIXED)
    fetching(theirs, 4)
    _, ours = open_wire(MIXED)
    update = random_update(MIXED, np.random.default_rng(1))
    begin(core, ours, 4, update).submit(update)
    assert ours.shape() == theirs.shape()


def part_of(update: Update, name: str, **changes: Any) -> Update:
    part = update[name]
    rows, values = changes.get("rows", part.indices), changes.get("values", part.values)
    return {**update, name: SegmentUpdate(rows, values)}


def rows(*ids: int) -> Callable[[Update], Update]:
    values = np.zeros((len(ids), 3), dtype=np.int64)
    return lambda u: part_of(u, "table", rows=np.array(ids, dtype=np.int64), values=values)


SPOILT: dict[str, tuple[Callable[[Update], Update], str]] = {
    "no update": (lambda u: {}, "segments-differ"),
    "a segment is missing": (lambda u: dict(list(u.items())[1:]), "segments-differ"),
    "an unknown segment": (lambda u: {**u, "more": u["bias"]}, "segments-differ"),
    "another segment": (
        lambda u: {**{n: p for n, p in u.items() if n != "bias"}, "more": u["bias"]},
        "segments-differ",
    ),
    "too large": (
        lambda u: part_of(u, "bias", values=u["bias"].values * 0 + 2**62),
        "value-too-large",
    ),
    "smallest integer": (
        lambda u: part_of(u, "bias", values=np.full_like(u["bias"].values, -(2**63))),
        "value-too-large",
    ),
    "not finite": (
        lambda u: {n: SegmentUpdate(p.indices, p.values * np.nan) for n, p in u.items()},
        "value-not-finite",
    ),
    "one of them real": (
        lambda u: part_of(u, "bias", values=u["bias"].values * 1.0),
        "wrong-type",
    ),
    "too few dense values": (
        lambda u: part_of(u, "bias", values=u["bias"].values[1:]),
        "wrong-shape",
    ),
    "too many rows": (rows(0, 1, 2, 3, 4), "too-many-rows"),
    "a negative row": (rows(-1, 0), "row-out-of-range"),
    "a huge row": (rows(0, 2**63 - 1), "row-out-of-range"),
    "a row twice": (rows(3, 3), "invalid-rows"),
    "falling rows": (rows(3, 2), "invalid-rows"),
    "a row that was not fetched": (rows(20), "row-not-selected"),
}


@pytest.mark.parametrize("what", list(SPOILT))
def test_a_wrong_update_is_told_to_the_caller_alone(core: Core, what: str) -> None:
    spoil, code = SPOILT[what]
    servers, wire = open_wire(MIXED)
    good = random_update(MIXED, np.random.default_rng(0))
    submit(wire, 1, 1, good)
    before = len(wire.events)
    update = random_update(MIXED, np.random.default_rng(2), rows=2)
    update = part_of(update, "table", rows=np.array([0, 5]))
    session = begin(core, wire, 4, update)
    with raises(ParameterError, code):
        session.submit(spoil(dict(update)))
    assert session.step().outcome == DUMMY
    _, usual = open_wire(MIXED)
    fetching(usual, 4)
    assert wire.shape()[before:] == usual.shape()
    opened = finish_round(servers)
    assert opened.num_clients == 2
    for name, total in plaintext.sums(MIXED, [plaintext.Contribution(good)]).items():
        assert np.array_equal(opened.sums[name], total)


@pytest.mark.parametrize("weight", [0, 6, 2**63])
def test_a_weight_outside_the_plan_is_refused(core: Core, weight: int) -> None:
    plan = PLANS["weight"]
    servers, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(0))
    with raises(ParameterError, "wrong-weight"):
        begin(core, wire, 2, update).submit(update, weight=weight)
    assert finish_round(servers).total_weight == 0


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({}, "segments-differ"),
        ({"few": [1]}, "segments-differ"),
        ({"table": [1], "few": [1]}, "segments-differ"),
        ({"table": [1, 1]}, "invalid-rows"),
        ({"table": [0, 21]}, "row-out-of-range"),
        ({"table": [-1]}, "row-out-of-range"),
        ({"table": [0, 1, 2, 3, 4]}, "too-many-rows"),
    ],
)
def test_a_client_that_asks_for_impossible_rows_sends_the_usual_messages(
    core: Core, wanted: dict[str, list[int]], code: str
) -> None:
    servers, wire = open_wire(MIXED)
    with raises(ParameterError, code):
        CoreClient(core, MIXED, wire, 4).start_round(1, indices=wanted)
    _, usual = open_wire(MIXED)
    fetching(usual, 4)
    assert wire.shape() == usual.shape()
    assert finish_round(servers).clients == (4,)


def abort_at(core: Core, wire: Wire, steps: int) -> CoreRound:
    """A round that is aborted after so many steps."""
    update = random_update(MIXED, np.random.default_rng(1))
    session = begin(core, wire, 4, update)
    for _ in range(steps):
        step = session.step()
        if step.kind == SEND:
            wire.send(step.party, core_bytes(step))
            session.give()
        elif step.kind == FETCH:
            session.give(wire.fetch(step.party, Kind(step.message), step.round, step.client))
    return session


def core_bytes(step: Any) -> bytes:
    return ctypes.string_at(step.data, step.size)


@pytest.mark.parametrize("steps", range(7))
def test_an_aborted_round_sends_a_report_that_adds_nothing(core: Core, steps: int) -> None:
    servers, wire = open_wire(MIXED)
    session = abort_at(core, wire, steps)
    assert session.abort() == DUMMY
    sent = [event for event in wire.events if not event.is_reply]
    assert [e.kind for e in sent][-3:-1] == [Kind.REPORT_COMMIT, Kind.REPORT]
    opened = finish_round(servers)
    assert opened.clients == (4,)
    assert not any(total.any() for total in opened.sums.values())


def header(**changes: Any) -> Callable[[bytes], bytes]:
    """Fields of a header, altered."""

    def change(data: bytes) -> bytes:
        names = ("magic", "version", "kind", "party", "round", "client", "size", "digest")
        fields = dict(zip(names, struct.unpack("<4sHBBQQQ32s", data[:64]), strict=True))
        return struct.pack("<4sHBBQQQ32s", *{**fields, **changes}.values()) + data[64:]

    return change


def flipped(place: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        altered = bytearray(data)
        altered[place] ^= 1
        return bytes(altered)

    return change


HEADERS: dict[str, tuple[Callable[[bytes], bytes], type[Error], str]] = {
    "nothing": (lambda data: b"", DecodeError, "length"),
    "half a header": (lambda data: data[:63], DecodeError, "length"),
    "no message": (header(magic=b"TFSM"), DecodeError, "not-a-message"),
    "another version": (header(version=5), DecodeError, "version"),
    "a far version": (header(version=0x104), DecodeError, "version"),
    "another kind": (header(kind=Kind.SHARE), DecodeError, "wrong-kind"),
    "another plan": (header(digest=bytes(32)), DecodeError, "another-plan"),
    "no server": (header(party=2), DecodeError, "wrong-kind"),
    "too short": (lambda data: data[:-1], DecodeError, "length"),
    "too long": (lambda data: data + b"\0", DecodeError, "length"),
    "a false length": (header(size=2**63), DecodeError, "length"),
    "another round": (header(round=2), ProtocolError, "answer-for-another"),
}


def withdrawn(core: Core, plan: Plan, alter: Callable[[Event], bytes], code: str) -> Error:
    """A round that ends in silence after an altered answer."""
    _, wire = open_wire(plan)
    update = random_update(plan, np.random.default_rng(1))
    session = begin(core, wire, 4, update)
    wire.alter = alter
    with raises(Error, code) as caught:
        session.go()
    assert (session.step().kind, session.step().outcome) == (DONE, SILENT)
    sent = [event.kind for event in wire.events if not event.is_reply and not event.is_relay]
    assert sent == [Kind.TREES_COMMIT, Kind.TREES]
    with raises(ProtocolError, "client-withdrew"):
        session.submit(update)
    assert session.abort() == SILENT
    assert len([e for e in wire.events if not e.is_reply and not e.is_relay]) == 2
    return caught.value


@pytest.mark.parametrize("kind", [Kind.MODEL, Kind.MODEL_DIGEST, Kind.ANSWER])
@pytest.mark.parametrize("what", list(HEADERS))
def test_a_wrong_header_ends_in_silence(core: Core, kind: Kind, what: str) -> None:
    change, error, code = HEADERS[what]
    found = withdrawn(core, MIXED, lambda e: change(e.data) if e.kind == kind else e.data, code)
    assert isinstance(found, error)


def test_the_answer_of_the_other_server_ends_in_silence(core: Core) -> None:
    def swap(event: Event) -> bytes:
        return header(party=1 - event.party)(event.data) if event.is_reply else event.data

    withdrawn(core, MIXED, swap, "answer-for-another")


@pytest.mark.parametrize(
    ("kind", "place", "code"),
    [
        (Kind.MODEL, 64, "models-differ"),
        (Kind.MODEL, 100, "models-differ"),
        (Kind.MODEL, 64 + 64, "models-differ"),
        (Kind.MODEL, -1, "models-differ"),
        (Kind.MODEL_DIGEST, 64, "models-differ"),
        (Kind.MODEL_DIGEST, -1, "models-differ"),
        (Kind.ANSWER, 64, "altered-message"),
        (Kind.ANSWER, -1, "altered-message"),
    ],
)
def test_one_flipped_bit_ends_in_silence(core: Core, kind: Kind, place: int, code: str) -> None:
    withdrawn(core, MIXED, lambda e: flipped(place)(e.data) if e.kind == kind else e.data, code)


@pytest.mark.parametrize(("place", "code"), [(0, "tag-mismatch"), (-1, "models-differ")])
def test_a_server_that_answers_otherwise_is_noticed_by_the_tags(
    core: Core, monkeypatch: pytest.MonkeyPatch, place: int, code: str
) -> None:
    seal, calls = bodies.AnswerBody.seal, []

    def lying(key: bytes, answers: Any) -> Any:
        calls.append(key)
        whole = b"".join(answers)
        return seal(key, [flipped(place)(whole) if len(calls) == 2 else whole])

    monkeypatch.setattr(bodies.AnswerBody, "seal", staticmethod(lying))
    withdrawn(core, MIXED, lambda event: event.data, code)


def spoilt_wire(plan: Plan, tensor: str, value: float) -> Wire:
    """Servers whose models agree on one value that nobody can train on."""
    state = make_state(plan)
    state[tensor].reshape(-1)[0] = value
    one, two = (Server(party, plan=plan, model=ServerModel(state)) for party in (0, 1))
    begin_round((one, two), 1)
    return Wire((one, two))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_model_that_is_not_finite_ends_in_silence(core: Core, value: float) -> None:
    wire = spoilt_wire(MIXED, "bias.0", value)
    update = random_update(MIXED, np.random.default_rng(1))
    session = begin(core, wire, 4, update)
    with raises(ProtocolError, "model-not-finite"):
        session.go()
    assert session.step().outcome == SILENT


@pytest.mark.parametrize("download", ["full", "float16", "bfloat16"])
def test_a_row_that_is_not_finite_sends_a_report_that_adds_nothing(
    core: Core, download: Any
) -> None:
    segments = [dataclasses.replace(s, download=download) for s in MIXED.segments]
    plan = dataclasses.replace(MIXED, segments=tuple(segments))
    value = 70000.0 if download == "float16" else np.nan
    wire = spoilt_wire(plan, "table.0", value)
    others = random_update(plan, np.random.default_rng(1), rows=0)
    session = begin(core, wire, 4, part_of(others, "table", rows=np.array([0, 2])))
    with raises(ProtocolError, "model-not-finite"):
        session.go()
    assert session.step().outcome == DUMMY
    elsewhere = part_of(others, "table", rows=np.array([1, 2]), values=np.ones((2, 3), np.int64))
    assert begin(core, wire, 5, elsewhere).submit(elsewhere) == REPORT
    assert finish_round(wire.servers).num_clients == 2


def test_steps_come_in_order_and_calls_out_of_order_change_nothing(core: Core) -> None:
    _, wire = open_wire(MIXED)
    update = random_update(MIXED, np.random.default_rng(1))
    session = begin(core, wire, 4, update)
    seen = []
    while (step := session.step()).kind != DONE:
        again = session.step()
        assert (again.kind, again.party, again.data) == (step.kind, step.party, step.data)
        seen.append((step.kind, step.message if step.kind != TRAIN else 0, step.party))
        if step.kind == TRAIN:
            with raises(ProtocolError, "wrong-step"):
                session.give(b"")
            session.submit(update)
            break
        for early in (lambda: session.lib.tfsl_round_submit(session.handle, None, 0, 1),):
            assert early() == STATE
        if step.kind == SEND:
            wire.send(step.party, core_bytes(step))
            session.give()
        else:
            session.give(wire.fetch(step.party, Kind(step.message), step.round, step.client))
    assert seen == [
        (SEND, Kind.TREES_COMMIT, 1), (SEND, Kind.TREES, 0), (FETCH, Kind.MODEL, 0),
        (FETCH, Kind.MODEL_DIGEST, 1), (FETCH, Kind.ANSWER, 0), (FETCH, Kind.ANSWER, 1),
        (TRAIN, 0, 0),
    ]  # fmt: skip
    for call in (lambda: session.submit(update), session.abort):
        with raises(ProtocolError, "already-submitted"):
            call()


def test_two_rounds_share_no_bytes_but_headers(core: Core) -> None:
    wires = []
    for _ in range(2):
        _, wire = open_wire(MIXED)
        update = random_update(MIXED, np.random.default_rng(0))
        begin(core, wire, 3, update).submit(update)
        wires.append(wire)
    for one, two in zip(wires[0].events, wires[1].events, strict=True):
        if not one.is_reply or one.kind == Kind.ANSWER:
            bodies_of = [np.frombuffer(e.data[64:], np.uint8) for e in (one, two)]
            assert float(np.mean(bodies_of[0] == bodies_of[1])) < 0.08, one.kind.name

"""Fetching without a round: exact rows, no report, a limit, and no trust in one server."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.support.federation import (
    CLIENT_KINDS,
    Event,
    Wire,
    make_state,
    mixed_plan,
    play_round,
    random_update,
)
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf.keys import FETCH_ROUND
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel

KEYS = SealKey.generate(), SealKey.generate()
ROWS = {"table": [0, 5, 20]}


def servers_of(plan: Plan, **more: int) -> tuple[Server, Server]:
    keys = KEYS if plan.server_keys else (None, None)
    first, second = (
        Server(p, plan=plan, model=ServerModel(make_state(plan)), key=keys[p], **more)
        for p in (0, 1)
    )
    return first, second


@pytest.fixture(params=["open keys", "sealed", "session", "by bits", "by bits in blocks"])
def plan(request: pytest.FixtureRequest) -> Plan:
    plan = mixed_plan(min_clients=3)
    if request.param == "sealed":
        return dataclasses.replace(plan, server_keys=tuple(key.public.hex() for key in KEYS))
    if request.param == "session":  # which has no early termination
        segments = tuple(dataclasses.replace(s, nu=0) for s in plan.segments)
        return dataclasses.replace(plan, segments=segments, max_epochs=3)
    if request.param == "by bits":  # without tags
        return mixed_plan(min_clients=3, secure=False)
    if request.param == "by bits in blocks":  # a round's answers are longer than a fetch's
        plan = mixed_plan(min_clients=3, secure=False)
        segments = tuple(
            dataclasses.replace(s, nu=1 if s.retrieve else s.nu) for s in plan.segments
        )
        return dataclasses.replace(plan, segments=segments)
    return plan


def assert_fetches(servers: tuple[Server, Server], client_id: int) -> None:
    plan, state = servers[0].plan, servers[0].model.state
    clear, rows = Client(plan, servers, client_id=client_id).fetch(ROWS)
    assert set(clear) == {tensor.name for tensor in plan.clear_tensors}
    assert all(clear[name].tobytes() == state[name].tobytes() for name in clear)
    table = np.concatenate([state["table.0"], state["table.1"]])
    indices, values = rows["table"]
    assert values.tobytes() == table[indices].tobytes()
    assert indices.tolist() == ROWS["table"]


@pytest.mark.parametrize("client_id", [4, 7])
def test_a_fetch_reads_the_applied_model_without_a_round(plan: Plan, client_id: int) -> None:
    servers = servers_of(plan)
    assert_fetches(servers, client_id)
    begin_round(servers, 1)
    assert_fetches(servers, client_id)
    assert not servers[0].reports.complete()
    for server in servers:
        server.abandon_round()
    assert_fetches(servers, client_id)


def test_a_fetch_after_a_round_reads_the_new_model_and_changes_no_sum() -> None:
    plan = mixed_plan()
    servers = servers_of(plan)
    assert_fetches(servers, 1)
    before = servers[0].model.state["table.0"].copy()
    play_round(servers, 1, {1: random_update(plan, np.random.default_rng(0), rows=4)})
    assert not np.array_equal(before, servers[0].model.state["table.0"])
    assert_fetches(servers, 1)


def test_lengths_come_from_the_plan_alone_and_bad_rows_look_the_same(plan: Plan) -> None:
    shapes = []
    for rows in (ROWS, {"table": []}, {"table": [3, 3]}, {}):
        wire = Wire(servers_of(plan))
        client = Client(plan, wire, client_id=4)
        if rows in (ROWS, {"table": []}):
            client.fetch(rows)
        else:
            with pytest.raises(ParameterError):
                client.fetch(rows)
        shapes.append(wire.shape())
        for event in wire.events:
            assert event.kind not in CLIENT_KINDS
            assert len(event.data) == HEADER_BYTES + (messages.body_bytes(plan, event.kind) or 0)
    assert all(shape == shapes[0] for shape in shapes)
    kinds = [kind for _, kind, _, _ in shapes[0]]
    assert kinds == [
        Kind.FETCH_COMMIT, Kind.FETCH, Kind.FETCH_RELAY, Kind.FETCH_MODEL, Kind.FETCH_ANSWER
    ]  # fmt: skip


def test_a_client_fetches_so_often_from_one_model_and_others_go_on() -> None:
    plan = mixed_plan()
    servers = servers_of(plan, max_fetches=2)
    for _ in range(2):
        assert_fetches(servers, 1)
    with pytest.raises(
        RejectedSubmission, match=r"used all fetches of this model \(max-fetches = 2\)"
    ):
        assert_fetches(servers, 1)
    assert_fetches(servers, 2)
    play_round(servers, 1, {1: random_update(plan, np.random.default_rng(0))})
    assert_fetches(servers, 1)


@pytest.mark.parametrize("kind", [Kind.FETCH_MODEL, Kind.FETCH_ANSWER])
@pytest.mark.parametrize("place", [0, 40, 70, -1])
def test_an_altered_answer_is_noticed(kind: Kind, place: int) -> None:
    def alter(event: Event) -> bytes:
        data = bytearray(event.data)
        if event.kind is kind:
            data[place if place < 0 else HEADER_BYTES + place] ^= 1
        return bytes(data)

    client = Client(mixed_plan(), Wire(servers_of(mixed_plan()), alter), client_id=0)
    with pytest.raises(ProtocolError):
        client.fetch(ROWS)


def test_altered_trees_are_refused_before_anything_is_computed() -> None:
    plan = mixed_plan()

    def alter(event: Event) -> bytes:
        data = bytearray(event.data)
        data[-40] ^= event.kind is Kind.FETCH_RELAY
        return bytes(data)

    client = Client(plan, Wire(servers_of(plan), alter), client_id=0)
    with pytest.raises(RejectedSubmission, match="do not fit the client's commitment"):
        client.fetch(ROWS)


def test_servers_with_different_models_are_noticed() -> None:
    plan = mixed_plan()
    servers = servers_of(plan)
    servers[1].model.state["table.0"][:] += 1
    with pytest.raises(ProtocolError, match="different models"):
        Client(plan, servers, client_id=0).fetch(ROWS)


def test_an_answer_is_given_once_and_only_to_who_asked() -> None:
    plan = mixed_plan()
    servers = servers_of(plan)
    for kind in (Kind.FETCH_ANSWER, Kind.FETCH_MODEL):
        with pytest.raises(RejectedSubmission, match="no fetch under way"):
            servers[0].reply(kind, FETCH_ROUND, 0)
    assert_fetches(servers, 0)
    with pytest.raises(RejectedSubmission, match="no fetch under way"):
        servers[0].reply(Kind.FETCH_MODEL, FETCH_ROUND, 0)


def test_trees_of_a_fetch_do_not_pass_for_those_of_a_round() -> None:
    plan = mixed_plan()
    wire = Wire(servers_of(plan))
    Client(plan, wire, client_id=0).fetch(ROWS)
    begin_round(wire.servers, 1)
    for event in wire.events[:2]:
        data = bytearray(event.data)
        data[6] = Kind.TREES if event.kind is Kind.FETCH else Kind.TREES_COMMIT
        with pytest.raises((RejectedSubmission, DecodeError)):
            wire.servers[event.party].receive(bytes(data))


def test_a_key_seals_one_answer_whatever_is_sent_again() -> None:
    """Other trees, or another model, under recorded seeds: another key, so nothing can be XORed."""
    plan = mixed_plan()
    context = ClientTrees(plan, 0, FETCH_ROUND).context
    bounds = (b"", bytes(96), bytes(95) + b"1", b"1" + bytes(95))
    keys = {context.answer_key(bytes(16), 0, FETCH_ROUND, bound) for bound in bounds}
    assert len(keys) == len(bounds)


def test_a_replayed_fetch_after_the_model_changed_is_sealed_anew() -> None:
    plan = mixed_plan()
    servers = servers_of(plan)
    wire = Wire(servers)
    Client(plan, wire, client_id=0).fetch({"table": np.array([1, 4])})
    up = [e for e in wire.events if not e.is_reply and not e.is_relay]
    before = {e.party: e.data for e in wire.events if e.is_reply}
    for server in servers:
        server.model.state["table.0"][4] += 1
        server.fetches.forget()
    for event in up:
        wire.send(event.party, event.data)
    after = {
        party: servers[party].reply(kind, FETCH_ROUND, 0)
        for party, kind in ((0, Kind.FETCH_MODEL), (1, Kind.FETCH_ANSWER))
    }
    for party, data in after.items():
        sealed = slice(HEADER_BYTES + 64, HEADER_BYTES + 64 + 64)
        ours, theirs = (np.frombuffer(x[sealed], np.uint8) for x in (before[party], data))
        assert np.count_nonzero(ours ^ theirs) > 32  # one key would leave most bytes equal

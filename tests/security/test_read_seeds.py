"""Master seeds sealed to the servers' keys."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scripts.attacks.carriers import read_seeds, retrieving_plan
from tests.support import federation
from tests.support.federation import (
    Wire,
    assert_exact,
    make_segment,
    make_state,
    mixed_plan,
    random_update,
    submit,
)
from tests.support.reference import plaintext
from torchfsl.crypto import hpke
from torchfsl.crypto.hpke import SealKey
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import costs, messages
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import TreeContext
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel

KEYS = SealKey.generate(), SealKey.generate()


def sealed(plan: Plan) -> Plan:
    return dataclasses.replace(plan, server_keys=tuple(key.public.hex() for key in KEYS))


def sealed_servers(plan: Plan) -> tuple[Server, Server]:
    first, second = (
        Server(p, plan=plan, model=ServerModel(make_state(plan)), key=KEYS[p]) for p in (0, 1)
    )
    return first, second


def test_what_carries_the_traffic_reads_everything_unless_seeds_are_sealed() -> None:
    result = read_seeds()
    assert result.worked_off
    assert not result.worked_on
    assert result.extra_bytes == 4 * hpke.HPKE_BYTES <= 300


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_a_round_of_sealed_seeds_opens_exactly(lane: str) -> None:
    plan = sealed(mixed_plan(lane=lane))  # type: ignore[arg-type]
    wire = Wire(sealed_servers(plan))
    begin_round(wire.servers, 1)
    made = []
    for number in (2, 3):
        update = random_update(plan, np.random.default_rng(number))
        receipt = submit(wire, number, 1, update)
        missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
        made.append(plaintext.Contribution(update, 1, missing))
        assert receipt.upload_bytes == costs.client_bytes(plan)
    assert_exact(plan, finish_round(wire.servers), made)
    for event in wire.events:
        assert len(event.data) == HEADER_BYTES + (messages.body_bytes(plan, event.kind) or 0)


def test_sealed_seeds_of_a_session_are_the_same_bytes_in_every_round() -> None:
    table = make_segment("table", "rows", (13, 3), k_max=4, tau=3, theta=3, stash=1, retrieve=True)
    plan = sealed(federation.make_plan(table, make_segment("bias", "dense", (3,)), max_epochs=3))
    wire = Wire(sealed_servers(plan))
    update = random_update(plan, np.random.default_rng(0), rows=2)
    indices = {s.name: update[s.name].positions for s in plan.with_trees}
    session = Client(plan, wire, client_id=4).open_session(indices=indices)
    for number in (1, 2, 3):
        begin_round(wire.servers, number)
        taking = session.start_round(number)
        taking.retrieve()
        taking.submit(update)
        opened = finish_round(wire.servers)
        assert_exact(plan, opened, [plaintext.Contribution(update)])
    start = HEADER_BYTES + 16
    for party in (0, 1):
        seeds = {e.data[start : start + 64] for e in wire.events if e.party == party
                 and not e.is_reply and not e.is_relay}  # fmt: skip
        assert len(seeds) == 1


@pytest.mark.parametrize("place", [0, 31, 32, 63])
@pytest.mark.parametrize("kind", [Kind.TREES, Kind.TREES_COMMIT])
def test_an_altered_seal_costs_only_its_client(kind: Kind, place: int) -> None:
    plan = sealed(mixed_plan())

    def alter(event: object) -> bytes:
        data = bytearray(event.data)  # type: ignore[attr-defined]
        if event.kind is kind and data[16] == 2:  # type: ignore[attr-defined]
            data[HEADER_BYTES + 16 + place] ^= 1
        return bytes(data)

    wire = Wire(sealed_servers(plan), alter)
    begin_round(wire.servers, 1)
    updates = {n: random_update(plan, np.random.default_rng(n)) for n in (2, 3)}
    with pytest.raises(RejectedSubmission, match="not sealed to this server"):
        submit(wire, 2, 1, updates[2])
    receipt = submit(wire, 3, 1, updates[3])
    missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
    made = plaintext.Contribution(updates[3], 1, missing)
    assert_exact(plan, finish_round(wire.servers), [made])


def test_a_seal_opens_for_its_key_and_context_only() -> None:
    context = TreeContext(retrieving_plan(), 1, 5, bytes(16))
    info = context.seal_info(0)
    others = [
        context.seal_info(1),
        dataclasses.replace(context, client=6).seal_info(0),
        dataclasses.replace(context, nonce=bytes(15) + b"1").seal_info(0),
        dataclasses.replace(context, plan=mixed_plan()).seal_info(0),
    ]
    box = hpke.seal(KEYS[0].public, info, b"seed")
    assert KEYS[0].unseal(info, box) == b"seed"
    with pytest.raises(ProtocolError):
        KEYS[1].unseal(info, box)
    for other in others:
        with pytest.raises(ProtocolError):
            KEYS[0].unseal(other, box)


def test_a_server_refuses_a_plan_that_names_another_key_or_none() -> None:
    plan = sealed(mixed_plan())
    model = ServerModel(make_state(plan))
    for refused, key in ((plan, None), (plan, KEYS[1]), (mixed_plan(), KEYS[0])):
        with pytest.raises(ParameterError, match="server_keys of the plan expects"):
            Server(0, plan=refused, model=model, key=key)


def test_a_key_that_is_none_is_refused_before_anything_is_sent() -> None:
    plan = dataclasses.replace(retrieving_plan(), server_keys=("00" * 32, "01" * 32))
    wire = Wire((None, None))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="not a public key"):
        Client(plan, wire, client_id=1).start_round(1, indices={"rows": [1]})
    assert not wire.events


def test_a_seal_key_does_not_print_its_secret() -> None:
    secret = KEYS[0]._private.private_bytes_raw()
    assert secret.hex() not in repr(KEYS[0])

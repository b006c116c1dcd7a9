"""Attacks on how much a client writes: each lie is refused, and by the check that it is about."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from scripts.attacks.lies import (
    BOUND,
    HONEST,
    KINDS,
    LIES,
    OWN_LIES,
    Lie,
    plan_to,
    plan_with,
)
from scripts.attacks.lying_clients import CLIENTS, lying, lying_clients, round_with
from tests.support.federation import Event, Wire, make_servers
from torchfsl.crypto.flp import SumsOfSquares, ZeroOrSame
from torchfsl.errors import RejectedSubmission
from torchfsl.fsl.client.client import Client, Session
from torchfsl.fsl.messages import HEADER_BYTES, Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Statement
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.uploads import ReportBody
from torchfsl.submodel.update import SegmentUpdate, Update

pytestmark = pytest.mark.usefixtures("sums_as_added")

ALL = [(name, lies) for lies in KINDS for name in lies]
LANES = [
    (name, lies) for name, lies in ALL if lies is not OWN_LIES and lies[name].needs[0] != "norm"
]
told = pytest.mark.parametrize(("name", "lies"), ALL, ids=[name for name, _ in ALL])


def without(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch one check off at both servers."""
    if check in ("gadget", "same"):
        proof = SumsOfSquares if check == "gadget" else ZeroOrSame
        monkeypatch.setattr(proof, "accepts", lambda *_: True)
        return
    real = Statement.residues

    def residues(self: Statement, *given: Any) -> list[tuple[str, int]]:
        return [(what, 0 if what == check else value) for what, value in real(self, *given)]

    monkeypatch.setattr(Statement, "residues", residues)


def honest_sums(plan: Plan) -> np.ndarray:
    return round_with(plan, None).sums["table"]


@told
def test_a_lie_is_refused_and_leaves_no_trace(name: str, lies: dict[str, Lie]) -> None:
    plan = plan_to(lies, "norm")
    opened = round_with(plan, lies[name])
    assert opened.clients == tuple(range(CLIENTS))
    assert np.array_equal(opened.sums["table"], honest_sums(plan))


@told
def test_a_lie_passes_once_its_own_check_is_switched_off(
    name: str, lies: dict[str, Lie], monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = lies[name]
    for check in lie.needs:
        without(check, monkeypatch)
    if lie.proof is not None:  # an altered proof gives other outputs
        for check in ("norm", "counts", "k_max", "carries"):
            without(check, monkeypatch)
    assert CLIENTS in round_with(plan_to(lies, "norm"), lie).clients


@pytest.mark.parametrize(("name", "lies"), LANES, ids=[name for name, _ in LANES])
def test_lanes_alone_refuse_lies_about_lanes(name: str, lies: dict[str, Lie]) -> None:
    lie = lies[name]
    if lie.slack:  # there is none of a norm in front
        lie = dataclasses.replace(lie, slack=lambda slack: slack + 1)
    assert CLIENTS not in round_with(plan_to(lies, "lanes"), lie).clients


def test_lanes_alone_bound_no_values() -> None:
    lie = LIES["all values 2**31 - 1"]
    assert CLIENTS in round_with(plan_with("lanes"), lie).clients
    assert CLIENTS not in round_with(plan_with("norm"), lie).clients


def test_without_proofs_every_lie_about_values_and_counts_is_in_the_sum() -> None:
    result = lying_clients()
    assert result.worked_off
    assert not result.worked_on


def test_a_client_may_write_up_to_its_bound_in_every_bin_and_no_more() -> None:
    """One row in several of its bins: the bound is on all of them together."""
    plan = plan_with("norm")

    def spread(value: int) -> Lie:
        def alter(values: np.ndarray) -> np.ndarray:
            values[:] = 0
            values[:4] = 0, value, 0
            return values

        return Lie(("norm",), alter)

    assert CLIENTS in round_with(plan, spread((BOUND - 1) // 2)).clients
    assert CLIENTS not in round_with(plan, spread(BOUND // 2 + 1)).clients


def update() -> Update:
    return {
        "table": SegmentUpdate(np.array([3]), np.full((1, 2), HONEST)),
        "bias": SegmentUpdate(None, np.ones((3, 1), dtype=np.int64)),
    }


PARTS = ["carry tree", "carry hint", "slack", "square", "seed", "coefficient"]


@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_byte_anywhere_in_the_proof_is_refused(part: str) -> None:
    """By the tag or the commitment; where the client itself flips it, see the lies above."""
    plan = plan_with("norm")
    statement = plan.statement
    assert statement is not None
    sizes = {
        "carry tree": statement.carries.tree_bytes, "carry hint": statement.carry_hint_bytes,
        "slack": statement.slack_bytes, "square": 16 * len(statement.carry_weights),
        "seed": 16 * statement.shape.arity, "coefficient": 0,
    }  # fmt: skip
    names = list(sizes)
    bias = plan.dense_bytes(plan.segments[1])
    end = HEADER_BYTES + 16 * 4 + sum(t.tree_bytes for t in plan.late)
    start = end + sum(plan.hint_bytes(s) for s in plan.with_trees)
    start += sum(sizes[n] for n in names[: names.index(part)])
    start += bias if names.index(part) > 1 else 0

    def alter(event: Event) -> bytes:
        if event.kind is not Kind.REPORT or event.data[16] != 1:
            return event.data
        data = bytearray(event.data)
        data[start + 3] ^= 4
        return bytes(data)

    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers, alter)
    Client(plan, wire, client_id=0).start_round(1).submit(update())
    with pytest.raises(RejectedSubmission):
        Client(plan, wire, client_id=1).start_round(1).submit(update())
    assert finish_round(servers).clients == (0,)


def test_equal_updates_have_proofs_that_have_nothing_in_common() -> None:
    """Masks and carry trees are those of one report."""
    plan = plan_with("norm")
    servers = make_servers(plan)
    kept: list[bytes] = []

    def alter(event: Event) -> bytes:
        if event.kind is Kind.REPORT and event.data[16] == 1:
            kept.append(bytes(event.data))
        return event.data

    for number in (1, 2):
        begin_round(servers, number)
        wire = Wire(servers, alter)
        for client in (0, 1):
            Client(plan, wire, client_id=client).start_round(number).submit(update())
        assert finish_round(servers).clients == (0, 1)
    first, second = (ReportBody.read(plan, data).masked[-1] for data in kept)
    assert bytes(first) != bytes(second)
    statement = plan.statement
    assert statement is not None
    both = np.frombuffer(first, np.uint8)[: 16 * (len(first) // 16)].reshape(-1, 16)
    assert len({row.tobytes() for row in both}) == len(both)


def test_elements_out_of_the_field_are_refused_on_arrival() -> None:
    plan = plan_with("norm")
    real = ReportBody.parts

    def parts(self: ReportBody) -> Any:
        *rest, last = real(self)
        return (*rest, bytes(last[:-16]) + b"\xff" * 16)

    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    client = Client(plan, wire, client_id=0).start_round(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReportBody, "parts", parts)
        with pytest.raises(RejectedSubmission):
            client.submit(update())


@pytest.mark.parametrize("alter", ["wires", "proof at the point", "output", "fold"])
def test_a_server_that_lies_in_its_verdict_only_has_the_report_refused(alter: str) -> None:
    plan = plan_with("norm")
    statement = plan.statement
    assert statement is not None
    servers = make_servers(plan)
    begin_round(servers, 1)
    wire = Wire(servers)
    for number in (0, 1):
        Client(plan, wire, client_id=number).start_round(1).submit(update())
    lists = [server.close_round() for server in servers]
    verdicts = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    place = {"fold": 0, "wires": 16, "proof at the point": -32, "output": -16}[alter]
    size = 16 * (1 + statement.said_elements)
    lie = bytearray(verdicts[1])
    lie[HEADER_BYTES + (place if place >= 0 else size + place)] ^= 1
    assert servers[0].verify(bytes(lie)) == (1,)


def test_honest_verdicts_tell_one_server_nothing_that_depends_on_the_values() -> None:
    """Bits of what a server hears, over reports of zeros and of a full bound, are fair coins."""
    plan = dataclasses.replace(plan_with("norm"), max_clients=120)
    ones = {"zeros": 0.0, "full": 0.0}
    for kind in ones:
        servers = make_servers(plan)
        begin_round(servers, 1)
        wire = Wire(servers)
        for number in range(120):
            one = Client(plan, wire, client_id=number).start_round(1)
            one.abort() if kind == "zeros" else one.submit(update())
        lists = [server.close_round() for server in servers]
        heard = [servers[b].agree(lists[1 - b]) for b in (0, 1)][1][HEADER_BYTES:]
        rows = np.frombuffer(heard, np.uint8).reshape(120, -1)[:, 16:]
        bits = np.unpackbits(rows)
        ones[kind] = float(bits.mean())
        deviation = 0.5 / bits.size**0.5
        assert abs(ones[kind] - 0.5) < 6 * deviation
        assert len({hashlib.sha256(row.tobytes()).digest() for row in rows}) == 120


def test_a_lie_in_a_session_is_refused_in_the_epoch_that_it_is_told_in() -> None:
    plan = plan_with("norm", epochs=9)
    servers = make_servers(plan)
    wire = Wire(servers)

    def opened(client: int) -> Session:
        return Client(plan, wire, client_id=client).open_session(indices={"table": [3]})

    sessions = {client: opened(client) for client in (0, 1)}
    told = [None, LIES["count 2"], None, LIES["norm**2 = bound**2 + 1"]]
    for number, lie in enumerate(told, 1):
        begin_round(servers, number)
        sessions[0].start_round(number).submit(update())
        with contextlib.nullcontext() if lie is None else lying(lie):
            sessions[1].start_round(number).submit(update())
        assert finish_round(servers).clients == ((0, 1) if lie is None else (0,))
        if lie is not None:  # its trees are forgotten, as after a failed check
            sessions[1] = opened(1)

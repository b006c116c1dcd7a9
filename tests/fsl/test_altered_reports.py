"""Altered reports: one byte on the way, and a client that commits to what it should not send.

A report counts exactly as its client meant it or not at all, and harms no other.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from tests.support.federation import (
    CLIENT_KINDS,
    HEADER,
    Event,
    Wire,
    assert_exact,
    deliver,
    dense_plan,
    is_exact,
    kind_of,
    make_plan,
    make_segment,
    messages_of,
    mixed_plan,
    opened_servers,
    submit,
    update_of,
)
from tests.support.reference import plaintext
from tests.support.tags import tagged
from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.dpf.keys import ReportContext, TreeContext
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import finish_round
from torchfsl.fsl.server.states import RoundState
from torchfsl.submodel.update import Update

HONEST, VICTIM = 1001, 4
MIXED, SEMI_HONEST = mixed_plan(), mixed_plan(secure=False)
OPEN = {
    "mixed": MIXED,
    "semi-honest": SEMI_HONEST,
    "dense": dense_plan(),
    "late trees": make_plan(make_segment("s", "scalars", (9,), k_max=2, theta=3)),
}


def places_of(plan: Plan, kind: Kind, size: int) -> list[int]:
    """The header, both ends of every field of the body, and a sample of the rest."""
    heads = {Kind.TREES_RELAY: 16, Kind.REPORT_RELAY: 32, Kind.TREES: 48, Kind.TREES_COMMIT: 48}
    nonces = heads.get(kind, 64)
    places = {*range(HEADER), size - 1, size - 2}
    for start in range(0, nonces + 16, 16):
        places |= {HEADER + start, HEADER + start + 7, HEADER + start + 15}
    start = HEADER + nonces
    if kind in (Kind.TREES, Kind.TREES_RELAY):
        groups = [g for s in plan.early for g in s.groups]
    else:
        groups = [g for s in plan.late for g in s.groups]
    if kind not in (Kind.TREES_COMMIT, Kind.REPORT_COMMIT):
        for group in groups:
            levels = group.depth * group.num_trees
            for length in (16 * levels, (levels + 7) // 8, group.num_trees * group.check_bytes):
                places |= {start, start + length - 1} if length else set()
                start += length
        places |= {start, start + 1}
    if kind is Kind.REPORT:
        masked = sum(plan.dense_bytes(s) for s in plan.dense)
        places |= {size - masked, size - masked - 1}
    places |= set(random.Random(kind.name).sample(range(HEADER, size), min(8, size - HEADER)))
    return sorted(place for place in places if place < size)


@pytest.mark.parametrize("kind", CLIENT_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", list(OPEN))
def test_a_report_with_one_altered_byte_is_never_accepted(name: str, kind: Kind) -> None:
    plan = OPEN[name]
    if "TREES" in kind.name and not plan.early:
        return
    good, victim = update_of(plan, 0), update_of(plan, 1)
    size = HEADER + (messages.body_bytes(plan, kind) or 0)
    for place in places_of(plan, kind, size):
        bit = 1 << random.Random(place).randrange(8)

        def alter(event: Event, place: int = place, bit: int = bit) -> bytes:
            data = bytearray(event.data)
            if event.kind is kind:
                data[place] ^= bit
            return bytes(data)

        servers = opened_servers(plan)
        submit(Wire(servers), HONEST, 1, good)
        where = f"{kind.name} byte {place} bit {bit}"
        with contextlib.suppress(DecodeError, RejectedSubmission):
            submit(Wire(servers, alter), VICTIM, 1, victim)
        opened = finish_round(servers)
        assert opened.clients == (HONEST,), where
        assert is_exact(plan, opened, [plaintext.Contribution(good)]), where


def forge(
    plan: Plan, update: Update, kind: Kind, change: Callable[[bytearray], None]
) -> list[tuple[int, bytes]]:
    """A client's messages with the public part of `kind` changed, the rest made to fit."""
    sent = messages_of(plan, VICTIM, update)
    by_kind = {kind_of(m): m for _, m in sent}
    head = HEADER + (48 if kind is Kind.TREES else 64)
    size = sum(s.tree_bytes for s in plan.early)
    if kind is Kind.REPORT:
        size = messages.public_report_bytes(plan)
    message = bytearray(by_kind[kind])
    public = message[head : head + size]
    change(public)
    message[head : head + size] = public
    nonce = bytes(message[HEADER : HEADER + 16])
    context = TreeContext(plan, 1, VICTIM, nonce)
    commitment = context.commitment(bytes(public))
    commit_kind = Kind.TREES_COMMIT
    if kind is Kind.REPORT:
        hint_nonce = bytes(message[HEADER + 32 : HEADER + 48])
        commitment = ReportContext(context, 1, hint_nonce).commitment(bytes(public))
        commit_kind = Kind.REPORT_COMMIT
    by_kind[kind] = tagged(plan, bytes(message))
    by_kind[commit_kind] = tagged(plan, by_kind[commit_kind][:-32] + commitment)
    return [(party, by_kind[kind_of(m)]) for party, m in sent]


def padding_place(plan: Plan, kind: Kind) -> int:
    """A byte of packed control corrections with padding bits, within the public part."""
    segments = plan.early if kind is Kind.TREES else plan.late
    start = 0
    for group in (g for s in segments for g in s.groups):
        levels = group.depth * group.num_trees
        if levels % 8:
            return start + 16 * levels + (levels + 7) // 8 - 1
        start += group.tree_bytes
    raise AssertionError("no group has padding: choose another plan")


@pytest.mark.parametrize("kind", [Kind.TREES, Kind.REPORT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("plan", [MIXED, SEMI_HONEST], ids=["mixed", "semi-honest"])
def test_padding_bits_put_their_sender_out_and_nobody_else(plan: Plan, kind: Kind) -> None:
    place = padding_place(plan, kind)

    def change(public: bytearray) -> None:
        public[place] |= 0x80

    servers = opened_servers(plan)
    good = update_of(plan, 0)
    submit(Wire(servers), HONEST, 1, good)
    with pytest.raises(RejectedSubmission, match="padding"):
        deliver(servers, forge(plan, update_of(plan, 1), kind, change))
    opened = finish_round(servers)
    assert opened.clients == (HONEST,)
    assert_exact(plan, opened, [plaintext.Contribution(good)])


@pytest.mark.parametrize("kind", [Kind.TREES, Kind.REPORT], ids=lambda kind: kind.name)
def test_trees_that_are_no_point_function_put_their_sender_out_and_nobody_else(
    kind: Kind,
) -> None:
    segments = MIXED.early if kind is Kind.TREES else MIXED.late
    size = sum(s.tree_bytes for s in segments)
    refused = 0
    places = random.Random(1).sample(range(size), 12)
    for place in places:

        def change(public: bytearray, place: int = place) -> None:
            public[place] ^= 1

        servers = opened_servers(MIXED)
        good, bad = update_of(MIXED, 0), update_of(MIXED, 1)
        submit(Wire(servers), HONEST, 1, good)
        try:
            deliver(servers, forge(MIXED, bad, kind, change))
        except RejectedSubmission:
            refused += 1
        opened = finish_round(servers)
        everyone = [plaintext.Contribution(good), plaintext.Contribution(bad)]
        if VICTIM in opened.clients:  # the byte touched no leaf that exists
            assert is_exact(MIXED, opened, everyone), place
        else:
            refused += 1
            assert_exact(MIXED, opened, everyone[:1])
    assert refused >= 10


def test_below_min_clients_after_verification_a_round_closes_unopened_too() -> None:
    plan = mixed_plan(min_clients=2)
    servers = opened_servers(plan)
    size = sum(s.tree_bytes for s in plan.early)

    def change(public: bytearray) -> None:
        public[size - 1] ^= 1  # a check word

    submit(Wire(servers), HONEST, 1, update_of(plan, 0))
    deliver(servers, forge(plan, update_of(plan, 1), Kind.TREES, change))
    with pytest.raises(ProtocolError, match="acceptable reports: 1, the plan wants 2"):
        finish_round(servers)
    assert [server.state for server in servers] == [RoundState.IDLE] * 2

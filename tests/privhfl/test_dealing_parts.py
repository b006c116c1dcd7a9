"""A batch whose dealing exceeds one message is dealt in parts; plans of one part stay equal."""

from __future__ import annotations

import pytest
import torch

from tests.privhfl.small import SHAPE, networks
from torchfsl.errors import DecodeError, ParameterError, RejectedSubmission
from torchfsl.privhfl import Querying, QueryPlan, make_plan, plan
from torchfsl.privhfl.messages import Kind, Topic, cut, decode, encode, kind_of

SEED = bytes(32)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> QueryPlan:
    """A plan of several parts, since a message may be short."""
    found = make_plan(networks(), SHAPE, batch=3, session="parts")
    longest = max(found.dealing_bytes(graph) for graph in found.graphs.values())
    monkeypatch.setattr(plan, "MAX_DEALING_BYTES", longest // 3 + 1)
    assert {len(found.dealing_parts(graph)) for graph in found.graphs.values()} >= {3}
    return found


def asked(found: QueryPlan, mode: str, **options: object) -> tuple[torch.Tensor, Querying]:
    querying = Querying(found, mode=mode, seed=SEED, **options)  # type: ignore[arg-type]
    images = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    for client, module in networks().items():
        querying.load(client, module, images)
    first, *others = found.clients
    return querying.ask(first, others, images).logits, querying


def test_answers_in_parts_are_those_of_the_integers(in_parts: QueryPlan) -> None:
    sent: list[bytes] = []

    def watch(link: str, client: int, data: bytes) -> None:
        sent.append(data)

    answer, querying = asked(in_parts, "secure", watch=watch)
    assert torch.equal(answer, asked(in_parts, "fixed")[0])
    dealt = [data for data in sent if kind_of(data) == Kind.DEALING]
    clients = in_parts.clients[1:]
    parts = sum(len(in_parts.dealing_parts(in_parts.graphs[client])) for client in clients)
    assert len(dealt) == 2 * parts  # of two batches
    for client in clients:
        own = [
            data for data in dealt if decode(in_parts, data, Kind.DEALING).topic.answering == client
        ]
        assert sum(len(data) - 64 for data in own) == 2 * in_parts.dealing_bytes(
            in_parts.graphs[client]
        )
    assert not querying.server._sums


def test_one_part_is_what_it_was(in_parts: QueryPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, _ = asked(in_parts, "secure")
    digest = in_parts.digest
    monkeypatch.undo()
    again = make_plan(networks(), SHAPE, batch=3, session="parts")
    assert again.digest == digest
    assert {len(again.dealing_parts(graph)) for graph in again.graphs.values()} == {1}
    assert torch.equal(asked(again, "secure")[0], answer)


def dealing(querying: Querying, iteration: int) -> tuple[int, list[bytes]]:
    """The querying client, and its messages for the client with most parts."""
    first, *others = querying.plan.clients
    party = querying._querying(first)
    messages = party.deal(iteration, 0, others)
    most = max(others, key=lambda c: len(querying.plan.dealing_parts(querying.plan.graphs[c])))
    return first, [
        m for m in messages if decode(querying.plan, m, Kind.DEALING).topic.answering == most
    ]


def test_parts_come_in_any_order_once_and_nothing_starts_before_the_last(
    in_parts: QueryPlan,
) -> None:
    _, querying = asked(in_parts, "secure")
    first, parts = dealing(querying, 1)
    server = querying.server
    assert server.receive(first, parts[2]) == []
    assert server.receive(first, parts[0]) == []
    with pytest.raises(RejectedSubmission, match="arrived twice"):
        server.receive(first, parts[0])
    out = server.receive(first, parts[1])
    assert [kind_of(one.data) for one in out] == [Kind.PRODUCTS]


def test_a_part_that_came_in_two_forms_leaves_the_client_out(in_parts: QueryPlan) -> None:
    _, querying = asked(in_parts, "secure")
    first, parts = dealing(querying, 1)
    server = querying.server
    server.receive(first, parts[0])
    other = parts[0][:-1] + bytes([parts[0][-1] ^ 1])
    with pytest.raises(RejectedSubmission, match="arrived twice"):
        server.receive(first, other)
    assert server.receive(first, parts[1]) == server.receive(first, parts[2]) == []


def test_a_part_that_the_plan_does_not_have_is_refused(in_parts: QueryPlan) -> None:
    _, querying = asked(in_parts, "secure")
    first, parts = dealing(querying, 1)
    beyond = parts[0][:10] + bytes([len(parts), 0]) + parts[0][12:]
    with pytest.raises(DecodeError, match="has step"):
        querying.server.receive(first, beyond)
    last = parts[0][:10] + bytes([len(parts) - 1, 0]) + parts[0][12:]
    if len(parts[0]) != len(parts[-1]):
        with pytest.raises(DecodeError):
            querying.server.receive(first, last)


def test_a_lost_part_leaves_its_client_out(in_parts: QueryPlan) -> None:
    lost: list[bytes] = []

    def lose(client: int, data: bytes) -> bool:
        if client == in_parts.clients[1] and kind_of(data) == Kind.DEALING and not lost:
            lost.append(data)
            return True
        return False

    first, *others = in_parts.clients
    querying = Querying(in_parts, seed=SEED, lose=lose)
    images = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))
    for client, module in networks().items():
        querying.load(client, module, images)
    if len(others) > in_parts.min_answering:
        assert querying.ask(first, others, images).answered == (tuple(others[1:]),)
    assert lost or len(others) <= in_parts.min_answering


def test_more_parts_than_a_plan_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_DEALING_BYTES", 4000)
    with pytest.raises(ParameterError, match=r"use batch=\d"):
        make_plan(networks(), SHAPE, batch=64)
    monkeypatch.setattr(plan, "MAX_DEALING_PARTS", 1 << 20)
    assert make_plan(networks(), SHAPE, batch=64).batch == 64
    with pytest.raises(ParameterError, match="takes"):  # trees are relayed in one message
        make_plan(networks(), SHAPE, batch=64, comparison="trees")


def test_bodies_are_cut_without_a_copy() -> None:
    parts = [b"abc", memoryview(b""), bytearray(b"defgh"), b"i"]
    bodies = [b"".join(body) for body in cut(parts, [2, 4, 0, 3])]
    assert bodies == [b"ab", b"cdef", b"", b"ghi"]


def test_a_message_names_its_part(in_parts: QueryPlan) -> None:
    client = in_parts.clients[1]
    sizes = in_parts.dealing_parts(in_parts.graphs[client])
    message = encode(in_parts, Kind.DEALING, Topic(0, client, step=1), bytes(sizes[1]))
    assert decode(in_parts, message, Kind.DEALING).topic.step == 1

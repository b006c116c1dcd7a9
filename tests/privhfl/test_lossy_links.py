"""Messages that are lost, late, doubled, reordered or altered: one client is missing, no more."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.privhfl.small import federation, images, networks
from tests.support.points import STRIDE
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.privhfl import Answer, Querying
from torchfsl.privhfl.messages import Kind, kind_of

Receive = Callable[..., list[Any]]
Fault = Callable[[Receive, tuple[Any, ...]], list[Any]]
"""Delivers a message, which is the last of the arguments, in its own way."""

FIELDS = {"querying": (6, "<H"), "iteration": (8, "<H"), "step": (10, "<H"), "batch": (12, "<I"),
          "answering": (16, "<Q"), "length": (24, "<Q")}  # fmt: skip
UNUSED = {
    "step": set(Kind) - {Kind.ANSWER, Kind.SERVE},
    "iteration": {Kind.WEIGHTS, Kind.READY},
    "batch": {Kind.WEIGHTS, Kind.READY},
}
"""By field the kinds of messages that leave it at 0."""


def client_of(data: bytes) -> int | None:
    """The answering client that a message names; SUM names a set."""
    (client,) = struct.unpack_from("<Q", data, 16)
    return None if kind_of(data) == Kind.SUM else client


def modules() -> dict[int, nn.Module]:
    """Clients 1 and 2 have one graph, so that messages of one could pass for the other's."""
    made = networks()
    made[2] = copy.deepcopy(made[1])
    with torch.no_grad():
        for parameter in made[2].parameters():
            parameter.mul_(0.9)
    return made


def kinds(comparison: str) -> list[Kind]:
    return [kind for kind in Kind if comparison == "trees" or kind != Kind.TREES]


EVERY_KIND = [(c, kind) for c in ("tables", "trees") for kind in kinds(c)]


def is_right(answer: Answer, made: dict[int, nn.Module], asked: torch.Tensor) -> bool:
    """Whether the sum is that of the clients that it names."""
    (who,) = answer.answered
    with torch.no_grad():
        plain = sum(made[c](asked) for c in who)
    return float((answer.logits - plain).abs().max()) < 0.05


def with_fault(querying: Querying, kind: Kind, fault: Fault) -> list[int]:
    """Have the first such message of client 1 (SUM: of the asker) delivered by `fault`."""
    seen: list[int] = []
    parties: list[Any] = [querying.server, *querying.answering.values(), querying._querying(0)]

    def wrapped(receive: Receive) -> Receive:
        def take(*arguments: Any) -> list[Any]:
            data = arguments[-1]
            if not seen and kind_of(data) == kind and client_of(data) in (1, None):
                seen.append(kind)
                return fault(receive, arguments)
            return receive(*arguments)

        return take

    for party in parties:
        party.receive = wrapped(party.receive)
    return seen


def goes_on(querying: Querying, made: dict[int, nn.Module], asked: torch.Tensor) -> None:
    """The same question, and one under new weights, are answered by all."""
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered == ((1, 2),)
    assert is_right(answer, made, asked)
    for client, module in made.items():
        with torch.no_grad():
            next(module.parameters())[0, 0, 0, 0] += 0.5
        querying.load(client, module, images(16))
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered == ((1, 2),)
    assert is_right(answer, made, asked)


def ask_once(
    querying: Querying, made: dict[int, nn.Module], asked: torch.Tensor, missing: str = ""
) -> None:
    """The sum is right, of both clients or of client 2; or the question ends with `missing`."""
    if missing:
        with pytest.raises(ProtocolError, match=missing):
            querying.ask(0, [1, 2], asked)
        return
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered in (((1, 2),), ((2,),))
    assert is_right(answer, made, asked)


def of_a_sum(kind: Kind) -> str:
    return "did not arrive: query again" if kind == Kind.SUM else ""


@pytest.mark.parametrize(("comparison", "kind"), EVERY_KIND)
def test_a_lost_message_leaves_one_client_out(comparison: str, kind: Kind) -> None:
    made, asked = modules(), images(2)
    querying, lost = federation(made, comparison=comparison), list[int]()

    def lose(client: int, data: bytes) -> bool:
        if kind_of(data) != kind or client not in (0, 1) or lost:
            return False
        lost.append(client)
        return True

    querying._lose = lose
    ask_once(querying, made, asked, of_a_sum(kind))
    assert lost
    goes_on(querying, made, asked)


@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.READY])
def test_lost_weights_are_offered_again_in_the_same_question(kind: Kind) -> None:
    made, asked, lost = modules(), images(2), list[int]()
    querying = federation(made)

    def lose(client: int, data: bytes) -> bool:
        gone = kind_of(data) == kind and client == 1 and len(lost) < 2
        lost.extend([client] * gone)
        return gone

    querying._lose = lose
    answer = querying.ask(0, [1, 2], asked)
    assert len(lost) == 2
    assert answer.answered == ((1, 2),)
    assert is_right(answer, made, asked)
    before = querying.ask(0, [1, 2], asked).cost.phase_bytes("setup")
    assert not before  # once they are confirmed, they are not sent any more


@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.READY])
def test_a_silent_client_is_left_out_and_asked_again_later(kind: Kind) -> None:
    made, asked = modules(), images(2)
    querying = federation(made)
    querying._lose = lambda client, data: client == 1 and kind_of(data) == kind
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered == ((2,),)
    assert is_right(answer, made, asked)
    querying._lose = None
    goes_on(querying, made, asked)


@pytest.mark.parametrize("kind", [Kind.WEIGHTS, Kind.READY])
def test_fewer_than_the_minimum_are_refused_with_the_remedy(kind: Kind) -> None:
    made, asked = modules(), images(2)
    querying = federation(made, min_answering=2)
    querying._lose = lambda client, data: client == 1 and kind_of(data) == kind
    with pytest.raises(
        ProtocolError, match=r"only \[2\] sent weights .*needs 2 clients: query again"
    ):
        querying.ask(0, [1, 2], asked)
    querying._lose = None
    goes_on(querying, made, asked)


def test_new_weights_that_are_lost_are_not_mixed_with_old_ones() -> None:
    made, asked = modules(), images(2)
    querying = federation(made)
    assert querying.ask(0, [1, 2], asked).answered == ((1, 2),)
    for kind in (Kind.WEIGHTS, Kind.READY):
        querying._lose = lambda client, data, kind=kind: client == 1 and kind_of(data) == kind
        with torch.no_grad():
            next(made[1].parameters())[0, 0, 0, 0] += 0.5
        querying.load(1, made[1], images(16, seed=1))
        answer = querying.ask(0, [1, 2], asked)
        assert answer.answered == ((2,),)
        assert is_right(answer, made, asked)
        querying._lose = None
        assert is_right(querying.ask(0, [1, 2], asked), made, asked)


@pytest.mark.parametrize(("comparison", "kind"), EVERY_KIND)
def test_a_doubled_message_changes_nothing(comparison: str, kind: Kind) -> None:
    made, asked = modules(), images(2)
    querying = federation(made, comparison=comparison)

    def twice(receive: Receive, arguments: tuple[Any, ...]) -> list[Any]:
        said = receive(*arguments)
        if kind in (Kind.WEIGHTS, Kind.READY):
            assert receive(*arguments) == said
        else:
            with pytest.raises(RejectedSubmission):
                receive(*arguments)
        return said

    seen = with_fault(querying, kind, twice)
    answer = querying.ask(0, [1, 2], asked)
    assert seen
    assert answer.answered == ((1, 2),)
    assert is_right(answer, made, asked)
    goes_on(querying, made, asked)


@pytest.mark.parametrize(("comparison", "kind"), EVERY_KIND)
def test_a_late_message_is_refused_and_changes_nothing(comparison: str, kind: Kind) -> None:
    made, asked = modules(), images(2)
    querying = federation(made, comparison=comparison)
    held: list[tuple[Receive, tuple[Any, ...]]] = []

    def hold(receive: Receive, arguments: tuple[Any, ...]) -> list[Any]:
        held.append((receive, arguments))
        return []

    with_fault(querying, kind, hold)
    ask_once(querying, made, asked, of_a_sum(kind))
    ((receive, arguments),) = held
    if kind in (Kind.WEIGHTS, Kind.READY):
        receive(*arguments)  # they were offered again, and are the same
    else:
        with pytest.raises(RejectedSubmission):
            receive(*arguments)
    assert not any(party._waiting or party._running for party in querying.answering.values())
    goes_on(querying, made, asked)


@pytest.mark.parametrize(("comparison", "first"), [("tables", Kind.PRODUCTS), ("trees", Kind.TREES),
                                                   ("trees", Kind.PRODUCTS)])  # fmt: skip
def test_what_is_sent_ahead_may_come_behind_the_query(comparison: str, first: Kind) -> None:
    made, asked = modules(), images(2)
    querying = federation(made, comparison=comparison)
    party, held = querying.answering[1], []
    receive = party.receive

    def behind(data: bytes) -> list[bytes]:
        if kind_of(data) == first:
            held.append(data)
            return []
        said = receive(data)
        return receive(held.pop()) if kind_of(data) == Kind.INPUT else said

    party.receive = behind  # type: ignore[method-assign, assignment]
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered == ((1, 2),)
    assert is_right(answer, made, asked)


@pytest.mark.parametrize(("early", "late"), [(Kind.DEALING, Kind.QUERY), (Kind.QUERY, Kind.ANSWER)])
def test_steps_of_the_server_in_another_order_are_refused(early: Kind, late: Kind) -> None:
    """Each is refused as a message; the client that it is of is left out."""
    made, asked = modules(), images(2)
    querying, held = federation(made), []
    receive = querying.server.receive

    def swapped(sender: int, data: bytes) -> list[Any]:
        if kind_of(data) == early and client_of(data) == 1:
            held.append((sender, data))
            return []
        said = []
        try:
            said = receive(sender, data)
        finally:
            if kind_of(data) == late and held:
                said += receive(*held.pop())
        return said

    querying.server.receive = swapped  # type: ignore[method-assign, assignment]
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered in (((2,),), ((1, 2),))
    assert is_right(answer, made, asked)
    querying.server.receive = receive  # type: ignore[method-assign]
    goes_on(querying, made, asked)


HEADERS = [*(("tables", kind) for kind in kinds("tables")), ("trees", Kind.TREES)]


@pytest.mark.parametrize(
    ("comparison", "kind", "field"),
    [
        (*header, field)
        for i, header in enumerate(HEADERS)
        for j, field in enumerate(FIELDS)
        if (i + j) % STRIDE == 0
    ],
)
def test_an_altered_header_costs_clients_of_one_batch(
    comparison: str, kind: Kind, field: str
) -> None:
    place, form = FIELDS[field]
    made, asked, refused = modules(), images(2), list[Exception]()
    querying = federation(made, comparison=comparison)

    def alter(receive: Receive, arguments: tuple[Any, ...]) -> list[Any]:
        altered = bytearray(arguments[-1])
        (value,) = struct.unpack_from(form, altered, place)
        struct.pack_into(form, altered, place, value + 1)
        try:
            return receive(*arguments[:-1], bytes(altered))
        except (DecodeError, RejectedSubmission) as error:
            refused.append(error)
            raise

    seen = with_fault(querying, kind, alter)
    mixed = kind in (Kind.DEALING, Kind.QUERY) and field == "answering"
    ask_once(querying, made, asked, "0 clients answered" if mixed else of_a_sum(kind))
    assert seen
    if kind in UNUSED.get(field, set()):
        assert [type(error) for error in refused] == [DecodeError]
    goes_on(querying, made, asked)


def test_images_beyond_the_calibrated_range_are_refused_at_the_asker() -> None:
    made = modules()
    querying = federation(made)
    most = 4 * float(images(16, seed=0).max())
    asked = images(2)
    for scale in (most * 1.01, -most * 1.01, 50.0, 1e4, float("inf"), float("nan")):
        wrong = asked.clone()
        wrong[1, 2, 3, 4] = scale
        for mode in ("secure", "fixed"):
            querying.mode = mode
            with pytest.raises(ParameterError, match="the largest sample of client 0"):
                querying.ask(0, [1, 2], wrong)
    querying.mode = "secure"
    assert not querying.server._sums
    within = asked.clone()
    within[1, 2, 3, 4] = most * 0.99
    assert is_right(querying.ask(0, [1, 2], within), made, within)


def test_without_the_refusal_large_images_give_wrong_logits() -> None:
    """What the check is for: products of these images wrap, and no ring value is out of range."""
    made, asked = modules(), images(2) * 300
    querying = federation(made)
    querying._largest.clear()
    assert not is_right(querying.ask(0, [1, 2], asked), made, asked)

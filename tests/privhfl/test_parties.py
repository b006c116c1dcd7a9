"""The three parties: dropouts, sums, order of messages, and bytes that are not what they should."""

from __future__ import annotations

import contextlib
import functools
import struct

import numpy as np
import pytest
import torch

from tests.privhfl.small import SHAPE, federation, images, networks
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.privhfl import make_plan
from torchfsl.privhfl.messages import Kind, kind_of
from torchfsl.privhfl.relay import Relay


def test_who_drops_out_before_the_last_message_is_left_out_of_the_sum() -> None:
    modules, asked = networks(), images(2)
    querying = federation(modules)
    last = len(querying.plan.steps(1)) - 1

    def lose(client: int, data: bytes) -> bool:
        step = struct.unpack_from("<H", data, 10)[0]
        return client == 1 and kind_of(data) == Kind.ANSWER and step == last

    querying._lose = lose
    answer = querying.ask(0, [1, 2], asked)
    assert answer.answered == ((2,),)
    alone = federation(modules, mode="fixed").ask(0, [1, 2], asked).logits
    both = federation(modules).ask(0, [1, 2], asked).logits
    assert torch.equal(alone, both)
    with torch.no_grad():
        assert float((answer.logits - modules[2](asked)).abs().max()) < 0.02


def test_one_answering_client_alone_is_refused_unless_the_plan_says_so() -> None:
    modules = networks()
    querying = federation(modules, min_answering=2)
    with pytest.raises(ParameterError, match="expected 2 to"):
        querying.ask(0, [1], images(2))
    querying._lose = lambda client, data: client == 1 and kind_of(data) == Kind.ANSWER
    with pytest.raises(ProtocolError, match="1 clients answered"):
        querying.ask(0, [1, 2], images(2))
    querying._lose = None
    assert querying.ask(0, [1, 2], images(2)).answered == ((1, 2),)


def test_a_closed_batch_takes_nothing_more() -> None:
    querying = federation(networks())
    kept: list[tuple[int, bytes]] = []
    querying._watch = lambda link, client, data: kept.append((client, data))
    querying.ask(0, [1, 2], images(2))
    with pytest.raises(ProtocolError, match="not open"):
        querying.server.close(0, 0, 0)
    for client, data in kept:
        if kind_of(data) in (Kind.DEALING, Kind.QUERY, Kind.ANSWER):
            with pytest.raises(RejectedSubmission, match=r"closed|without a dealing"):
                querying.server.receive(client, data)


def test_answering_parties_refuse_replays_and_what_is_out_of_turn() -> None:
    querying = federation(networks())
    kept: list[bytes] = []
    querying._watch = lambda link, client, data: kept.append(data)
    querying.ask(0, [1], images(2))
    party = querying.answering[1]
    for data in (d for d in kept if kind_of(d) == Kind.SERVE):
        with pytest.raises(RejectedSubmission, match="out of order"):
            party.receive(data)
    for data in (d for d in kept if kind_of(d) in (Kind.PRODUCTS, Kind.INPUT)):
        with pytest.raises(RejectedSubmission, match="arrived twice"):
            party.receive(data)
    assert not party._waiting
    assert querying.ask(0, [1], images(2)).answered == ((1,),)


@pytest.mark.parametrize(
    ("offset", "value", "told"),
    [(0, b"X", "a message of PrivHFL"), (4, b"\x09", "wire version 9"), (5, b"\x63", "kind 99"),
     (32, b"\xff", "another plan"), (16, b"\x07", "not in the plan"), (24, b"\x01", "expected")],
)  # fmt: skip
def test_malformed_messages_are_refused(offset: int, value: bytes, told: str) -> None:
    querying = federation(networks())
    data = bytearray(querying.answering[1].offer(0)[0])
    data[offset : offset + 1] = value
    with pytest.raises(DecodeError, match=told):
        querying.server.receive(1, bytes(data))


def test_messages_cut_short_or_longer_are_refused() -> None:
    querying = federation(networks())
    data = querying.answering[1].offer(0)[0]
    for wrong in (b"", data[:63], data[:-1], data + b"\0"):
        with pytest.raises(DecodeError, match="bytes"):
            querying.server.receive(1, wrong)
    (ready,) = querying.server.receive(1, data)
    with pytest.raises(RejectedSubmission, match="again"):  # other weights under the same number
        querying.server.receive(1, data[:-1] + bytes([data[-1] ^ 1]))
    assert querying.server.receive(1, data) == [ready]  # the same ones: READY may have been lost


def test_altered_headers_raise_nothing_but_refusals() -> None:
    """Every message, to every party that takes such a kind, with bytes of its header changed."""
    querying = federation(networks())
    kept: list[bytes] = []
    querying._watch = lambda link, client, data: kept.append(data)
    querying.ask(0, [1, 2], images(2))
    random = np.random.default_rng(0)
    receivers = [functools.partial(querying.server.receive, client) for client in (0, 1)]
    receivers += [querying.answering[1].receive, querying.answering[0].receive]
    receivers.append(querying._asking[0].receive)
    for data in {kind_of(data): data for data in kept}.values():
        for _ in range(60):
            altered = bytearray(data)
            for place in random.integers(4, 32, random.integers(1, 4)):
                altered[place] = random.integers(0, 256) if random.random() < 0.5 else 0
            for receive in receivers:
                with contextlib.suppress(DecodeError, RejectedSubmission, ProtocolError):
                    receive(bytes(altered))


def test_requests_that_make_no_sense_are_refused_with_the_remedy() -> None:
    modules = networks()
    querying = federation(modules)
    for asking, answering in ((0, [0, 1]), (0, [9]), (9, [1])):
        with pytest.raises(ParameterError):
            querying.ask(asking, answering, images(2))
    with pytest.raises(ParameterError, match="one of the plan's clients"):
        querying.load(9, modules[1], images(2))
    with pytest.raises(ParameterError, match="layers of the network"):
        querying.load(0, modules[1], images(2))
    with pytest.raises(ParameterError, match="an image has a value of"):
        querying.ask(0, [1], images(2) * 1e9)
    with pytest.raises(ParameterError, match="logit_bound"):
        federation(modules, logit_bound=0.001)
    with pytest.raises(ParameterError, match=r"use batch=\d"):
        make_plan(modules, SHAPE, batch=10**5)


def test_objects_that_hold_secrets_do_not_print_them() -> None:
    querying = federation(networks())
    querying.ask(0, [1], images(2))
    shown = " ".join(
        repr(thing)
        for thing in (querying, querying.server, querying.answering[1], querying._asking[0],
                      querying._networks[1], querying._identities[0])
    )  # fmt: skip
    assert "tensor(" not in shown
    assert len(shown) < 600


def test_the_relay_notices_a_client_that_is_not_there() -> None:
    querying = federation(networks())
    querying.ask(0, [1], images(2))
    relay = Relay(querying.server, querying._asking[0], {})
    with pytest.raises(ProtocolError, match="not connected"):
        relay.to_server("querying-server", 0, querying._asking[0].deal(0, 5, [1]))

"""Bytes and moves that no honest party makes: refused, and the round goes on or ends unopened."""

from __future__ import annotations

import random
from dataclasses import dataclass
from dataclasses import field as attribute

import numpy as np
import pytest

from tests.sesa.small import (
    make_model,
    make_plan,
    plain_sums,
    random_update,
    same_sums,
    widths_of,
)
from torchfsl.crypto import field
from torchfsl.errors import DecodeError, Error, ProtocolError, RejectedSubmission
from torchfsl.sesa import Client, Server, SesaPlan, messages
from torchfsl.sesa.channels import Box, Channels
from torchfsl.sesa.client_round import ClientRound
from torchfsl.sesa.cohort import Cohort, Member
from torchfsl.sesa.messages import HEADER_BYTES, Kind
from torchfsl.sesa.round import InProcess, begin_round
from torchfsl.sesa.server import RoundState
from torchfsl.submodel.update import Update

TOO_LARGE = field.MODULUS.to_bytes(4, "little")


class Tapped(InProcess):
    """A way to the server on which messages are seen and may be altered."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.sent: list[bytes] = []
        self.changes: dict[Kind, bytes] = {}

    def send(self, message: bytes) -> None:
        self.sent.append(message)
        super().send(message)

    def fetch(self, kind: Kind, round_number: int, client: int) -> bytes:
        message = super().fetch(kind, round_number, client)
        return self.changes.get(kind, message)


@dataclass
class Round:
    """A round in which every client has submitted, and nobody answered."""

    plan: SesaPlan = attribute(
        default_factory=lambda: make_plan(submodels=2, owned=(2, 1), clients=(4, 3))
    )

    def __post_init__(self) -> None:
        plan = self.plan
        self.server = Server(plan=plan, model=make_model(plan))
        self.link = Tapped(self.server)
        widths = widths_of(plan)
        self.updates: dict[int, Update] = {c: random_update(plan, w, c) for c, w in widths.items()}
        clients = [Client(plan, self.link, client_id=c, width=w) for c, w in widths.items()]
        self.clients = clients
        begin_round(self.link, clients, 1)
        self.sessions: list[ClientRound] = []
        for client in clients:
            update = self.updates[client.client_id]
            wanted = {"table": update["table"].indices}
            self.sessions.append(client.start_round(1, indices=wanted))  # type: ignore[arg-type]
            self.sessions[-1].submit(update)

    def first_submodel(self, place: int) -> int:
        """The lowest submodel that the client at `place` trains."""
        indices = self.updates[self.clients[place].client_id]["table"].indices
        assert indices is not None
        return int(indices[0])

    def finish(self) -> None:
        """All others answer, and the sums are exact."""
        for session in self.sessions:
            if not session._answered:
                session.answer()
        opened = self.server.open()
        assert same_sums(opened.sums, plain_sums(self.plan, list(self.updates.values())))


def with_body(message: bytes, body: bytes) -> bytes:
    """The message with another body of any length, and a header that fits it."""
    return message[:24] + len(body).to_bytes(8, "little") + message[32:HEADER_BYTES] + body


def variants(message: bytes) -> list[bytes]:
    """Cuts, extensions, wrong header fields, wrong lengths in header and body."""
    body = message[HEADER_BYTES:]
    found = [message[:n] for n in (0, 1, 63, 64, len(message) - 1)] + [message + b"\0"]
    found += [with_body(message, body[:-1]), with_body(message, body + bytes(4)), b""]
    for place in (0, 4, 6, 7, 24, 31, 32, 63):
        found.append(message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :])
    found.append(message[:6] + b"\xff" + message[7:])
    found.append(message[:24] + b"\xff" * 8 + message[32:])
    return [altered for altered in found if altered != message]


def test_the_server_refuses_altered_messages_of_every_kind_and_goes_on() -> None:
    plan = make_plan(submodels=2, owned=(2, 1), clients=(4, 3))
    whole = Round(plan)
    kinds = {messages.decode(plan, m, *Kind).kind: m for m in reversed(whole.link.sent)}
    assert set(kinds) == {Kind.HELLO, Kind.SHARES, Kind.MASKED}
    server = Server(plan=plan, model=make_model(plan))
    server.open_round(1)
    for altered in variants(kinds[Kind.HELLO]):
        with pytest.raises(Error):
            server.receive(altered)
    for altered in variants(kinds[Kind.SHARES]) + variants(kinds[Kind.MASKED]):
        with pytest.raises((DecodeError, RejectedSubmission)):
            whole.server.receive(altered)
    whole.server.close_round()
    whole.sessions[0].answer()
    for altered in variants(whole.link.sent[-1]):
        with pytest.raises((DecodeError, RejectedSubmission)):
            whole.server.receive(altered)
    whole.finish()


def test_no_random_bytes_crash_the_server() -> None:
    whole = Round()
    draw = random.Random(3)
    refused = 0
    for message in whole.link.sent[7:]:  # SHARES and MASKED
        for _ in range(150):
            altered = bytearray(message)
            for _ in range(draw.randint(1, 4)):
                altered[draw.randrange(len(altered))] = draw.randrange(256)
            try:
                whole.server.receive(bytes(altered))
            except (DecodeError, RejectedSubmission):
                refused += 1
    assert refused > 2000  # what is left changed no byte
    whole.server.close_round()
    whole.finish()


def test_numbers_from_the_modulus_on_are_refused() -> None:
    whole = Round()
    masked = next(m for m in whole.link.sent if m[6] == Kind.MASKED)
    with pytest.raises(DecodeError, match="modulus"):
        whole.server.receive(masked[:-4] + TOO_LARGE)
    whole.server.close_round()
    whole.sessions[0].answer()
    answer = whole.link.sent[-1]
    with pytest.raises(DecodeError, match="modulus"):
        whole.server.receive(answer[:-4] + TOO_LARGE)
    survivors = whole.link.fetch(Kind.SURVIVORS, 1, 13)
    whole.link.changes[Kind.SURVIVORS] = survivors[:64] + TOO_LARGE + survivors[68:]
    with pytest.raises(DecodeError, match="modulus"):
        whole.sessions[1].answer()
    whole.link.changes.clear()
    whole.finish()


def test_a_second_message_that_differs_is_refused_and_the_same_again_is_not() -> None:
    whole = Round()
    for message in whole.link.sent[7:]:
        whole.server.receive(message)
        last = bytes([message[-1] ^ 1])
        with pytest.raises(RejectedSubmission, match="two different"):
            whole.server.receive(message[:-1] + last)
    whole.server.close_round()
    whole.finish()


def test_strangers_other_rounds_and_wrong_times_are_refused() -> None:
    whole = Round()
    server, plan = whole.server, whole.plan
    hello, masked = whole.link.sent[0], whole.link.sent[-1]
    with pytest.raises(RejectedSubmission, match="HELLO is for round 1, and round 1 is open"):
        server.receive(hello)
    with pytest.raises(RejectedSubmission, match="for round 2"):
        server.receive(masked[:8] + (2).to_bytes(8, "little") + masked[16:])
    with pytest.raises(RejectedSubmission, match="client 11 is not in round"):
        server.receive(masked[:16] + (11).to_bytes(8, "little") + masked[24:])
    for kind in (Kind.SURVIVORS, Kind.RELAY, Kind.MASKED):
        with pytest.raises(RejectedSubmission, match="the server does not send"):
            server.reply(kind, 1, 10)
    with pytest.raises(RejectedSubmission):
        server.reply(Kind.MODEL, 2, 10)
    with pytest.raises(RejectedSubmission, match="not in round"):
        server.reply(Kind.MODEL, 1, 11)
    server.close_round()
    with pytest.raises(RejectedSubmission, match="is answering"):
        server.receive(masked)
    with pytest.raises(ProtocolError, match="this step needs a round that is open"):
        server.close_round()
    fresh = Server(plan=plan, model=make_model(plan))
    with pytest.raises(RejectedSubmission, match="no round has begun"):
        fresh.receive(hello)
    for step in (fresh.seal, fresh.close_round, fresh.open):
        with pytest.raises(ProtocolError, match="no round has begun"):
            step()


def test_hello_of_an_unknown_width_is_refused() -> None:
    plan = make_plan()
    server = Server(plan=plan, model=make_model(plan))
    server.open_round(1)
    body = messages.HELLO.pack(2, bytes(32))
    with pytest.raises(DecodeError, match="names the width 2, but the plan"):
        server.receive(messages.encode(plan, Kind.HELLO, 1, 10, body))


def test_an_answer_for_other_survivors_is_refused() -> None:
    whole = Round()
    whole.server.close_round()
    whole.sessions[0].answer()
    answer = whole.link.sent[-1]
    other = messages.survivors_digest(whole.server._cohort(), 1, (0, 1, 2, 3, 4))
    with pytest.raises(RejectedSubmission, match="another set of survivors"):
        whole.server.receive(answer[:64] + other + answer[96:])
    whole.finish()


def test_a_client_that_dropped_out_gets_and_gives_nothing_more() -> None:
    plan = make_plan(submodels=2, owned=(2, 1), clients=(4, 3))
    whole = Round(plan)
    del whole.server._round.bodies[Kind.MASKED][10]  # as if it had not arrived
    whole.server.close_round()
    with pytest.raises(RejectedSubmission, match="client 10 dropped out"):
        whole.sessions[0].answer()
    whole.sessions[1].answer()
    answer = whole.link.sent[-1]
    with pytest.raises(RejectedSubmission, match="another set of survivors"):
        whole.server.receive(answer[:16] + (10).to_bytes(8, "little") + answer[24:])
    del whole.updates[10]
    whole.finish()


def test_a_client_answers_for_one_set_of_survivors() -> None:
    """A server that shows two clients' sums with and without a third gets one answer each."""
    whole = Round()
    server = whole.server
    server.close_round()
    session = whole.sessions[0]
    session.answer()
    cohort, held = server._cohort(), server._round
    held.survivors = tuple(range(6))
    with pytest.raises(ProtocolError, match="list of survivors once"):
        session.answer()
    assert cohort.places[10] == 0


@pytest.mark.parametrize("survivors", [(0, 1, 2), (1, 2, 3, 4, 5)])
def test_a_client_answers_for_no_survivors_that_the_plan_refuses(
    survivors: tuple[int, ...],
) -> None:
    """Too few, or without the client itself."""
    whole = Round()
    whole.server.close_round()
    cohort = whole.server._cohort()
    size = messages.survivors_bytes(cohort, survivors) - len(cohort)
    body = bytes(size) + messages.encode_mask(cohort, survivors)
    forged = messages.encode(whole.plan, Kind.SURVIVORS, 1, 10, body)
    whole.link.changes[Kind.SURVIVORS] = forged
    with pytest.raises(ProtocolError, match=r"expected at most 3|dropped out"):
        whole.sessions[0].answer()
    whole.link.changes.clear()
    with pytest.raises(ProtocolError, match="list of survivors once"):
        whole.sessions[0].answer()
    whole.finish()


@pytest.mark.parametrize("place", [64, 64 + 15, 64 + 16, 64 + 40, -1])
def test_an_altered_box_is_noticed(place: int) -> None:
    whole = Round()
    whole.server.close_round()
    relay = bytearray(whole.link.fetch(Kind.RELAY, 1, 10))
    relay[place] ^= 1
    whole.link.changes[Kind.RELAY] = bytes(relay)
    with pytest.raises(RejectedSubmission, match="was altered"):
        whole.sessions[0].answer()


def test_boxes_for_another_client_round_or_sender_do_not_open() -> None:
    plan = make_plan(clients=(3, 3))
    channels = [Channels() for _ in range(6)]
    cohort = Cohort(plan, tuple(Member(c, 0, channels[c].public) for c in range(6)))
    salt = b"s" * 16
    box = channels[0].seal(Box(cohort, 1, 0, 1, salt), b"share")
    assert channels[1].open(Box(cohort, 1, 0, 1, salt), box) == b"share"
    other = Cohort(make_plan(clients=(2, 4)), cohort.members)
    for opener, arguments in (
        (channels[1], (cohort, 2, 0, 1, salt)),
        (channels[1], (cohort, 1, 2, 1, salt)),
        (channels[2], (cohort, 1, 0, 2, salt)),
        (channels[0], (cohort, 1, 1, 0, salt)),
        (channels[1], (cohort, 1, 0, 1, b"t" * 16)),
        (channels[1], (other, 1, 0, 1, salt)),
    ):
        with pytest.raises(RejectedSubmission, match="altered"):
            opener.open(Box(*arguments), box)
    again = channels[0].seal(Box(cohort, 1, 0, 1, b"t" * 16), b"share")
    assert again != box


def test_a_key_of_small_order_is_refused() -> None:
    plan = make_plan(clients=(3, 3))
    cohort = Cohort(plan, tuple(Member(c, 0, bytes(32)) for c in range(6)))
    with pytest.raises(DecodeError, match="small order"):
        Channels().seal(Box(cohort, 1, 0, 1, bytes(16)), b"share")


SMALL_ORDER = [
    bytes(32),
    bytes([1]) + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


@pytest.mark.parametrize("key", SMALL_ORDER, ids=["0", "1", "order 8", "p - 1"])
def test_one_client_with_a_key_of_small_order_does_not_stop_the_others(key: bytes) -> None:
    plan = make_plan(clients=(4, 3))
    widths = widths_of(plan)
    server = Server(plan=plan, model=make_model(plan))
    link = InProcess(server)
    *clients, last = [Client(plan, link, client_id=c, width=w) for c, w in widths.items()]
    server.open_round(1)
    for client in clients:
        client.enter(1)
    body = messages.HELLO.pack(last.width, key)
    with pytest.raises(DecodeError, match="small order"):
        server.receive(messages.encode(plan, Kind.HELLO, 1, last.client_id, body))
    server.seal()
    for client in clients:
        client.start_round(1, indices={"table": [0]})


@pytest.mark.parametrize("victim", range(7))
def test_a_relay_that_marks_a_masked_update_sees_where_its_client_trains(victim: int) -> None:
    """A limit of one server that follows the protocol: nothing here notices it when it does not."""
    whole = Round()
    server = whole.server
    server.close_round()
    held, cohort = server._round, server._cohort()
    words = field.from_bytes(held.masked[: -len(cohort)]).copy()
    size = whole.plan.parts[0].size
    start = sum(whole.plan.widths[cohort.width(p)].owned[0] for p in range(victim)) * size
    words[start] = field.add(words[start : start + 1], np.array([77], np.uint32))[0]
    held.masked = field.to_bytes(words) + held.masked[-len(cohort) :]
    for session in whole.sessions:
        session.answer()
    expected = plain_sums(whole.plan, list(whole.updates.values()))["table"]
    marked = np.argwhere(server.open().sums["table"] - expected)
    assert marked.tolist() == [[whole.first_submodel(victim), 0]]


def test_a_client_forgets_its_choice_once_it_has_answered() -> None:
    whole = Round()
    session = whole.sessions[0]
    assert session._asked["table"].size
    assert len(session._chosen) == 2
    whole.server.close_round()
    session.answer()
    assert (session._asked, session._chosen, session._masks) == ({}, [], [])
    assert session._own_share is None
    with pytest.raises(Error):
        session.retrieve()


def test_secrets_do_not_print() -> None:
    secret = bytes(range(32))
    channels = Channels(secret)
    assert secret.hex() not in repr(channels)
    assert "public" in repr(channels)
    whole = Round()
    assert repr(whole.sessions[0]) == "ClientRound(client=10, round=1)"
    assert repr(whole.clients[0]) == "Client(client_id=10, width=0)"


def replies(whole: Round) -> dict[Kind, bytes]:
    found = {Kind.COHORT: whole.server.reply(Kind.COHORT, 1, 10)}
    found[Kind.MODEL] = whole.server.reply(Kind.MODEL, 1, 10)
    whole.server.close_round()
    found[Kind.SURVIVORS] = whole.server.reply(Kind.SURVIVORS, 1, 10)
    found[Kind.RELAY] = whole.server.reply(Kind.RELAY, 1, 10)
    return found


@pytest.mark.parametrize("kind", [Kind.SURVIVORS, Kind.RELAY])
def test_a_client_refuses_altered_messages_of_the_server(kind: Kind) -> None:
    message = replies(Round())[kind]
    for altered in range(len(variants(message))):
        whole = Round()
        whole.link.changes[kind] = variants(replies(whole)[kind])[altered]
        with pytest.raises((DecodeError, ProtocolError)):
            whole.sessions[0].answer()


def test_a_client_refuses_an_altered_cohort_or_model() -> None:
    plan = make_plan(submodels=2, owned=(2, 1), clients=(4, 3))
    for kind in (Kind.COHORT, Kind.MODEL):
        number = 0
        while True:
            server = Server(plan=plan, model=make_model(plan))
            link = Tapped(server)
            clients = [Client(plan, link, client_id=c, width=w) for c, w in widths_of(plan).items()]
            begin_round(link, clients, 1)
            bad = variants(server.reply(kind, 1, 10))
            if number == len(bad):
                break
            link.changes[kind] = bad[number]
            with pytest.raises((DecodeError, ProtocolError)):
                clients[0].start_round(1, indices={"table": [0]}).download()
            number += 1


def test_a_client_refuses_a_cohort_that_is_not_its_own() -> None:
    plan = make_plan(submodels=2, owned=(2, 1), clients=(4, 3))
    for change in ("key", "width", "missing", "order", "unknown width", "twice"):
        server = Server(plan=plan, model=make_model(plan))
        link = Tapped(server)
        clients = [Client(plan, link, client_id=c, width=w) for c, w in widths_of(plan).items()]
        begin_round(link, clients, 1)
        members = list(server._cohort().members)
        own = members[0]
        if change == "key":
            members[0] = Member(own.client, own.width, bytes(32))
        elif change == "width":
            members[0] = Member(own.client, 1, own.key)
        elif change == "missing":
            members = members[1:]
        elif change == "order":
            members = members[::-1]
        elif change == "twice":
            members = [own, *members[:-1]]
        else:
            members[3] = Member(members[3].client, 2, members[3].key)
        body = Cohort(plan, tuple(members)).encode()
        link.changes[Kind.COHORT] = messages.encode(plan, Kind.COHORT, 1, 10, body)
        with pytest.raises((DecodeError, ProtocolError), match=r"cohort|order|width"):
            clients[0].start_round(1, indices={"table": [0]})
        assert server.state is RoundState.OPEN

"""Calls that follow one another on one stream: each as if alone, and none waits for ever."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.test_hostile import messages_of
from tests.support.federation import wanted_rows
from tests.support.network import CONFIG, QUICK, Pair, wait_until
from torchfsl.errors import DecodeError, Error, RejectedSubmission
from torchfsl.service.client.links import Conversation, HasEnded, Link
from torchfsl.service.net import calls
from torchfsl.service.net.answers import PLAN_BYTES
from torchfsl.service.net.calls import CHUNK_BYTES
from torchfsl.service.net.identity import NotAllowed

CONFIG_SHORT = CONFIG + "conversation_seconds = 1.0\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        started.open()
        yield started


@contextlib.contextmanager
def talking(pair: Pair, name: str, party: int = 0) -> Iterator[Conversation]:
    link = Link(pair.urls[party], party, pair.files(name), QUICK)
    talk = Conversation(link._channel, f"server {party}")
    yield talk
    talk.close()
    link.close()


def ask(talk: Conversation, method: str, data: bytes = b"{}", limit: int = PLAN_BYTES) -> bytes:
    return talk.ask(method, data, limit=limit, seconds=60)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_the_end_of_a_message_is_a_chunk_shorter_than_the_others(size: int) -> None:
    data = bytes(size)
    sent = list(calls.replied(data))
    assert b"".join(sent) == data
    assert [len(chunk) == CHUNK_BYTES for chunk in sent] == [True] * (len(sent) - 1) + [False]
    sent = list(calls.conversed("Submit", memoryview(data), b"x"))
    name, rest = calls.method_of(sent[0])
    assert name == "Submit"
    assert rest + b"".join(sent[1:]) == data + b"x"
    assert [len(chunk) == CHUNK_BYTES for chunk in sent] == [True] * (len(sent) - 1) + [False]


@pytest.mark.parametrize("chunk", [b"", b"Submit", b"Open\n", b"\n", b"\xff\n", b" " * 99 + b"\n"])
def test_a_first_chunk_without_a_method_is_refused(chunk: bytes) -> None:
    with pytest.raises(DecodeError, match="begins with the name"):
        calls.method_of(chunk)


def test_calls_follow_one_another_and_a_refusal_is_that_of_a_single_call(pair: Pair) -> None:
    trees, _ = messages_of(pair, 0)
    with talking(pair, "client-0") as talk:
        plans = {ask(talk, "Plan") for _ in range(3)}
        assert len(plans) == 1
        for method, data in (("Upload", trees[0]), ("Upload", trees[0])):
            assert ask(talk, method, data) == b""
        other = trees[0][:-1] + bytes([trees[0][-1] ^ 1])
        with pytest.raises(RejectedSubmission, match="client 0"):
            ask(talk, "Upload", other)
        with pytest.raises(Error):  # it has ended
            ask(talk, "Plan")


@pytest.mark.parametrize(
    ("sent", "error", "said"),
    [
        (b"Relay\n", NotAllowed, "client 1 may not call Relay"),
        (b"Open\n{}", DecodeError, "begins with the name of its method"),
        (b"Upload\nnothing", DecodeError, "header"),
    ],
)
def test_what_may_not_be_called_or_read_ends_the_conversation(
    pair: Pair, sent: bytes, error: type[Error], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "conversed", lambda *_: iter([sent]))
    with talking(pair, "client-1") as talk, pytest.raises(error, match=said):
        ask(talk, "Plan")


def test_more_or_less_than_the_header_says_is_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, _ = messages_of(pair, 2)
    for data in (trees[0] + b"1", trees[0][:-1]):
        with (
            talking(pair, "client-2") as talk,
            pytest.raises(DecodeError, match="bytes that its header says"),
        ):
            ask(talk, "Upload", data)
    chunk = b"Model\n" + b'{"round": 1}'
    chunk += b" " * (CHUNK_BYTES - len(chunk))
    monkeypatch.setattr(calls, "conversed", lambda *_: iter([chunk, b"more"]))
    with talking(pair, "client-2") as talk, pytest.raises(DecodeError, match="expected a request"):
        ask(talk, "Model")


def test_the_conversation_that_rests_longest_makes_room(pair: Pair) -> None:
    with contextlib.ExitStack() as stack:
        talks = []
        for _ in range(5):  # one more than calls_per_client
            talks.append(stack.enter_context(talking(pair, "client-3")))
            ask(talks[-1], "Plan")
        for talk in talks[1:]:
            assert ask(talk, "Plan")
        with pytest.raises(HasEnded):
            ask(talks[0], "Plan")


def test_a_client_does_not_notice_that_its_conversation_rested_too_long(tmp_path: Any) -> None:
    with Pair(tmp_path, config=CONFIG_SHORT) as pair:
        pair.start()
        pair.set_up()
        pair.open()
        with pair.client(1) as connection:
            update = pair.update(1)
            wanted = wanted_rows(pair.plan, update)
            one = connection.client.start_round(pair.number, indices=wanted)
            time.sleep(2.0)
            one.submit(update)
            links = connection.links.links
            assert [(link.attempts["Submit"], link.counts["Submit"]) for link in links] == [
                (1, 1)
            ] * 2
            wait_until(lambda: pair.owner.links.info(0)["complete"] == 1)
            start = time.monotonic()
            pair.stop()  # with a conversation that rests
            assert time.monotonic() - start < 5.0

"""Fetching without a round over the network: exact rows, no report, limits, no trust in a relay."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.network import CONFIG, HANGS_AFTER, QUICK, Pair, assert_sums
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.dpf.keys import FETCH_ROUND
from torchfsl.fsl.messages import HEADER_BYTES, Kind, max_bytes
from torchfsl.fsl.uploads import FetchBody, FetchRelay
from torchfsl.service.client.links import Link
from torchfsl.service.client.remote import Connection
from torchfsl.service.net.calls import NotReady
from torchfsl.service.net.identity import NotAllowed

ROWS = {"table": [0, 5, 20]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        yield started


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Servers that do not wait for each other as long."""
    config = CONFIG.replace("peer_seconds = 10.0", "peer_seconds = 3.0")
    with Pair(tmp_path_factory.mktemp("impatient"), config=config) as started:
        started.start()
        started.set_up()
        yield started


def assert_fetches(pair: Pair, connection: Connection) -> None:
    clear, rows = connection.fetch(ROWS)
    state = pair.owner.model(pair.task).state
    assert set(clear) == {tensor.name for tensor in pair.plan.clear_tensors}
    assert all(clear[name].tobytes() == state[name].tobytes() for name in clear)
    table = np.concatenate([state["table.0"], state["table.1"]])
    indices, values = rows["table"]
    assert values.tobytes() == table[indices].tobytes()
    assert indices.tolist() == ROWS["table"]


def fetch_messages(pair: Pair, client: int) -> dict[int, bytes]:
    """What a client would send for a fetch, by server, without sending it."""
    sent: dict[int, bytes] = {}

    class Deaf:
        def send(self, party: int, message: bytes) -> None:
            sent[party] = message

        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            raise NotReady("deaf")

    with contextlib.suppress(NotReady):
        Client(pair.plan, Deaf(), client_id=client).fetch(ROWS)
    return sent


def report_files(pair: Pair) -> list[Path]:
    """What the report logs of both servers hold; the first message makes the first file."""
    found = (file for p in (0, 1) for file in pair.state(p).glob("reports/*/*.log"))
    return [file for file in found if file.is_file()]


def link_of(pair: Pair, name: str, party: int) -> Link:
    return Link(pair.urls[party], party, pair.files(name), QUICK)


@pytest.mark.parametrize("client", [4, 7])
def test_a_fetch_reads_the_model_before_during_and_after_rounds(pair: Pair, client: int) -> None:
    with pair.client(client) as connection:
        assert_fetches(pair, connection)
        before = connection.model_version()
        pair.open()
        assert_fetches(pair, connection)
        assert not report_files(pair)
        made = pair.take_part((2, 3))
        assert report_files(pair)
        opened = pair.close()
        assert opened.clients == (2, 3)
        assert_sums(pair.plan, opened, made)
        assert connection.model_version() != before
        assert_fetches(pair, connection)
        assert [link.counts["Fetch"] for link in connection.links.links] == [3, 3]


def test_a_fetch_that_goes_on_while_rounds_close_has_one_model_or_none(pair: Pair) -> None:
    ended, failures = threading.Event(), []

    def fetch() -> None:
        with pair.client(6) as connection:
            while not ended.is_set():
                try:
                    connection.fetch(ROWS)
                except (RejectedSubmission, NotReady):
                    continue  # the model changed under way, or often fetched
                except ProtocolError as error:
                    failures.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        for _ in range(3):
            pair.open()
            pair.assert_serves()
    finally:
        ended.set()
        thread.join(HANGS_AFTER)
    assert not failures


def test_a_fetch_with_an_outbox_leaves_no_trace_in_it(pair: Pair, tmp_path: Path) -> None:
    with pair.client(0, outbox=tmp_path / "outbox") as connection:
        assert_fetches(pair, connection)
        number = pair.open()
        assert connection.wait_for_round() == number
        assert not connection.resume()
        with pytest.raises(ParameterError):
            connection.fetch({"table": [3, 3]})
    pair.assert_serves()


def test_the_seventeenth_fetch_from_one_model_is_refused_and_others_go_on(pair: Pair) -> None:
    with pair.client(5) as connection, pair.client(4) as other:
        for _ in range(16):
            connection.fetch(ROWS)
        with pytest.raises(RejectedSubmission, match=r"client 5 has used .* \(max-fetches = 16\)"):
            connection.fetch(ROWS)
        assert_fetches(pair, other)
        pair.open()
        pair.assert_serves()
        assert_fetches(pair, connection)


def test_the_setting_says_how_often(tmp_path: Path) -> None:
    with Pair(tmp_path, config="max-fetches = 1\n" + CONFIG) as pair:
        pair.start()
        pair.set_up()
        with pair.client(1) as connection:
            connection.fetch(ROWS)
            with pytest.raises(RejectedSubmission, match="max-fetches = 1"):
                connection.fetch(ROWS)


def test_a_client_does_not_fetch_as_another_and_does_not_relay(pair: Pair) -> None:
    sent = fetch_messages(pair, 2)
    for party in (0, 1):
        link = link_of(pair, "client-1", party)
        with pytest.raises(NotAllowed, match="client 1 sent a message of client 2"):
            link.once("Fetch", sent[party], limit=1 << 16)
        with pytest.raises(NotAllowed, match="may not call RelayFetch"):
            link.once("RelayFetch", sent[party], limit=1 << 16)
        link.close()
    with pair.client(2) as connection:
        assert_fetches(pair, connection)


@pytest.mark.parametrize("lies", [False, True])
def test_altered_trees_of_a_relay_are_noticed(pair: Pair, lies: bool) -> None:
    """This test is server 0, to which client 2 sends its trees."""
    sent = fetch_messages(pair, 2)
    trees = FetchBody.decode(pair.plan, memoryview(sent[0])[HEADER_BYTES:])
    public = bytearray(b"".join(trees.public))
    public[-40] ^= lies
    relay = FetchRelay(trees.nonce, (bytes(public),)).message(pair.plan, 1, FETCH_ROUND, 2)
    client, server = link_of(pair, "client-2", 1), link_of(pair, "server-0", 1)
    refusals = []

    def commit() -> None:
        try:
            client.once("Fetch", sent[1], limit=max_bytes(pair.plan, Kind.FETCH_ANSWER))
        except RejectedSubmission as error:
            refusals.append(str(error))

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        server.once("RelayFetch", relay, limit=HEADER_BYTES)
    except RejectedSubmission as error:
        refusals.append(str(error))
    thread.join(HANGS_AFTER)
    assert len(refusals) == 2 * lies
    assert all("do not fit the client's commitment" in text for text in refusals)
    client.close(), server.close()
    with pair.client(2) as connection:
        assert_fetches(pair, connection)


def test_a_fetch_at_one_server_alone_ends_and_leaves_room(impatient: Pair) -> None:
    pair = impatient
    sent = fetch_messages(pair, 3)
    for party, why in ((0, "has not relayed the DPF keys"), (1, "to this fetch did not arrive")):
        link = link_of(pair, "client-3", party)
        with pytest.raises((NotReady, RejectedSubmission), match=f"{why}|does not answer"):
            link.once("Fetch", sent[party], limit=max_bytes(pair.plan, Kind.FETCH_MODEL))
        link.close()
    with pair.client(3) as connection:
        assert_fetches(pair, connection)


def test_a_fetch_without_the_other_server_is_told_so_and_sent_once(impatient: Pair) -> None:
    with impatient.client(1) as connection:
        impatient.kill(0)
        with pytest.raises(NotReady):
            connection.fetch(ROWS)
        assert [link.attempts["Fetch"] for link in connection.links.links] == [1, 1]
        impatient.start(0)
        connection.links.info(0)
        assert_fetches(impatient, connection)

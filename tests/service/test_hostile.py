"""Hostile peers, each with its defined outcome; the honest side keeps serving others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.support.federation import mixed_plan, wanted_rows
from tests.support.network import FLOORS, HANGS_AFTER, HASTY, QUICK, Pair, assert_sums, wait_until
from tests.support.reference import plaintext
from torchfsl.errors import DecodeError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.bodies import ShareBody
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.client.round import ClientRound
from torchfsl.fsl.messages import (
    HEADER_BYTES,
    SET_ENTRY,
    Kind,
    master_seed_bytes,
    share_bytes,
)
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES
from torchfsl.service.client.links import Link, Links, RetryPolicy
from torchfsl.service.client.remote import connect, submit
from torchfsl.service.net import calls
from torchfsl.service.net.certificates import make_development_certificates
from torchfsl.service.net.channels import TlsFiles, target
from torchfsl.service.net.identity import Authorities, NotAllowed, server_name
from torchfsl.service.server.node import Node
from torchfsl.service.server.storage import NodeSettings
from torchfsl.submodel.update import SegmentUpdate


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        yield started


@pytest.fixture(autouse=True)
def others_are_served(pair: Pair) -> Iterator[None]:
    """Around every attack an honest round must succeed."""
    pair.open()
    yield
    pair.assert_serves()


def link_of(pair: Pair, files: TlsFiles, party: int = 0, policy: RetryPolicy = QUICK) -> Link:
    return Link(pair.urls[party], party, files, policy)


def messages_of(pair: Pair, client: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Trees and report that a client would send, without sending them."""
    trees: dict[int, bytes] = {}
    report: dict[int, bytes] = {}

    class Deaf:
        def send(self, party: int, message: bytes) -> None:
            kinds = (Kind.TREES, Kind.TREES_COMMIT)
            (trees if message[6] in kinds else report)[party] = message

        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            raise AssertionError

    update = pair.update(client)
    one = Client(pair.plan, Deaf(), client_id=client)
    one.start_round(pair.number, indices=wanted_rows(pair.plan, update)).submit(update)
    return trees, report


def test_a_caller_without_a_certificate_is_refused(pair: Pair) -> None:
    root = pair.files("owner").authorities().server_pems[0]
    options = [("grpc.ssl_target_name_override", server_name(0))]
    credentials = grpc.ssl_channel_credentials(root)
    with grpc.secure_channel(target(pair.urls[0]), credentials, options) as channel:
        call = channel.stream_stream(calls.path("Info"))(iter([b"{}"]), timeout=HANGS_AFTER)
        with pytest.raises(grpc.RpcError) as refused:
            list(call)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_certificate_of_another_authority_is_refused(pair: Pair, tmp_path: Path) -> None:
    make_development_certificates(tmp_path, [0])
    own = pair.files("client-0")
    forged = TlsFiles(
        tmp_path / "client-0.pem", tmp_path / "client-0.key",
        own.server_authorities, own.clients_authority,
    )  # fmt: skip
    with pytest.raises(calls.NotReady):
        link_of(pair, forged, policy=HASTY).call("Info", b"{}", limit=1 << 16)


def test_one_servers_authority_cannot_vouch_for_the_other_or_for_clients(
    pair: Pair, tmp_path: Path
) -> None:
    authorities = pair.files("owner").authorities()
    swapped = Authorities(
        (authorities.server_pems[1], authorities.server_pems[0]), authorities.clients_pem
    )
    for name in ("server-0", "server-1"):
        with pytest.raises(NotAllowed, match="not from the authority"):
            swapped.identify((pair.tls / f"{name}.pem").read_bytes())
    mixed = Authorities(
        (authorities.server_pems[0], authorities.clients_pem), authorities.server_pems[1]
    )
    with pytest.raises(NotAllowed, match="not from the authority"):
        mixed.identify((pair.tls / "client-0.pem").read_bytes())
    with pytest.raises(ParameterError, match="expected separate certificate authorities"):
        Authorities((authorities.clients_pem, authorities.server_pems[1]), authorities.clients_pem)


def test_another_clients_identity_is_refused(pair: Pair) -> None:
    trees, _ = messages_of(pair, 1)
    with pytest.raises(NotAllowed, match="client 0 sent a message of client 1"):
        link_of(pair, pair.files("client-0")).call("Retrieve", trees[0], limit=1 << 20)
    said = "expected the certificate of client 1, got that of client 0: pass tls="
    with pytest.raises(ParameterError, match=said):
        connect(pair.urls, pair.files("client-0"), 1)


@pytest.mark.parametrize("method", ["Step", "Relay", "SetUp", "Open", "Close", "Result", "State"])
def test_a_client_cannot_call_what_is_not_for_clients(pair: Pair, method: str) -> None:
    said = f"client 0 may not call {method}: use the certificate of a (coordinator|server)"
    with pytest.raises(NotAllowed, match=said):
        link_of(pair, pair.files("client-0")).call(method, b"{}", limit=1 << 20)


def test_a_caller_that_is_refused_a_thousand_times_fills_no_log(pair: Pair) -> None:
    before = len(pair.log(0))  # of a client that no test before was refused for
    call = link_of(pair, pair.files("client-1"))._channel.unary_unary(calls.path("Step"))
    for _ in range(1000):
        with pytest.raises(grpc.RpcError):
            call(b"{}", timeout=HANGS_AFTER, metadata=calls.metadata())
    lines = pair.log(0)[before:].splitlines()
    refused = [line for line in lines if '"client 1"' in line and "PERMISSION_DENIED" in line]
    assert 1 <= len(refused) <= 20  # a line in ten seconds, however slow this machine is


def test_controls_and_half_pairs_in_a_reason_stop_nothing_and_reach_no_log(pair: Pair) -> None:
    reasons = [b"\\ud800", b"\\u001b[2J", b"\\u202e", b"\\n"]
    for name, party in (("owner", 0), ("server-0", 1)):
        link = link_of(pair, pair.files(name), party)
        for said in reasons:
            request = b'{"round": 0, "reason": "' + said + b'"}'
            with contextlib.suppress(DecodeError, ProtocolError):
                link.call("Abandon", request, limit=1 << 20)
        with pytest.raises(DecodeError):
            link.call("Abandon", b'{"round": 1, "reason": "\\ud800"}', limit=1 << 20)
    for party in (0, 1):
        assert not {"\x1b", "\u202e"} & set(pair.log(party))
        page = f"http://127.0.0.1:{pair.metrics_ports[party]}/readyz"
        assert urllib.request.urlopen(page, timeout=HANGS_AFTER).status == 200


def test_server_1_cannot_drive_server_0(pair: Pair) -> None:
    own = messages_of(pair, 1)[0][1]
    with pytest.raises(ProtocolError, match="server 0 leads"):
        link_of(pair, pair.files("server-1")).call("Step", own, limit=1 << 20)


def test_an_operator_may_look_at_his_own_server_and_do_nothing(pair: Pair) -> None:
    link = link_of(pair, pair.files("server-0"))
    assert json.loads(link.call("Info", b"{}", limit=1 << 20))["party"] == 0
    for method in ("Step", "Relay", "SetUp", "Open", "Close", "Abandon", "Submit"):
        with pytest.raises(NotAllowed, match=f"server 0 may not call {method}"):
            link.call(method, b"{}", limit=1 << 20)


def test_garbage_on_the_socket_and_inside_tls_is_dropped(pair: Pair) -> None:
    for size in (1, 100, 1 << 20):
        with socket.create_connection(("127.0.0.1", pair.ports[0])) as raw:
            raw.settimeout(0.3)
            try:
                raw.sendall(os.urandom(size))
                while raw.recv(1 << 16):
                    pass
            except OSError:
                pass
    link = link_of(pair, pair.files("client-0"))
    for method in ("Retrieve", "Submit", "Upload", "Model", "Answer", "Info"):
        for size in (0, 1, 63, 64, 5000):
            with pytest.raises(DecodeError):
                link.call(method, os.urandom(size), limit=1 << 20)


def test_ten_gigabytes_in_a_header_are_refused_by_the_header(pair: Pair) -> None:
    trees, _ = messages_of(pair, 0)
    huge = bytearray(trees[0])
    struct.pack_into("<Q", huge, 24, 10 << 30)
    link = link_of(pair, pair.files("client-0"))
    with pytest.raises(DecodeError, match="body of 10737418240 bytes, expected"):
        link.call("Retrieve", bytes(huge), limit=1 << 20)
    assert MAX_MESSAGE_BYTES < 10 << 30


def test_more_or_fewer_bytes_than_the_header_says_are_refused(pair: Pair) -> None:
    trees, _ = messages_of(pair, 0)
    link = link_of(pair, pair.files("client-0"))
    for data in (trees[0] + b"\0", trees[0] + bytes(3 << 20), trees[0][:-1]):
        with pytest.raises(DecodeError, match="bytes that its header says"):
            link.call("Retrieve", data, limit=1 << 20)


def test_frames_above_the_limit_are_refused_by_the_transport(pair: Pair) -> None:
    link = link_of(pair, pair.files("client-0"))
    call = link._channel.stream_stream(calls.path("Info"))(
        iter([bytes(3 << 20)]), timeout=HANGS_AFTER, metadata=calls.metadata()
    )
    with pytest.raises(grpc.RpcError) as refused:
        list(call)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.slow
def test_slow_senders_are_dropped_and_cost_nobody_else(pair: Pair) -> None:
    idle = [socket.create_connection(("127.0.0.1", pair.ports[0])) for _ in range(50)]
    trees, _ = messages_of(pair, 0)
    link = link_of(pair, pair.files("client-0"))

    def trickle() -> Iterator[bytes]:
        yield trees[0][:HEADER_BYTES]
        for byte in trees[0][HEADER_BYTES:]:
            time.sleep(0.4)
            yield bytes([byte])

    call = link._channel.stream_stream(calls.path("Retrieve"))(
        trickle(), timeout=HANGS_AFTER, metadata=calls.metadata()
    )
    with pytest.raises(grpc.RpcError) as dropped:
        list(call)
    assert dropped.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the call is dropped" in dropped.value.details()
    for one in idle:
        one.close()


def test_a_sender_that_falls_silent_is_dropped(pair: Pair) -> None:
    link = link_of(pair, pair.files("client-0"))
    silence = threading.Event()

    def fall_silent() -> Iterator[bytes]:
        yield messages_of(pair, 0)[0][0][:HEADER_BYTES]
        silence.wait(HANGS_AFTER)

    call = link._channel.stream_stream(calls.path("Retrieve"))(
        fall_silent(), timeout=HANGS_AFTER, metadata=calls.metadata()
    )
    with pytest.raises(grpc.RpcError) as dropped:
        list(call)
    silence.set()
    assert "the caller sent nothing for" in dropped.value.details()


def test_a_replayed_report_counts_once_and_a_second_one_costs_the_round(pair: Pair) -> None:
    links = Links(pair.urls, pair.files("client-3"), QUICK)
    trees, report = messages_of(pair, 3)
    _, other = messages_of(pair, 3)
    links.both(lambda link: link.call("Retrieve", trees[link.party], limit=1 << 20))
    for _ in range(3):
        submit(links, report, None)
    with pytest.raises(RejectedSubmission, match=r"second, different|was rejected"):
        submit(links, other, None)
    with pytest.raises(RejectedSubmission, match="rejected"):
        submit(links, report, None)
    pair.take_part([4, 5])
    assert pair.close().clients == (4, 5)
    with pytest.raises(RejectedSubmission, match=r"no round is open|closed"):
        submit(links, report, None)
    pair.open()
    with pytest.raises(RejectedSubmission, match="message is for round"):
        submit(links, report, None)


def test_a_caller_gets_no_more_than_its_share_of_calls(pair: Pair) -> None:
    link = link_of(pair, pair.files("client-0"))
    release = threading.Event()

    def hold() -> Iterator[bytes]:
        release.wait(2.5)
        yield b"{}"

    def refused() -> bool:
        release.clear()
        method = link._channel.stream_stream(calls.path("Info"))
        held = [method(hold(), timeout=HANGS_AFTER, metadata=calls.metadata()) for _ in range(12)]
        count = 0
        for call in reversed(held):
            try:
                list(call)
            except grpc.RpcError as error:
                count += "too many calls at once" in error.details()
        release.set()
        return count >= 1

    wait_until(refused)


# --- a server that lies ---


def two_nodes(pair: Pair, folder: Path, min_clients: int = 1) -> tuple[Node, Node]:
    """Both servers in this process, with reports of clients 0 to 2."""
    from tests.service.test_node import Duo, some_updates

    duo = Duo(folder, pair.files("owner").authorities(), mixed_plan(min_clients=min_clients))
    duo.step(1, Kind.ROUND_STATE)
    for client, update in some_updates(duo.plan, 0).items():
        one = Client(duo.plan, duo, client_id=client)
        one.start_round(1, indices=wanted_rows(duo.plan, update)).submit(update)  # type: ignore[arg-type]
    return duo.nodes[0], duo.nodes[1]


@pytest.mark.parametrize("lie", ["drops", "adds", "swaps"])
def test_a_server_that_lies_about_the_client_set_only_shrinks_it(
    pair: Pair, tmp_path: Path, lie: str
) -> None:
    honest, liar = two_nodes(pair, tmp_path)
    said = liar.exchange(1, Kind.REPORT_SET)
    honest.exchange(1, Kind.REPORT_SET)
    entries = list(SET_ENTRY.iter_unpack(said[HEADER_BYTES + 32 :]))
    if lie == "drops":
        entries = entries[1:]
    elif lie == "adds":
        entries.append((3, bytes(32)))
    else:
        entries[0] = (entries[0][0], bytes(32))
    body = said[HEADER_BYTES : HEADER_BYTES + 32] + b"".join(SET_ENTRY.pack(*e) for e in entries)
    forged = bytearray(said[:HEADER_BYTES]) + body
    struct.pack_into("<Q", forged, 24, len(body))
    honest.exchange(1, Kind.REPORT_SET, bytes(forged))
    honest.count(1, Kind.REPORT_SET)
    kept = (0, 1, 2) if lie == "adds" else (1, 2)
    assert tuple(honest.server._opening.accepted) == kept


def test_a_server_that_drops_clients_below_the_minimum_gets_nothing_opened(
    pair: Pair, tmp_path: Path
) -> None:
    honest, liar = two_nodes(pair, tmp_path, min_clients=3)
    said = bytearray(liar.exchange(1, Kind.REPORT_SET)[: HEADER_BYTES + 32])
    struct.pack_into("<Q", said, 24, 32)
    honest.exchange(1, Kind.REPORT_SET)
    honest.exchange(1, Kind.REPORT_SET, bytes(said))
    with pytest.raises(ProtocolError, match="acceptable reports: 0, the plan wants 3"):
        honest.count(1, Kind.REPORT_SET)
    with pytest.raises(ProtocolError, match="unopened"):
        honest.exchange(1, Kind.VERDICTS)


def test_a_relay_with_one_bit_changed_is_refused_and_costs_only_its_client(pair: Pair) -> None:
    trees, _ = messages_of(pair, 0)
    client, liar = (
        link_of(pair, pair.files("client-0"), 1),
        link_of(pair, pair.files("server-0"), 1),
    )
    relay = bytearray(trees[0][:HEADER_BYTES] + trees[0][HEADER_BYTES : HEADER_BYTES + 16])
    relay += trees[0][HEADER_BYTES + 32 + master_seed_bytes(pair.plan) :]
    relay[6], relay[7] = Kind.TREES_RELAY, 1
    struct.pack_into("<Q", relay, 24, len(relay) - HEADER_BYTES)
    relay[-40] ^= 1
    client.call("Upload", trees[1], limit=1 << 10)
    with pytest.raises(RejectedSubmission, match="does not fit the client's commitment"):
        liar.call("Relay", bytes(relay), limit=1 << 10)


def test_a_server_that_withholds_its_share_gets_no_second_opening(
    pair: Pair, tmp_path: Path
) -> None:
    honest, liar = two_nodes(pair, tmp_path)
    for kind in (Kind.REPORT_SET, Kind.VERDICTS, Kind.SHARE_COMMIT):
        said = honest.exchange(1, kind), liar.exchange(1, kind)
        honest.exchange(1, kind, said[1])
        honest.count(1, kind)
        liar.exchange(1, kind, said[0])
        liar.count(1, kind)
    share = honest.exchange(1, Kind.SHARE)
    assert honest.exchange(1, Kind.SHARE) == share  # the same again, however often it is asked for
    with pytest.raises(ProtocolError, match="committed, which is too late to abandon"):
        honest.abandon(1, "the peer withholds its share")
    with pytest.raises(ProtocolError, match=r"round 1 has not ended .*torchfsl close"):
        honest.begin(2)
    wrong = bytearray(liar.exchange(1, Kind.SHARE))
    wrong[-1] ^= 1
    honest.exchange(1, Kind.SHARE, bytes(wrong))
    with pytest.raises(ProtocolError, match="does not fit its commitment: nothing is applied"):
        honest.count(1, Kind.SHARE)
    assert honest.storage.model_version["version"] == 0
    with pytest.raises(ProtocolError, match="unopened"):
        honest.count(1, Kind.SHARE)


def is_taken(pair: Pair) -> bool:
    """Whether server 1 still takes a client's trees."""
    trees, _ = messages_of(pair, 3)
    link = link_of(pair, pair.files("client-3"), 1)
    return link.call("Upload", trees[1], limit=1 << 10) == b""


def test_a_server_that_asks_out_of_turn_gets_no_share_and_stops_nothing(pair: Pair) -> None:
    """Server 0, taken over in the middle of a round, with its own state and certificate."""
    made = pair.take_part([0, 1])
    number, files = pair.number, pair.files("server-0")
    pair.kill(0)
    key, _ = files.seal_pair()
    liar = Node(0, pair.state(0), files.authorities(), NodeSettings(floors=FLOORS), key)
    link = link_of(pair, files, 1)

    def ask(kind: Kind, message: bytes) -> bytes:
        return link.call("Step", message, limit=1 << 20)

    def wrong_party(message: bytes) -> bytes:
        return message[:7] + bytes([0]) + message[8:]

    for kind in (Kind.REPORT_SET, Kind.VERDICTS):
        with pytest.raises(ProtocolError, match="expected a message for server"):
            ask(kind, wrong_party(liar.exchange(number, kind)))
        if kind is Kind.REPORT_SET:  # the gate is open as before: this client is not too late
            assert is_taken(pair)
        liar.exchange(number, kind, ask(kind, liar.exchange(number, kind)))
        liar.count(number, kind)
    commitment = liar.exchange(number, Kind.SHARE_COMMIT)
    with pytest.raises(ProtocolError, match="expected a message for server"):
        ask(Kind.SHARE_COMMIT, wrong_party(commitment))
    share = ShareBody(bytes(32), bytes(share_bytes(pair.plan))).message(pair.plan, 1, number)
    with pytest.raises(ProtocolError, match="SHARE_COMMIT of the other server before SHARE"):
        ask(Kind.SHARE, share)
    liar.storage.ledger.close()
    pair.start(0)
    opened = pair.close()
    assert opened.clients == (0, 1)
    assert_sums(pair.plan, opened, made)
    pair.open()


def test_a_client_beyond_the_clip_zeroes_its_position_and_no_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pair.take_part([0, 1])
    with monkeypatch.context() as patch, pair.client(2) as connection:
        patch.setattr(ClientRound, "_check_submission", lambda *_: None)
        update = {s.name: pair.update(2)[s.name] for s in pair.plan.segments}
        update["few"] = SegmentUpdate(np.array([7]), np.array([[1 << 30]]))
        one = connection.client.start_round(pair.number, indices=wanted_rows(pair.plan, update))
        one.submit(update)
    opened = pair.close()
    made.append(plaintext.Contribution(update, 1, {}))
    wanted = plaintext.sums(pair.plan, made)
    wanted["few"][7] = 0
    assert all(np.array_equal(opened.sums[name], total) for name, total in wanted.items())
    assert opened.zeroed == {"few": 1}
    for party in (0, 1):
        told = "segment few: the sums of 1 positions were outside the range of honest reports"
        assert told in pair.log(party)
    pair.open()

"""Requests that no gRPC library sends: the server serves the next caller as before."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.federation import make_state
from tests.support.http2 import VERSIONS, RawCaller
from tests.support.network import QUICK, Pair
from torchfsl.errors import DecodeError, ProtocolError
from torchfsl.service.client import owner
from torchfsl.service.client.links import Link
from torchfsl.service.local import free_ports
from torchfsl.service.net import calls

PREFIX = calls.path("").encode()
SOON = dataclasses.replace(QUICK, attempt_seconds=20, total_seconds=20)
"""A listener that is not made anew fails a test, and does not hang it."""


class ProbedPair(Pair):
    """A pair that answers gRPC probes, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.probes = free_ports(2)

    def command(self, party: int) -> list[str]:
        return [*super().command(party), "--grpc-health", f"127.0.0.1:{self.probes[party]}"]

    def ready(self) -> str:
        url = f"http://127.0.0.1:{self.metrics_ports[0]}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedPair]:
    with ProbedPair(tmp_path_factory.mktemp("pair")) as started:
        started.start()
        started.set_up()
        started.open()
        yield started


def raw(pair: Pair, window: int = 65535) -> RawCaller:
    return RawCaller(pair.ports[0], pair.tls / "client-1.pem", window=window)


def test_a_path_that_is_not_utf_8_does_not_keep_others_out(pair: ProbedPair) -> None:
    for _ in range(3):
        caller = raw(pair)
        caller.call(PREFIX + b"Info\xff", b"{}")
        caller.read(0.5)
        caller.close()
        link = Link(pair.urls[0], 0, pair.files("client-2"), SOON)
        assert b'"party": 0' in link.call("Info", b"{}", limit=1 << 16)
        link.close()
    assert pair.ready() == "ok\n"
    lines = [
        line for line in pair.log(0).splitlines() if "a request of a caller ended gRPC" in line
    ]
    assert len(lines) == 1
    assert "127.0.0.1:" in lines[0]


def test_a_path_that_is_not_utf_8_does_not_end_grpc_probes(pair: ProbedPair) -> None:
    caller = RawCaller(pair.probes[1], None)
    caller.call(b"/grpc.health.v1.Health/Check\xff", b"")
    caller.read(0.5)
    caller.close()
    with grpc.insecure_channel(f"127.0.0.1:{pair.probes[1]}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="live"), timeout=60, wait_for_ready=True
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("method", "message", "window", "seconds"),
    [("Info", b"{}", 0, 0.15), ("Plan", b"{}", 100, 0.15), ("Converse", b"Plan\n{}", 0, 0.15)],
)
def test_a_client_that_leaves_before_its_answer_leaves_the_server_ready(
    pair: ProbedPair, method: str, message: bytes, window: int, seconds: float
) -> None:
    for _ in range(3):
        caller = raw(pair, window)
        caller.call(PREFIX + method.encode(), message, *VERSIONS)
        time.sleep(seconds)
        caller.close()
    time.sleep(0.2)
    link = Link(pair.urls[0], 0, pair.files("client-2"), SOON)
    assert b'"party": 0' in link.call("Info", b"{}", limit=1 << 16)
    link.close()
    assert pair.ready() == "ok\n"


@pytest.mark.parametrize("version", ["\u00b2", "\u0663", "\u2460", "4\u0000"])
def test_a_wire_version_of_odd_digits_is_refused_as_another_version(
    pair: ProbedPair, version: str
) -> None:
    caller = raw(pair)
    fields = ("torchfsl-wire", version.encode()), VERSIONS[1]
    caller.call(PREFIX + b"Info", b"{}", *fields)
    caller.read(0.5)
    caller.close()
    assert pair.ready() == "ok\n"
    for text in (version, version.encode().decode("latin-1")):
        with pytest.raises(calls.VersionMismatch, match="upgrade the client"):
            calls.check_versions((("torchfsl-wire", text),), "the client", "server 0")


@pytest.mark.parametrize(
    ("method", "fields", "why"),
    [
        ("Open", {"round": 1, "expected": 0, "seconds": 2.0**63}, "30 days"),
        ("Open", {"round": 1, "expected": 0, "seconds": 2_592_001.0}, "30 days"),
        ("Abandon", {"round": 1, "reason": "\u4e2d" * 1300}, "write a shorter reason"),
    ],
)
def test_an_owners_request_that_one_server_alone_could_take_is_refused_at_both(
    pair: ProbedPair, method: str, fields: dict[str, object], why: str
) -> None:
    link = Link(pair.urls[0], 0, pair.files("owner"), SOON)
    with pytest.raises(DecodeError, match=why):
        link.call(method, json.dumps(fields, ensure_ascii=False).encode(), limit=1 << 16)
    link.close()
    infos = [pair.owner.links.info(party) for party in (0, 1)]
    assert [(info["round"], info["state"]) for info in infos] == [(pair.number, "open")] * 2


@pytest.mark.parametrize("state", ["opening", "open", "aggregated"])
def test_no_server_gets_a_new_task_while_a_round_runs_at_the_other_one(
    pair: ProbedPair, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, sent = pair.owner.links.info, list[object]()
    monkeypatch.setattr(owner, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(
        pair.owner.links, "info", lambda p: told(p) | {"state": state if p else "unopened"}
    )
    monkeypatch.setattr(pair.owner.links, "both", sent.append)
    task = dataclasses.replace(pair.task, plan=pair._plan)
    with pytest.raises(ProtocolError, match=f"is {state} at server 1"):
        pair.owner.set_up(task, make_state(task.plan), replace=True)
    assert sent == []


def test_a_new_task_waits_until_a_round_that_is_being_closed_has_ended(
    pair: ProbedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, sent = pair.owner.links.info, list[object]()
    states = ["unopened", "aggregated", "aggregated", "applied"]
    monkeypatch.setattr(owner, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(
        pair.owner.links, "info", lambda p: told(p) | {"state": states.pop(0), "live": False}
    )
    monkeypatch.setattr(pair.owner.links, "both", sent.append)
    task = dataclasses.replace(pair.task, plan=pair._plan)
    pair.owner.set_up(task, make_state(task.plan))
    assert (states, len(sent)) == ([], 1)

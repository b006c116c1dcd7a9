"""What probes hear, by HTTP and by the gRPC health protocol."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.network import Pair, wait_until
from torchfsl.service.local import free_ports
from torchfsl.service.net.addresses import bound_socket
from torchfsl.service.server import health, observation
from torchfsl.service.server.health import Health
from torchfsl.service.server.observation import ObservationServer, Page
from torchfsl.service.server.observe import Observer

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
)  # fmt: skip


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 (our own server)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


class Poller:
    """Asks both servers for pages every 10 ms."""

    def __init__(self, ports: list[int], *pages: str) -> None:
        self.found: Counter[tuple[str, int]] = Counter()
        self._done = threading.Event()
        urls = [(page, f"http://127.0.0.1:{port}/{page}") for port in ports for page in pages]
        self._threads = [threading.Thread(target=self._poll, args=one) for one in urls]

    def __enter__(self) -> Poller:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _poll(self, page: str, url: str) -> None:
        while not self._done.wait(0.01):
            self.found[page, status(url)] += 1


def test_rounds_go_by_without_a_probe_that_fails(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    config = f'grpc-health = "127.0.0.1:{port}"\n'
    with Pair(tmp_path, config=config) as pair:
        pair.start(0)
        service = health_pb2_grpc.HealthStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        for name in ("", "torchfsl.v1", "live"):
            asked = health_pb2.HealthCheckRequest(service=name)
            wait_until(lambda asked=asked: service.Check(asked).status == SERVING)  # type: ignore[misc]
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            service.Check(health_pb2.HealthCheckRequest(service="elsewhere"))
        pair.config.write_text("min-clients = 1\n")
        pair.start(1)
        pair.set_up()
        with Poller(pair.metrics_ports, "livez", "readyz", "health") as poller:
            for _ in range(4):
                pair.open()
                pair.assert_serves((0, 1))
        assert set(poller.found) == {("livez", 200), ("readyz", 200), ("health", 200)}
        assert poller.found["readyz", 200] > 50
        pair.kill(1)
        pair.number += 1
        opening = threading.Thread(target=pair.owner.open_round, args=(pair.number,))
        opening.start()
        urls = [f"http://127.0.0.1:{pair.metrics_ports[0]}/{p}" for p in ("health", "readyz")]
        wait_until(lambda: status(urls[0]) == 503)  # stalled: server 1 does not answer
        assert status(urls[1]) == 200  # and server 0 can do all it could
        watched = service.Watch(health_pb2.HealthCheckRequest())
        assert next(watched).status == SERVING
        pair.start(1)
        opening.join()
        wait_until(lambda: status(urls[0]) == 200)
        processes = [process for process in pair.processes if process is not None]
        processes[0].terminate()
        assert next(watched).status == NOT_SERVING
        processes[0].wait()


def test_a_server_that_gets_unready_says_so_once_and_again_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "_BEAT_SECONDS", 0.001)
    caplog.set_level("INFO", "torchfsl.service.health")
    whys = iter(["", "a full disk", "a full disk", ""])
    one = Health(0, 0)
    monkeypatch.setattr(one, "unready", lambda: next(whys))

    async def run() -> None:
        with contextlib.suppress(RuntimeError):  # what a coroutine makes of StopIteration
            await one.live()

    asyncio.run(run())
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", "not ready: a full disk"), ("INFO", "ready again")]


def test_a_server_told_to_stop_when_it_is_ready_stops(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        for _ in range(3):
            pair.spawn(0)
            process = pair.processes[0]
            assert process is not None
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
            process.terminate()
            assert process.wait(timeout=120) == 0
            process.stdout.close()
        pair.processes[0] = None
        assert pair.log(0).count("server 0 stops") == 3


def test_a_server_that_is_starting_or_stopping_lives_and_is_not_ready() -> None:
    health = Health(0, 1)
    assert health.lives()
    assert health.unready().startswith("starting")
    assert health.state() == {
        "ok": False, "ready": False, "why": health.unready(), "party": 0,
    }  # fmt: skip
    health.stop()
    assert health.unready() == "stopping"


def test_a_server_whose_grpc_has_ended_lives_and_is_not_ready() -> None:
    health, served = Health(0, 1), SimpleNamespace(is_up=False)
    health.begin(None, None, None, served)  # type: ignore[arg-type]
    assert health.lives()
    assert health.unready().startswith("gRPC has ended")


def test_pages_are_served_on_ipv6() -> None:
    try:
        listening = bound_socket("[::1]:0")
    except Exception:
        pytest.skip("this machine has no IPv6")
    server = ObservationServer(listening, {"/metrics": Observer().page})
    assert status(f"http://[::1]:{server.port}/metrics") == 200
    server.close()


HALF = b"GET /livez HTTP/1.1\r\nHost: "


@pytest.fixture
def pages() -> Iterator[ObservationServer]:
    def slow() -> Page:
        time.sleep(3)
        return 200, "text/plain", b"slow"

    made: dict[str, Any] = {"/livez": lambda: (200, "text/plain", b"ok"), "/": slow}
    server = ObservationServer(bound_socket("127.0.0.1:0"), made)
    yield server
    server.close()


def hold(server: ObservationServer, count: int, said: bytes) -> list[socket.socket]:
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    for one in held:
        one.sendall(said)
    time.sleep(0.2)
    return held


def probe(server: ObservationServer, seconds: float = 1.0) -> bool:
    try:
        url = f"http://127.0.0.1:{server.port}/livez"
        return urllib.request.urlopen(url, timeout=seconds).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize(
    "said", [HALF, b"", b"G", b"GET / HTTP/1.1\r\n", b"\x00" * 4000], ids=range(5)
)
def test_forty_callers_with_half_a_request_do_not_keep_a_probe_from_its_answer(
    pages: ObservationServer, said: bytes
) -> None:
    held = hold(pages, 40, said)
    for _ in range(20):
        assert probe(pages)
    for one in held:
        one.close()


def test_without_displacing_half_requests_keep_a_probe_from_its_answer(
    pages: ObservationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang_up(_: ObservationServer) -> None:
        raise ConnectionAbortedError  # as it was: who comes beyond the places is hung up on

    monkeypatch.setattr(ObservationServer, "_displace", hang_up)
    monkeypatch.setattr(observation, "_REQUEST_SECONDS", 10.0)
    held = hold(pages, 40, HALF)
    assert not any(probe(pages) for _ in range(5))
    for one in held:
        one.close()


def test_a_request_as_a_whole_has_two_seconds(pages: ObservationServer) -> None:
    (one,) = hold(pages, 1, HALF)
    start = time.monotonic()
    one.settimeout(10)
    with contextlib.suppress(OSError):
        while time.monotonic() - start < 8:  # a byte at a time is no way to stay
            one.sendall(b"x")
            time.sleep(0.1)
    assert 1 < time.monotonic() - start < 4


def test_slow_pages_and_those_who_do_not_read_take_no_place_of_a_probe(
    pages: ObservationServer,
) -> None:
    held = hold(pages, 60, b"GET / HTTP/1.1\r\n\r\n")
    assert all(probe(pages) for _ in range(20))
    for one in held:
        one.close()


def health_answers(port: int, seconds: float) -> bool:
    """Whether the gRPC health protocol answers a new caller before the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with contextlib.suppress(grpc.RpcError):
                return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=1))
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("patience", "answers"), [(2000, True), (120_000, False)])
def test_silent_callers_hold_the_places_of_grpc_probes_for_two_seconds(
    patience: int, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120 s is what gRPC allows them by itself."""
    options = [(n, patience if "handshake" in n else v) for n, v in health._OPTIONS]
    assert ("grpc.server_handshake_timeout_ms", 2000) in health._OPTIONS
    monkeypatch.setattr(health, "_OPTIONS", tuple(options))

    async def play() -> None:
        served = health.GrpcProbes("127.0.0.1:0", Health(0, 1))
        await served.start()
        held = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(40)]
        assert await asyncio.to_thread(health_answers, served.port, 8.0) is answers
        for one in held:
            one.close()
        await served.stop()

    asyncio.run(play())

"""Bad networks between everybody: rounds finish or fail cleanly, and nothing hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.checks.fault_proxy import FaultProxy, Faults
from tests.support.network import (
    DOWN_SECONDS,
    HANGS_AFTER,
    HASTY,
    QUICK,
    Pair,
    assert_sums,
    wait_until,
)
from torchfsl.errors import ProtocolError
from torchfsl.service.client.links import Link, RetryPolicy
from torchfsl.service.client.owner import Owner
from torchfsl.service.net import calls
from torchfsl.service.state.steps import OPEN_STATES


class Network:
    """A pair whose every connection, also that between the servers, goes through proxies."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        pair.policy = dataclasses.replace(QUICK, attempt_seconds=10)  # half-open ones are many
        self.proxies = [FaultProxy(port).start() for port in pair.ports]
        pair.seen_ports = [proxy.port for proxy in self.proxies]

    def set(self, **faults: object) -> None:
        for proxy in self.proxies:
            proxy.faults = Faults(**faults)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    network = Network(pair)
    with pair:
        pair.start()
        pair.set_up()
        yield network
        network.set()
    for proxy in network.proxies:
        proxy.stop()


@pytest.fixture(autouse=True)
def healthy_after(network: Network) -> Iterator[None]:
    network.set()
    network.pair.open()
    yield
    network.set()
    network.pair.assert_serves()


def finish(network: Network, clients: list[int]) -> None:
    pair = network.pair
    contributions = pair.take_part(clients)
    opened = pair.close()
    assert_sums(pair.plan, opened, contributions)
    assert opened.clients == tuple(clients)
    pair.open()


def test_a_handshake_that_takes_its_time_is_waited_for(network: Network) -> None:
    network.set(delay=0.15)  # TLS goes to and fro twice
    with network.pair.client(5) as connection:
        for link in connection.links.links:
            assert (link.attempts["Plan"], link.counts["Plan"]) == (1, 1)


def test_delays_only_take_time(network: Network) -> None:
    network.set(delay=0.02, jitter=0.03)
    finish(network, [0, 1])


def test_resets_at_random_are_survived_by_resending_the_same_bytes(network: Network) -> None:
    network.set(reset=0.04)
    finish(network, [0, 1, 2])


def test_a_slow_link_only_takes_time(network: Network) -> None:
    network.set(bytes_per_second=100_000)
    finish(network, [0])


def test_a_half_open_connection_ends_at_the_deadline(network: Network) -> None:
    pair = network.pair
    link = Link(pair.urls[0], 0, pair.files("client-0"), QUICK)
    link.call("Info", b"{}", limit=1 << 16)
    link.policy = HASTY
    network.set(swallow=True)
    start = time.monotonic()
    with pytest.raises(calls.NotReady):
        link.call("Info", b"{}", limit=1 << 16)
    assert time.monotonic() - start < HANGS_AFTER
    for proxy in network.proxies:
        proxy.break_all()


@pytest.mark.slow
def test_a_link_between_the_servers_that_goes_half_open_is_noticed_and_made_anew(
    network: Network,
) -> None:
    pair = network.pair
    contributions = pair.take_part([0, 1])
    network.proxies[1].faults = Faults(swallow=True)
    with ThreadPoolExecutor(1) as thread:
        closing = thread.submit(pair.close)
        time.sleep(3)  # the step's message is swallowed
        assert not closing.done()
        network.set()
        opened = closing.result()
    assert_sums(pair.plan, opened, contributions)
    pair.open()


def test_a_reader_that_stops_reading_holds_nobody_up(network: Network) -> None:
    pair = network.pair
    link = Link(pair.urls[0], 0, pair.files("client-0"), QUICK)
    link.call("Info", b"{}", limit=1 << 16)
    link.policy = HASTY
    network.proxies[0].faults = Faults(bytes_per_second=10)
    with pytest.raises(calls.NotReady):
        link.call("Plan", b"{}", limit=1 << 25)
    network.set()
    network.proxies[0].break_all()


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_that_is_down_for_a_while_is_waited_for(network: Network, party: int) -> None:
    pair = network.pair
    contributions = pair.take_part([0])
    pair.kill(party)
    time.sleep(DOWN_SECONDS)
    pair.spawn(party)
    contributions += pair.take_part([1])
    pair.wait(party)
    opened = pair.close()
    assert_sums(pair.plan, opened, contributions)
    pair.open()


def test_a_peer_that_is_cut_off_stalls_the_round_visibly_and_then_it_goes_on(
    network: Network,
) -> None:
    pair = network.pair
    contributions = pair.take_part([0, 1])
    before = len(pair.log(0))
    network.proxies[1].faults = Faults(down=True)
    network.proxies[1].break_all()
    link = Link(pair.urls[0], 0, pair.files("owner"), QUICK)
    request = calls.encode_request(round=pair.number)

    def stalled() -> bool:
        with pytest.raises(calls.NotReady):  # the caller's deadline, not the round's end
            link.call("Close", request, limit=1 << 16, seconds=1.0)
        return "REPORT_SET" in pair.owner.links.info(0)["stalled"]

    assert unreachable(pair) == "0.0"
    wait_until(stalled)
    wait_until(lambda: unreachable(pair) == "1.0")
    told = pair.owner.links.info(0)["stalled"]
    assert re.search(r"REPORT_SET since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: server 1: .+", told)
    port = pair.metrics_ports[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        page = answer.read().decode()
    assert "the other server does not answer: server 1: " in page  # as a last problem
    assert pair.log(0)[before:].count("the other server does not answer: server 1: ") == 1
    time.sleep(DOWN_SECONDS)
    network.set()
    opened = pair.close()
    assert unreachable(pair) == "0.0"
    assert pair.log(0)[before:].count("the other server answers again, ") == 1
    assert_sums(pair.plan, opened, contributions)
    pair.open()


@pytest.mark.slow
def test_the_owner_hears_what_a_round_waits_for(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    pair = network.pair
    contributions = pair.take_part([0, 1])
    network.proxies[1].faults = Faults(down=True)
    network.proxies[1].break_all()
    policy = RetryPolicy(attempt_seconds=60, total_seconds=7)
    why = r"still closed \(waiting .* REPORT_SET since .*\): ask again"
    with (
        contextlib.closing(Owner(pair.urls, pair.tls, policy=policy)) as owner,
        pytest.raises(calls.NotReady, match=why),
    ):
        owner.close_round(pair.number)
    said = [record.getMessage() for record in caplog.records if "server 0 is" in record.message]
    assert len(said) == 1  # the next word would come after 10 s
    waits = "server 0 is waiting for the other server's REPORT_SET since "
    assert said[0].startswith(f"round {pair.number} is closed, {waits}")
    assert re.search(r" UTC: server 1: .*; asking for \d s more$", said[0])
    network.set()
    assert_sums(pair.plan, pair.close(), contributions)
    pair.open()


def unreachable(pair: Pair) -> str:
    """Whether server 0's metrics say that server 1 does not answer."""
    url = f"http://127.0.0.1:{pair.metrics_ports[0]}/metrics"
    lines = urllib.request.urlopen(url).read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)["torchfsl_peer_unreachable"]


def test_an_abandoned_round_ends_at_both_servers(network: Network) -> None:
    pair = network.pair
    pair.take_part([0, 1])
    pair.owner.abandon_round(pair.number, "the operator said so")
    with pytest.raises(ProtocolError, match="without an aggregate: the operator said so"):
        pair.close()
    pair.open()  # server 1 gives the old round up when it hears of the new one


def test_a_round_can_be_abandoned_while_server_1_is_down(network: Network) -> None:
    pair = network.pair
    pair.take_part([0, 1])
    pair.kill(1)
    assert pair.owner.running_round() == pair.number
    link = Link(pair.urls[0], 0, pair.files("owner"), QUICK)
    request = calls.encode_request(round=pair.number, reason="server 1 is lost")

    def ended() -> bool:
        with pytest.raises(calls.NotReady):  # server 1 does not hear of it yet
            link.call("Abandon", request, limit=1 << 16, seconds=2.0)
        return pair.owner.links.info(0)["state"] not in OPEN_STATES

    wait_until(ended)
    pair.spawn(1)
    pair.wait(1)
    pair.open()

"""Running servers that go away while an update is sent: `retry` sends it, once, exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import torchfsl
from tests.federation.test_one_block import CLIENTS, data_of, federated, fresh, train
from torchfsl.errors import Error, ProtocolError

pytest.importorskip("grpc")

from torchfsl.federation.remote_servers import RemoteServers
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.remote import connect
from torchfsl.service.local import LoopbackServers
from torchfsl.service.net.calls import NotReady

IMPATIENT = RetryPolicy(attempt_seconds=5, total_seconds=5)
Instead = Callable[[Callable[[], bytes]], bytes]
"""What happens in place of a call."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServers]:
    with LoopbackServers(tmp_path_factory.mktemp("servers"), clients=CLIENTS) as servers:
        servers.start()
        yield servers


class Member:
    """One client with a model of its own."""

    def __init__(self, running: LoopbackServers, number: int) -> None:
        connection = connect(running.urls, running.tls, number, policy=IMPATIENT, wait=20)
        self.servers = RemoteServers(connection, number)
        self.links = connection.links.links
        self.fed = torchfsl.Federated(*fresh(), plan=self.servers.plan)
        self.batches = data_of(number)

    def round(self) -> Any:
        return self.fed.round(self.servers, batches=self.batches)

    def train(self) -> None:
        train(self.fed.model, self.fed.hooks.optimizers[0], self.batches)

    def take_part(self) -> Any:
        with self.round() as rnd:
            self.train()
        return rnd

    def instead_of_submit(self, party: int, happens: Instead) -> None:
        """Once, in place of the call that hands in the report."""
        link = self.links[party]
        call = link.call

        def once(method: str, *arguments: Any, **named: Any) -> bytes:
            if method != "Submit":
                return call(method, *arguments, **named)
            link.call = call  # type: ignore[method-assign]
            return happens(lambda: call(method, *arguments, **named))

        link.call = once  # type: ignore[method-assign]


def total(rounds: list[Any], like: Any) -> dict[str, np.ndarray]:
    """The sum of the updates that these rounds say they sent."""
    sums = {name: np.zeros_like(value) for name, value in like.items()}
    for rnd in rounds:
        for name, part in rnd.update.items():
            where = slice(None) if part.indices is None else part.indices
            sums[name][where] += part.values.reshape(sums[name][where].shape)
    return sums


def dies_before(running: LoopbackServers, party: int) -> Instead:
    def happens(call: Callable[[], bytes]) -> bytes:
        running.kill(party)
        return call()

    return happens


def dies_after(running: LoopbackServers, party: int) -> Instead:
    def happens(call: Callable[[], bytes]) -> bytes:
        call()
        running.kill(party)
        raise NotReady("cut off")

    return happens


def interrupted_before(running: LoopbackServers, party: int) -> Instead:
    def happens(call: Callable[[], bytes]) -> bytes:
        raise KeyboardInterrupt

    return happens


def interrupted_after(running: LoopbackServers, party: int) -> Instead:
    def happens(call: Callable[[], bytes]) -> bytes:
        call()
        raise KeyboardInterrupt

    return happens


HAPPENS = [dies_before, dies_after, interrupted_before, interrupted_after]


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("kind", HAPPENS)
def test_an_update_that_was_cut_off_is_sent_again_and_is_in_the_sum_once(
    running: LoopbackServers, kind: Callable[[LoopbackServers, int], Instead], party: int
) -> None:
    with torchfsl.Coordinator(running.urls, tls=running.tls) as task:
        task.start(federated(max_rounds=0))
        task.open_round(timeout=120)
        members = [Member(running, number) for number in range(CLIENTS)]
        rounds = [members[0].take_part()]
        odd = members[1]
        odd.instead_of_submit(party, kind(running, party))
        rnd = odd.round()
        with pytest.raises((NotReady, KeyboardInterrupt)), rnd:
            odd.train()
        if running.processes[party] is None:
            running.start(party)
        receipt = rnd.retry()
        rounds += [rnd, members[2].take_part()]
        assert receipt.upload_bytes == rounds[0].receipt.upload_bytes
        with pytest.raises(ProtocolError, match="no update to send"):
            rnd.retry()
        result = task.close_round()
        assert result.num_clients == CLIENTS
        for name, value in total(rounds, result.sums).items():
            np.testing.assert_array_equal(result.sums[name], value, err_msg=name)
        for member in members:
            member.servers.close()


def test_an_update_of_a_round_that_is_over_is_given_up(running: LoopbackServers) -> None:
    with torchfsl.Coordinator(running.urls, tls=running.tls) as task:
        task.start(federated(max_rounds=0))
        task.open_round(timeout=120)
        members = [Member(running, number) for number in range(CLIENTS)]
        odd = members[1]

        def happens(call: Callable[[], bytes]) -> bytes:
            raise NotReady("cut off")

        odd.instead_of_submit(0, happens)
        rnd = odd.round()
        with pytest.raises(NotReady), rnd:
            odd.train()
        for number in (0, 2):
            members[number].take_part()
        assert task.close_round().num_clients == 2
        with pytest.raises(Error) as refused:
            rnd.retry()
        assert not isinstance(refused.value, NotReady)
        with pytest.raises(ProtocolError, match="no update to send"):
            rnd.retry()
        assert not odd.fed.hooks.residuals.of(1)._staged
        for member in members:
            member.servers.close()

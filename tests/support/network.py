"""Two server processes on loopback, and small tasks for them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.federation import make_state, mixed_plan, random_update, wanted_rows
from tests.support.odd_servers import ODD
from tests.support.reference import plaintext
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service import LoopbackServers, Owner, connect
from torchfsl.service.client.links import RetryPolicy
from torchfsl.service.client.remote import Connection
from torchfsl.service.net.channels import TlsFiles
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import Update

DOWN_SECONDS = float(os.environ.get("TORCHFSL_TEST_DOWN_SECONDS", "1"))
"""How long a server is down in the tests; 60 in the acceptance run."""

HANGS_AFTER = 300.0
"""What takes so long hangs, also on a machine that has much else to do."""

QUICK = RetryPolicy(attempt_seconds=60, total_seconds=HANGS_AFTER + DOWN_SECONDS, longest_pause=0.3)
HASTY = RetryPolicy(attempt_seconds=2, total_seconds=2, longest_pause=0.3)
FLOORS = ClientPolicy(min_clients=1)
CONFIG = """
[storage]
reserve_bytes = 1048576
segment_bytes = 1048576
[limits]
idle_seconds = 3.0
call_seconds = 5.0
peer_seconds = 10.0
"""


class Pair(LoopbackServers):
    """Both servers with a task; rounds are numbered by `open`.

    `odd`: the server that is `tests.support.odd_servers` instead.
    """

    def __init__(
        self, folder: Path, plan: Plan | None = None, config: str = CONFIG, *, odd: int = -1,
        clients: int = 8,
    ) -> None:  # fmt: skip
        super().__init__(folder, clients=clients, config=config)
        self.number = 0
        self._odd = odd
        self.policy = QUICK
        self._plan = plan or mixed_plan()

    def command(self, party: int) -> list[str]:
        honest = super().command(party)
        odd = "tests.support.odd_servers"
        return [honest[0], "-m", odd, *honest[3:]] if party == self._odd else honest

    def set_up(self, *, replace: bool = True) -> None:
        self.owner = Owner(self.urls, self.tls, policy=self.policy)
        self.task = self.owner.bind(self._plan)
        self.plan = self.task.plan
        self.owner.set_up(self.task, make_state(self.plan), replace=replace)
        self.number = 0

    def open(self, seconds: float = 900.0, *, expected: int = 0) -> int:
        self.number += 1
        self.owner.open_round(self.number, expected=expected, seconds=seconds)
        return self.number

    def client(self, number: int, *, outbox: Path | None = None) -> Connection:
        return connect(
            self.urls, self.tls, number, require=FLOORS, outbox=outbox, policy=self.policy
        )

    def files(self, name: str) -> TlsFiles:
        return TlsFiles.in_folder(self.tls, name)

    def take_part(self, clients: Iterable[int], seed: int = 0) -> list[plaintext.Contribution]:
        """Whole rounds of honest clients."""
        made = []
        for client in clients:
            with self.client(client) as connection:
                update = self.update(client, seed)
                session = connection.client.start_round(
                    self.number, indices=wanted_rows(self.plan, update)
                )
                session.download()
                session.retrieve()
                receipt = session.submit(update)
                missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
                made.append(plaintext.Contribution(update, 1, missing))
        return made

    def update(self, client: int, seed: int = 0) -> Update:
        return random_update(self.plan, np.random.default_rng([seed, client, self.number]))

    def close(self) -> Opened:
        self.owner.close_round(self.number)
        opened, number = self.owner.result()
        assert number == self.number
        return opened

    def assert_serves(self, clients: Iterable[int] = (2, 3)) -> None:
        """The open round ends exactly with these clients, both servers equal."""
        contributions = self.take_part(clients)
        opened = self.close()
        assert opened.clients == tuple(clients)
        assert_sums(self.plan, opened, contributions)
        self.owner.model(self.task)


@contextlib.contextmanager
def with_odd_server(
    folder: Path, party: int, how: str, plan: Plan | None = None, *, expected: int = 0
) -> Iterator[Pair]:
    """A pair with an open round of `expected` reports, in which one server is odd in some way."""
    with pytest.MonkeyPatch.context() as patch, Pair(folder, plan, odd=party) as pair:
        patch.setenv(ODD, how)
        pair.start()
        pair.set_up()
        pair.open(expected=expected)
        yield pair


def assert_sums(plan: Plan, opened: Opened, made: list[plaintext.Contribution]) -> None:
    wanted = plaintext.sums(plan, made)
    assert all(np.array_equal(opened.sums[name], total) for name, total in wanted.items())


def wait_until(condition: Callable[[], bool], seconds: float = HANGS_AFTER) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)

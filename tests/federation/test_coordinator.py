"""A coordinator that is killed at any point of a task and started again by the same command."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchfsl
from tests.federation.test_one_block import CLIENTS, block, data_of, fresh
from tests.support.points import STRIDE
from torchfsl.errors import Error, ParameterError, ProtocolError

pytest.importorskip("grpc")

from torchfsl.service.local import LoopbackServers

ROUNDS = 2


class Killed(BaseException):
    """The coordinator's process is gone."""


Point = tuple[str, int]
"""A method and which call of it: the second `Open` is ("Open", 1)."""


class Calls:
    """The calls of a coordinator, which dies at one of them, before or after it has arrived."""

    def __init__(
        self, task: torchfsl.Coordinator, at: Point | None = None, *, arrived: bool = False
    ) -> None:
        self.made: Counter[str] = Counter()
        self._at, self._arrived, self._dead = at, arrived, False
        self._lock = threading.Lock()
        for link in task._owner.links.links:
            link.call = self._counted(link.call)  # type: ignore[method-assign]

    def _counted(self, call: Callable[..., bytes]) -> Callable[..., bytes]:
        def counted(method: str, *arguments: Any, **named: Any) -> bytes:
            with self._lock:
                is_here = (method, self.made[method]) == self._at
                self.made[method] += 1
                if self._dead:
                    raise Killed
                self._dead = is_here
            answer = call(method, *arguments, **named) if not is_here or self._arrived else b""
            if is_here:
                raise Killed
            return answer

        return counted


class Clients:
    """All clients of a task, in threads, as long as the block lasts."""

    def __init__(self, servers: LoopbackServers, max_clients: int) -> None:
        self._servers, self._max_clients = servers, max_clients
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        feds: dict[str, torchfsl.Federated] = {}
        while not self._over.is_set():
            try:
                with torchfsl.connect(
                    self._servers.urls, client_id=number, tls=self._servers.tls, timeout=2
                ) as servers:
                    digest = servers.plan.digest.hex()
                    if servers.plan.max_clients == self._max_clients:
                        if digest not in feds:
                            feds[digest] = torchfsl.Federated(*fresh(), plan=servers.plan)
                        for _ in servers.rounds(timeout=2):
                            block(feds[digest], servers, None, data_of(number))
                        return
            except Error:  # no task, another one, or no round yet
                pass
            time.sleep(0.05)


def federated(max_clients: int) -> torchfsl.Federated:
    return torchfsl.Federated(
        *fresh(), max_clients=max_clients, rows_per_client=64, max_rounds=ROUNDS
    )


def run(task: torchfsl.Coordinator, max_clients: int) -> dict[str, np.ndarray]:
    """The program of a coordinator."""
    fed = federated(max_clients)
    task.start(fed, replace=True)
    for result in task.rounds(ROUNDS, expected=CLIENTS, timeout=60):
        assert result.num_clients == CLIENTS
    fed.load(task)
    return {name: value.numpy() for name, value in fed.export().items()}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServers]:
    with LoopbackServers(tmp_path_factory.mktemp("servers"), clients=CLIENTS) as found:
        found.start()
        yield found


def test_killed_at_ten_points_and_started_again_it_ends_as_undisturbed(
    servers: LoopbackServers,
) -> None:
    sizes = itertools.count(10)
    size = next(sizes)
    with Clients(servers, size), torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
        calls = Calls(task)
        want = run(task, size)
    every = [(method, 0) for method in calls.made if method != "Plan"]
    points: list[Point] = [*every, *(("Info", n) for n in (1, 3, 5)), ("Certificate", 1)]
    points += [("Toss", 1), ("Reveal", 1), ("SetUp", 1), ("Open", 1), ("Result", 1)]
    points = [(method.replace("SetUp", "Replace"), n) for method, n in dict.fromkeys(points)]
    assert {method for method, _ in points} <= {*calls.made, "Replace"}
    assert len(points) >= 10
    for number, point in [*enumerate(points)][::STRIDE]:
        size = next(sizes)
        with Clients(servers, size):
            with torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
                Calls(task, point, arrived=bool(number % 2))
                with pytest.raises(Killed):
                    run(task, size)
            with torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
                got = run(task, size)
                assert task.rounds_applied == ROUNDS
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, err_msg=f"killed at {point}")


PROGRAM = """
import sys, torchfsl
from tests.federation.test_coordinator import run
with torchfsl.Coordinator(sys.argv[1:3], tls=sys.argv[3]) as task:
    print({name: value.tobytes().hex() for name, value in run(task, int(sys.argv[4])).items()})
"""


def test_a_process_that_is_killed_in_a_round_goes_on(servers: LoopbackServers) -> None:
    size = 100
    command = [sys.executable, "-c", PROGRAM, *servers.urls, str(servers.tls), str(size)]
    root = Path(__file__).resolve().parents[2]
    start = lambda: subprocess.Popen(  # noqa: E731
        command, cwd=root, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    with torchfsl.Coordinator(servers.urls, tls=servers.tls) as watch:
        first = start()
        deadline = time.monotonic() + 120
        while watch.status()[0]["state"] != "open" or not watch.status()[0]["open"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.communicate()
    with Clients(servers, size):
        second = start()
        out, _ = second.communicate(timeout=180)
    assert second.returncode == 0
    fed = federated(size)
    local = fed.local_servers()
    for _ in range(ROUNDS):
        with local.round():
            for client in range(CLIENTS):
                block(fed, local, client, data_of(client))
    fed.load(local)
    assert eval(out) == {n: v.numpy().tobytes().hex() for n, v in fed.export().items()}  # noqa: S307


def test_another_task_is_not_taken_for_this_one(servers: LoopbackServers) -> None:
    with torchfsl.Coordinator(servers.urls, tls=servers.tls) as task:
        with pytest.raises(ProtocolError, match=r"start\(fed\) first"):
            task.run_round()
        with pytest.raises(ParameterError, match="do not load torch"):
            task.start(
                federated(200),
                server_optimizer=torchfsl.optim.from_torch(torch.optim.SGD),  # type: ignore[arg-type]
            )
        task.start(federated(200), replace=True)
        first = task.plan
        task.start(federated(200))
        assert task.plan == first
        task.start(federated(200), server_optimizer=torchfsl.optim.Adam(0.1))
        assert task.plan != first  # no round was applied, so the servers take the new one
        number = task.open_round(timeout=60)
        assert task.open_round(timeout=60) == number
        task.abandon_round("a test")
        with pytest.raises(ProtocolError, match="no round is running"):
            task.close_round()
        with pytest.raises(ProtocolError, match=r"acceptable reports: 0.*; call run_round"):
            task.run_round(timeout=0.1)
        assert {info["state"] for info in task.status()} == {"unopened"}

"""Shards as actors of a Ray cluster of this machine: the same bytes, also when they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integrations.ray.test_shards import play
from tests.support.sharded import shard_plan, twin_servers
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import sizes
from torchfsl.integrations.ray import front
from torchfsl.integrations.ray.grid import EngineLost, Grid
from torchfsl.service.local import free_ports

ray = pytest.importorskip("ray", reason="needs the extra ray: scripts/checks/ray.sh")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine alone, in processes of its own."""
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False,
        namespace="tests", configure_logging=False,
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 2)
    monkeypatch.setattr(front, "ROWS_BYTES", 400)
    monkeypatch.setattr(front, "PIECE_BYTES", 2000)


class Killing:
    """A `RayGrid` that kills a shard's process at the n-th call of a method.

    A point is a method, whether the call has its result first, which Ray keeps, and n from 0 on.
    Without the result the process ends before the call, in it or just after it.
    """

    def __init__(self, inner: Any, points: list[tuple[str, bool, int]]) -> None:
        self.inner, self.size, self.points = inner, inner.size, points
        self.killed = 0
        self.processes = self._processes()

    def put(self, value: object) -> object:
        return self.inner.put(value)

    def send(self, shard: int, method: str, *arguments: object) -> object:
        sent = self.inner.send(shard, method, *arguments)
        for i, (name, done, left) in enumerate(self.points):
            if name == method:
                self.points[i] = (name, done, left - 1)
                if left == 0:
                    self._kill(shard, sent if done else None)
        return sent

    def get(self, sent: object) -> Any:
        return self.inner.get(sent)

    def close(self) -> None:
        self.inner.close()

    def _kill(self, shard: int, after: object | None) -> None:
        if after is not None:
            ray.get(after)
        if self.killed:
            self.processes = self._processes()
        os.kill(self.processes[shard], signal.SIGKILL)
        self.killed += 1

    def _processes(self) -> list[int]:
        """They change as actors are started again."""
        for _ in range(60):
            try:
                return [pid for pid, _ in self.inner.processes()]
            except ray.exceptions.RayActorError:
                time.sleep(0.5)
        raise TimeoutError("the actors do not come back")


POINTS = {
    "after the acknowledgement": [("add", True, 3)],
    "in an addition": [("add", False, 2)],
    "in an answer": [("answer", False, 3)],
    "while rows are laid out": [("put_rows", True, 1)],
    "in a fold": [("fold", False, 1)],
    "after a checkpoint": [("checkpoint", True, 0)],
    "in a gather": [("partial", False, 1)],
    "after a gather": [("finish", False, 0)],
    "twice": [("add", True, 1), ("partial", False, 0)],
    "twice in gathers": [("partial", False, 0), ("partial", False, 5)],
}


@pytest.mark.parametrize("name", ["nobody", *POINTS])
def test_a_killed_shard_changes_no_byte(cluster: None, name: str) -> None:
    from torchfsl.integrations.ray.actors import RayGrid

    points = list(POINTS.get(name, []))
    grids: list[Killing] = []

    def open_grid(plan: Plan, party: int) -> Grid:
        own = points if party == 1 else []
        grids.append(Killing(RayGrid(plan, party, 2 if party else 1, cpus=0.1), own))
        return grids[-1]

    servers = twin_servers(shard_plan(), open_grid)
    play(servers, 2)
    assert sum(grid.killed for grid in grids) == len(points)
    for grid in grids:
        grid.close()


def test_a_mistake_in_a_shard_is_raised_as_it_is(cluster: None) -> None:
    from torchfsl.integrations.ray.actors import RayGrid

    grid = RayGrid(shard_plan(), 0, 1, cpus=0.1)
    with pytest.raises(TypeError):
        grid.get(grid.send(0, "held"))
    grid.close()


SILENT = """
import socket, sys
from torchfsl.integrations.ray import actors
from torchfsl.integrations.ray.grid import EngineLost
actors.CONNECT_SECONDS = 2
with socket.socket() as silent:
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    for scheme in ("ray://", ""):
        try:
            actors.connect(f"{scheme}127.0.0.1:{silent.getsockname()[1]}", "nobody")
        except EngineLost as error:
            print(error)
"""


def test_an_address_where_no_cluster_answers_is_given_up() -> None:
    """Nobody listens, or somebody who says nothing; Ray itself would try for minutes."""
    from torchfsl.integrations.ray import actors

    ray.shutdown()  # whatever tests before had
    port = free_ports(1)[0]
    for scheme in ("", "ray://"):
        with pytest.raises(
            EngineLost, match=rf"cannot connect to the Ray cluster at {scheme}127.0.0.1:{port}: "
        ):
            actors.connect(f"{scheme}127.0.0.1:{port}", "nobody")
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.count("did not answer within 2 s") == 2


def test_a_client_whose_process_on_the_cluster_was_slow_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchfsl.integrations.ray import actors

    said = ["Starting Ray client server failed. See its log", "a wrong token"]

    def init(**options: Any) -> None:
        raise ConnectionError(said.pop(0))

    monkeypatch.setattr(actors, "_check_listening", lambda address: None)
    monkeypatch.setattr(actors.ray, "init", init)
    with pytest.raises(EngineLost, match="a wrong token"):
        actors.connect("ray://127.0.0.1:1", "nobody")
    assert not said

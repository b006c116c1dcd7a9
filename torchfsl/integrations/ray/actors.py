"""Shards as actors of Ray; the only file that imports it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import ray
from ray import exceptions

from torchfsl.fsl.plan.plan import Plan
from torchfsl.integrations.ray.grid import EngineLost, ShardLost
from torchfsl.integrations.ray.shard import Shard

_LOST: Final = (
    exceptions.RayActorError,
    exceptions.ObjectLostError,
    exceptions.OwnerDiedError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.TaskCancelledError,
)
"""Errors of Ray if a call has no result; the call may have been made."""

_REPEATED: Final = ("fold", "answer", "held")
"""Calls that Ray itself repeats on the actor that follows. All others it must not: that actor lacks
what came before, and the front knows what to send again."""

_SLOW: Final = "Starting Ray client server failed"

_SHORT: Final = 1 << 16

LISTEN_SECONDS: Final = 10
"""How long an address may take to accept a connection."""

CONNECT_SECONDS: Final = 120
"""How long a cluster may take until this process is part of it."""


class _Worker:
    """A shard in an actor, with the method through which calls arrive."""

    def __init__(
        self, plan_json: str, party: int, number: int, count: int, environment: Mapping[str, str]
    ) -> None:
        os.environ.update(environment)
        self._shard = Shard(Plan.from_json(plan_json), party, number, count)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._shard, method)(*arguments)

    def process(self) -> tuple[int, dict[str, str]]:
        """The process id, and the settings of Ray's security in this process."""
        wanted = ("RAY_AUTH_MODE", "RAY_USE_TLS")
        return os.getpid(), {name: os.environ.get(name, "") for name in wanted}


_worker = ray.remote(max_restarts=-1, max_concurrency=1)(_Worker)


class _Marker:
    """Stands in a cluster for the server that it belongs to."""


_marker = ray.remote(num_cpus=0)(_Marker)
_MARK: Final = "torchfsl-server"


def connect(address: str, namespace: str) -> None:
    """Connect this process to a cluster; once is enough.

    Raises:
        OSError: it does not answer in time, or refuses the token.
    """
    if not ray.is_initialized():
        _check_listening(address)
    done: Future[None] = Future()

    def connecting() -> None:
        try:
            _init(address, namespace)
        except BaseException as error:  # whatever it is, the caller is told
            done.set_exception(error)
        else:
            done.set_result(None)

    # Not in the main thread, whose signals Ray would take, nor in one that the process waits for.
    threading.Thread(target=connecting, name="torchfsl-ray", daemon=True).start()
    try:
        done.result(CONNECT_SECONDS)
    except TimeoutError:
        raise EngineLost(
            f"the Ray cluster at {address} did not answer within {CONNECT_SECONDS} s: start the "
            "cluster, or correct --engine"
        ) from None
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        raise EngineLost(f"cannot connect to the Ray cluster at {address}: {error}") from error


def _init(address: str, namespace: str) -> None:
    """`ray.init`, again where a process that the cluster starts for a client was slow.

    Ray gives that process half a minute, in which on a busy machine it has not even imported Ray.
    """
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            ray.init(
                address=address,
                namespace=namespace,
                log_to_driver=False,
                configure_logging=False,
                ignore_reinit_error=True,
            )
        except (ConnectionError, RuntimeError) as error:
            if _SLOW not in str(error) or time.monotonic() >= end:
                raise
        else:
            return


def _check_listening(address: str) -> None:
    """Refuse an address that accepts no connection; Ray would try it for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LISTEN_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EngineLost(f"cannot connect to the Ray cluster at {address}: {error}") from error


def namespaces() -> list[str]:
    """Of all named actors on the cluster."""
    return [actor["namespace"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def mark() -> None:
    """Leave a mark of this process's namespace in the cluster, which outlives the process."""
    _marker.options(name=_MARK, lifetime="detached", get_if_exists=True).remote()


def unmark() -> None:
    """Take the mark away again."""
    ray.kill(ray.get_actor(_MARK))


def resources() -> tuple[int, float]:
    """Machines and cores of the cluster."""
    return len([n for n in ray.nodes() if n["Alive"]]), ray.cluster_resources().get("CPU", 0.0)


class RayGrid:
    """A `Grid` whose shards are actors of the cluster that this process is connected to.

    Actors end with this process. A lost one is started again, by Ray, on whichever machine has room
    for it.

    Args:
        plan: of the task.
        party: of the server.
        size: number of actors.
        cpus: cores that each takes of what Ray counts.
        environment: variables of the actors, as TORCHFSL_THREADS.

    Attributes:
        actors: their handles.
    """

    def __init__(
        self,
        plan: Plan,
        party: int,
        size: int,
        *,
        cpus: float = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors; they spread over the machines."""
        self.size = size
        text = plan.to_json()
        # A long one is put once; the reference is kept, as actors are started again from it.
        self._plan = text if len(text) < _SHORT else ray.put(text)
        start = _worker.options(num_cpus=cpus, scheduling_strategy="SPREAD")
        self.actors = [
            start.remote(self._plan, party, number, size, dict(environment or {}))
            for number in range(size)
        ]

    def put(self, value: object) -> object:
        """See `Grid.put`."""
        return ray.put(value)

    def send(self, shard: int, method: str, *arguments: object) -> object:
        """See `Grid.send`."""
        actor = self.actors[shard]
        retries = 3 if method in _REPEATED else 0
        return actor.call.options(max_task_retries=retries).remote(method, *arguments)

    def get(self, sent: object) -> Any:
        """See `Grid.get`."""
        try:
            return ray.get(sent)
        except _LOST as error:
            raise ShardLost(f"{type(error).__name__}: {error}") from error

    def processes(self) -> list[tuple[int, dict[str, str]]]:
        """Each actor's process id, and the settings of Ray's security there."""
        asked = [actor.process.remote() for actor in self.actors]
        processes: list[tuple[int, dict[str, str]]] = ray.get(asked)
        return processes

    def close(self) -> None:
        """See `Grid.close`."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

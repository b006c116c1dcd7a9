"""`torchfsl serve --engine`: from an address to a server's `Evaluator`, or to an error.

If Ray uses no token, everyone who reaches a port of Ray may run code on the cluster. Without TLS
they read what goes over the network. So token and TLS must be on, here and on every machine that
gets a shard. A cluster belongs to one of the two servers: the first one leaves the digest of its
authority there.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from torchfsl.errors import ParameterError
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.evaluation import MakeEvaluator
from torchfsl.integrations.ray.estimate import estimate_shards as estimate_shards
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import Grid

if TYPE_CHECKING:
    from torchfsl.integrations.ray.actors import RayGrid

log = logging.getLogger("torchfsl.integrations.ray")

SCHEMES: Final = ("ray", "ray-node")
"""`ray://HOST:PORT` names the port of the Ray Client server, `ray-node://HOST:PORT` that of the
cluster's control service, for a front on one of its machines."""

_TLS_FILES: Final = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def unprotected(environment: Mapping[str, str]) -> str:
    """What Ray's variables leave open; empty where its token and TLS are on."""
    if environment.get("RAY_AUTH_MODE", "") != "token":
        return "RAY_AUTH_MODE is not token, so everyone who reaches a port of Ray can run code"
    if environment.get("RAY_USE_TLS", "").lower() not in ("1", "true"):
        return "RAY_USE_TLS is not 1, so secrets go over the network in the clear"
    return ""


def check_protected(environment: Mapping[str, str]) -> None:
    """Refuse to send secrets to a cluster that others can read.

    Raises:
        ParameterError: token or TLS of Ray are off, or a file that they need is missing.
    """
    why = unprotected(environment)
    for name in () if why else _TLS_FILES:
        if not Path(environment.get(name, "")).is_file():
            why = f"{name} is not the path of a file"
            break
    if not why and not _has_token(environment):
        why = "Ray has no token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"
    if why:
        raise ParameterError(
            f"--engine: {why}: protect the cluster (see the page 'One server over many "
            "machines'), or pass --engine-insecure if no one else can reach the cluster"
        )


def namespace_of(authority: bytes) -> str:
    """The namespace of a party's actors, from the digest of its authority, 32 bytes."""
    return f"torchfsl-{authority.hex()}"


def foreign(namespaces: list[str], own: str) -> list[str]:
    """Which of the namespaces on a cluster are another server's."""
    return sorted({n for n in namespaces if n.startswith("torchfsl-") and n != own})


def open_engine(
    url: str, *, shards: int, authority: bytes, insecure: bool = False, shard_cpus: float = 1
) -> MakeEvaluator:
    """Connect to a cluster and return what makes a server's evaluator there.

    Args:
        url: see `SCHEMES`.
        shards: actors that share the work, at least 1.
        authority: digest of the authority of this server, 32 bytes.
        insecure: do not ask for token and TLS.
        shard_cpus: cores that each takes of what Ray counts.

    Raises:
        ParameterError: a wrong address or number, no Ray, no protection, or another's cluster.
        OSError: the cluster does not answer.
    """
    actors = _connected(url, shards, authority, insecure=insecure)
    actors.mark()
    try:
        _check_own(actors, url, authority)  # another may have come at the same time
    except ParameterError:
        actors.unmark()
        raise

    def open_grid(plan: Plan, party: int) -> Grid:
        grid: RayGrid = actors.RayGrid(plan, party, shards, cpus=shard_cpus)
        processes = grid.processes()
        for number, (pid, environment) in enumerate(processes):
            if not insecure and (why := unprotected(environment)):
                grid.close()
                raise ParameterError(
                    f"--engine: on the machine of shard {number}, {why}: set the variable (see "
                    "the page 'One server over many machines'), and start the cluster again"
                )
            log.info("shard started", extra={"shard": number, "pid": pid})
        return grid

    return functools.partial(ShardedEvaluator, open_grid=open_grid, early=True)


def examine(url: str, *, shards: int, authority: bytes, insecure: bool = False) -> str:
    """Connect as a server would, and describe the cluster, for `torchfsl doctor`.

    Raises:
        ParameterError: as in `open_engine`, or the cluster has fewer cores than shards.
        OSError: the cluster does not answer.
    """
    actors = _connected(url, shards, authority, insecure=insecure)
    machines, cores = actors.resources()
    summary = f"{machines} machines with {cores:g} cores, {shards} shards"
    if cores < shards:
        raise ParameterError(
            f"--engine: the cluster has {summary}, and each shard needs one core: lower --shards, "
            "or add machines"
        )
    return summary + (", INSECURE" if insecure else ", token and TLS")


def _connected(url: str, shards: int, authority: bytes, *, insecure: bool) -> ModuleType:
    """The module `actors`, connected to a cluster that is protected and no other server's."""
    address = _address(url)
    if shards < 1:
        raise ParameterError(f"--shards is {shards}: choose 1 or more")
    if not insecure:
        check_protected(os.environ)
    actors = _actors()
    actors.connect(address, namespace_of(authority))
    _check_own(actors, url, authority)
    return actors


def _check_own(actors: ModuleType, url: str, authority: bytes) -> None:
    others = foreign(actors.namespaces(), namespace_of(authority))
    if others:
        raise ParameterError(
            f"--engine: the cluster at {url} already works for another server ({others[0]}), and "
            "the two servers never share a cluster: pass the address of another cluster, or "
            "start the cluster again"
        )


def _address(url: str) -> str:
    """The address as Ray wants it."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme not in SCHEMES or not host or not port.isdecimal():
        raise ParameterError(f"--engine is {url!r}: pass ray://HOST:PORT or ray-node://HOST:PORT")
    return url if scheme == "ray" else rest


def _has_token(environment: Mapping[str, str]) -> bool:
    if environment.get("RAY_AUTH_TOKEN"):
        return True
    path = environment.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    return Path(path).is_file()


def _actors() -> ModuleType:
    try:
        from torchfsl.integrations.ray import actors
    except ImportError as error:
        raise ParameterError(
            f"--engine needs the package ray ({error}): pip install 'torchfsl[ray]'"
        ) from error
    return actors

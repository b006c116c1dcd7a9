"""Chooses what computes from reports: this process, or an engine that `--engine` names.

An engine stands above the service, which must not know it: it is loaded by its name when it is
asked for, and at no other time. A server without `--engine` never loads a framework; a user who
asks what shards would take loads none either.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from torchfsl.errors import ParameterError
from torchfsl.fsl.estimates.measuring import Rates
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.evaluation import LocalEvaluator, MakeEvaluator

if TYPE_CHECKING:
    from torchfsl.service.net.channels import TlsFiles

_HOMES: Final = {
    "ray": "torchfsl.integrations.ray.engine",
    "ray-node": "torchfsl.integrations.ray.engine",
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the place in which a server's evaluation runs.

    Attributes:
        url: of the engine, its scheme says which; empty for this process.
        shards: that share the work there.
        insecure: also where others may reach it.
    """

    url: str = ""
    shards: int = 1
    insecure: bool = False


def make_evaluator(settings: EngineSettings, tls: TlsFiles, party: int) -> MakeEvaluator:
    """The function that makes the server's evaluator.

    Raises:
        ParameterError: the engine cannot be used so; see there.
        OSError: it does not answer.
    """
    if not settings.url:
        return LocalEvaluator
    found: MakeEvaluator = _home(settings).open_engine(**_arguments(settings, tls, party))
    return found


def examine(settings: EngineSettings, tls: TlsFiles, party: int) -> str:
    """A text about the engine for `torchfsl doctor`; raises as `make_evaluator`."""
    return str(_home(settings).examine(**_arguments(settings, tls, party)))


def shards_told(plan: Plan, shards: int, *, clients: int | None, rates: Rates | None) -> str:
    """What front and shards of an engine take for a round; raises as its `estimate_shards`."""
    home = _home(EngineSettings("ray://", shards))
    return str(home.estimate_shards(plan, shards, clients=clients, rates=rates))


def _home(settings: EngineSettings) -> Any:
    scheme = settings.url.partition("://")[0]
    if scheme not in _HOMES:
        schemes = " or ".join(f"{scheme}://" for scheme in sorted(_HOMES))
        raise ParameterError(
            f"expected {schemes} at the start of --engine, got {settings.url!r}: write such a URL"
        )
    return importlib.import_module(_HOMES[scheme])


def _arguments(settings: EngineSettings, tls: TlsFiles, party: int) -> dict[str, Any]:
    authority = hashlib.sha256(tls.server_authorities[party].read_bytes()).digest()
    return {
        "url": settings.url,
        "shards": settings.shards,
        "authority": authority,
        "insecure": settings.insecure,
    }

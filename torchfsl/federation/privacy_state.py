"""State of servers in this process for differential privacy, between rounds and in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.fsl.in_process import TwoServers
from torchfsl.fsl.noise import BothServers
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.aggregation import Aggregation
from torchfsl.submodel.correlated_noise import CorrelatedNoise
from torchfsl.submodel.plain import Plain
from torchfsl.types import Array


class PrivacyState:
    """Reports of each client, opened rounds, and correlated noise."""

    def __init__(self, home: Aggregation) -> None:
        """Find it at the servers; it is empty under plans without noise."""
        self._parties: Sequence[Server | Plain] = ()
        noises: Sequence[object] = ()
        if isinstance(home, TwoServers) and home.plan.noise_sigma:
            self._parties, noises = home.servers, [server.noise for server in home.servers]
        elif isinstance(home, Plain) and isinstance(home.noise, BothServers):
            self._parties, noises = (home,), home.noise.sources
        self._noises = [noise for noise in noises if isinstance(noise, CorrelatedNoise)]

    def may_report(self, client: int) -> bool:
        """Whether the plan allows the client in the next round."""
        return all(p.participation.allows(client, p.rounds_opened) for p in self._parties)

    def save(self) -> dict[str, Array]:
        """The state, not copied; empty where there is none."""
        if not self._parties:
            return {}
        last = self._parties[0].participation.last
        counts = self._parties[0].participation.counts
        found: dict[str, Array] = {
            "opened": np.array(self._parties[0].rounds_opened),
            "reports": np.array([[*counts], [*counts.values()], [*last.values()]], dtype=np.int64),
        }
        for party, noise in enumerate(self._noises):
            found[f"noise{party}"], found[f"held{party}"] = noise.slots, np.array(noise.held)
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` gave.

        Raises:
            ParameterError: it is missing, so that the budget is unknown.
        """
        if self._parties and "reports" not in state:
            raise ParameterError(
                "the state does not say how often clients have reported, so the rest of the "
                "privacy budget is unknown: make a new Federated, which has its own budget",
                code="state-refused",
            )
        shapes = {f"noise{n}": noise.slots.shape for n, noise in enumerate(self._noises)}
        if any(name not in state or state[name].shape != shape for name, shape in shapes.items()):
            raise ParameterError(
                "the state has the noise of another plan: set fed.plan to that plan, and call "
                "fed.local_servers() again",
                code="state-refused",
            )
        for party in self._parties:
            party.rounds_opened = int(state["opened"])
            clients, counts, last = (row.tolist() for row in state["reports"])
            party.participation.counts = dict(zip(clients, counts, strict=True))
            party.participation.last = dict(zip(clients, last, strict=True))
        for number, noise in enumerate(self._noises):
            noise.slots[...] = state[f"noise{number}"]
            noise.held = state[f"held{number}"].tolist()

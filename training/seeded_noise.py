"""Differential privacy of an experiment: its plan, its seeded noise, and what it has spent."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from torchfsl import Plan, privacy
from torchfsl.crypto import discrete_gaussian
from torchfsl.submodel.correlated_noise import Draw
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.types import Whole
from training.config import Config
from training.data.prf import Stream


class SeededNoise:
    """Fresh noise of both servers in this process, a function of seed and round.

    Servers elsewhere draw theirs from the operating system.

    Attributes:
        both: the noise of server 0 and of server 1.
    """

    def __init__(self, seed: int) -> None:
        """No round yet."""
        self._seed = seed
        self._words: list[np.random.Generator] = []
        self.both: tuple[Draw, Draw] = (
            functools.partial(self._draw, 0),
            functools.partial(self._draw, 1),
        )
        self.begin(0)

    def begin(self, number: int) -> None:
        """The noise of round `number` comes next."""
        self._words = [
            np.random.Generator(
                np.random.Philox(
                    key=int.from_bytes(Stream(self._seed, "noise", party, number).bytes(16))
                )
            )
            for party in (0, 1)
        ]

    def _draw(self, party: int, sigma: int, count: int) -> Whole:
        def words(size: int) -> npt.NDArray[np.uint64]:
            return self._words[party].integers(0, 1 << 64, size, dtype=np.uint64)

        return discrete_gaussian.sample(sigma, count, words)


def with_noise(config: Config, plan: Plan, clients: int) -> Plan:
    """The plan, calibrated where the settings ask for it.

    Raises:
        ParameterError: the noise cannot be had, or the extra `privacy` is missing.
    """
    asked = config.privacy
    if not asked.epsilon:
        return plan
    return privacy.calibrate(
        plan,
        epsilon=asked.epsilon,
        delta=asked.delta,
        rounds=config.rounds,
        max_participations=asked.max_participations,
        min_separation=asked.min_separation,
        clients=clients if asked.limits_cohorts else 0,
        band=asked.band or None,
    )


def spent(config: Config, plan: SubmodelPlan, rounds: int) -> dict[str, float]:
    """Epsilon of the rounds so far, under `epsilon`; empty without noise of `privacy`."""
    if not isinstance(plan, Plan) or not plan.noise_sigma:
        return {}
    found = privacy.guarantee(plan, delta=config.privacy.delta, rounds=rounds)
    return {"epsilon": found.epsilon_server}

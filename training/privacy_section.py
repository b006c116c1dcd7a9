"""The section of an experiment's settings on differential privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from training.section_checks import ConfigError


@dataclass(frozen=True, slots=True)
class Privacy:
    """Noise of both servers under `plain` and `fsl`; `fsl.l2_norm` sets its scale.

    Attributes:
        epsilon: guarantee of all rounds together against either server; 0 for no noise.
        delta: delta of the guarantee.
        rounds: rounds of the whole task, for which torchfsl computes the noise; 0 for those of the
            run.
        max_participations: most rounds in which a client reports; 0 for no limit. With this limit
            or the next, torchfsl takes the clients in a fixed seeded order instead of at random.
        min_separation: fewest rounds between two reports of a client.
        band: rounds over which noise is correlated; 0 for `min_separation`, 1 for independent.
        clip: how clients keep `fsl.l2_norm`: they scale the `whole` update down, or the dense part
            and each table down to an equal share (`clip`), or also up (`normalise`).
        rows: number of items of a recommender with separate rows, the most frequent by a noisy
            histogram of all clients. The others share one row. 0 for all.
        list_share: share of the privacy budget for that histogram.
    """

    epsilon: float = 0.0
    delta: float = 1e-6
    rounds: int = 0
    max_participations: int = 0
    min_separation: int = 1
    band: int = 0
    clip: Literal["whole", "clip", "normalise"] = "whole"
    rows: int = 0
    list_share: float = 0.1

    @property
    def limits_cohorts(self) -> bool:
        """Whether a client may not report in every round."""
        return self.max_participations > 0 or self.min_separation > 1

    def __post_init__(self) -> None:
        lowest = dict.fromkeys(("epsilon", "rounds", "max_participations", "band", "rows"), 0)
        lowest["min_separation"] = 1
        for name, least in lowest.items():
            if not least <= getattr(self, name) < 1 << 40:
                raise ConfigError(
                    f"privacy.{name} is {getattr(self, name)}: choose {least} or more"
                )
        for name in ("delta", "list_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"privacy.{name} is {getattr(self, name)}: choose a number above 0 and below 1"
                )
        if self.rows and not self.epsilon:
            raise ConfigError(
                "privacy.rows hides the selected rows with noise and needs privacy.epsilon: set "
                "privacy.epsilon"
            )

"""The mean of the servers' models over rounds, which is less noisy than the latest of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from torchfsl.types import Array


class MeanModel:
    """Running mean of models (Polyak and Juditsky, 1992), forgetting early ones exponentially.

    The model after round r enters with weight max(1 - keep, 1/r), so that the mean is the plain
    one for the first 1/(1 - keep) rounds and does not hang on the initial model. Servers and
    clients never see it: it is a function of published models and changes no round.

    Args:
        keep: weight of the past, in (0, 1).
        state: the mean so far, by name; none before the first round.
    """

    def __init__(self, keep: float, state: Mapping[str, Array] | None = None) -> None:
        """Go on from `state`."""
        self.keep = keep
        self.state: dict[str, Array] = dict(state or {})

    def add(self, round_number: int, state: Mapping[str, Array]) -> None:
        """Take in the model after a round, from 1 on; integer buffers are its own."""
        weight = max(1 - self.keep, 1 / round_number)
        for name, value in state.items():
            if name not in self.state or not np.issubdtype(value.dtype, np.floating):
                self.state[name] = value.copy()
            else:
                mean = self.state[name]
                mean += value.dtype.type(weight) * (value - mean)

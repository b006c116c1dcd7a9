"""Many rounds' privacy loss from the divergences of one, for those accountants that take their own.

The divergences of a round are taken at a row of losses and joined by a distribution that has no
smaller ones (Doroshenko and others, Connect the dots, 2022), which `dp_accounting` composes.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def composed(step: float, with_first: Floats, without_first: Floats, times: int) -> Any:
    """The loss of so many steps, a `PrivacyLossDistribution`; give it delta for an epsilon.

    Args:
        step: between two losses, from 0 on.
        with_first: hockey-stick divergences at those losses of the sums with the client over those
            without it.
        without_first: the other way round.
        times: how often the mechanism runs, at least 1.

    Raises:
        ImportError: `dp_accounting`, of the extra privacy, is not installed.
    """
    pmf = importlib.import_module("dp_accounting.pld.pld_pmf")
    distribution = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    losses = step * np.arange(with_first.size, dtype=np.float64)

    def joined(positive: Floats, mirrored: Floats) -> object:
        below = -np.expm1(-losses) + np.exp(-losses) * mirrored
        deltas = np.clip(np.concatenate([below[:0:-1], positive]), 0.0, 1.0)
        at = np.arange(1 - losses.size, losses.size)
        return pmf.create_pmf_pessimistic_connect_dots(step, at, deltas)

    both = joined(with_first, without_first), joined(without_first, with_first)
    return distribution.PrivacyLossDistribution(*both).self_compose(times)

"""The package that accounts for noise, an extra of this one, and what every protocol asks it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from torchfsl.errors import ParameterError


def accounting() -> Any:
    """The package `dp_accounting`.

    Raises:
        ParameterError: it is not installed.
    """
    try:
        importlib.import_module("dp_accounting.rdp")
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise ParameterError(
            "privacy accounting needs dp-accounting: pip install 'torchfsl[privacy]'",
            code="package-missing",
        ) from error


def renyi_epsilon(multiplier: float, delta: float, rounds: int, orders: Sequence[float]) -> float:
    """Epsilon of so many rounds whose Renyi divergences are not above a Gaussian's.

    Args:
        multiplier: noise over sensitivity of that Gaussian.
        delta: in (0, 1).
        rounds: at least 1.
        orders: of the divergences.
    """
    package = accounting()
    accountant = package.rdp.RdpAccountant(
        orders=orders, neighboring_relation=package.NeighboringRelation.REPLACE_SPECIAL
    )
    accountant.compose(package.GaussianDpEvent(multiplier), rounds)
    return float(accountant.get_epsilon(delta))

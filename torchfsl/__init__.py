"""Federated submodel learning: private, exact aggregation of sparse updates by two servers.

The names below are loaded when first used, so that a server's aggregation path, which imports
`torchfsl.server` and what lies below it, never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchfsl.backends import backend

if TYPE_CHECKING:
    from torchfsl.client import Client
    from torchfsl.engine import SubmodelEngine
    from torchfsl.fixed_point import FixedPoint
    from torchfsl.plan import Plan
    from torchfsl.round import run_round
    from torchfsl.selection import BlockTopK, Dense, Rows, TopK
    from torchfsl.server import Server

__version__ = "0.1.0"

_HOME = {
    "SubmodelEngine": "engine",
    "Plan": "plan",
    "Rows": "selection",
    "TopK": "selection",
    "BlockTopK": "selection",
    "Dense": "selection",
    "FixedPoint": "fixed_point",
    "Client": "client",
    "Server": "server",
    "run_round": "round",
}

__all__ = [
    "BlockTopK",
    "Client",
    "Dense",
    "FixedPoint",
    "Plan",
    "Rows",
    "Server",
    "SubmodelEngine",
    "TopK",
    "backend",
    "run_round",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'torchfsl' has no attribute {name!r}")
    return getattr(importlib.import_module(f"torchfsl.{_HOME[name]}"), name)

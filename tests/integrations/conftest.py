"""What needs Flower is left out where it is not installed; test_imports.py says so, as a skip."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_HERE = Path(__file__).parent
_NEEDED = ("flwr", "grpc", "prometheus_client")

collect_ignore = (
    [] if all(map(find_spec, _NEEDED)) else [path.name for path in _HERE.glob("test_flower_*.py")]
)

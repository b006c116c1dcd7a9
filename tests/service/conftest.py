"""Scripts are importable here; the whole folder needs the service extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

"""The whole folder needs Flower; scripts/checks/flower.sh makes an environment with it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs the extra flower: run scripts/checks/flower.sh")
pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")

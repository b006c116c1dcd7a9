"""The whole folder needs the service extra."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")
pytest.importorskip("prometheus_client")

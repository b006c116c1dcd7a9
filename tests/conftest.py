"""Settings shared by all tests: property tests draw the same examples on every run."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from torchfsl.fsl.server import ranges

settings.register_profile(
    "torchfsl",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("torchfsl")
os.environ["HF_HUB_OFFLINE"] = "1"  # before datasets reads it, which asks five times otherwise
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background, whose programs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # would not end by Ctrl-C either


def pytest_collection_finish() -> None:
    """Garbage collection passes over what collecting made: ten thousand tests, a second a time."""
    gc.freeze()


@pytest.fixture
def sums_as_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open sums as they are, out of range or not: `test_ranges` has that defence.

    Attacks that soil a sum are seen by what they soil.
    """

    def leave(_plan: object, _s: object, _n: int, values: np.ndarray, *_: object) -> np.ndarray:
        return np.zeros(len(values), dtype=np.bool_)

    monkeypatch.setattr(ranges, "zero_out_of_range", leave)

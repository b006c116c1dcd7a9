"""What a server reads that lies about its share, in `scripts/attacks/steered_sum.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripts.attacks import steered_sum
from scripts.attacks.steered_sum import LEAST, LyingServer, Played
from torchfsl.crypto import discrete_gaussian
from torchfsl.types import Whole

MODES = "no lies", "no proofs", "norm proofs"


def play(mode: str) -> Played:
    return steered_sum.play(mode, neurons=64, seed=3)


@pytest.mark.parametrize("mode", MODES)
def test_two_rounds_of_lies_show_samples_in_the_third_and_no_log_shows_the_lies(mode: str) -> None:
    played = play(mode)
    if mode == "no lies":
        assert (played.lies, played.read) == (0, 0)
    else:
        assert played.lies == 2
        assert played.read >= played.items >= LEAST
    assert played.samples == 40
    assert not played.refused
    assert not played.noticed


def test_noise_of_the_honest_server_hides_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra torchfsl[privacy]")
    played = play("noise")
    assert (played.lies, played.read, played.refused, played.noticed) == (2, 0, 0, [])

    def none(_: int, count: int) -> Whole:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(discrete_gaussian, "sample", none)
    assert play("noise").read >= LEAST  # so it is the noise


def test_a_lie_beyond_the_range_of_honest_sums_is_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offset(server: LyingServer, *_: Any) -> Whole:
        server.arrived = True
        return np.full(server.plan.segment("rest").m, (1 << 31) - (1 << 27), dtype=np.int64)

    monkeypatch.setattr(LyingServer, "_offset", offset)
    assert any("outside the range" in line for line in play("no proofs").noticed)

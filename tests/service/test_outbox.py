"""What a client remembers of rounds belongs to the task in which it began them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchfsl.errors import ProtocolError
from torchfsl.service.client.outbox import Outbox


def test_a_round_is_begun_once_in_its_task_and_anew_in_another(tmp_path: Path) -> None:
    one, other = (Outbox(tmp_path / "outbox", plan) for plan in ("aa", "bb"))
    one.begin(7)
    assert one.last_round() == 7
    with pytest.raises(ProtocolError, match="had begun round 7 before"):
        one.begin(7)
    assert other.last_round() == -1
    other.begin(1)
    assert other.last_round() == 1


def test_a_round_noted_without_a_task_counts_in_every_one(tmp_path: Path) -> None:
    (tmp_path / "outbox.round").write_text("7")
    assert Outbox(tmp_path / "outbox", "aa").last_round() == 7

"""What one server asks of the other out of turn is refused, and the round goes on."""

from __future__ import annotations

from scripts.attacks.server_zero import early_share


def test_a_share_is_given_only_to_who_has_committed() -> None:
    result = early_share()
    assert result.worked_off, result.off
    assert not result.worked_on, result.on

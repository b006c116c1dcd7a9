"""A row that found no bin must not show in what is opened."""

from __future__ import annotations

from scripts.attacks import owner_plans


def test_a_row_without_a_bin_voids_no_report() -> None:
    result = owner_plans.crowded_rows()
    assert result.worked_off
    assert not result.worked_on

"""The table of lies in docs/specification/proofs.md is what comes of each lie, played anew."""

from __future__ import annotations

from scripts.generate import lies_table


def test_the_table_is_what_comes_of_the_lies() -> None:
    made = lies_table.BEGIN + lies_table.render() + lies_table.END
    assert made in lies_table.PAGE.read_text(), "stale: python -m scripts.generate.lies_table"


def test_no_lie_about_counts_or_norms_is_added_up_under_norm() -> None:
    lines = lies_table.render().splitlines()[2:]
    accepted = [line for line in lines if not line.endswith("| refused |")]
    assert [line.split(" | ")[0] for line in accepted] == ["| one row in two of its bins"]

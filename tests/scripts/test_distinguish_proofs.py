"""Nothing in one server's view of proofs tells dummies from updates, or wraps from none; small.

Keys come from the operating system: with 88 p a test fails by chance once in 10**6 runs.
"""

from __future__ import annotations

import pytest

from scripts.attacks import distinguish_proofs


def test_no_distinguisher_finds_anything_in_a_servers_view_of_proofs() -> None:
    for name, p in distinguish_proofs.look(300, 0).items():
        assert p > 1e-8, name


@pytest.mark.parametrize("fault", distinguish_proofs.FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with distinguish_proofs.planted(fault):
        found = distinguish_proofs.look(1000, 0, (0,))
    assert found[distinguish_proofs.FAULTS[fault]] < 1e-9

"""A client whose report counts is never told that it was refused, however late the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.network import assert_sums, with_odd_server
from torchfsl.errors import RejectedSubmission


@pytest.mark.parametrize("party", [0, 1])
def test_a_report_counts_though_the_round_closes_before_its_relay_is_acknowledged(
    tmp_path: Path, party: int
) -> None:
    with with_odd_server(tmp_path, party, "deaf", expected=2) as pair:
        made = pair.take_part([1 - party, party])
        opened = pair.close()
        assert opened.clients == (0, 1)
        assert_sums(pair.plan, opened, made)


def test_without_a_look_into_the_peers_set_a_client_that_counts_is_refused(tmp_path: Path) -> None:
    with with_odd_server(tmp_path, 0, "rash", expected=2) as pair:
        pair.take_part([1])
        with pytest.raises(RejectedSubmission, match="closed before the report was relayed"):
            pair.take_part([0])
        assert pair.close().clients == (0, 1)

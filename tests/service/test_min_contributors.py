"""Both server processes open counts first, and go on after a kill between the two openings."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.support.federation import mixed_plan
from tests.support.network import HANGS_AFTER, Pair, wait_until, with_odd_server
from tests.support.reference import plaintext
from torchfsl.errors import ProtocolError
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.state.steps import StoredState
from torchfsl.submodel.opened import Opened

PLAN = dataclasses.replace(mixed_plan(lane="count"), min_contributors=2)


def assert_kept(pair: Pair, opened: Opened, made: list[plaintext.Contribution]) -> None:
    """The sums of rows of two clients or more, all counts; both servers' models are equal."""
    sums = plaintext.sums(pair.plan, made)
    for name, counts in plaintext.lanes(pair.plan, made).items():
        sums[name][counts < 2] = 0
        assert np.array_equal(opened.lanes[name], counts)
    assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
    assert opened.withheld
    pair.owner.model(pair.task)


def test_rows_of_one_client_stay_closed_over_tls(tmp_path: Path) -> None:
    with Pair(tmp_path, PLAN) as pair:
        pair.start()
        pair.set_up()
        for number in range(2):
            pair.open()
            made = pair.take_part([0, 1, 2])
            if number:
                pair.kill(1)
                pair.start(1)
            assert_kept(pair, pair.close(), made)


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_killed_between_the_two_openings_loses_and_doubles_nothing(
    tmp_path: Path, party: int
) -> None:
    with with_odd_server(tmp_path, party, "die", PLAN) as pair:
        made = pair.take_part([0, 1, 2])
        with ThreadPoolExecutor(1) as closing:
            opened = closing.submit(pair.close)
            process = pair.processes[party]
            assert process is not None
            assert process.wait(HANGS_AFTER) == -signal.SIGKILL
            pair.kill(party)  # gives up what it left open
            pair.start(party)
            assert_kept(pair, opened.result(HANGS_AFTER), made)
        assert pair.state(party).with_suffix(".died").exists()


@pytest.mark.parametrize("party", [0, 1])
def test_a_share_altered_after_the_counts_opens_nothing_at_the_other_server(
    tmp_path: Path, party: int
) -> None:
    with with_odd_server(tmp_path, party, "lie", PLAN) as pair:
        pair.take_part([0, 1, 2])
        with contextlib.suppress(ProtocolError):  # a server that lies may say that all is well
            pair.close()
        wait_until(lambda: "share does not fit its commitment" in pair.log(1 - party))
        pair.stop()
        ledger = Ledger(pair.state(1 - party) / "state.sqlite")
        (row,) = ledger.rounds()
        ledger.close()
        assert row.state is StoredState.UNOPENED

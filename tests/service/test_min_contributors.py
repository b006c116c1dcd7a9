"""Both server processes open counts first, and go on after a kill between the two openings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from tests.support.federation import mixed_plan
from tests.support.network import Pair
from tests.support.reference import plaintext


def test_rows_of_one_client_stay_closed_over_tls(tmp_path: Path) -> None:
    plan = dataclasses.replace(mixed_plan(lane="count"), min_contributors=2)
    with Pair(tmp_path, plan) as pair:
        pair.start()
        pair.set_up()
        for number in range(2):
            pair.open()
            made = pair.take_part([0, 1, 2])
            if number:
                pair.kill(1)
                pair.start(1)
            opened = pair.close()
            sums = plaintext.sums(pair.plan, made)
            for name, counts in plaintext.lanes(pair.plan, made).items():
                sums[name][counts < 2] = 0
                assert np.array_equal(opened.lanes[name], counts)
            assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
            assert opened.withheld
            pair.owner.model(pair.task)

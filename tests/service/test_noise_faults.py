"""A write around the noise steps fails once: nothing is opened twice, no draw serves twice."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_private_rounds import TAPS
from tests.service.test_node import authorities
from tests.service.test_noise_state import COMMIT, KnownNoise, cohort
from tests.support.points import points_of
from tests.support.reference import correlated_noise as reference
from torchfsl.service.net.identity import Authorities
from torchfsl.service.state.steps import STEPS
from torchfsl.submodel.correlated_noise import CorrelatedNoise

__all__ = ["authorities"]  # a fixture
LAST = len(TAPS)
"""The round in which the ring turns over for the first time."""
KINDS = ("slot", "sync of slots", "fsync", "rename", "INSERT", "UPDATE", "COMMIT")
"""Writes that are known to be among those of a round's noise steps."""


class Disk:
    """Fails at write number `fatal`, before it or after it is done, and notes all writes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.fatal, self.is_done, self.writes = -1, False, list[str]()
        for owner, name, what in (
            (np.memmap, "flush", "sync of slots"), (os, "fsync", "fsync"),
            (os, "replace", "rename"), (CorrelatedNoise, "_correlate", "slot"),
        ):  # fmt: skip
            patch.setattr(owner, name, self.failing(what, getattr(owner, name)))

    def failing(self, what: str, write: Any) -> Any:
        def call(*given: Any) -> Any:
            is_fatal = len(self.writes) == self.fatal
            self.writes.append(what)
            found = write(*given) if self.is_done or not is_fatal else None
            if is_fatal:
                raise OSError(errno.ENOSPC, "no space left")
            return found

        return call

    def arm(self, duo: KnownNoise, fatal: int, *, is_done: bool) -> None:
        """From now on writes count, those of both ledgers, too."""
        self.fatal, self.is_done, self.writes = fatal, is_done, []
        for node in duo.nodes:
            node.storage.ledger._db = Statements(node.storage.ledger._db, self)  # type: ignore[assignment]

    def heal(self) -> None:
        self.fatal = -1


class Statements:
    """A connection whose statements that write are writes of a disk."""

    def __init__(self, connection: sqlite3.Connection, disk: Disk) -> None:
        self._connection, self._disk = connection, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, *given: Any) -> Any:
        what = query.split()[0]
        if what in ("SELECT", "BEGIN", "ROLLBACK"):
            return self._connection.execute(query, *given)
        return self._disk.failing(what, self._connection.execute)(query, *given)


def finish(duo: KnownNoise, disk: Disk) -> int:
    """The noise steps of the last round; how often the servers were started again."""
    for kind in STEPS[COMMIT:]:
        while True:
            try:
                duo.step(LAST, kind)
                break
            except OSError:
                disk.heal()
                duo.crash(0)
                duo.crash(1)
                duo.attempt += 1
    return duo.attempt


def noise_of(duo: KnownNoise, party: int) -> Any:
    """What a server adds by round; in the last one with its last draw, as a share has one only."""
    drew = max(key[2] for key in duo.drawn if key[:2] == (party, LAST))
    rounds = [*((number, 0) for number in range(LAST)), (LAST, drew)]
    draws = [np.concatenate(duo.drawn[(party, *which)]) for which in rounds]
    return reference.noises(np.array(draws), TAPS, 6)


@pytest.fixture
def prepared(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[KnownNoise, Disk, Path, list[Any]]:
    """Servers before the noise steps of the round in which the ring turns over."""
    duo = KnownNoise(tmp_path / "servers", authorities, monkeypatch)
    for number in range(LAST):
        duo.play(number, cohort(duo.plan, number))
    reports = duo.play(LAST, cohort(duo.plan, LAST), STEPS[:COMMIT])
    for node in duo.nodes:
        node.storage.ledger.close()
    shutil.copytree(duo.folder, tmp_path / "before")
    return duo, Disk(monkeypatch), tmp_path / "before", reports


def restart(duo: KnownNoise, before: Path) -> None:
    shutil.rmtree(duo.folder)
    shutil.copytree(before, duo.folder)
    duo.nodes, duo.attempt = [duo._node(party) for party in (0, 1)], 0
    duo.drawn = {key: draws for key, draws in duo.drawn.items() if key[1] < LAST}


@pytest.mark.parametrize("is_done", [False, True])
def test_a_write_that_fails_in_the_noise_steps_changes_no_sum_and_leaves_no_past_noise(
    is_done: bool, prepared: tuple[KnownNoise, Disk, Path, list[Any]]
) -> None:
    duo, disk, before, reports = prepared
    charged = [(10 * (n % 4) + client, n) for n in range(LAST + 1) for client in range(3)]
    restart(duo, before)
    disk.arm(duo, -1, is_done=is_done)
    assert not finish(duo, disk)
    writes = disk.writes
    assert {*writes} >= {*KINDS}
    for fatal in points_of(writes):
        restart(duo, before)
        disk.arm(duo, fatal, is_done=is_done)
        assert finish(duo, disk)
        what = f"{writes[fatal]}, write {fatal}"
        noises = [noise_of(duo, party) for party in (0, 1)]
        assert np.array_equal(duo.noise_of(LAST, reports), sum(n[LAST] for n in noises)), what
        assert [sorted(one) for one in duo.charged()] == [sorted(charged)] * 2, what
        assert len(set(duo.digests())) == 1, what
        for noise, node in zip(noises, duo.nodes, strict=True):
            assert node.storage.noise.lost == 0, what
            past = noise[0].astype(np.int32).tobytes()[:64]
            files = [path for path in node.storage.folder.rglob("*") if path.is_file()]
            assert not [path for path in files if past in path.read_bytes()], what

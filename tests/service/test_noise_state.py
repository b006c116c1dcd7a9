"""Servers that are started again keep participation limits and correlated noise."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.fsl.test_private_rounds import TAPS, in_order, private
from tests.service.test_node import SETTINGS, Duo, authorities, some_updates
from tests.support.errors import raises
from tests.support.federation import make_state, mixed_plan
from tests.support.reference import correlated_noise as reference
from tests.support.reference import plaintext
from torchfsl.crypto import discrete_gaussian
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.messages import Kind
from torchfsl.service.net.identity import Authorities
from torchfsl.service.server.node import Node
from torchfsl.service.state import vault
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.state.noise_ring import NOISE, NoiseRing, NoiseStore
from torchfsl.service.state.steps import STEPS
from torchfsl.service.task import Task, bind_plan, encode_task

__all__ = ["authorities"]  # a fixture
Whole = npt.NDArray[np.int64]
COMMIT = STEPS.index(Kind.SHARE_COMMIT)


class KnownNoise(Duo):
    """Two nodes whose draws are kept by party, round and attempt."""

    def __init__(
        self, folder: Path, given: Authorities, patch: pytest.MonkeyPatch, **terms: Any
    ) -> None:
        self.key, self.attempt = (0, 0, 0), 0
        self.drawn: dict[tuple[int, int, int], list[Whole]] = {}
        patch.setattr(discrete_gaussian, "sample", self.draw)
        super().__init__(folder, given, private(mixed_plan(lane="count"), **terms))

    def draw(self, sigma: int, count: int) -> Whole:
        random = np.random.default_rng([*self.key, sigma, count])
        fresh: Whole = random.normal(0, sigma, count).round().astype(np.int64)
        self.drawn.setdefault(self.key, []).append(fresh.copy())
        return fresh

    def step(self, number: int, kind: Kind) -> None:
        for party, node in enumerate(self.nodes):
            self.key = party, number, self.attempt
            node.exchange(number, kind)
        self.key = (9, 9, 9)  # no draw is made again
        super().step(number, kind)

    def noise_of(self, number: int, contributions: list[plaintext.Contribution]) -> Whole:
        """By what the opened values of a round differ from the exact sums."""
        opened, found = vault.decode_opened(self.nodes[0].storage.result_bytes())
        assert found == number
        sums = plaintext.sums(self.plan, contributions)
        counts = plaintext.lanes(self.plan, contributions)
        exact = in_order(self.plan, sums, counts)
        return in_order(self.plan, opened.sums, opened.lanes) - exact

    def expected(self, *rounds: tuple[int, int]) -> Whole:
        """Noise of both servers together in these rounds, each with the attempt that counted."""
        both = 0
        for party in (0, 1):
            draws = [np.concatenate(self.drawn[party, *which]) for which in rounds]
            both = both + reference.noises(np.array(draws), TAPS, 6)
        return np.asarray(both)

    def charged(self) -> list[list[tuple[int, int]]]:
        return [node.storage.ledger.participations(1 << 60) for node in self.nodes]

    def rings(self, party: int) -> list[Path]:
        return sorted((self.folder / str(party)).glob("noise-*.ring"))


def cohort(plan: Any, number: int) -> dict[int, object]:
    """Three clients that come every fourth round."""
    updates = some_updates(plan, number)
    return {10 * (number % 4) + client: update for client, update in updates.items()}


@pytest.mark.parametrize("party", [0, 1])
def test_a_crash_after_every_event_changes_no_noise_and_no_count(
    party: int, authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch, max_participations=2)
    duo.after_event = lambda: duo.crash(party)
    found = [duo.noise_of(n, duo.play(n, cohort(duo.plan, n))) for n in range(6)]
    assert (9, 9, 9) not in duo.drawn
    assert np.array_equal(np.array(found), duo.expected(*((n, 0) for n in range(6))))
    assert len(set(duo.digests())) == 1
    charged = [(10 * (n % 4) + client, n) for n in range(6) for client in range(3)]
    assert [sorted(one) for one in duo.charged()] == [sorted(charged)] * 2
    assert all(node.storage.noise.lost == 0 for node in duo.nodes)


@pytest.mark.parametrize("where", ["keep", "put_step"])
def test_a_crash_before_the_commitment_is_stored_draws_afresh(
    where: str, authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the sync of the slot, or in the transaction after it: nothing has left the server."""
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    first = duo.noise_of(0, duo.play(0, cohort(duo.plan, 0)))
    contributions = duo.play(1, cohort(duo.plan, 1), STEPS[:COMMIT])

    def die(*_: object, **__: object) -> bytes:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(NoiseRing if where == "keep" else Ledger, where, die)
        duo.key = (0, 1, 0)
        with pytest.raises(OSError, match="the disk fails"):
            duo.nodes[0].exchange(1, Kind.SHARE_COMMIT)
    duo.crash(0)
    duo.attempt = 1
    for kind in STEPS[COMMIT:]:
        duo.step(1, kind)
    second = duo.noise_of(1, contributions)
    third = duo.noise_of(2, duo.play(2, cohort(duo.plan, 2)))
    assert np.array_equal(np.array([first, second, third]), duo.expected((0, 0), (1, 1), (2, 1)))
    assert not np.array_equal(duo.drawn[0, 1, 0][0], duo.drawn[0, 1, 1][0])
    assert duo.nodes[0].storage.noise.lost == 0


def test_a_round_abandoned_after_the_commitment_charges_no_client_and_is_drawn_afresh(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    first = duo.noise_of(0, duo.play(0, cohort(duo.plan, 0)))
    duo.play(1, cohort(duo.plan, 1), STEPS[:COMMIT])
    for party, node in enumerate(duo.nodes):
        duo.key = (party, 1, 0)
        node.exchange(1, Kind.SHARE_COMMIT)
        node.abandon(1, "the other server is away")
    duo.crash(0)
    duo.crash(1)
    assert duo.charged() == [[(client, 0) for client in range(3)]] * 2
    second = duo.noise_of(2, duo.play(2, cohort(duo.plan, 1)))  # the clients of the round before
    third = duo.noise_of(3, duo.play(3, cohort(duo.plan, 2)))
    assert np.array_equal(np.array([first, second, third]), duo.expected((0, 0), (2, 0), (3, 0)))


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(("again", "code"), [(1, "too-early"), (3, "participations-spent")])
def test_each_server_alone_refuses_a_client_also_after_a_restart(
    party: int, again: int, code: str, authorities: Authorities, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    terms = {"min_separation": 4} if code == "too-early" else {"min_separation": 1}
    taps = {"noise_taps": ()} if code == "participations-spent" else {}
    duo = KnownNoise(tmp_path, authorities, monkeypatch, max_participations=2, **terms, **taps)
    updates = some_updates(duo.plan, 0)
    for number in range(again - 1):
        duo.play(number, updates)
    if again == 1:
        duo.play(0, updates)
    duo.crash(party)
    number = max(again - 1, 1)
    duo.step(number, Kind.ROUND_STATE)
    other = duo.nodes[1 - party].server.participation
    other.counts.clear()
    other.last.clear()
    with raises(RejectedSubmission, code):
        duo.play_reports(number, {0: updates[0]})


@pytest.mark.parametrize("damage", ["byte", "old copy", "gone"])
def test_a_slot_that_is_not_the_recorded_one_counts_as_zero(
    damage: str, authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    (ring,) = duo.rings(0)
    duo.play(0, cohort(duo.plan, 0))
    old = ring.read_bytes()
    duo.play(1, cohort(duo.plan, 1))
    if damage == "gone":
        ring.unlink()
    else:
        now = bytearray(old if damage == "old copy" else ring.read_bytes())
        if damage == "byte":
            now[len(now) // len(TAPS)] ^= 1  # the first of slot 1
        ring.write_bytes(now)
    duo.crash(0)
    lost = 2 if damage == "gone" else 1
    assert duo.nodes[0].storage.noise.lost == lost
    assert caplog.text.count("is lost. Privacy holds, but later rounds") == lost
    found = duo.noise_of(2, duo.play(2, cohort(duo.plan, 2)))
    (server0, server1) = (
        [np.concatenate(duo.drawn[party, n, 0]) for n in range(3)] for party in (0, 1)
    )
    whole = reference.noises(np.array(server0), TAPS, 6)
    whole[1] = 0
    whole[0] *= damage != "gone"
    kept = sum(TAPS[lag] * whole[2 - lag] for lag in (1, 2))
    ours = (server0[2] - kept + 32) // 64
    assert np.array_equal(found, ours + reference.noises(np.array(server1), TAPS, 6)[2])


def test_noise_is_wiped_with_its_task(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch, max_rounds=4)
    for number in range(4):
        duo.play(number, cohort(duo.plan, number))
        assert len(duo.rings(0)) == (number < 3)  # after the last round there is none
    assert duo.nodes[0].storage.ledger.setting("noise") is None
    duo.crash(0)
    assert duo.rings(0) == []
    other = bind_plan(private(mixed_plan(lane="count")), authorities, bytes(15) + b"1")
    for _ in range(2):
        duo.nodes[1].set_up(encode_task(Task(other, bytes(15) + b"1"), make_state(other)),
                            replace=True)  # fmt: skip
        assert [ring.name for ring in duo.rings(1)] == [f"noise-{other.digest.hex()[:16]}.ring"]
        assert duo.nodes[1].storage.ledger.participations(9) == []
        duo.crash(1)


@pytest.mark.parametrize("taps", [(), (64, *[1] * 11)])
def test_a_task_that_is_refused_leaves_the_noise_of_the_one_before(
    taps: tuple[int, ...], authorities: Authorities, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    rings = duo.rings(0)
    for number in range(5):
        duo.play(number, cohort(duo.plan, number))
    terms = private(mixed_plan(lane="count"), noise_taps=taps, min_separation=12)
    other = bind_plan(terms, authorities, bytes(15) + b"1")
    with pytest.raises(ProtocolError, match="holds another task"):
        duo.nodes[0].set_up(encode_task(Task(other, bytes(15) + b"1"), make_state(other)))
    assert duo.rings(0) == rings
    found = [duo.noise_of(n, duo.play(n, cohort(duo.plan, n))) for n in (5, 6)]
    duo.crash(0)
    assert duo.nodes[0].storage.noise.lost == 0
    found.append(duo.noise_of(7, duo.play(7, cohort(duo.plan, 7))))
    assert np.array_equal(np.array(found), duo.expected(*((n, 0) for n in range(8)))[5:])


def test_a_crash_before_the_last_noise_is_wiped_leaves_none_after_the_start(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch, max_rounds=4)
    for number in range(3):
        duo.play(number, cohort(duo.plan, number))

    def die(_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(NoiseStore, "end", die)
        with pytest.raises(OSError, match="the disk fails"):
            duo.play(3, cohort(duo.plan, 3))
    assert len(duo.rings(0)) == 1
    duo.crash(0)
    assert duo.rings(0) == []


def test_noise_is_overwritten_when_another_task_replaces_a_live_one(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    duo.play(0, cohort(duo.plan, 0))
    node, (ring,), still = duo.nodes[0], duo.rings(0), tmp_path / "still"
    os.link(ring, still)
    assert any(still.read_bytes())
    other = bind_plan(private(mixed_plan(lane="count")), authorities, bytes(15) + b"1")
    node.set_up(encode_task(Task(other, bytes(15) + b"1"), make_state(other)), replace=True)
    assert not any(still.read_bytes())
    assert [one.name for one in duo.rings(0)] == [f"noise-{other.digest.hex()[:16]}.ring"]
    assert node.storage.ledger.setting(NOISE) is None
    assert (node.storage.rounds_opened, node.storage.ledger.participations(9)) == (0, [])


def test_noise_is_wiped_where_the_session_halts(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    duo.play(0, cohort(duo.plan, 0))
    duo.nodes[1].server.model.state["bias.0"][0] += 1
    with pytest.raises(ProtocolError, match="different models"):
        duo.step(1, Kind.ROUND_STATE)
    assert duo.nodes[0].storage.halted
    assert duo.rings(0) == []
    assert duo.nodes[0].storage.ledger.setting(NOISE) is None


def test_a_slot_is_synced_before_the_ledger_names_it(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    sync, put, events = np.memmap.flush, Ledger.put_setting, list[str]()

    def noting(ledger: Ledger, name: str, value: bytes | None) -> None:
        events.extend(["named"] * (name == NOISE))
        put(ledger, name, value)

    def syncing(slots: Any) -> None:
        events.append("synced")
        sync(slots)

    monkeypatch.setattr(np.memmap, "flush", syncing)
    monkeypatch.setattr(Ledger, "put_setting", noting)
    duo.play(0, cohort(duo.plan, 0))
    assert events == ["synced", "named"] * 2


def test_a_task_whose_noise_has_no_room_is_refused_and_the_one_before_stays(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(0, tmp_path / "0", authorities, SETTINGS)
    before = bind_plan(mixed_plan(), authorities, bytes(16))
    node.set_up(encode_task(Task(before, bytes(16)), make_state(before)))
    plan = bind_plan(private(mixed_plan(lane="count")), authorities, bytes(15) + b"1")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with raises(ParameterError, "no-room"):
        node.set_up(encode_task(Task(plan, bytes(15) + b"1"), make_state(plan)), replace=True)
    assert node.plan == before
    assert not list(tmp_path.glob("0/noise-*"))


def test_a_start_on_a_full_disk_deletes_no_noise(
    authorities: Authorities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that came back from an archive with holes in it takes more room."""
    duo = KnownNoise(tmp_path, authorities, monkeypatch)
    duo.play(0, cohort(duo.plan, 0))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with raises(ParameterError, "no-room"):
            duo.crash(0)
    duo.crash(0)
    assert duo.nodes[0].storage.noise.lost == 0

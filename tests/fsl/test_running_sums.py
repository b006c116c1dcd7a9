"""Reports are added as they come, in windows; what is rejected later leaves no trace in the sum."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np
import pytest

from scripts.attacks.lies import HONEST, plan_with
from tests.support.federation import (
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    random_update,
    wanted_rows,
)
from tests.support.reference import plaintext
from torchfsl.errors import ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import client_bytes
from torchfsl.fsl.dpf import ssa
from torchfsl.fsl.dpf.ssa import BinSums, IndexSums
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.proofs import Questions
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.server.running_sums import RunningSums
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.spool import Spool
from torchfsl.fsl.server.states import RoundState
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.update import SegmentUpdate, Update


def streaming_plan(clients: int) -> Plan:
    """Trees of every kind, and dense values."""
    return make_plan(
        make_segment("table", "rows", (40, 3), k_max=4, tau=3, theta=5, stash=1, retrieve=True),
        make_segment("few", "scalars", (30,), k_max=3, theta=5, nu=2, stash=1),
        make_segment("whole", "scalars", (9,), k_max=2),
        make_segment("bias", "dense", (3,)),
        max_clients=clients,
    )


@pytest.fixture(params=[(1, "bins"), (2, "bins"), (32, "bins"), (2, "large"), (2, "index")])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Reports added at once; how sums are kept: between rounds, in a round, or in index order."""
    reports, kept = request.param
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", reports)
    if kept != "bins":
        monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
        monkeypatch.setattr(sizes, "_LEAN_WINDOW", 1 if kept == "index" else 3)
    return int(reports)


def play(plan: Plan, servers: tuple[Server, Server], count: int) -> dict[int, Update]:
    """An open round in which `count` clients have reported."""
    begin_round(servers, servers[0].last_round + 1)
    rng = np.random.default_rng(0)
    updates = {number: random_update(plan, rng, rows=2) for number in range(count)}
    for number, update in updates.items():
        client = Client(plan, InProcess(*servers), client_id=number)
        session = client.start_round(servers[0].last_round, indices=wanted_rows(plan, update))
        session.retrieve()
        session.submit(update)
    return updates


def assert_sums(plan: Plan, opened: Opened, updates: dict[int, Update]) -> None:
    assert opened.clients == tuple(sorted(updates))
    assert_exact(plan, opened, [plaintext.Contribution(update) for update in updates.values()])


def test_any_window_gives_the_exact_sum(window: int) -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    for _ in range(2):
        updates = play(plan, servers, 5)
        waiting = len(servers[0]._evaluator.sums._waiting)
        assert waiting == 5 % window
        assert_sums(plan, finish_round(servers), updates)


@pytest.mark.parametrize("threads", ["1", "2", "3", "16"])
def test_folds_are_the_same_however_many_reports_are_verified_side_by_side(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = streaming_plan(5)
    plan = dataclasses.replace(
        plan,
        segments=tuple(
            s if s.is_dense else dataclasses.replace(s, check_bytes=32) for s in plan.segments
        ),
    )
    servers = make_servers(plan)
    play(plan, servers, 5)
    folds = []
    for server in servers:
        monkeypatch.setenv("TORCHFSL_THREADS", "1")
        alone = server._evaluator.folds(server.reports.complete(), bytes(32))
        monkeypatch.setenv("TORCHFSL_THREADS", threads)
        folds.append(server._evaluator.folds(server.reports.complete(), bytes(32)))
        assert list(folds[-1]) == list(range(5))
        assert folds[-1] == alone
    assert folds[0] == folds[1], "all clients are honest"
    assert len(set(folds[0].values())) == 5


@pytest.mark.parametrize("line_bytes", [1, 64], ids=["long rows", "short rows"])
def test_sums_that_are_gathered_in_parts_are_exact(
    window: int, line_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssa, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(ssa, "_LINE_BYTES", line_bytes)
    plan = streaming_plan(5)
    servers = make_servers(plan)
    updates = play(plan, servers, 5)
    assert_sums(plan, finish_round(servers), updates)


def test_large_sums_are_given_back_and_gathered_by_windows_that_are_worth_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = streaming_plan(3)
    server = make_servers(plan)[0]
    assert server._evaluator.sums._kind is BinSums
    assert sizes.keeps_sums(plan)
    assert sizes.keeps_tables(plan)
    monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
    servers = make_servers(plan)
    updates = play(plan, servers, 3)
    sums = servers[0]._evaluator.sums
    assert sums._kind is IndexSums
    assert servers[0]._evaluator._tables._bins is servers[1]._evaluator._tables._bins is not None
    assert_sums(plan, finish_round(servers), updates)
    assert not sums._sums
    assert servers[0]._evaluator._tables._bins is None
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 2)
    assert make_servers(plan)[0]._evaluator.sums._kind is BinSums


def test_a_share_that_was_given_back_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
    plan = streaming_plan(3)
    servers = make_servers(plan)
    play(plan, servers, 3)
    for server in servers:
        reports = list(server.reports.complete().values())
        first = bytes(server._evaluator.share(reports))
        assert bytes(server._evaluator.share(reports)) == first
        assert bytes(server._evaluator.share(reports[:2])) != first


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_window_is_as_many_reports_as_its_bytes_hold(
    epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees count once, whether they travel early or in the report."""
    plan = make_plan(
        make_segment("s", "scalars", (600,), k_max=3, theta=6), max_clients=9, max_epochs=epochs
    )
    held = plan.segments[0].tree_bytes + plan.hint_bytes(plan.segments[0])
    monkeypatch.setattr(sizes, "WINDOW_BYTES", 4 * held)
    assert make_servers(plan)[0]._evaluator.sums._window == 4
    monkeypatch.setattr(sizes, "WINDOW_BYTES", 4 * held - 1)
    assert make_servers(plan)[0]._evaluator.sums._window == 3


def test_a_client_rejected_after_it_was_added_is_taken_out(window: int) -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    updates = play(plan, servers, 5)
    report = servers[0].reports.complete()[3]
    other = Client(plan, InProcess(*servers), client_id=3)
    with pytest.raises(RejectedSubmission, match="after the report"):
        other.start_round(0, indices=wanted_rows(plan, updates[3])).submit(updates[3])
    assert report.rejected
    del updates[3]
    assert_sums(plan, finish_round(servers), updates)


def test_a_client_that_fails_the_check_is_taken_out(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    updates = play(plan, servers, 5)
    evaluate: Callable[..., dict[int, bytes]] = servers[0]._evaluator.folds

    def folds(*arguments: object) -> dict[int, bytes]:
        return evaluate(*arguments) | {2: bytes(16)}

    monkeypatch.setattr(servers[0]._evaluator, "folds", folds)
    del updates[2]
    assert_sums(plan, finish_round(servers), updates)


def test_an_abandoned_round_leaves_nothing_in_the_next_sum(window: int) -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    play(plan, servers, 4)
    for server in servers:
        server.abandon_round()
    updates = play(plan, servers, 3)
    assert_sums(plan, finish_round(servers), updates)


def test_messages_beyond_the_window_lie_in_files() -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    for server in servers:
        server.reports.spool._window_bytes = 3000
    updates = play(plan, servers, 5)
    for server in servers:
        spool = server.reports.spool
        assert 3000 <= spool.bytes_in_memory < 3000 + client_bytes(plan)
        assert spool._chunks
        spool.release()
    assert_sums(plan, finish_round(servers), updates)
    assert not servers[0].reports.spool._chunks


class FullDisk:
    """A file on a disk that takes a few bytes and then no more, until there is room."""

    def __init__(self, file: IO[bytes] | None) -> None:
        assert file is not None
        self.file, self.room = file, 100

    def seek(self, at: int) -> None:
        self.file.seek(at)

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def close(self) -> None:
        self.file.close()


class Resending(InProcess):
    """Makes room on the disk and sends again what it refused."""

    def __init__(self, servers: tuple[Server, Server], disk: FullDisk) -> None:
        super().__init__(*servers)
        self.disk, self.refused = disk, 0

    def send(self, party: int, message: bytes) -> None:
        try:
            super().send(party, message)
        except OSError:
            self.refused, self.disk.room = self.refused + 1, 1 << 30
            super().send(party, message)


def test_a_message_that_a_full_disk_refused_can_come_again() -> None:
    plan = streaming_plan(5)
    servers = make_servers(plan)
    spool = servers[0].reports.spool
    spool._window_bytes = 0
    begin_round(servers, 1)
    spool.hold(b"1")  # opens the file
    disk = FullDisk(spool._file)
    spool._file = cast("IO[bytes]", disk)
    link = Resending(servers, disk)
    updates = {client: random_update(plan, np.random.default_rng(client)) for client in (2, 4)}
    for client, update in updates.items():  # even numbers: server 0 gets their public parts
        session = Client(plan, link, client_id=client).start_round(
            1, indices=wanted_rows(plan, update)
        )
        session.submit(update)
    assert link.refused == 1
    assert_sums(plan, finish_round(servers), updates)


def _proven() -> tuple[Plan, list[Report], RunningSums]:
    """Three reports with proofs, and sums over them that are as they should be."""
    plan = plan_with("norm")
    servers = make_servers(plan)
    begin_round(servers, 1)
    for client in range(3):
        update = {
            "table": SegmentUpdate(np.array([client]), np.full((1, 2), HONEST)),
            "bias": SegmentUpdate(None, np.full((3, 1), 7)),
        }
        Client(plan, servers, client_id=client).start_round(1).submit(update)
    reports, right = servers[0].reports.complete().values(), RunningSums(plan, 0, lambda: None)
    for report in reports:
        right.take(report)
    right.add_waiting()
    return plan, list(reports), right


def _shares(sums: RunningSums) -> dict[str, bytes]:
    return {segment.name: bytes(share) for segment, share in sums.shares()}


def test_sums_for_proofs_that_a_full_disk_refuses_are_made_anew_and_the_round_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan, reports, right = _proven()
    sums, kept = RunningSums(plan, 0, lambda: None), []

    def refuse(data: bytes) -> bytes:
        if len(kept) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(data)
        return data

    monkeypatch.setattr(sums._spool, "hold", refuse)
    monkeypatch.setattr(sums, "_window", 1)
    for report in reports:
        sums.take(report)
    sums.add_waiting()
    assert caplog.text.count("No space left") == 1  # of two windows that were refused
    table = plan.with_trees[0]
    known = [sums.lifted(report, table) for report in reports]
    assert [one is None for one in known] == [False, True, True]
    said = [
        [Questions(plan, 0, bytes(32), one.lifted).ask(one.loaded(report)) for report in reports]
        for one in (sums, right)
    ]
    assert said[0] == said[1]
    assert _shares(sums) == _shares(right)
    sums.reset()
    sums.take(reports[1])
    assert caplog.text.count("No space left") == 2  # once more in the next round


def test_sums_for_a_proof_go_with_the_report_that_is_taken_back() -> None:
    plan, reports, right = _proven()
    table = plan.with_trees[0]
    right.settle(reports[1:])
    right._change(reports[:1], subtract=False, keeping=False)
    assert right.lifted(reports[0], table) is None
    assert right.lifted(reports[1], table) is not None


def test_reports_that_are_added_after_the_proofs_leave_no_sums_for_them() -> None:
    plan, reports, right = _proven()
    sums = RunningSums(plan, 0, lambda: None)
    sums.settle(reports)
    assert sums.lifted(reports[0], plan.with_trees[0]) is None
    assert _shares(sums) == _shares(right)


def test_after_a_failure_nothing_is_added_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, reports, right = _proven()
    sums = RunningSums(plan, 0, lambda: None)

    def fail(*_: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LoadedReport, "dense_share", fail)  # the table's sums have them all by then
        with pytest.raises(MemoryError):
            sums.settle(reports)
    sums.settle(reports)
    assert _shares(sums) == _shares(right)


def test_a_spool_keeps_bytes_and_leaves_views_alone() -> None:
    spool = Spool(window_bytes=10)
    rng = np.random.default_rng(0)
    messages = [rng.bytes(size) for size in (10, 1, 5000, (1 << 26) + 1, 7)]
    held = [spool.hold(message) for message in messages]
    assert held[0] is messages[0]
    spool.release()
    assert [bytes(view) for view in held] == messages
    assert all(memoryview(view).readonly for view in held)
    view = memoryview(b"others' file")
    assert spool.hold(view) is view
    spool.clear()
    assert [bytes(view) for view in held] == messages


def test_sums_are_applied_once() -> None:
    plan = streaming_plan(3)
    servers = make_servers(plan)
    play(plan, servers, 2)
    opened = finish_round(servers)
    for server in servers:
        before = server.model.digest()
        with pytest.raises(ProtocolError, match="already applied"):
            server.apply(opened)
        assert server.model.digest() == before


def test_a_server_whose_peer_refuses_the_round_is_idle_again() -> None:
    plan = streaming_plan(3)
    servers = make_servers(plan)
    servers[1].open_round(0)
    with pytest.raises(ProtocolError):
        begin_round(servers, 1)
    assert servers[0].state is RoundState.IDLE
    assert servers[1].state is RoundState.OPENING
    servers[1].abandon_round()
    begin_round(servers, 2)


def test_a_client_with_bad_rows_fetches_what_others_fetch() -> None:
    plan = streaming_plan(3)
    servers = make_servers(plan)
    begin_round(servers, 0)
    fetched: list[tuple[int, Kind]] = []

    class Noting(InProcess):
        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            fetched.append((party, kind))
            return super().fetch(party, kind, round_number, client)

    usual = Client(plan, Noting(*servers), client_id=0)
    session = usual.start_round(0, indices={"table": np.array([1, 2])})
    session.download()
    session.retrieve()
    session.abort()
    expected, fetched = fetched, []
    with pytest.raises(ParameterError):
        Client(plan, Noting(*servers), client_id=2).start_round(0, indices={"table": [-1]})
    assert fetched == expected


def test_messages_go_once_they_are_added_up() -> None:
    plan = streaming_plan(3)
    servers = make_servers(plan)
    updates = play(plan, servers, 3)
    sets = [server.close_round() for server in servers]
    verdicts = [servers[b].agree(sets[1 - b]) for b in (0, 1)]
    for b in (0, 1):
        servers[b].verify(verdicts[1 - b])
    reports = [r for server in servers for r in server.reports.complete().values()]
    assert len(reports) == 6
    assert all(r.public and r.trees.public for r in reports)
    said = [server.commit() for server in servers]
    for report in reports:
        assert report.public is None
        assert report.trees.public is None
        assert not report.masked
    shares = [servers[b].reveal(said[1 - b]) for b in (0, 1)]
    for b in (0, 1):
        assert_sums(plan, servers[b].open(shares[1 - b]), updates)


def test_trees_of_a_session_outlive_the_messages() -> None:
    plan = make_plan(
        make_segment("s", "scalars", (60,), k_max=3, theta=6), max_clients=2, max_epochs=3
    )
    servers = make_servers(plan)
    update = random_update(plan, np.random.default_rng(0), rows=2)
    client = Client(plan, InProcess(*servers), client_id=0)
    session = client.open_session(indices={"s": update["s"].indices})
    for number in (1, 2):
        begin_round(servers, number)
        session.start_round(number).submit(update)
        (report,) = servers[0].reports.complete().values()
        servers[0].reports.forget_messages()
        assert report.public is None
        assert report.trees.public is not None
        for server in servers:
            server.abandon_round()

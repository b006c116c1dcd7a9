"""Shards give what one process gives, whatever their number and whichever of them are lost."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.federation import (
    assert_exact,
    make_plan,
    make_segment,
    mixed_plan,
    mixed_rings,
    play_round,
    random_update,
    wanted_rows,
)
from tests.support.points import IS_LONG
from tests.support.reference import plaintext
from tests.support.sharded import Twins, in_process, shard_plan, twin_servers
from torchfsl.errors import ParameterError, RejectedSubmission
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.estimates.measuring import rows_plan
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.evaluation import LocalEvaluator
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.transport import InProcess
from torchfsl.integrations.ray import front
from torchfsl.integrations.ray.cuts import Places, cuts_of
from torchfsl.integrations.ray.evaluator import ShardedEvaluator
from torchfsl.integrations.ray.grid import EngineLost, Grid, InProcessGrid, Shards
from torchfsl.integrations.ray.packing import Packing, SegmentWhole
from torchfsl.integrations.ray.shard import Shard, Windows


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several windows a round, and several messages of rows."""
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 2)
    monkeypatch.setattr(front, "ROWS_BYTES", 100)
    monkeypatch.setattr(front, "PIECE_BYTES", 1000)


def noisy(plan: Plan) -> Plan:
    return dataclasses.replace(plan, l2_bound=1 << 24, noise_sigma=50, lane_sigma=5)


PLANS: dict[str, Callable[[], Plan]] = {
    "every kind": shard_plan,
    "semi-honest": lambda: mixed_plan(secure=False),
    "counted, with noise": lambda: noisy(mixed_plan(lane="count")),
    "weighed, with noise": lambda: noisy(mixed_plan(lane="weight")),
    "rings of their own, with noise": lambda: dataclasses.replace(
        noisy(mixed_rings(mixed_plan(lane="count"), noise=1000, frac_bits=16)), l2_bound=1 << 50
    ),
    "few contributors": lambda: dataclasses.replace(mixed_plan(lane="count"), min_contributors=2),
    "a session": lambda: shard_plan(epochs=3),
    "proven": lambda: dataclasses.replace(mixed_plan(lane="count"), proofs="lanes"),
    "public bins": lambda: make_plan(
        make_segment("weights", "blocks", (90,), tau=2, k_max=7, nu=1, binned=True),
        max_clients=8,
        lane="count",
    ),
    "dense": lambda: make_plan(make_segment("bias", "dense", (5,)), max_clients=8),
    "one row": lambda: make_plan(make_segment("one", "scalars", (1,), k_max=1), max_clients=8),
}


def play(servers: tuple[Server, Server], rounds: int, clients: int = 5) -> None:
    """Rounds whose opened sums are exact, beside what the twins compare."""
    plan, rng = servers[0].plan, np.random.default_rng(0)
    clients = min(clients, plan.max_clients)
    kept = [Client(plan, InProcess(*servers), client_id=i) for i in range(clients)]
    rows = [random_update(plan, rng, rows=2) for _ in kept]
    for number in range(servers[0].last_round + 1, servers[0].last_round + 1 + rounds):
        begin_round(servers, number)
        for client, update in zip(kept, rows, strict=True):
            start = client.start_round if plan.max_epochs == 1 else client.continue_session
            session = start(number, indices={s.name: update[s.name].indices for s in plan.early})
            if plan.retrieving:
                session.retrieve()
            session.submit(update)
        finish_round(servers)
        assert servers[0].model.digest() == servers[1].model.digest()


def twins(server: Server) -> Twins:
    assert isinstance(server._evaluator, Twins)
    return server._evaluator


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", PLANS)
def test_shares_folds_and_answers_are_those_of_one_process(name: str, size: int) -> None:
    plan = PLANS[name]()
    servers = twin_servers(plan, in_process(size))
    play(servers, 2)
    for server in servers:
        compared = twins(server).compared
        assert compared["share"] == compared["folds"] == 2
        assert bool(compared["answer"]) == bool(plan.retrieving)


def test_noise_of_the_operating_system_is_drawn_by_the_shards_once_a_value() -> None:
    plan = noisy(mixed_plan(lane="count"))

    def make(*arguments: Any) -> ShardedEvaluator:
        return ShardedEvaluator(*arguments, open_grid=in_process(3))

    plain = twin_servers(plan, in_process(1))
    servers = tuple(Server(b, plan=plan, model=plain[b].model, evaluator=make) for b in (0, 1))
    rng = np.random.default_rng(0)
    updates, every = {i: random_update(plan, rng, rows=2) for i in range(4)}, []
    for number in range(6):
        opened, contributions = play_round((servers[0], servers[1]), number, updates)
        for name, total in plaintext.sums(plan, contributions).items():
            off = (opened.sums[name] - total).reshape(-1)
            # Two draws of sigma 50 each: none (0), one (50) and three (87) would show.
            assert np.abs(off).max() < 2**0.5 * 50 * 7
            assert np.count_nonzero(off) > off.size / 2  # one in 180 is zero by chance
            every.append(off)
    # Of 768 values the deviation itself has one of 1.8: six of them on both sides.
    assert np.concatenate(every).size == 768
    assert 60 < np.concatenate(every).std() < 82


def test_correlated_noise_is_that_of_one_process() -> None:
    plan = dataclasses.replace(
        noisy(mixed_plan(lane="count")), noise_taps=(64, 32, 8), min_separation=3, max_rounds=9
    )

    def make(*arguments: Any) -> ShardedEvaluator:
        return ShardedEvaluator(*arguments, open_grid=in_process(3))

    def rounds(evaluator: Any) -> list[Any]:
        words = [np.random.default_rng(party) for party in (0, 1)]
        plain, opened = twin_servers(plan, in_process(1)), []
        servers = tuple(
            Server(
                b, plan=plan, model=plain[b].model, evaluator=evaluator,
                draw_noise=lambda s, n, rng=words[b]: np.rint(rng.normal(0, s, n)).astype(np.int64),
            )
            for b in (0, 1)
        )  # fmt: skip
        rng = np.random.default_rng(0)
        for number in range(6):
            first = 3 * (number % 3)
            updates = {first + i: random_update(plan, rng, rows=2) for i in range(3)}
            opened.append(play_round((servers[0], servers[1]), number, updates)[0])
        return opened

    for ours, theirs in zip(rounds(make), rounds(LocalEvaluator), strict=True):
        for name, total in theirs.sums.items():
            assert np.array_equal(ours.sums[name], total)
            assert np.array_equal(ours.lanes.get(name), theirs.lanes.get(name))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 50])
def test_ranges_of_all_shards_are_the_segment_each_part_once(size: int) -> None:
    for make in PLANS.values():
        plan = make()
        all_of = [cuts_of(plan, i, size) for i in range(size)]
        for segment in plan.with_trees:
            cuts = [cuts[segment.name] for cuts in all_of]
            for part, total in (("bins", segment.num_bins), ("folded", segment.stash),
                                ("rows", segment.m)):  # fmt: skip
                assert [n for cut in cuts for n in getattr(cut, part)] == list(range(total))
            if segment.stash:
                assert [n for c in cuts for n in c.node_positions] == list(range(segment.m))
            found = np.zeros((segment.hashes, segment.m), dtype=int)
            for cut in cuts:
                for i, (rows, _) in enumerate(Places(plan, cut).within(range(segment.m))):
                    found[i, rows] += 1
            assert (found == (1 if segment.num_bins else 0)).all()
    with pytest.raises(ParameterError, match="expected a number from 0"):
        cuts_of(plan, size, size)


CALLS = ("add", "held", "fold", "put_rows", "answer", "partial", "finish", "checkpoint", "restore",
         "forget_rows", "end")  # fmt: skip


class Axe:
    """Ends a shard at the n-th call of a method, before or after it; once, or as often as told."""

    def __init__(self, method: str, when: str, nth: int, times: int = 1) -> None:
        self.at, self.left, self.times = (method, when), nth, times
        self.fell = 0

    def __call__(self, shard: int, method: str, when: str) -> bool:
        if (method, when) != self.at or self.fell >= self.times:
            return False
        self.left -= 1
        if self.left >= 0:
            return False
        self.fell += 1
        return True


@pytest.mark.parametrize(
    ("nth", "times"),
    [*itertools.product([0, 1, 5], [1, 2])] if IS_LONG else [(0, 1), (1, 2), (5, 1)],
)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", CALLS)
def test_a_shard_that_is_lost_anywhere_changes_nothing(
    method: str, when: str, nth: int, times: int
) -> None:
    grids: list[InProcessGrid] = []
    servers = twin_servers(shard_plan(), in_process(2, grids))
    axe = Axe(method, when, nth, times)
    other = Axe("partial", "before", 0)  # so that there is something to restore

    def fault(shard: int, called: str, moment: str) -> bool:
        return axe(shard, called, moment) | (method == "restore" and other(shard, called, moment))

    for server in servers:
        assert twins(server).sharded.shards.grid
    for one in grids:
        one.fault = fault
    play(servers, 2)
    assert axe.fell == times or method == "restore"


def test_shards_that_are_lost_again_and_again_open_nothing() -> None:
    grids: list[InProcessGrid] = []
    servers = twin_servers(shard_plan(), in_process(2, grids))
    play(servers, 1)
    for one in grids:
        one.fault = lambda shard, method, when: method == "partial" and when == "before"
    with pytest.raises(EngineLost, match="while the server added their sums"):
        play(servers, 1)
    assert issubclass(EngineLost, OSError)  # what ends the process, which then goes on from its log
    assert not issubclass(EngineLost, ConnectionError)


def test_a_result_kept_of_a_shard_that_ended_afterwards_is_not_taken_for_a_sum() -> None:
    """Every shard is emptied after the last `add` had its result."""
    grids: list[InProcessGrid] = []
    servers = twin_servers(shard_plan(), in_process(3, grids), checkpoint_windows=0)
    plan, rng = servers[0].plan, np.random.default_rng(3)
    updates = {i: random_update(plan, rng, rows=2) for i in range(6)}
    begin_round(servers, 0)
    for number, update in updates.items():
        client = Client(plan, InProcess(*servers), client_id=number)
        client.start_round(0, indices=wanted_rows(plan, update)).submit(update)
    for one in grids:
        for shard in range(3):
            assert one.shards[shard].held(0)
            one.kill(shard)
            assert not one.shards[shard].held(0)
    finish_round(servers)


def test_a_client_rejected_after_it_was_added_is_taken_out_at_the_shards() -> None:
    servers = twin_servers(shard_plan(), in_process(2))
    plan, rng = servers[0].plan, np.random.default_rng(3)
    updates = {i: random_update(plan, rng, rows=2) for i in range(4)}
    begin_round(servers, 0)
    for number, update in updates.items():
        client = Client(plan, InProcess(*servers), client_id=number)
        client.start_round(0, indices=wanted_rows(plan, update)).submit(update)
    again = Client(plan, InProcess(*servers), client_id=1)
    with pytest.raises(RejectedSubmission):
        again.start_round(0, indices=wanted_rows(plan, updates[1])).submit(updates[1])
    opened = finish_round(servers)
    assert opened.clients == (0, 2, 3)


def test_a_call_of_an_earlier_round_changes_nothing() -> None:
    plan = shard_plan()
    shard = Shard(plan, 0, 0, 1)
    packing = Packing(plan, cuts_of(plan, 0, 1))
    rows = np.ones((1, packing.row_bytes), dtype=np.uint8)
    shard.add(5, 0, False, rows)
    before = shard.checkpoint(5)
    shard.add(4, 1, False, rows)
    shard.put_rows(4, b"m", "table", 0, np.zeros((1, 12), dtype=np.uint8))
    shard.end(4)
    assert shard.held(4) == Windows()
    assert shard.held(5) == {0}
    assert shard.partial(4, Windows({0}), 1, 0, 0, 1) is None
    assert shard.checkpoint(4) is None
    after = shard.checkpoint(5)
    assert before is not None
    assert after is not None
    for name, arrays in before.arrays.items():
        for one, two in zip(arrays, after.arrays[name], strict=True):
            assert np.array_equal(one, two)
    assert shard.restore(6, before) == Windows()


def _reports() -> tuple[Plan, Server, bytes]:
    """A server that holds six complete reports, and its share of their sums in one piece."""
    plan = shard_plan()
    servers = twin_servers(plan, in_process(1))
    rng = np.random.default_rng(7)
    begin_round(servers, 0)
    for number in range(6):
        update = random_update(plan, rng, rows=2)
        client = Client(plan, InProcess(*servers), client_id=number)
        client.start_round(0, indices=wanted_rows(plan, update)).submit(update)
    reports = list(servers[1].reports.complete().values())
    return plan, servers[1], bytes(twins(servers[1]).local.share(reports))


PLAN, SERVER, SHARE = _reports()


def _whole(number: int) -> dict[str, SegmentWhole]:
    report = SERVER.reports.complete()[number]
    loaded, found = LoadedReport(1, report), {}
    for segment in PLAN.with_trees:
        part = loaded.contribution(segment)
        keys = part.key_tree, part.key_convert, report.context.trees.check_key(segment)
        found[segment.name] = SegmentWhole(keys, part.roots, part.trees, part.hints)
    return found


@settings(max_examples=30, deadline=None)
@given(data=st.data(), size=st.integers(1, 4), pieces=st.integers(1, 3))
def test_any_partition_order_and_duplicates_of_windows_give_the_same_bytes(
    data: st.DataObject, size: int, pieces: int
) -> None:
    order = data.draw(st.permutations(range(6)))
    ends = [*sorted(data.draw(st.sets(st.integers(1, 5)))), 6]
    windows = [order[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    shards = [Shard(PLAN, 1, i, size) for i in range(size)]
    for i, shard in enumerate(shards):
        packing = Packing(PLAN, cuts_of(PLAN, i, size))
        sent = data.draw(st.permutations([*range(len(windows))] * 2))
        for number in sent:
            rows = packing.pack([_whole(client) for client in windows[number]])
            shard.add(0, number, False, rows)
    held = Windows(range(len(windows)))
    finished = []
    for i in range(size):
        for piece in range(pieces):
            others = [shard.partial(0, held, 1, i, piece, pieces) for shard in shards]
            del others[i]
            finished.append(shards[i].finish(0, held, 1, False, piece, pieces, *others))
            assert shards[i].finish(0, held | {99}, 1, False, piece, pieces, *others) is None
        assert shards[i].partial(0, held | {99}, 1, i, 0, pieces) is None
    share = b"".join(
        part[segment.name].tobytes()
        for segment in PLAN.with_trees
        for part in finished
        if part is not None
    )
    assert share == SHARE[: len(share)]
    assert len(share) == sum(segment.m * PLAN.value_bytes(segment) for segment in PLAN.with_trees)


def test_exactness_holds_against_the_plaintext() -> None:
    plan = mixed_plan()
    servers = twin_servers(plan, in_process(2))
    rng = np.random.default_rng(1)
    opened, contributions = play_round(servers, 0, {i: random_update(plan, rng) for i in range(3)})
    # The twins' noise is injected, and this plan has none.
    assert_exact(plan, opened, contributions)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_shard_holds_its_part_of_sums_tables_and_places(size: int) -> None:
    """At most 1 / size, one tree of the bins and one subtree of each stash above it."""
    plan = rows_plan(1 << 14, 8, 64, 4)
    segment = plan.segments[0]

    def held(number: int, count: int) -> int:
        shard = Shard(plan, 0, number, count)
        rows = np.zeros((segment.m, segment.row_bytes), dtype=np.uint8)
        shard.put_rows(0, b"model", segment.name, 0, rows)
        packing = Packing(plan, cuts_of(plan, number, count))
        shard.add(0, 0, False, np.zeros((1, packing.row_bytes), dtype=np.uint8))
        arrays = [*shard._sums[segment.name].arrays, *shard._tables[segment.name]._tables]
        arrays += shard._tables[segment.name]._digests
        places = shard._places[segment.name]._tables
        return sum(a.nbytes for a in arrays) + sum(a.nbytes for pair in places for a in pair)

    whole = held(0, 1)
    each = [held(number, size) for number in range(size)]
    a_leaf = plan.value_bytes(segment) + segment.row_bytes + segment.tag_bytes
    a_tree = segment.groups[0].num_leaves * (a_leaf + 8)
    subtrees = max(cuts_of(plan, i, size)[segment.name].node_leaves for i in range(size)) * a_leaf
    assert max(each) <= whole / size + a_tree + subtrees
    assert sum(each) >= whole


def test_shards_that_start_early_are_there_when_they_are_asked_for() -> None:
    begun, go_on = threading.Event(), threading.Event()
    inner = in_process(2)

    def slow(plan: Plan, party: int) -> Grid:
        begun.set()
        assert go_on.wait(60)
        return inner(plan, party)

    shards = Shards(shard_plan(), 0, slow, early=True)
    assert begun.wait(60)
    shards.tell("end", 0)  # there are none to be told
    assert not shards.is_open
    go_on.set()
    assert shards.grid.size == 2
    assert shards.is_open


def test_shards_that_do_not_start_early_are_tried_again_when_they_are_asked_for() -> None:
    tries = []

    def failing(plan: Plan, party: int) -> Grid:
        tries.append(party)
        if len(tries) < 3:
            raise OSError("no room")
        return in_process(1)(plan, party)

    shards = Shards(shard_plan(), 1, failing, early=True)
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            assert shards.grid
    assert shards.grid.size == 1
    assert tries == [1, 1, 1]

"""Retrieval: a client reads exactly the rows of the servers, or notices."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.support.adversary import lie_in_answers
from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    open_wire,
    random_update,
    submit,
)
from torchfsl.crypto.aead import SEAL_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import psr
from torchfsl.fsl.dpf.trees import decode_groups
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import evaluation
from torchfsl.fsl.server.row_tables import RowTables
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Bytes


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("theta", "nu"), [(0, 0), (0, 2), (3, 0), (3, 1), (7, 3)])
def test_a_client_retrieves_exactly_the_rows_of_the_servers(
    theta: int, nu: int, dtype: str, secure: bool
) -> None:
    plan = make_plan(
        make_segment("t", "rows", (13, 3), (8, 3), k_max=5, tau=3, theta=theta, nu=nu, stash=1,
                     retrieve=True, dtype=dtype, secure=secure),
    )  # fmt: skip
    servers, wire = open_wire(plan)
    state = servers[0].model.state
    table = np.concatenate([state["t.0"], state["t.1"]])
    rng = np.random.default_rng(theta)
    for client_id, count in enumerate((0, 1, 5)):
        rows = np.sort(rng.choice(21, size=count, replace=False))
        session = Client(plan, wire, client_id=client_id).start_round(1, indices={"t": rows})
        found, values = session.retrieve()["t"]
        assert set(found.tolist()) <= set(rows.tolist())
        assert len(found) == count or theta > 3
        assert values.dtype == np.dtype(dtype)
        assert values.shape == (len(found), 3)
        assert values.tobytes() == table[found].tobytes()


def test_a_row_changed_on_the_servers_is_what_the_client_reads_next() -> None:
    plan = mixed_plan()
    servers = make_servers(plan)
    rows = np.array([2, 12, 13, 20])
    marker = np.array([1.5, -0.0, np.float32(1e-42)], dtype=np.float32)
    for round_number in (1, 2):
        begin_round(servers, round_number)
        wire = Wire(servers)
        session = Client(plan, wire, client_id=0).start_round(round_number, indices={"table": rows})
        found, values = session.retrieve()["table"]
        assert np.array_equal(found, rows)
        state = servers[0].model.state
        wanted = np.concatenate([state["table.0"], state["table.1"]])[rows]
        assert values.tobytes() == wanted.tobytes()
        assert (values[2].tobytes() == marker.tobytes()) == (round_number == 2)
        session.abort()
        submit(wire, 1, round_number, random_update(plan, np.random.default_rng(0)))
        finish_round(servers)
        for server in servers:
            server.model.state["table.1"][0] = marker  # row 13 of the index space


def test_an_update_applied_by_the_servers_is_read_by_the_next_clients() -> None:
    plan = make_plan(make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True))
    servers = make_servers(plan)
    before = servers[0].model.state["t.0"].copy()
    begin_round(servers, 1)
    update = {"t": SegmentUpdate(np.array([4, 9]), np.array([[1 << 16, 0], [0, -3 << 15]]))}
    submit(Wire(servers), 0, 1, update)
    finish_round(servers)
    begin_round(servers, 2)
    session = Client(plan, Wire(servers), client_id=7).start_round(2, indices={"t": [4, 5, 9]})
    _, values = session.retrieve()["t"]
    assert values[0, 0] == np.float32(np.float64(before[4, 0]) + 1.0)
    assert values[2, 1] == np.float32(np.float64(before[9, 1]) - 1.5)
    assert values[1].tobytes() == before[5].tobytes()


def test_tables_take_the_rows_of_the_next_version_and_keep_their_padding() -> None:
    segment = make_segment(
        "t", "rows", (20, 2), k_max=3, tau=2, theta=3, nu=3, stash=1, retrieve=True
    )
    plan = make_plan(segment)
    old, new = (
        np.random.default_rng(seed).integers(1, 256, (20, 8), dtype=np.uint8) for seed in (0, 1)
    )
    bins, fresh = psr.empty_bins(segment), psr.empty_bins(segment)
    psr.lay_out(plan, segment, old, bins)
    assert psr.holds(plan, segment, old, bins)
    assert not psr.holds(plan, segment, new, bins)
    apart = np.repeat(new, 2, axis=0)[::2]
    assert not apart.flags.c_contiguous
    psr.lay_out(plan, segment, apart, bins)
    psr.lay_out(plan, segment, new, fresh)
    assert [table.tobytes() for table in bins] == [table.tobytes() for table in fresh]
    assert psr.holds(plan, segment, new, bins)
    tables = psr.tables(segment, bins, new)
    rows = tables[0].reshape(-1, 8)
    permuted = cuckoo.permutations(bytes.fromhex(plan.hash_seed), "t", 20)
    for slots in cuckoo.bin_slots(permuted, 3, len(rows) // segment.num_bins):
        assert np.array_equal(rows[slots], new)
    assert np.count_nonzero(rows.any(axis=1)) == 3 * 20
    stash = tables[1].reshape(-1, 8)
    assert np.array_equal(stash[:20], new)
    assert len(stash) > 20
    assert not stash[20:].any()


def test_servers_with_other_rows_answer_with_their_own() -> None:
    plan = make_plan(make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True))
    models = [server.model for server in make_servers(plan)]
    first, second, third = (RowTables(plan) for _ in range(3))

    def table(reader: RowTables, model: ServerModel) -> Bytes:
        return reader.of(model, bytes(32))["t"][0][0]

    shared = table(first, models[0])
    assert table(second, models[1]) is shared
    before = shared.tobytes()
    models[0].state["t.0"][7, 1] += 1
    changed = table(third, models[0])
    assert changed is not shared
    assert changed.tobytes() != before == shared.tobytes()
    for reader in (first, second):
        reader.forget()
    assert table(first, models[0]) is changed
    assert table(second, models[1]).tobytes() == before
    assert table(first, models[0]).tobytes() == changed.tobytes() != before


def test_memory_got_beforehand_holds_the_tables_of_both_servers() -> None:
    plan = make_plan(make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True))
    models = [server.model for server in make_servers(plan)]
    plain = RowTables(plan).of(models[0], bytes(32))["t"][0][0].copy()
    plan = dataclasses.replace(plan, session=b"another".ljust(16).hex())
    first, second = (RowTables(plan) for _ in range(2))
    first.make_room()
    assert first._bins is not None
    second.make_room()
    assert second._bins is None, "one process has one copy"
    own = first._bins.tables["t"][0]
    for reader, model in ((second, models[1]), (first, models[0])):
        assert reader.of(model, bytes(32))["t"][0][0] is own
    assert np.array_equal(own, plain)


@pytest.mark.parametrize("nu", [0, 1])
def test_digests_are_shared_only_under_one_key_and_are_those_of_the_rows(nu: int) -> None:
    segment = make_segment(
        "t", "rows", (20, 2), k_max=3, tau=2, theta=3, nu=nu, stash=1, retrieve=True
    )
    segment = dataclasses.replace(segment, check_bytes=32, tag_bytes=16)
    plan = make_plan(segment)
    models = [server.model for server in make_servers(plan)]
    first, second, third = (RowTables(plan) for _ in range(3))
    digests = first.of(models[0], bytes(32))["t"][1]
    assert second.of(models[1], bytes(32))["t"][1] is digests
    tables, other = third.of(models[1], b"1" * 32)["t"]
    for table, own, others in zip(tables, digests, other, strict=True):
        assert own.shape == others.shape == (*table.shape[:2], 16)
        for key_of, found in ((bytes(32), own), (b"1" * 32, others)):
            key = psr.row_key(plan, segment, key_of)
            for place in np.ndindex(own.shape[:2]):
                block = hashlib.blake2s(table[place], digest_size=16, key=key)
                assert found[place].tobytes() == block.digest()


def test_a_late_answer_is_of_its_own_round(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True))
    servers = make_servers(plan)
    begin_round(servers, 1)
    Client(plan, Wire(servers), client_id=2).start_round(1, indices={"t": [4]})
    in_time = servers[0].reply(Kind.ANSWER, 1, 2)
    answers, inside, go = psr.answers, threading.Event(), threading.Event()

    def slow_answers(*arguments: Any) -> Any:
        inside.set()
        assert go.wait(10)
        return answers(*arguments)

    monkeypatch.setattr(psr, "answers", slow_answers)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(servers[0].reply, Kind.ANSWER, 1, 2)
        assert inside.wait(10)
        for server in servers:
            server.abandon_round()
            server.model.state["t.0"] += 1
        begin_round(servers, 2)
        Client(plan, Wire(servers), client_id=4).start_round(2, indices={"t": [4]})
        following = pool.submit(servers[0].reply, Kind.ANSWER, 2, 4)
        with pytest.raises(TimeoutError):
            following.result(0.2)
        go.set()
        assert late.result(10) == in_time
        assert following.result(10) == servers[0].reply(Kind.ANSWER, 2, 4)


def test_the_downloaded_model_is_that_of_the_servers() -> None:
    plan = mixed_plan()
    servers, wire = open_wire(plan)
    for client_id in (0, 1):
        session = Client(plan, wire, client_id=client_id).start_round(1, indices={"table": []})
        state = session.download()
        assert set(state) == {tensor.name for tensor in plan.clear_tensors}
        for name, tensor in state.items():
            assert tensor.tobytes() == servers[0].model.state[name].tobytes()
            assert tensor.shape == servers[0].model.state[name].shape


@pytest.mark.parametrize("party", [0, 1])
def test_a_changed_byte_in_an_answer_is_noticed_and_nothing_is_returned(party: int) -> None:
    plan = mixed_plan()
    size = plan.segments[0].answer_bytes
    row_block, tags = plan.segments[0].row_bytes, plan.segments[0].num_trees * 16
    places = [0, row_block - 1, row_block, size - tags - 1, size - tags, size - 1]
    for place, bit in itertools.product(places, (1, 128)):
        servers = make_servers(plan)
        begin_round(servers, 1)

        def alter(answer: bytearray, place: int = place, bit: int = bit) -> None:
            answer[place] ^= bit

        lie_in_answers(servers[party], 0, alter)
        session = Client(plan, servers, client_id=0).start_round(1, indices={"table": [0, 5, 20]})
        with pytest.raises(ProtocolError, match="does not match its tag"):
            session.retrieve()


@pytest.mark.parametrize("party", [0, 1])
def test_servers_that_name_different_rows_are_noticed_before_any_tag(party: int) -> None:
    plan = mixed_plan()
    for place in (1, 32):
        servers = make_servers(plan)
        begin_round(servers, 1)

        def alter(answer: bytearray, place: int = place) -> None:
            answer[-place] ^= 1

        lie_in_answers(servers[party], 0, alter)
        session = Client(plan, servers, client_id=0).start_round(1, indices={"table": [0, 5, 20]})
        with pytest.raises(ProtocolError, match="hold different models"):
            session.retrieve()


def test_the_key_of_row_digests_follows_from_all_rows_and_the_segment() -> None:
    plan = mixed_plan()
    first, other = plan.segments[0], dataclasses.replace(plan.segments[0], name="other")
    keys = {psr.row_key(plan, s, rows) for s in (first, other) for rows in (bytes(32), b"1" * 32)}
    assert len(keys) == 4
    assert psr.row_key(dataclasses.replace(plan, session="ab" * 16), first, bytes(32)) not in keys


@pytest.mark.parametrize("party", [0, 1])
def test_a_byte_changed_on_the_way_is_noticed_by_the_seal(party: int) -> None:
    plan = mixed_plan()
    size = plan.segments[0].answer_bytes + 32 + SEAL_BYTES
    for place in (0, 1, size - SEAL_BYTES - 1, size - SEAL_BYTES, size - 1):
        servers = make_servers(plan)
        begin_round(servers, 1)

        def alter(event: Any, place: int = place) -> bytes:
            data = bytearray(event.data)
            if event.kind is Kind.ANSWER and event.party == party:
                data[64 + place] ^= 1
            return bytes(data)

        client = Client(plan, Wire(servers, alter), client_id=0)
        session = client.start_round(1, indices={"table": [0, 5, 20]})
        with pytest.raises(ProtocolError, match="so its authentication fails"):
            session.retrieve()


def test_an_answer_for_another_round_or_from_the_other_server_is_refused() -> None:
    plan = mixed_plan()
    for place in (7, 8):  # party, round
        servers = make_servers(plan)
        begin_round(servers, 1)

        def alter(event: Any, place: int = place) -> bytes:
            data = bytearray(event.data)
            data[place] ^= 1 if event.is_reply else 0
            return bytes(data)

        session = Client(plan, Wire(servers, alter), client_id=0).start_round(
            1, indices={"table": []}
        )
        with pytest.raises(ProtocolError, match="another server or round"):
            session.retrieve()
        with pytest.raises(ProtocolError, match="another server or round"):
            session.download()


@pytest.mark.parametrize(
    ("num_trees", "num_slots", "row_bytes"), [(0, 2, 3), (5, 1, 8), (40, 8, 7)]
)
def test_the_row_in_a_slot_is_chosen(num_trees: int, num_slots: int, row_bytes: int) -> None:
    rng = np.random.default_rng(num_trees)
    blocks = rng.integers(0, 256, (num_trees, num_slots, row_bytes), dtype=np.uint8)
    slots = rng.integers(0, num_slots, num_trees, dtype=np.uint64)
    expected = blocks[np.arange(num_trees), slots.astype(np.int64)]
    np.testing.assert_array_equal(psr.choose_slots(blocks, slots), expected)


@pytest.mark.parametrize("tags", [True, False])
def test_answers_to_several_clients_are_those_to_each(tags: bool) -> None:
    plan = make_plan(
        make_segment("t", "rows", (60, 2), k_max=3, tau=2, theta=3, stash=1, retrieve=True,
                     secure=tags),
    )  # fmt: skip
    (segment,) = plan.retrieving
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (segment.m, segment.row_bytes), dtype=np.uint8)
    bins = psr.empty_bins(segment)
    psr.lay_out(plan, segment, rows, bins)
    tables = psr.tables(segment, bins, rows)
    digests = psr.digest_rows(plan, segment, psr.row_key(plan, segment, bytes(32)), rows, tables)
    questions = []
    for _ in range(3):
        size = sum(group.tree_bytes for group in segment.groups)
        trees = decode_groups(segment, memoryview(bytes(size)), 0)
        roots = rng.integers(0, 256, (segment.num_trees, 16), dtype=np.uint8)
        questions.append(psr.Question(rng.bytes(16), rng.bytes(16), roots, trees))
    together = psr.answers(segment, questions, tables, digests)
    for question, (found, own_tags) in zip(questions, together, strict=True):
        ((alone, alone_tags),) = psr.answers(segment, [question], tables, digests)
        np.testing.assert_array_equal(found, alone)
        np.testing.assert_array_equal(own_tags, alone_tags)
        assert own_tags.shape == (segment.num_trees, 16 * tags)


@pytest.mark.parametrize("epochs", [1, 2])
def test_those_who_wait_are_answered_together(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(
        make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True),
        max_clients=12, max_epochs=epochs,
    )  # fmt: skip
    servers = make_servers(plan)
    begin_round(servers, 1)
    for number in range(10):
        client = Client(plan, Wire(servers), client_id=number)
        if epochs > 1:
            client.open_session(indices={"t": [number]}).start_round(1)
        else:
            client.start_round(1, indices={"t": [number]})
    questions, one_by_one = [], psr.answers

    def counted(segment: Any, asked: Any, *rest: Any) -> Any:
        questions.append(len(asked))
        return one_by_one(segment, asked, *rest)

    monkeypatch.setattr(psr, "answers", counted)
    waiting = [*range(10), 11]  # those whose answer is on its way, too; the last has sent nothing
    together = [servers[0].reply(Kind.ANSWER, 1, client, waiting) for client in range(10)]
    assert questions == [evaluation.ANSWERS_TOGETHER, 10 - evaluation.ANSWERS_TOGETHER]
    alone = [servers[0].reply(Kind.ANSWER, 1, client, waiting) for client in range(10)]
    assert together == alone
    assert questions[2:] == [1] * 10  # asked again: nothing is made for those who were answered
    for server in servers:
        server.abandon_round()
        assert not server._evaluator._made


def test_an_answer_that_waits_for_its_client_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor dropped, where another client comes first who could not be answered before."""
    plan = make_plan(
        make_segment("t", "rows", (20, 2), k_max=3, tau=2, theta=3, retrieve=True), max_clients=12
    )
    servers = make_servers(plan)
    begin_round(servers, 1)
    made: list[int] = []
    answers = evaluation.LocalEvaluator._answers

    def counted(self: Any, reports: Any, model: Any) -> Any:
        made.extend(report.client for report in reports)
        return answers(self, reports, model)

    monkeypatch.setattr(evaluation.LocalEvaluator, "_answers", counted)
    for number in (0, 1):
        Client(plan, Wire(servers), client_id=number).start_round(1, indices={"t": [number]})
    servers[0].reply(Kind.ANSWER, 1, 0, [0, 1])
    Client(plan, Wire(servers), client_id=2).start_round(1, indices={"t": [2]})
    servers[0].reply(Kind.ANSWER, 1, 2, [0, 1, 2])
    servers[0].reply(Kind.ANSWER, 1, 1, [0, 1, 2])
    assert made == [0, 1, 2]

"""What the planner predicts is what a round measures: bytes, AES blocks, memory."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.federation import (
    Wire,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    mixed_rings,
    random_update,
    wanted_rows,
)
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import memory, predict
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.dpf import psr
from torchfsl.fsl.dpf.ssa import BinSums
from torchfsl.fsl.explain import explain
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import opening, sizes
from torchfsl.fsl.server.server import Server
from torchfsl.kernels.portable import checks as portable_checks
from torchfsl.kernels.portable import trees as portable_trees
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel

Bytes = npt.NDArray[np.uint8]


class Blocks:
    """Counts AES blocks of the portable kernels, for whoever is at work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = {"client": 0, "server": 0}
        self.at_work = "client"
        real = portable_trees.permute

        def counting(key: bytes, blocks: Bytes) -> Bytes:
            self.counts[self.at_work] += blocks.size // 16
            return real(key, blocks)

        monkeypatch.setenv("TORCHFSL_BACKEND", "portable")
        monkeypatch.setattr(portable_trees, "permute", counting)
        monkeypatch.setattr(portable_checks, "permute", counting)

    def server(self, call: Callable[[], Any]) -> Any:
        before, self.at_work = self.at_work, "server"
        try:
            return call()
        finally:
            self.at_work = before


class CountingWire(Wire):
    """A wire behind which servers work on their own account."""

    def __init__(self, servers: Any, blocks: Blocks) -> None:
        super().__init__(servers)
        self.blocks = blocks

    def send(self, party: int, message: bytes) -> None:
        self.blocks.server(lambda: Wire.send(self, party, message))

    def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
        return bytes(
            self.blocks.server(lambda: Wire.fetch(self, party, kind, round_number, client))
        )


def session_plan() -> Plan:
    return make_plan(
        make_segment("table", "rows", (40, 5), k_max=6, tau=5, theta=7, stash=1, retrieve=True),
        make_segment("few", "scalars", (30,), k_max=3, theta=5),
        make_segment("bias", "dense", (3,)),
        max_epochs=3,
    )


def built_plan(**options: Any) -> Plan:
    specs = [
        SegmentSpec("rows", "rows", (TensorSpec("e", (900, 9)),), k_max=70, tau=9, retrieve=True),
        SegmentSpec("scalars", "scalars", (TensorSpec("w", (3000,)),), k_max=65),
        SegmentSpec("blocks", "blocks", (TensorSpec("c", (37, 11)),), k_max=5, tau=8),
        SegmentSpec("dense", "dense", (TensorSpec("b", (12,)),)),
    ]
    return build_plan(specs, max_clients=3, min_clients=1, above_break_even="keep", **options)


def proven_plan(plan: Plan) -> Plan:
    """With a bound that random updates keep."""
    encoding = FixedPoint(32, 4, 4.0)
    return dataclasses.replace(plan, encoding=encoding, proofs="norm", l2_bound=4096)


PLANS: dict[str, Callable[[], Plan]] = {
    "mixed": mixed_plan,
    "mixed, semi-honest": lambda: mixed_plan(secure=False),
    "mixed, weighted": lambda: mixed_plan(lane="weight"),
    "mixed, rings of their own": lambda: mixed_rings(mixed_plan(lane="count")),
    "session": session_plan,
    "mixed, lanes proven": lambda: dataclasses.replace(mixed_plan(lane="count"), proofs="lanes"),
    "mixed, norm proven": lambda: proven_plan(mixed_plan(lane="count")),
    "session, norm proven": lambda: proven_plan(session_plan()),
    "dense only": lambda: make_plan(make_segment("bias", "dense", (5,))),
    "built, 32 bits": lambda: built_plan(encoding=FixedPoint(32, 16, 4.0)),
    "built, 128 bits": lambda: built_plan(encoding=FixedPoint(128, 16, 4.0)),
    "built, semi-honest": lambda: built_plan(
        encoding=FixedPoint(32, 16, 4.0), malicious_security=False
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_bytes_and_blocks_are_predicted_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS[name]()
    blocks = Blocks(monkeypatch)
    servers = make_servers(plan)
    predicted = predict(plan)
    rng = np.random.default_rng(0)
    sessions: dict[int, Any] = {}
    for round_number in range(2):
        later = round_number > 0 and plan.max_epochs > 1
        blocks.counts = {"client": 0, "server": 0}
        begin_round(servers, round_number)
        wire = CountingWire(servers, blocks)
        for number in (4, 7):
            update = random_update(plan, rng, rows=2)
            client = Client(plan, wire, client_id=number)
            if plan.max_epochs == 1:
                one = client.start_round(round_number, indices=wanted_rows(plan, update))
            else:
                if number not in sessions:
                    fixed = {s.name: np.arange(s.k_max) for s in plan.with_trees}
                    sessions[number] = client.open_session(indices=fixed)
                sessions[number]._client.servers = wire
                one = sessions[number].start_round(round_number)
                for segment in plan.with_trees:
                    part = update[segment.name]
                    update[segment.name] = dataclasses.replace(part, indices=np.arange(2))
            one.download()
            if plan.retrieving:
                one.retrieve()
            receipt = one.submit(update)
            upload = predicted.later_upload_bytes if later else predicted.upload_bytes
            assert receipt.upload_bytes == upload
            assert receipt.download_bytes == predicted.download_bytes
        blocks.server(lambda: finish_round(servers))
        each = predicted.later_server_aes_blocks if later else predicted.server_aes_blocks
        assert blocks.counts["server"] == 2 * 2 * each
        if not later:
            assert blocks.counts["client"] == 2 * predicted.client_aes_blocks


@pytest.mark.parametrize("name", PLANS)
def test_what_a_server_holds_is_predicted_exactly(name: str) -> None:
    plan = dataclasses.replace(PLANS[name](), max_clients=2)
    if plan.max_epochs > 1:
        pytest.skip("a session's trees outlive the round as copies of their own")
    servers, needs = make_servers(plan), memory(plan)
    begin_round(servers, 0)
    wire = Wire(servers)
    rng = np.random.default_rng(0)
    for number in (2, 6):  # even numbers: server 0 gets both public parts
        update = random_update(plan, rng, rows=2)
        client = Client(plan, wire, client_id=number)
        client.start_round(0, indices=wanted_rows(plan, update)).submit(update)
    held = {
        id(part.obj): memoryview(part.obj).nbytes
        for report in servers[0].reports.complete().values()
        for part in (report.public, report.trees.public, *report.masked)
        if isinstance(part, memoryview)
    }
    assert sum(held.values()) == needs.messages
    tables = 0
    for segment in plan.retrieving:
        rows = np.zeros((segment.m, segment.row_bytes), dtype=np.uint8)
        parts = psr.tables(segment, psr.empty_bins(segment), rows)
        tables += sum(part.nbytes for part in parts if not np.shares_memory(part, rows))
        tables += sum(
            part.nbytes for part in psr.digest_rows(plan, segment, bytes(16), rows, parts)
        )
    assert tables == needs.tables
    sums = [part for s in plan.with_trees for part in BinSums(plan, s, 0)._sums]
    assert sum(part.nbytes for part in sums) == needs.accumulators
    assert sum(3 * 4 * s.m for s in plan.with_trees if s.num_bins) == needs.permutations
    assert len(servers[0]._evaluator.share([])) == needs.share
    opened = finish_round(servers)
    values = [*opened.sums.values(), *opened.lanes.values()]
    weight = 8 * bool(plan.lane == "weight" and plan.dense)
    assert sum(part.nbytes for part in values) + weight == needs.opened
    assert predict(plan).server_memory_bytes == needs.most <= needs.most_of_both


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("retrieve", "counted", "tau"),
    [(False, False, 16), (True, False, 16), (False, True, 16), (False, True, 1)],
)
def test_a_round_takes_the_memory_that_is_announced(
    retrieve: bool, counted: bool, tau: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of both servers and their models in one process, within a tenth."""
    monkeypatch.setattr(opening, "_CHUNK", 1 << 12)  # what it takes is not announced
    if large:
        monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
        monkeypatch.setattr(sizes, "_LEAN_WINDOW", 4)
    monkeypatch.setattr(sizes, "WINDOW_REPORTS", 4)
    tensor = TensorSpec("t", (60_000, tau))
    segment = SegmentSpec("t", "rows", (tensor,), k_max=8, tau=tau, retrieve=retrieve)
    plan = build_plan([segment], max_clients=6, encoding=FixedPoint())
    if counted:
        plan = dataclasses.replace(plan, lane="count", min_contributors=2, min_clients=2)
    state = {"t": np.ones((60_000, tau), dtype=np.float32)}
    cuckoo.permutations.cache_clear()
    tracemalloc.start()
    try:
        servers = (
            Server(0, plan=plan, model=ServerModel(state)),
            Server(1, plan=plan, model=ServerModel(state)),
        )
        rng = np.random.default_rng(0)
        for number in range(3):
            begin_round(servers, number)
            for client in range(6):
                update = random_update(plan, rng, rows=8)
                one = Client(plan, Wire(servers), client_id=client)
                session = one.start_round(number, indices=wanted_rows(plan, update))
                if retrieve:
                    session.retrieve()
                session.submit(update)
            finish_round(servers)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    announced = 2 * state["t"].nbytes + memory(plan).most_of_both
    assert 0.9 * announced < most < 1.1 * announced


def test_explain_says_what_a_plan_costs() -> None:
    plan = mixed_plan()
    predicted, text = predict(plan), explain(plan)
    for number in (
        predicted.upload_bytes,
        predicted.download_bytes,
        predicted.server_aes_blocks,
        predicted.client_aes_blocks,
        predicted.server_memory_bytes,
    ):
        assert f"{number:,} " in text
    later = predict(session_plan())
    assert later.later_upload_bytes < later.upload_bytes
    assert f"{later.later_upload_bytes:,} " in explain(session_plan())
    assert "each client, per round: uploads" in text
    assert "each server, per round: computes" in text

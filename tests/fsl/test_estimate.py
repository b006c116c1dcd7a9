"""What a round will take: counts are those of real messages, limits are refused, not allocated."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest

from tests.fsl.test_proofs import small
from tests.support.audited import audited
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ParameterError
from torchfsl.fsl.audit.transcript import transcript_bytes
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import memory, predict
from torchfsl.fsl.estimates import measuring
from torchfsl.fsl.estimates.estimate import estimate, traffic
from torchfsl.fsl.estimates.measuring import (
    Rates,
    measured_rates,
    num_trees,
    rows_plan,
    spent_in_round,
)
from torchfsl.fsl.messages import HEADER_BYTES
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.plan.statement import Proofs
from torchfsl.fsl.round import begin_round
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES
from torchfsl.fsl.transport import InProcess
from torchfsl.submodel.segments import MAX_POSITIONS, SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import SegmentUpdate

RATES = Rates(0.003, 1e-6, 0.004, 2e-6, 7e8, 5e7, 0.001, 4e-7, 0.002, 7e-8)
LARGEST = 1 << 31


class Counting:
    """A server's door; what passes it."""

    def __init__(self, server: Server) -> None:
        self.server, self.received, self.sent = server, 0, 0

    def receive(self, message: bytes) -> Any:
        self.received += len(message)
        return self.server.receive(message)

    def relay(self, *what: Any) -> bytes:
        message = self.server.relay(*what)
        self.sent += len(message)
        return message

    def reply(self, *what: Any) -> bytes:
        message = self.server.reply(*what)
        self.sent += len(message)
        return message


@pytest.mark.parametrize("proofs", ["none", "norm"])
@pytest.mark.parametrize("retrieve", [True, False])
def test_traffic_is_what_passes_the_doors_in_a_round(retrieve: bool, proofs: Proofs) -> None:
    spec = SegmentSpec("t", "rows", (TensorSpec("t", (300, 2)),), 9, 2, retrieve=retrieve)
    plan = build_plan(
        [spec], encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=4.0), max_clients=6,
        above_break_even="keep", l2_bound=1 << 16, proofs=proofs,
    )  # fmt: skip
    state = {"t": np.zeros((300, 2), np.float32)}
    servers = tuple(Server(p, plan=plan, model=ServerModel(state)) for p in (0, 1))
    begin_round((servers[0], servers[1]), 0)
    doors = Counting(servers[0]), Counting(servers[1])
    rows = np.arange(9, dtype=np.int64)
    for client in range(6):
        indices = {"t": rows} if retrieve else {}
        mine = Client(plan, InProcess(*doors), client_id=client).start_round(0, indices=indices)
        mine.download()
        if retrieve:
            mine.retrieve()
        mine.submit({"t": SegmentUpdate(rows, np.ones((9, 2), np.int64))})
    lists = [server.close_round() for server in servers]
    verdicts = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    opening = predict(plan).opening_bytes
    opening += len(lists[0]) + len(verdicts[0]) - 2 * HEADER_BYTES - DIGEST_BYTES
    counted = [sum(getattr(door, name) for door in doors) for name in ("received", "sent")]
    assert traffic(plan, 6) == tuple((both + 2 * opening) // 2 for both in counted)


def test_seconds_are_counts_over_rates_and_machines_are_as_many_as_the_slower_part_wants() -> None:
    plan = rows_plan(4000, 8, 32, 100)
    cost = predict(plan)
    found = estimate(plan, clients=50, cores=2, bandwidth=1.0, rates=RATES)
    share = 4000 * 8 * 8
    trees = num_trees(plan) * 2e-6
    seconds = 50 * (0.004 + trees + cost.server_aes_blocks / 7e8) + share / 5e7
    assert found.server_core_hours == pytest.approx(seconds / 3600)
    assert found.compute_seconds == pytest.approx(seconds / 2)
    assert found.machines == 1
    assert found.network_seconds == max(found.received_bytes, found.sent_bytes) / 125e6
    assert estimate(plan, cores=1, within=0.05, rates=RATES).machines == -int(
        -(RATES.server(plan, 100) / 0.05) // 1
    )
    slow = estimate(plan, cores=10**6, bandwidth=1e-6, within=100.0, rates=RATES)
    assert slow.machines == -int(-slow.network_seconds // 100)
    assert found.upload_bytes == cost.upload_bytes
    priced = estimate(plan, clients=50, rates=RATES, prices=(3600.0, 1e9))
    assert priced.cost == pytest.approx(2 * (seconds + priced.sent_bytes))
    assert found.cost is None
    assert "50 clients" in str(found)
    assert "rough cost" in str(priced)


def test_an_audit_takes_disk_of_the_auditor_and_other_plans_take_none() -> None:
    noisy = dataclasses.replace(RATES, noise_seconds=1e-6)
    plan = small(proofs="norm", l2_bound=400, noise_sigma=70, lane_sigma=3)
    assert estimate(plan, rates=noisy).auditor_bytes == 0
    assert "auditor" not in str(estimate(plan, rates=noisy))
    found = estimate(audited(plan), clients=2, rates=noisy)
    assert found.auditor_bytes == transcript_bytes(audited(plan), 2)
    assert "the auditor of each server needs" in str(found)
    band = dataclasses.replace(plan, noise_taps=(16, 8, 6), min_separation=3, max_rounds=3)
    ring = estimate(audited(band), clients=2, rates=noisy)
    assert ring.auditor_bytes == transcript_bytes(audited(band), 2) + 2 * ring.noise_bytes


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"clients": 101}, {"cores": 0}, {"bandwidth": -1.0}, {"within": 0.0},
              {"bandwidth": float("nan")}],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        estimate(rows_plan(4000, 8, 32, 100), rates=RATES, **wrong)


@pytest.mark.parametrize("prices", [0.05, (0.05,), "ab", (0.05, -1), (0.05, float("nan"))])
def test_prices_are_two_numbers(prices: Any) -> None:
    with pytest.raises(ParameterError, match=r"prices is .*: pass two numbers of 0"):
        estimate(rows_plan(5000, 8, 32, 40), prices=prices)


def test_proofs_take_seconds_by_their_values_and_rates_without_them_are_refused() -> None:
    proven = rows_plan(4000, 8, 32, 100, 32, l2_bound=1 << 16)
    plain = dataclasses.replace(proven, proofs="none")
    assert proven.statement is not None
    values = proven.statement.num_values
    more = predict(proven).server_aes_blocks - predict(plain).server_aes_blocks
    client = RATES.client(proven) - RATES.client(plain)
    assert client == pytest.approx(0.001 + 4e-7 * values)
    each = 0.002 + 7e-8 * values + more / 7e8
    assert RATES.server(proven, 9) - RATES.server(plain, 9) == pytest.approx(9 * each)
    old = Rates(0.003, 1e-6, 0.004, 2e-6, 7e8, 5e7)
    assert estimate(plain, rates=old).clients == 100
    with pytest.raises(ParameterError, match="without proofs"):
        estimate(proven, rates=old)


def test_memory_is_that_of_as_many_proofs_as_there_are_cores() -> None:
    plan = rows_plan(4000, 8, 32, 100, 32, l2_bound=1 << 16)
    one, four, all_of_them = (memory(plan, cores=cores) for cores in (1, 4, None))
    assert (one.together, four.together, all_of_them.together) == (1, 4, 100)
    assert four.proofs == 4 * one.proofs
    told = [estimate(plan, rates=RATES, cores=n).memory_bytes for n in (1, 64, 100, 1000)]
    assert told == sorted(told)
    assert told[0] < told[1] < told[2] == told[3]


def test_rates_that_are_none_are_refused() -> None:
    with pytest.raises(ParameterError, match="server_blocks"):
        dataclasses.replace(RATES, server_blocks=0.0)
    with pytest.raises(ParameterError, match="client_seconds"):
        dataclasses.replace(RATES, client_seconds=float("inf"))


def test_rates_are_those_by_which_the_rounds_took_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def client(plan: Plan, clients: int, repeat: int) -> float:
        return RATES.client(plan)

    def server(plan: Plan, clients: int, repeat: int) -> float:
        return RATES.server(plan, clients)

    monkeypatch.setattr(measuring, "client_seconds", client)
    monkeypatch.setattr(measuring, "server_seconds", server)
    monkeypatch.setattr(measuring, "noise_rates", lambda: (0.0, 0.0))
    found = dataclasses.asdict(measured_rates())
    assert found == pytest.approx(dataclasses.asdict(RATES), rel=1e-3)


def test_a_round_is_run_to_measure_it() -> None:
    spent = spent_in_round(rows_plan(256, 2, 4, 2), 2, repeat=1)
    assert spent.server > 0
    assert spent.client > 0


# --- limits at 2^31 rows, of which nothing is allocated ---


def test_a_plan_of_the_largest_table_and_its_estimate_take_no_memory() -> None:
    """The largest of which one message holds the shares: almost 2^30 rows of a 32-bit value."""
    rows = (1 << 30) - 256
    spec = SegmentSpec("t", "rows", (TensorSpec("t", (rows, 1)),), 256, 1, retrieve=True)
    tracemalloc.start()
    plan = build_plan(
        [spec], encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=1.0), max_clients=1000
    )
    found = estimate(plan, rates=RATES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(plan.to_json()) < 4096
    assert Plan.from_json(plan.to_json()) == plan
    assert found.memory_bytes > 3 * 4 * rows


@pytest.mark.parametrize(("width", "bits"), [(1, 32), (8, 32), (8, 64)])
def test_the_share_of_a_longer_table_is_refused_with_the_remedy(width: int, bits: int) -> None:
    most = MAX_MESSAGE_BYTES // (width * bits // 8)
    encoding = FixedPoint(ring_bits=bits, frac_bits=16, clip=1.0)
    for rows, fits in ((most - 256, True), (most, False), (LARGEST, False)):
        spec = SegmentSpec("t", "rows", (TensorSpec("t", (rows, width)),), 64, width)
        if fits:
            assert build_plan([spec], encoding=encoding, max_clients=100).segments[0].m == rows
        else:
            with pytest.raises(ParameterError, match="split"):
                build_plan([spec], encoding=encoding, max_clients=100)


def test_slots_beyond_32_bits_are_refused_with_the_remedy() -> None:
    tensor = TensorSpec("t", (LARGEST, 1))
    theta = 1 << 20
    with pytest.raises(
        ParameterError, match=f"more than {MAX_POSITIONS} rows, the limit: split the table"
    ):
        TreeSegment("t", "rows", (tensor,), LARGEST, 1, 64, num_bins=3 * (LARGEST // theta),
                    theta=theta, check_bytes=32)  # fmt: skip


def test_a_segment_of_more_positions_than_a_slot_number_holds_is_refused() -> None:
    tensor = TensorSpec("t", (MAX_POSITIONS + 1, 1))
    with pytest.raises(ParameterError, match=f"choose 1 to {MAX_POSITIONS} positions"):
        TreeSegment("t", "rows", (tensor,), MAX_POSITIONS + 1, 1, 64, stash=64)


def test_sums_of_a_million_clients_need_the_64_bit_ring() -> None:
    spec = [SegmentSpec("t", "rows", (TensorSpec("t", (1 << 20, 8)),), 256, 8)]
    with pytest.raises(ParameterError):
        build_plan(spec, encoding=FixedPoint(ring_bits=32, frac_bits=16, clip=4.0),
                   max_clients=10**6)  # fmt: skip
    assert rows_plan(1 << 20, 8, 256, 10**6).max_clients == 10**6

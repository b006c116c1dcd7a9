"""Segments with encodings of their own: exact in every ring, fewer bytes, and nothing can wrap."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from tests.support.federation import (
    Wire,
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    make_state,
    mixed_plan,
    mixed_rings,
    play_round,
    random_update,
    submit,
)
from tests.support.reference import plaintext
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl import messages
from torchfsl.fsl.costs import client_bytes
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.noise import add_noise
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server import sizes
from torchfsl.fsl.server.opening import decode_shares
from torchfsl.kernels import ring
from torchfsl.submodel.plain import Plain
from torchfsl.submodel.plan import Lane
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerAdam
from torchfsl.submodel.update import RawSegment, SegmentUpdate, check_update, quantise

CLIENTS = 4
SIXTEEN = FixedPoint(16, 8, 16.0)


def two_segments(**options: Any) -> Plan:
    """Three rows of two values and four dense values, the latter in 16 bits."""
    rest = dataclasses.replace(make_segment("d", "dense", (4,)), encoding=SIXTEEN)
    return make_plan(make_segment("t", "rows", (3, 2), k_max=2, tau=2), rest, **options)


# --- exact in every ring ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_sums_are_exact_at_full_clip_in_every_ring(
    lane: Lane, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHFSL_BACKEND", backend)
    plan = mixed_rings(mixed_plan(lane=lane))
    assert plan.rings == {16, 24, 32, 64}
    servers, rng = make_servers(plan), np.random.default_rng(1)
    for number in range(2):
        updates = {c: random_update(plan, rng, rows=3, largest=True) for c in range(CLIENTS)}
        weights = {c: c + 2 for c in range(CLIENTS)} if lane == "weight" else None
        opened, contributions = play_round(servers, number, updates, weights)
        assert_exact(plan, opened, contributions)
        assert not opened.zeroed
    assert servers[0].model.digest() == servers[1].model.digest()


def test_both_backends_open_the_same_and_so_do_sums_in_index_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = mixed_rings(mixed_plan())
    rng = np.random.default_rng(5)
    updates = {c: random_update(plan, rng, rows=3) for c in range(CLIENTS)}
    found = set()
    for backend, kept in (("native", True), ("portable", True), ("native", False)):
        monkeypatch.setenv("TORCHFSL_BACKEND", backend)
        if not kept:
            monkeypatch.setattr(sizes, "KEPT_BYTES", 0)
            monkeypatch.setattr(sizes, "_LEAN_WINDOW", 1)
        servers = make_servers(plan)
        play_round(servers, 0, updates)
        found.add(servers[0].model.digest())
    assert len(found) == 1


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_model_is_that_of_a_sum_in_the_clear_bit_for_bit(rounding: Any) -> None:
    encoding = FixedPoint(rounding=rounding)
    plan = mixed_rings(make_plan(*mixed_plan().segments, encoding=encoding))
    servers = make_servers(plan, optimizer=lambda: ServerAdam(0.1))
    plain = Plain(plan, ServerModel(make_state(plan), ServerAdam(0.1)))
    rng = np.random.default_rng(2)
    for number in range(2):
        begin_round(servers, number)
        plain.open_round(number, range(CLIENTS))
        for client in range(CLIENTS):
            raw = {}
            for s in plan.segments:
                rows = None if s.is_dense else np.arange(s.k_max)
                count = s.m if rows is None else len(rows)
                raw[s.name] = RawSegment(rows, rng.normal(size=(count, s.tau)))
            seed = bytes([client] * 16) if rounding == "stochastic" else None
            update, errors, report = quantise(plan, raw, rounding_seed=seed)
            for s in plan.segments:
                unit = 2.0 ** -plan.encoding_of(s).frac_bits
                sent = update[s.name].values * unit
                assert np.array_equal(raw[s.name].values, sent + errors[s.name])
            assert report.num_values == sum(part.values.size for part in raw.values())
            receipt = submit(Wire(servers), client, number, update)
            assert not any(map(len, receipt.unmatched.values()))
            wanted = {s.name: update[s.name].positions for s in plan.segments if s.retrieve}
            plain.participant(client).start_round(number, indices=wanted).submit(update)
        opened, closed = finish_round(servers), plain.close_round()
        for name, total in closed.opened.sums.items():
            assert np.array_equal(opened.sums[name], total)
        assert servers[0].model.digest() == servers[1].model.digest() == plain.model.digest()


def test_counts_that_are_opened_first_are_read_in_each_ring() -> None:
    plan = dataclasses.replace(mixed_rings(mixed_plan(lane="count")), min_contributors=2)
    servers, rng = make_servers(plan), np.random.default_rng(3)
    withheld = 0
    for number in range(4):
        begin_round(servers, number)
        made = []
        for client in range(CLIENTS):
            update = random_update(plan, rng, rows=4)
            receipt = submit(Wire(servers), client, number, update)
            missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
            made.append(plaintext.Contribution(update, 1, missing))
        opened = finish_round(servers)
        sums, counts = plaintext.sums(plan, made), plaintext.lanes(plan, made)
        for name, count in counts.items():
            sums[name][count < 2] = 0
            withheld += int(np.count_nonzero(count == 1))
            assert np.array_equal(opened.lanes[name], count)
        assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
    assert withheld > 0


def test_noise_is_added_in_each_ring() -> None:
    plan = mixed_rings(mixed_plan(lane="count"), noise=1000, frac_bits=16)
    plan = dataclasses.replace(plan, l2_bound=1 << 50, noise_sigma=50, lane_sigma=5)
    for segment in plan.segments:
        count = plan.sum_values(segment)
        share = np.zeros((count, plan.ring_bytes(segment)), dtype=np.uint8)
        noisy = add_noise(plan, segment, share, lambda sigma, n: np.full(n, -sigma))
        assert set(ring.to_int64(noisy).tolist()) <= {-50, -5}
    servers, rng = make_servers(plan), np.random.default_rng(4)
    updates = {c: random_update(plan, rng, rows=2, largest=True) for c in range(CLIENTS)}
    opened, contributions = play_round(servers, 0, updates)
    for name, total in plaintext.sums(plan, contributions).items():
        off = np.abs(opened.sums[name] - total)
        assert 0 < off.max() < 50 * 2**0.5 * 6, name


# --- what is beyond, and what is said of it -----------------------------------------------------


def test_a_value_is_clipped_counted_and_owed_in_its_segments_encoding() -> None:
    plan = two_segments()
    raw = {
        "t": RawSegment(np.array([0]), np.array([[3.0, 2.0**-16]])),
        "d": RawSegment(None, np.array([[17.0], [-20.0], [2.0**-10], [1.0]])),
    }
    update, errors, report = quantise(plan, raw)
    assert update["t"].values.tolist() == [[3 << 16, 1]]
    assert update["d"].values[:, 0].tolist() == [16 << 8, -16 << 8, 0, 1 << 8]
    assert errors["d"][:, 0].tolist() == [1.0, -4.0, 2.0**-10, 0.0]
    assert (report.num_values, report.num_clipped, report.largest) == (6, 2, 20.0)


def test_an_update_beyond_its_segments_limit_is_refused() -> None:
    plan = two_segments()
    values = np.full((4, 1), SIXTEEN.q_max, dtype=np.int64)
    nothing = SegmentUpdate(np.empty(0, np.int64), np.empty((0, 2), np.int64))
    check_update(plan, {"t": nothing, "d": SegmentUpdate(None, values)})
    with pytest.raises(ParameterError, match=f"segment 'd': a value exceeds q_max = {16 << 8}"):
        check_update(plan, {"t": nothing, "d": SegmentUpdate(None, values + 1)})


@pytest.mark.parametrize("lane", ["none", "count"])
def test_what_no_honest_sum_reaches_is_zeroed_by_each_segments_limit(lane: Lane) -> None:
    plan = two_segments(lane=lane, max_clients=7)
    lanes, q = plan.lane_values, SIXTEEN.q_max
    table = np.array([[2] * lanes + [2 * plan.encoding.q_max, 2 * q + 1]] * 3, dtype=np.int64)
    dense = np.array([2 * q, 2 * q + 1, -2 * q, -2 * q - 1], dtype=np.int64)
    flat = [ring.from_int64(table.reshape(-1), 32), ring.from_int64(dense, 16)]
    zeros = b"".join(bytes(part.size) for part in flat)
    opened = decode_shares(plan, b"".join(part.tobytes() for part in flat), zeros, (1, 2))
    assert opened.sums["t"][0].tolist() == [2 * plan.encoding.q_max, 2 * q + 1]
    assert opened.sums["d"][:, 0].tolist() == [2 * q, 0, -2 * q, 0]
    assert opened.zeroed == {"d": 2}


# --- bytes --------------------------------------------------------------------------------------


def test_a_dense_value_and_a_row_cost_their_own_ring_and_trees_stay() -> None:
    table, rest = TensorSpec("e.weight", (5000, 18)), TensorSpec("w", (2000,))

    def plan(rows: FixedPoint | None, others: FixedPoint | None) -> Plan:
        specs = [
            SegmentSpec("rows18", "rows", (table,), 70, 18, True, encoding=rows),
            SegmentSpec("rest", "dense", (rest,), encoding=others),
        ]
        return build_plan(specs, encoding=FixedPoint(), max_clients=3)

    wide, dense = plan(None, None), plan(None, SIXTEEN)
    assert client_bytes(wide) - client_bytes(dense) == 2 * 2000
    both = plan(FixedPoint(24, 8, 16.0), SIXTEEN)
    trees = wide.segments[0].num_trees
    assert both.segments[0].num_trees == trees
    assert client_bytes(dense) - client_bytes(both) == 18 * trees
    assert messages.max_bytes(wide, Kind.TREES) == messages.max_bytes(both, Kind.TREES)
    assert plan(FixedPoint(), FixedPoint()).segments == wide.segments, "the plan's own is no other"


# --- the plan -----------------------------------------------------------------------------------


def test_a_plan_without_them_has_the_bytes_that_it_had_and_null_is_not_canonical() -> None:
    plan = two_segments()
    fields = json.loads(plan.to_json())
    assert ["encoding" in segment for segment in fields["segments"]] == [False, True]
    assert Plan.from_json(plan.to_json()) == plan
    assert dataclasses.replace(plan, segments=(plan.segments[0],)).digest != plan.digest
    fields["segments"][0]["encoding"] = None
    for bad in (fields, {**fields, "segments": [{**fields["segments"][1], "encoding": {}}]}):
        with pytest.raises(DecodeError):
            Plan.from_json(json.dumps(bad, sort_keys=True, separators=(",", ":")))


def test_an_encoding_that_could_wrap_is_refused_wherever_it_stands() -> None:
    assert two_segments(max_clients=7).max_clients == 7
    with pytest.raises(ParameterError, match=r"8 clients .* above the 16-bit ring's limit"):
        two_segments(max_clients=8)
    plan = two_segments(encoding=FixedPoint(32, 8, 4.0))
    with pytest.raises(ParameterError, match="noise would overflow the ring's limit 32767"):
        dataclasses.replace(plan, l2_bound=100, noise_sigma=2000)
    # The plan's own encoding may be one that no segment has and that has no room.
    (_, rest) = plan.segments
    make_plan(rest, encoding=FixedPoint(16, 8, 100.0))


def test_segments_round_alike_and_share_a_unit_under_a_norm_bound() -> None:
    plan = two_segments()
    (table, rest) = plan.segments
    odd = dataclasses.replace(rest, encoding=dataclasses.replace(SIXTEEN, rounding="stochastic"))
    with pytest.raises(ParameterError, match="choose one rounding for all segments"):
        make_plan(table, odd)
    with pytest.raises(ParameterError, match="under l2_bound all must be equal"):
        dataclasses.replace(plan, l2_bound=1000)
    bounded = two_segments(encoding=FixedPoint(32, 8, 4.0))
    bounded = dataclasses.replace(bounded, l2_bound=1000)
    raw = {
        "t": RawSegment(np.array([1]), np.array([[9.0, 1.0]])),
        "d": RawSegment(None, np.array([[30.0], [2.0], [0.0], [0.0]])),
    }
    update, _, report = quantise(bounded, raw)
    check_update(bounded, update)
    assert report.num_clipped == 2
    ratio = update["d"].values[0, 0] / update["t"].values[0, 0]
    assert ratio == pytest.approx(4.0, rel=0.02), "both were clipped, then scaled together"


def test_proofs_and_masks_want_one_ring() -> None:
    plan = two_segments(lane="count")
    with pytest.raises(ParameterError, match="proofs need one ring for all segments"):
        dataclasses.replace(plan, proofs="lanes")
    specs = [
        SegmentSpec("few", "scalars", (TensorSpec("f", (500,)),), 2),
        SegmentSpec("d", "dense", (TensorSpec("w", (4,)),), encoding=SIXTEEN),
    ]
    with pytest.raises(ParameterError, match=r"proofs need one ring .* or pass proofs='none'"):
        build_plan(specs, encoding=FixedPoint(), max_clients=3, lane="count")
    build_plan(specs, encoding=FixedPoint(), max_clients=3, lane="count", proofs="none")
    few = dataclasses.replace(make_segment("few", "scalars", (9,), k_max=2), encoding=SIXTEEN)
    narrow = make_plan(few, encoding=FixedPoint(64, 0, 1.0))
    with pytest.raises(ParameterError, match="payload='masks' needs a 64-bit ring"):
        dataclasses.replace(narrow, payload="masks")


def test_a_filled_ring_has_room_for_all_and_for_no_more() -> None:
    for bits in (16, 24, 32, 64):
        for clients, weight, noise in ((100, 1, 0), (7, 5, 300), (2, 1, 1)):
            encoding = FixedPoint.filling(
                bits, 5, max_clients=clients, max_weight=weight, noise=noise
            )
            encoding.check_headroom(clients, weight)
            worst = clients * weight * encoding.q_max + noise
            assert worst <= encoding.capacity
            if bits < 64:
                assert worst + clients * weight > encoding.capacity
    assert FixedPoint.filling(16, 8, max_clients=100) == FixedPoint(16, 8, 327 / 256)
    with pytest.raises(ParameterError, match="too small for 40000 clients"):
        FixedPoint.filling(16, 8, max_clients=40_000)


def test_the_finest_encoding_keeps_the_clip_and_one_bit_more_would_not() -> None:
    for bits, clip, clients, noise in ((16, 0.25, 100, 0), (16, 1.0, 100, 40), (24, 3.3, 7, 0)):
        encoding = FixedPoint.finest(bits, clip, max_clients=clients, noise=noise)
        assert clip <= encoding.clip <= 2.1 * clip
        finer = FixedPoint.filling(bits, encoding.frac_bits + 1, max_clients=clients, noise=noise)
        assert finer.clip < clip
    assert FixedPoint.finest(16, 0.25, max_clients=100) == FixedPoint(16, 10, 327 / 1024)
    with pytest.raises(ParameterError, match=r"too small for values up to 400.0 from 100 clients"):
        FixedPoint.finest(16, 400.0, max_clients=100)
    with pytest.raises(ParameterError, match="choose a number above 0"):
        FixedPoint.finest(16, 0.0, max_clients=100)

"""Private set union by masks, and rounds on the restricted plans that it leads to."""

from __future__ import annotations

import dataclasses
import json
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
    play_round,
    random_update,
    submit,
    wanted_rows,
)
from tests.support.reference import plaintext
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl import union as psu
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import HEADER_BYTES
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import build_plan
from torchfsl.fsl.round import begin_round, finish_round, run_round
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.segments import SegmentSpec, TensorSpec
from torchfsl.submodel.update import SegmentUpdate, Update

Indices = npt.NDArray[np.int64]
INSTANCES = 1000


def union_servers(plan: Plan) -> tuple[Server, Server]:
    return (
        Server(0, plan=plan, model=psu.union_model(plan)),
        Server(1, plan=plan, model=psu.union_model(plan)),
    )


def random_rows(m: int, k_max: int, rng: np.random.Generator) -> Indices:
    count = int(rng.integers(k_max + 1))
    return np.sort(rng.choice(m, size=count, replace=False)).astype(np.int64)


def rows_by_client(
    plan: Plan, rng: np.random.Generator, clients: int
) -> dict[int, dict[str, Indices]]:
    return {
        client: {s.name: random_rows(s.index_space, s.k_max, rng) for s in plan.segments}
        for client in range(clients)
    }


def expected_union(rows: dict[int, dict[str, Indices]], name: str) -> list[int]:
    return sorted({int(row) for chosen in rows.values() for row in chosen[name]})


def open_union(plan: Plan, rows: dict[int, dict[str, Indices]]) -> dict[str, Indices]:
    updates = {client: psu.mask_update(plan, chosen) for client, chosen in rows.items()}
    return psu.union_of(run_round(union_servers(plan), updates, round_number=0))


# --- the union itself -------------------------------------------------------------------------


def test_masks_give_exactly_the_union_in_random_instances() -> None:
    rng = np.random.default_rng(0)
    each = 50
    for number in range(INSTANCES // each):
        secure = number % 5 == 0
        segments = []
        for i in range(each):
            m = int(rng.integers(1, 25))
            k_max = int(rng.integers(1, min(m, 3) + 1))
            theta = int(rng.integers(0, m + 1))
            segments.append(
                make_segment(
                    f"s{i}", "rows", (m, 2), k_max=k_max, tau=2, theta=theta, stash=k_max,
                    secure=secure,
                )
            )  # fmt: skip
        union = psu.plan_union(make_plan(*segments), [s.name for s in segments])
        rows = rows_by_client(union, rng, int(rng.integers(2, 4)))
        found = open_union(union, rows)
        for segment in segments:
            assert found[segment.name].tolist() == expected_union(rows, segment.name)


def test_a_large_union_through_bins_is_exact() -> None:
    plan = make_plan(make_segment("items", "rows", (5000, 1), k_max=200, theta=60, stash=1))
    union = psu.plan_union(plan, ["items"])
    assert union.segments[0].mechanism == "dpf"
    rows = rows_by_client(union, np.random.default_rng(1), 3)
    assert open_union(union, rows)["items"].tolist() == expected_union(rows, "items")


def test_many_positions_get_masks_of_128_bits() -> None:
    small = psu.plan_union(huge_plan(1 << 24), ["items"]).segments[0]
    large = psu.plan_union(huge_plan((1 << 24) + 1), ["items"]).segments[0]
    assert (small.tau, large.tau) == (1, 2)


def huge_plan(m: int) -> Plan:
    return build_plan(
        [SegmentSpec("items", "scalars", (TensorSpec("t", (m,)),), k_max=100)],
        encoding=FixedPoint(),
        max_clients=4,
    )


def test_a_mask_of_two_words_counts_when_either_is_not_zero() -> None:
    segment = make_segment("items", "rows", (10, 2), k_max=3, tau=2)
    plan = dataclasses.replace(make_plan(segment, encoding=FixedPoint(64, 0, 1.0)), payload="masks")
    values = np.array([[0, 5], [-(2**63), 0], [0, 0]], dtype=np.int64)
    update = {"items": SegmentUpdate(np.array([1, 4, 9]), values)}
    opened = run_round(union_servers(plan), {0: update}, round_number=0)
    assert psu.union_of(opened)["items"].tolist() == [1, 4]
    assert set(np.unique(opened.sums["items"])) == {0, 1}  # nothing of the masks goes on


def test_a_malicious_client_cannot_take_a_position_out() -> None:
    plan = psu.plan_union(make_plan(make_segment("i", "rows", (9, 1), k_max=3)), ["i"])
    honest = psu.mask_update(plan, {"i": np.array([2, 5])})
    guess = {"i": SegmentUpdate(np.array([2, 5]), np.array([[-1], [1 << 62]]))}
    opened = run_round(union_servers(plan), {0: honest, 1: guess}, round_number=0)
    assert psu.union_of(opened)["i"].tolist() == [2, 5]


def opened_masks(plan: Plan, updates: dict[int, Update]) -> npt.NDArray[np.uint64]:
    """What both servers see of a union's sums before they look for zeros."""
    servers = union_servers(plan)
    begin_round(servers, 0)
    wire = Wire(servers)
    for client, update in updates.items():
        submit(wire, client, 0, update)
    first, second = servers
    lists = first.close_round(), second.close_round()
    folds = first.agree(lists[1]), second.agree(lists[0])
    first.verify(folds[1])
    second.verify(folds[0])
    commitments = first.commit(), second.commit()
    shares = first.reveal(commitments[1]), second.reveal(commitments[0])
    bodies = [np.frombuffer(share[HEADER_BYTES + 32 :], "<u8") for share in shares]
    return np.asarray(bodies[0] + bodies[1])


def holders_of(masked: Any) -> dict[int, float]:
    """Share of odd sums among positions with one, two and three holders."""
    per = 4000
    plan = build_plan(
        [SegmentSpec("items", "scalars", (TensorSpec("t", (3 * per + 50,)),), k_max=3 * per)],
        encoding=FixedPoint(),
        max_clients=4,
        malicious_security=False,
        above_break_even="keep",
    )
    union = psu.plan_union(plan, ["items"])
    rows = [np.arange(3 * per), np.arange(per, 3 * per), np.arange(2 * per, 3 * per)]
    updates = {c: masked(union, {"items": chosen}) for c, chosen in enumerate(rows)}
    sums = opened_masks(union, updates)
    assert not sums[3 * per :].any()
    return {n: float((sums[(n - 1) * per : n * per] & 1).mean()) for n in (1, 2, 3)}


def test_parity_of_opened_masks_is_unbiased_for_one_two_and_three_holders() -> None:
    for share in holders_of(psu.mask_update).values():
        assert abs(share - 0.5) < 7 * 0.5 / 4000**0.5


def test_parity_of_odd_masks_would_count_the_holders() -> None:
    def odd(plan: Plan, indices: dict[str, Indices]) -> Update:
        update = psu.mask_update(plan, indices)
        return {n: SegmentUpdate(p.indices, p.values | 1) for n, p in update.items()}

    assert holders_of(odd) == {1: 1.0, 2: 0.0, 3: 1.0}


def test_masks_need_a_plan_of_their_own() -> None:
    plan = make_plan(make_segment("i", "rows", (9, 1), k_max=3))
    with pytest.raises(ParameterError, match="a plan from plan_union"):
        psu.mask_update(plan, {"i": np.array([1])})
    union = psu.plan_union(plan, ["i"])
    with pytest.raises(ParameterError, match="positions for the segments"):
        psu.mask_update(union, {"j": np.array([1])})
    with pytest.raises(ParameterError, match="k_max"):
        psu.mask_update(union, {"i": np.arange(4)})
    with pytest.raises(ParameterError, match="dense"):
        psu.plan_union(make_plan(make_segment("bias", "dense", (5,))), ["bias"])
    for wrong in (
        {"encoding": FixedPoint(32, 0, 1.0)},
        {"lane": "count"},
        {"max_epochs": 2},
        {"l2_bound": 10},
    ):
        with pytest.raises(ParameterError, match="needs a 64-bit ring"):
            dataclasses.replace(union, **wrong)
    with pytest.raises(ParameterError, match="payload"):
        dataclasses.replace(union, payload="noise")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="needs a 64-bit ring"):
        dataclasses.replace(union, segments=(*union.segments, make_segment("bias", "dense", (5,))))


# --- rounds on a restricted plan --------------------------------------------------------------


def inside(update: Update, unions: dict[str, Indices]) -> Update:
    """The part of an update whose positions lie in the unions."""
    cut: Update = {}
    for name, part in update.items():
        if part.indices is None or name not in unions:
            cut[name] = part
            continue
        kept = np.isin(part.indices, unions[name])
        cut[name] = SegmentUpdate(part.indices[kept], part.values[kept])
    return cut


UNIONS = {
    "table": np.array([0, 3, 4, 7, 12, 13, 17, 20]),
    "blocks": np.array([1, 5, 6]),
    "few": np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29]),
}


@pytest.mark.parametrize("lane", ["none", "count", "weight"])
def test_a_round_on_a_restricted_plan_equals_the_plaintext(lane: Any) -> None:
    plan = mixed_plan(lane=lane)
    smaller = psu.restrict(plan, UNIONS, session=bytes(16), hash_seed=bytes(32))
    assert [s.m for s in smaller.segments] == [8, 3, 10, 7]
    rng = np.random.default_rng(2)
    servers, whole = make_servers(smaller), make_servers(plan)
    for round_number in range(3):
        updates = {c: inside(random_update(plan, rng), UNIONS) for c in (1, 2, 5)}
        weights = {1: 3, 2: 1, 5: 5} if lane == "weight" else None
        opened, contributions = play_round(servers, round_number, updates, weights)
        for name, total in plaintext.sums(plan, contributions).items():
            assert np.array_equal(opened.sums[name], total), name
        for name, total in plaintext.lanes(plan, contributions).items():
            assert np.array_equal(opened.lanes[name], total), name
        play_round(whole, round_number, updates, weights)
        # The same model as without a union, bit for bit.
        assert servers[0].model.digest() == whole[0].model.digest()
        assert servers[0].model.digest() == servers[1].model.digest()


def test_retrieval_on_a_restricted_plan_returns_the_rows() -> None:
    plan = psu.restrict(mixed_plan(), UNIONS)
    servers = make_servers(plan)
    begin_round(servers, 0)
    client = Client(plan, Wire(servers), client_id=3)
    wanted = np.array([3, 12, 13, 20])  # 13 is the first row of the second tensor
    one = client.start_round(0, indices={"table": wanted})
    rows, values = one.retrieve()["table"]
    assert np.array_equal(rows, wanted)
    state = servers[0].model.state
    table = np.concatenate([state["table.0"], state["table.1"]])
    assert np.array_equal(values, table[wanted])


def test_a_session_on_a_restricted_plan_is_exact() -> None:
    plan = make_plan(
        make_segment("table", "rows", (40, 2), k_max=4, tau=2, theta=5, stash=1, retrieve=True),
        max_epochs=3,
    )
    union = np.arange(1, 40, 3)
    smaller = psu.restrict(plan, {"table": union})
    servers = make_servers(smaller)
    rng = np.random.default_rng(0)
    wire = Wire(servers)
    rows = {c: np.sort(rng.choice(union, 4, replace=False)) for c in (0, 1)}
    sessions = {
        c: Client(smaller, wire, client_id=c).open_session(indices={"table": rows[c]}) for c in rows
    }
    for round_number in range(4):
        begin_round(servers, round_number)
        total = np.zeros((40, 2), dtype=np.int64)
        for c, session in sessions.items():
            values = rng.integers(-100, 100, size=(4, 2))
            total[rows[c]] += values
            session.start_round(round_number).submit({"table": SegmentUpdate(rows[c], values)})
        assert np.array_equal(finish_round(servers).sums["table"], total)


def test_positions_outside_the_union_are_refused_and_the_wire_shows_nothing() -> None:
    plan = psu.restrict(mixed_plan(), UNIONS)
    shapes = []
    for rows in (np.array([3, 12]), np.array([3, 11])):
        servers = make_servers(plan)
        begin_round(servers, 0)
        wire = Wire(servers)
        client = Client(plan, wire, client_id=1)
        if rows[1] == 11:
            with pytest.raises(ParameterError, match="outside the plan's union"):
                client.start_round(0, indices={"table": rows})
        else:
            update = inside(random_update(mixed_plan(), np.random.default_rng(0)), UNIONS)
            update["table"] = SegmentUpdate(rows, np.zeros((2, 3), dtype=np.int64))
            session = client.start_round(0, indices=wanted_rows(plan, update))
            session.download()
            session.retrieve()
            session.submit(update)
        shapes.append(wire.shape())
    assert shapes[0] == shapes[1]


def test_a_restricted_plan_is_a_plan_like_any_other() -> None:
    plan = mixed_plan()
    smaller = psu.restrict(plan, UNIONS)
    assert Plan.from_json(smaller.to_json()) == smaller
    assert smaller.digest != plan.digest
    assert (smaller.session, smaller.hash_seed) != (plan.session, plan.hash_seed)
    untouched = psu.restrict(plan, {"few": UNIONS["few"]})
    assert untouched.segment("table") == plan.segment("table")
    fields = json.loads(smaller.to_json())
    table = next(s for s in fields["segments"] if s["name"] == "table")
    for subset in ([0, 0, 1], [1, 0], [-1, 2], [0, 21], [True, 2], [0.0, 2.0], ["0"], [0], {}, 3):
        table["subset"] = subset
        table["m"] = len(subset) if isinstance(subset, list) else 8
        with pytest.raises(DecodeError):
            Plan.from_json(json.dumps(fields, sort_keys=True, separators=(",", ":")))


def test_a_restricted_segment_keeps_its_encoding_its_download_and_its_bound() -> None:
    table = make_segment("table", "rows", (40, 2), k_max=4, tau=2, theta=5, stash=1, l2_bound=9)
    own = FixedPoint(24, 16, 4.0)
    segment = dataclasses.replace(table, encoding=own, download="bfloat16")
    bias = make_plan(make_segment("bias", "dense", (5,)))
    plan = dataclasses.replace(bias, segments=(segment, *bias.segments), l2_bound=20)
    smaller = psu.restrict(plan, {"table": np.arange(0, 40, 3)}).segment("table")
    assert (smaller.encoding, smaller.download, smaller.l2_bound) == (own, "bfloat16", 9)
    assert (smaller.m, smaller.subset) == (14, tuple(range(0, 40, 3)))


def test_restriction_refuses_what_cannot_be_restricted() -> None:
    plan = mixed_plan()
    for unions, text in (
        ({"bias": [1]}, "dense"),
        ({"table": []}, "empty"),
        ({"table": [4, 4]}, "increasing positions"),
        ({"table": [4, 21]}, "increasing positions"),
        ({"nothing": [1]}, "no segment"),
    ):
        with pytest.raises(ParameterError, match=text):
            psu.restrict(plan, unions)

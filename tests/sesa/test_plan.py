"""What a plan of one server refuses, and the chance of isolated submodels."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.sesa.small import make_model, make_plan, random_update, widths_of
from torchfsl.crypto import kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError, ProtocolError
from torchfsl.sesa import Server, SesaPlan, Width, isolation, run_round
from torchfsl.sesa import sesa_plan as plans
from torchfsl.sesa.cohort import Cohort, Member

SECTION = {4: [(33, 1.0), (33, 0.5), (34, 0.25)], 16: [(33, 1.0), (33, 0.25), (34, 1 / 16)]}


def test_isolation_is_that_of_the_worked_examples() -> None:
    """N = 100 in thirds of budgets 1, 1/2, 1/4, with the dropouts that fall on each third given."""
    for submodels, colluding, gone, expected in (
        (4, 50, (0, 3, 7), 4.75e-6),
        (16, 50, (0, 3, 7), 0.475),
        (4, 33, (0, 5, 5), 1.4e-10),
    ):
        groups = [(n - d, q) for (n, q), d in zip(SECTION[submodels], gone, strict=True)]
        found = submodels * isolation(groups, collusion=colluding)
        assert found == pytest.approx(expected, rel=0.03)


def test_random_dropouts_isolate_more_than_average_ones() -> None:
    """The mean over dropouts lies above the value at mean dropouts, as the chance is convex."""
    found = 4 * isolation(SECTION[4], collusion=50, dropouts=10)
    assert 5.1e-6 < found < 1e-5


@pytest.mark.parametrize("dropouts", [0, 1, 2, 3])
def test_isolation_equals_the_sum_over_all_dropouts_and_choices(dropouts: int) -> None:
    groups = [(2, 1.0), (3, 0.5), (2, 0.25)]
    for collusion in range(4):
        chances = [q for count, q in groups for _ in range(count)][collusion:]
        total = ways = 0.0
        for gone in itertools.combinations(range(len(chances)), dropouts):
            left = [q for place, q in enumerate(chances) if place not in gone]
            ways += 1
            for owns in itertools.product((0, 1), repeat=len(left)):
                if sum(owns) <= 1:
                    chance = np.prod(
                        [q if own else 1 - q for q, own in zip(left, owns, strict=True)]
                    )
                    total += float(chance)
        found = isolation(groups, collusion=collusion, dropouts=dropouts)
        assert found == pytest.approx(total / ways, abs=1e-12)


def test_all_clients_colluding_or_gone_isolate_for_certain() -> None:
    assert isolation([(3, 1.0)], collusion=3) == 1
    assert isolation([(3, 1.0)], collusion=2) == 1
    assert isolation([(3, 1.0)], collusion=1) == 0
    assert isolation([(3, 0.5)], collusion=1, dropouts=9) == 1


def hundred(submodels: int, **options: Any) -> SesaPlan:
    """N = 100, T = 50, D = 10, thirds of budgets 1, 1/2, 1/4."""
    half, quarter = (2, 1) if submodels == 4 else (4, 1)
    return make_plan(
        submodels=submodels, owned=(submodels, half, quarter), clients=(33, 33, 34),
        collusion=50, dropouts=10, dense=0, **options,
    )  # fmt: skip


def test_four_submodels_pass_where_sixteen_isolate_some() -> None:
    assert hundred(4, max_isolation=1e-4).threshold == 54
    with pytest.raises(
        ParameterError, match=r"0\.\d+ submodels per round.*max_isolation = 0\.0001"
    ):
        hundred(16, max_isolation=1e-4)
    assert hundred(16, max_isolation=0.6).threshold == 66


def test_a_round_of_fewer_wide_clients_than_planned_is_refused() -> None:
    plan = make_plan(
        submodels=2, owned=(2, 1), clients=(6, 4), collusion=2, max_isolation=1e-3, dense=0
    )
    server = Server(plan=plan, model=make_model(plan))
    widths = widths_of(plan)
    updates: dict[int, Any] = {c: random_update(plan, w, c) for c, w in widths.items()}
    run_round(server, updates, widths, round_number=1)
    narrow = {c: None if c in (10, 13, 16) else update for c, update in updates.items()}
    with pytest.raises(ProtocolError, match="at most one honest contributor"):
        run_round(server, narrow, widths, round_number=2)
    fewer = {c: update for c, update in updates.items() if c not in (10, 13, 16)}
    with pytest.raises(ProtocolError, match="at most one honest contributor"):
        run_round(server, fewer, widths, round_number=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collusion": 0}, "choose collusion of 1 or more"),
        ({"dropouts": -1}, "dropouts of 0 or more"),
        (
            {"collusion": 5},
            r"need 7 answers, but 6 clients minus 0 dropouts leave 6: plan at most 1",
        ),
        ({"dropouts": 3}, r"need 4 answers, but 6 clients minus 3 dropouts leave 3"),
        (
            {"dropouts": 2, "min_clients": 5},
            r"min_clients is 5, but 6 clients minus 2 dropouts leave 4",
        ),
        ({"submodels": 5, "owned": (5, 1)}, "plan at most 4 submodels"),
        ({"owned": (3, 1)}, "trains 3 submodels: choose a whole number from 1 to 2"),
        ({"owned": (2, 0)}, "trains 0 submodels: choose a whole number from 1 to"),
        ({"clients": (6, 0)}, "0 clients: choose a whole number of 1 or more"),
        ({"max_isolation": float("nan")}, "max_isolation"),
        ({"max_isolation": -1.0}, "max_isolation"),
        ({"max_isolation": 0.001}, "at most one honest contributor"),
        ({"min_clients": 7}, "min_clients"),
    ],
)
def test_refuses(change: dict[str, Any], message: str) -> None:
    make_plan()
    with pytest.raises(ParameterError, match=message):
        make_plan(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": "count"}, "does not support counts, weights or noise"),
        ({"lane": "weight", "max_weight": 3}, "does not support counts, weights or noise"),
        ({"l2_bound": 1000, "noise_sigma": 5}, "does not support counts, weights or noise"),
        ({"widths": ()}, "add up to max_clients = 6"),
        ({"widths": (Width((2, 1), 5),)}, "add up to max_clients = 6"),
        ({"widths": (Width((2,), 6),)}, "one number per segment"),
        ({"widths": (Width((2, 2), 6),)}, "trains 2 submodels: choose a whole number from 1 to 1"),
        ({"collusion": 1.5}, "not an integer"),
        ({"wire_version": 2}, "plan has format version 2"),
        ({"suite": "none"}, "suite 'none'"),
    ],
)
def test_refuses_fields(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dataclasses.replace(make_plan(), **change)


def test_a_segment_with_a_subset_is_refused() -> None:
    plan = make_plan()
    table = dataclasses.replace(plan.segments[0], m=1, k_max=1, subset=(1,), retrieve=False)
    with pytest.raises(ParameterError, match="subset of rows, which sesa does not support"):
        dataclasses.replace(plan, segments=(table, plan.segments[1]))


def test_the_field_must_hold_every_sum() -> None:
    """q_max = 2^23: 255 clients stay below (p - 1) / 2, 256 do not, though the ring would."""
    encoding = FixedPoint(ring_bits=64, frac_bits=20, clip=8.0)
    assert encoding.q_max == 1 << 23
    build: Callable[[int], SesaPlan] = lambda n: make_plan(  # noqa: E731
        owned=(2,), clients=(n,), encoding=encoding
    )
    build(255)
    with pytest.raises(ParameterError, match="room for 255 clients"):
        build(256)


def test_masked_updates_beyond_a_message_are_refused() -> None:
    with pytest.raises(ParameterError, match="exceed 4294967296"):
        make_plan(size=1 << 28)


def test_the_digest_covers_every_field() -> None:
    plan = make_plan()
    assert make_plan().digest == plan.digest
    changes: list[dict[str, Any]] = [
        {"collusion": 1}, {"dropouts": 1}, {"max_isolation": 1e8},
        {"widths": (Width((2, 1), 4), Width((1, 1), 2))}, {"session": "00" * 15 + "01"},
    ]  # fmt: skip
    digests = {dataclasses.replace(plan, **change).digest for change in changes}
    assert len(digests | {plan.digest}) == len(changes) + 1
    assert plan != make_plan(collusion=1)


def test_labels_are_frozen_and_unlike_all_others() -> None:
    labels = [plans.LABEL_SEED, plans.LABEL_CHANNEL, plans.LABEL_SURVIVORS]
    assert labels == [
        b"torchfsl submodel seed", b"torchfsl submodel channel", b"torchfsl survivors"
    ]  # fmt: skip
    others = {getattr(kdf, name) for name in dir(kdf) if name.startswith("LABEL_")}
    assert not others & set(labels)


def test_no_point_of_a_member_is_a_submodels() -> None:
    plan = make_plan(submodels=4, owned=(4, 1), clients=(10, 10), dense=5)
    cohort = Cohort(plan, tuple(Member(c, 0, bytes(32)) for c in range(20)))
    points = {cohort.point(place) for place in range(20)}
    assert len(points) == 20
    for part in plan.parts:
        assert not points & set(range(1, part.num_submodels + 1))
    for place in range(20):
        seeded, evaluated = cohort.seeded(place), cohort.evaluated(place)
        assert place in evaluated
        assert len(seeded) == plan.collusion
        assert sorted((*seeded, *evaluated)) == list(range(20))


def test_a_plan_comes_back_from_its_json_and_nothing_else_does() -> None:
    plan = make_plan(submodels=3, owned=(3, 1), clients=(4, 4), dropouts=1)
    text = plan.to_json()
    again = SesaPlan.from_json(text)
    assert again == plan
    assert again.widths == plan.widths
    assert SesaPlan.from_json(text.encode()).digest == plan.digest
    for changed in (
        text + " ",
        text.replace('"collusion":2', '"collusion":2.0'),
        text.replace('"collusion":2', '"collusion":true'),
        text.replace('"collusion":2', '"collusion":9'),
        text.replace('"clients":4', '"clients":5'),
        text.replace('"m":3', '"m":"3"'),
        text.replace('"dropouts":1,', ""),
        "[" * 100_000,
        "null",
        "\ud800",
        " " * (1 << 24) + text,
    ):
        with pytest.raises(DecodeError):
            SesaPlan.from_json(changed)


def test_refusal_is_the_share_of_dropouts_whose_survivors_are_refused() -> None:
    plan = make_plan(
        submodels=2, owned=(2, 1), clients=(4, 3), collusion=1, dropouts=2, max_isolation=0.3
    )
    widths = [0] * 4 + [1] * 3
    refused = 0
    ways = list(itertools.combinations(range(7), 3))
    for gone in ways:
        left = [width for place, width in enumerate(widths) if place not in gone]
        try:
            plan.check_members([left.count(0), left.count(1)])
        except ProtocolError:
            refused += 1
    assert 0 < refused < len(ways)
    assert plan.refusal(3) == pytest.approx(refused / len(ways))
    assert plan.refusal(0) == 0
    assert plan.refusal(5) == 1

"""Reports with proofs: sums as without, honest ones pass, sizes as predicted, wraps corrected."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.federation import (
    Wire,
    assert_exact,
    make_plan,
    make_segment,
    make_servers,
    mixed_plan,
    play_round,
    random_update,
    submit,
    wanted_rows,
)
from torchfsl.crypto import field128, kdf
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.errors import DecodeError, ParameterError
from torchfsl.fsl.client import proof, report
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.costs import predict
from torchfsl.fsl.dpf import lifts
from torchfsl.fsl.messages import Kind, max_bytes
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import CARRIES
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.kernels import ring
from torchfsl.submodel.update import SegmentUpdate, Update


def with_proofs(plan: Plan, proofs: str) -> Plan:
    bound = 1 << 12 if proofs == "norm" else 0
    return dataclasses.replace(plan, proofs=proofs, l2_bound=bound)  # type: ignore[arg-type]


def with_own(plan: Plan, **bounds: int) -> Plan:
    """Segments with bounds of their own."""
    segments = [dataclasses.replace(s, l2_bound=bounds.get(s.name, 0)) for s in plan.segments]
    return dataclasses.replace(plan, segments=tuple(segments))


def small(ring_bits: int = 32, **options: Any) -> Plan:
    lane = options.pop("lane", "count")
    most = options.pop("max_weight", 1)
    epochs = options.pop("max_epochs", 1)
    plan = make_plan(
        make_segment("table", "rows", (13, 3), k_max=4, tau=3, theta=5, stash=1, retrieve=True),
        make_segment("bias", "dense", (5,)),
        encoding=FixedPoint(ring_bits, 4, 4.0), max_epochs=epochs, lane=lane,
        max_weight=most,
    )  # fmt: skip
    return dataclasses.replace(plan, **options)


PLANS = {
    "lanes": lambda: with_proofs(mixed_plan(lane="count"), "lanes"),
    "norm and lanes": lambda: with_proofs(mixed_plan(lane="count"), "norm"),
    "norm": lambda: with_proofs(mixed_plan(), "norm"),
    "16 bits": lambda: small(16, proofs="lanes"),
    "24 bits": lambda: small(24, proofs="norm", l2_bound=400),
    "48 bits": lambda: small(48, proofs="norm", l2_bound=400),
    "session": lambda: small(32, proofs="norm", l2_bound=400, max_epochs=3),
    "weights": lambda: with_proofs(mixed_plan(lane="weight"), "lanes"),
    "norm and weights": lambda: with_proofs(mixed_plan(lane="weight"), "norm"),
    "weights of 48 bits": lambda: small(
        48, proofs="norm", l2_bound=400, lane="weight", max_weight=1 << 20
    ),
    "weights without dense": lambda: dataclasses.replace(
        make_plan(make_segment("few", "scalars", (9,), k_max=2), lane="weight", max_weight=3),
        proofs="lanes",
    ),
    "own bounds": lambda: with_own(
        with_proofs(mixed_plan(lane="count"), "norm"), table=300, bias=200
    ),
    "own bounds and weights": lambda: with_own(
        with_proofs(mixed_plan(lane="weight"), "norm"), few=100, bias=1 << 12
    ),
    "own bounds of all, no lane": lambda: with_own(
        with_proofs(mixed_plan(), "norm"), table=300, blocks=250, few=100, bias=1 << 11
    ),
}


def bounded(plan: Plan, rng: np.random.Generator) -> Update:
    """A random update within the plan's bound."""
    update = random_update(plan, rng)
    if not plan.l2_bound:
        return update
    return {
        name: dataclasses.replace(part, values=rng.integers(-9, 10, part.values.shape))
        for name, part in update.items()
    }


@pytest.mark.parametrize("name", PLANS)
def test_honest_reports_pass_and_sums_are_exact_and_those_without_proofs(name: str) -> None:
    plan = PLANS[name]()
    if plan.max_epochs > 1:
        pytest.skip("below")
    rng = np.random.default_rng(1)
    updates = {number: bounded(plan, rng) for number in (0, 1, 6)}
    weights = {0: plan.max_weight, 1: 1, 6: (plan.max_weight + 1) // 2}
    opened, sent = play_round(make_servers(plan), 1, updates, weights)
    assert_exact(plan, opened, sent)
    assert opened.clients == (0, 1, 6)


@pytest.mark.parametrize("name", PLANS)
def test_uploads_and_verdicts_have_the_predicted_bytes_dummies_too(name: str) -> None:
    plan = PLANS[name]()
    servers, rng = make_servers(plan), np.random.default_rng(2)
    sessions: dict[int, Any] = {}
    for round_number in range(1, 4):
        begin_round(servers, round_number)
        wire = Wire(servers)
        for number in (2, 3):
            update = bounded(plan, rng)
            if plan.max_epochs > 1:
                if number not in sessions:
                    rows = {s.name: np.arange(s.k_max) for s in plan.with_trees}
                    sessions[number] = Client(plan, wire, client_id=number).open_session(
                        indices=rows
                    )
                sessions[number]._client.servers = wire
                one = sessions[number].start_round(round_number)
                part = update["table"]
                update["table"] = SegmentUpdate(np.arange(len(part.values)), part.values)
            else:
                client = Client(plan, wire, client_id=number)
                one = client.start_round(round_number, indices=wanted_rows(plan, update))
            receipt = one.submit(update) if number == 2 else one.abort()
            later = plan.max_epochs > 1 and round_number > 1
            expected = predict(plan).later_upload_bytes if later else predict(plan).upload_bytes
            assert receipt.upload_bytes == expected
        lists = [server.close_round() for server in servers]
        verdicts = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
        statement = plan.statement
        assert statement is not None
        weights = 0 if statement.same is None else statement.same.num_wires + 1
        each = 16 * (1 + statement.shape.arity + 2 + weights)
        assert len(verdicts[0]) == len(verdicts[1]) == 64 + 2 * each
        assert servers[0].verify(verdicts[1]) == servers[1].verify(verdicts[0]) == (2, 3)
        for server in servers:
            server.abandon_round()


def test_a_plan_without_proofs_keeps_its_bytes() -> None:
    plan = mixed_plan(lane="count")
    assert "proofs" not in plan.to_json()
    assert plan.statement is None
    assert Plan.from_json(plan.to_json()) == plan
    with_it = plan.to_json().replace('"retrieve"', '"retrieve"').rstrip("}")
    with pytest.raises(DecodeError):
        Plan.from_json(with_it + ',"proofs":"none"}')
    proven = with_proofs(plan, "lanes")
    assert Plan.from_json(proven.to_json()) == proven
    assert proven.digest != plan.digest
    statement = proven.statement
    assert statement is not None
    for kind, more in (
        (Kind.REPORT, statement.public_bytes + statement.private_bytes),
        (Kind.REPORT_RELAY, statement.public_bytes),
        (Kind.REPORT_COMMIT, 0),
        (Kind.TREES, 0),
        (Kind.VERDICTS, plan.max_clients * 16 * statement.said_elements),
    ):
        assert max_bytes(proven, kind) - max_bytes(plan, kind) == more, kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proofs": "all"}, "choose one of"),
        ({"proofs": "lanes", "lane": "none"}, "lane='count'"),
        ({"proofs": "norm"}, "l2_bound"),
        (
            {"proofs": "lanes", "encoding": FixedPoint(64, 4, 4.0)},
            "ring_bits=64, and proofs allow at most 48",
        ),
        (
            {"proofs": "norm", "l2_bound": 1 << 15, "encoding": FixedPoint(16, 4, 4.0)},
            "with ring_bits=16",
        ),
    ],
)
def test_a_plan_that_proves_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        dataclasses.replace(small(), **options)


def test_no_check_words_and_the_carries_name_are_refused() -> None:
    named = make_plan(make_segment(CARRIES, "scalars", (9,), k_max=2), lane="count")
    with pytest.raises(ParameterError, match="check words"):
        dataclasses.replace(mixed_plan(secure=False, lane="count"), proofs="lanes")
    with pytest.raises(ParameterError, match="rename"):
        dataclasses.replace(named, proofs="lanes")


def test_too_many_values_for_the_field_are_refused() -> None:
    proof_shape.check_field(1 << 20, 48, 2, 5)
    with pytest.raises(ParameterError, match="modulus"):
        proof_shape.check_field(1 << 29, 48, 2, 5)
    with pytest.raises(ParameterError, match="does not fit"):
        proof_shape.check_field(9, 16, 2, 1 << 15)


def test_the_number_of_carries_is_the_least_that_suffices() -> None:
    """Against the specification's table: E = 2**-7.7 wants 6, 2**-5.7 wants 7, 2**-1.7 wants 13."""
    for log, carries in ((-9.7, 5), (-7.7, 6), (-5.7, 7), (-3.7, 10), (-1.7, 13), (-23.7, 2)):
        assert proof_shape.num_carries(round(2 ** (48 + log)), 48) == carries
    with pytest.raises(ParameterError, match=r"proofs with ring_bits=16 allow"):
        proof_shape.num_carries(1 << 18, 16)


# --- lifts: every value and share of small rings, as the page on proofs says --------------------


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_value_wraps_for_as_many_shares_as_its_magnitude_and_zero_never(bits: int) -> None:
    size, half = 1 << bits, 1 << (bits - 1)
    for value in range(-half + 1, half):
        wraps = 0
        for share in range(size):
            first = (share + half) % size - half  # in [-half, half)
            second = half - (half - (value - share)) % size  # in (-half, half]
            assert (first + second - value) % size == 0
            assert abs(first + second - value) <= size
            wraps += first + second != value
        assert wraps == abs(value)


@pytest.mark.parametrize("bits", [16, 24, 32, 48])
def test_lifts_lie_in_mirrored_ranges_and_cancel(bits: int) -> None:
    half, width = 1 << (bits - 1), bits // 8
    values = [0, 1, -1, half - 1, -half, -half + 1, 12345]
    data = b"".join((v % (1 << bits)).to_bytes(width, "little") for v in values)
    shares = np.frombuffer(data, np.uint8).reshape(-1, width)
    assert lifts.lift(shares, 0).tolist() == values
    assert lifts.lift(shares, 1).tolist() == [half if v == -half else v for v in values]
    assert (lifts.lift(shares, 0) == -lifts.lift(ring.neg(shares), 1)).all()


def test_lifted_sums_over_trees_are_the_value_but_for_wraps() -> None:
    """Both servers' sums over all leaves, against what each client's report carries."""
    plan = small(16, proofs="norm", l2_bound=120)
    servers = make_servers(plan)
    begin_round(servers, 1)
    rng = np.random.default_rng(5)
    for number in range(4):
        submit(Wire(servers), number, 1, bounded(plan, rng))
    for number in range(4):
        total = 0
        for party, server in enumerate(servers):
            loaded = server._evaluator.sums.loaded(server.reports.complete()[number])  # type: ignore[attr-defined]
            low, high = lifts.tree_sums(
                plan.segments[0], loaded.contribution(plan.segments[0]), 2, 4, party
            )
            total = total + low + (high << 32)
        wraps, rest = np.divmod(np.asarray(total) + (1 << 15), 1 << 16)
        assert set(wraps.reshape(-1)) <= {-1, 0, 1}
        assert set((rest - (1 << 15))[:, 0]) <= {0, 1}
        assert np.abs(rest - (1 << 15))[:, 1:].max() <= 9


# --- wraps --------------------------------------------------------------------------------------


def rounds_with(plan: Plan, count: int, seed: int) -> tuple[int, int]:
    """Reports that passed, of so many honest ones, and how many were drawn anew."""
    rng, redrawn, real = np.random.default_rng(seed), 0, report._draw

    def counting(*arguments: Any) -> Any:
        nonlocal redrawn
        drawn = real(*arguments)
        redrawn += drawn is None
        return drawn

    report._draw = counting  # type: ignore[assignment]
    try:
        servers = make_servers(plan)
        begin_round(servers, 1)
        for number in range(count):
            submit(Wire(servers), number, 1, bounded(plan, rng))
        return finish_round(servers).num_clients, redrawn
    finally:
        report._draw = real


def test_wraps_are_corrected_by_carry_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a ring of 16 bits the slack of a bound of 5000 wraps in one report of 13.

    By chance in none of 60 once in 120 rounds, so in none of four rounds once in 10**8 runs.
    """
    plan = small(16, proofs="norm", l2_bound=5000, max_clients=60)
    wraps: list[int] = []
    real = np.count_nonzero

    def counting(wrapped: Any) -> int:
        wraps.append(int(real(wrapped)))
        return wraps[-1]

    monkeypatch.setattr(proof.np, "count_nonzero", counting)
    for seed in range(4):
        assert rounds_with(plan, 60, seed) == (60, 0)
        if any(wraps):
            break
    assert any(wraps)


@pytest.mark.parametrize("of", ["wraps", "a carry"])
def test_a_report_of_too_many_wraps_is_drawn_anew_and_passes(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second draw is as if more values had wrapped than there are trees, or a carry had."""
    plan = with_proofs(mixed_plan(lane="count"), "norm")
    turns = itertools.count()
    real, grow = np.count_nonzero, proof.carries.grow
    if of == "wraps":
        monkeypatch.setattr(
            proof.np, "count_nonzero", lambda x: real(x) if next(turns) % 2 else 1 << 30
        )
    else:
        monkeypatch.setattr(
            proof.carries, "grow", lambda *given: grow(*given) if next(turns) % 2 else None
        )
    assert rounds_with(plan, 4, 1) == (4, 4)


def test_a_report_whose_wraps_nothing_corrects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `carries` are for: the same reports with carry trees of zeros.

    By chance none of 40 wraps in one round of 24, none of six rounds once in 10**8 runs.
    """
    plan = small(16, proofs="norm", l2_bound=5000, max_clients=40)
    real = proof.carries.grow

    def unused(statement: Any, context: Any, seeds: Any, wrapped: Any) -> Any:
        refused.append(bool(wrapped.any()))
        return real(statement, context, seeds, np.zeros_like(wrapped))

    refused: list[bool] = []
    monkeypatch.setattr(proof.carries, "grow", unused)
    for seed in range(6):
        refused.clear()
        accepted, redrawn = rounds_with(plan, 40, seed)
        assert redrawn == 0
        assert sum(refused) == 40 - accepted
        if any(refused):
            break
    assert any(refused)


# --- one point, and what is opened there -------------------------------------------------------


def verdicts_of(plan: Plan, coins: tuple[bytes, bytes], seed: int) -> list[bytes]:
    servers = make_servers(plan)
    begin_round(servers, 1)
    rng = np.random.default_rng(seed)
    for number in (0, 1):
        submit(Wire(servers), number, 1, bounded(plan, rng))
    lists = [servers[b].close_round(coin=coins[b]) for b in (0, 1)]
    return [servers[b].agree(lists[1 - b]) for b in (0, 1)]


def test_the_point_depends_on_both_coins_and_on_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small(proofs="lanes")
    points: list[bytes] = []
    real = type(plan.statement.shape).point  # type: ignore[union-attr]
    monkeypatch.setattr(
        type(plan.statement.shape),  # type: ignore[union-attr]
        "point",
        lambda self, key: points.append(key) or real(self, key),  # type: ignore[func-returns-value]
    )
    for coins in ((b"a" * 32, b"b" * 32), (b"a" * 32, b"c" * 32), (b"d" * 32, b"b" * 32)):
        verdicts_of(plan, coins, 0)
    # Each round has two clients and two servers, which ask at the same point.
    rounds = [points[i : i + 4] for i in range(0, 12, 4)]
    assert all(sorted(r) == sorted(r[:2] * 2) for r in rounds)
    assert len(set(points)) == 6


def test_a_verdict_with_elements_out_of_the_field_is_no_message() -> None:
    plan = small(proofs="lanes")
    servers = make_servers(plan)
    begin_round(servers, 1)
    submit(Wire(servers), 0, 1, bounded(plan, np.random.default_rng(0)))
    lists = [server.close_round() for server in servers]
    verdicts = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    wrong = bytearray(verdicts[1])
    wrong[80:96] = field128.MODULUS.to_bytes(16, "little")
    with pytest.raises(DecodeError, match="modulus"):
        servers[0].verify(bytes(wrong))
    assert servers[0].verify(verdicts[1]) == (0,)


def test_slack_is_four_squares_of_what_is_left() -> None:
    plan = small(proofs="norm", l2_bound=400)
    statement = plan.statement
    assert statement is not None
    table, bias = plan.segments
    shape = table.num_trees, 1, 4
    for count, big in itertools.product((0, 1, 4), (0, 7)):
        trees = np.zeros(shape, dtype=np.int64)
        trees[:count, 0, 0] = 1
        trees[:count, 0, 1] = big
        slack = proof._slack(statement, ({"table": trees}, {"bias": np.full(bias.m, 3)}), 1)
        assert (slack[:4] ** 2).sum() == 400**2 - count * big**2 - 9 * bias.m
        assert (slack[4:] ** 2).sum() == 4 - count


def test_the_masks_of_a_proof_differ_by_party_report_and_use() -> None:
    plan = small(proofs="norm", l2_bound=400)
    servers = make_servers(plan)
    begin_round(servers, 1)
    submit(Wire(servers), 0, 1, bounded(plan, np.random.default_rng(0)))
    context = servers[0].reports.complete()[0].context
    again = dataclasses.replace(context, hint_nonce=bytes(16))
    masks = [c.proof_mask(bytes(16), party) for c in (context, again) for party in (0, 1)]
    for (slack, elements), (other, others) in itertools.combinations(masks, 2):
        assert not np.array_equal(slack, other)
        assert not set(field128.integers(elements)) & set(field128.integers(others))
    assert kdf.LABEL_PROOF not in (kdf.LABEL_DENSE, kdf.LABEL_FOLD)

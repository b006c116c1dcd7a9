"""Values of positions that too few clients have sent stay closed, and the rest opens exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scripts.attacks import owner_plans
from tests.support.federation import Wire, make_plan, make_segment, make_servers, submit
from tests.support.reference import plaintext
from torchfsl.errors import ProtocolError
from torchfsl.fsl.costs import predict
from torchfsl.fsl.explain import explain
from torchfsl.fsl.messages import HEADER_BYTES
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.round import begin_round, finish_round
from torchfsl.fsl.server.commitments import RowCommitments, row_salts
from torchfsl.fsl.server.server import Server
from torchfsl.fsl.server.states import RoundState
from torchfsl.submodel.update import SegmentUpdate, Update

LEAST = 3


def counting(least: int = LEAST) -> Plan:
    """Rows over a table that is retrieved, scalars, and a dense segment."""
    plan = make_plan(
        make_segment("table", "rows", (30, 3), k_max=5, tau=3, theta=4, stash=1),
        make_segment("few", "scalars", (20,), k_max=3, theta=5, stash=1),
        make_segment("bias", "dense", (3,)),
        max_clients=8, lane="count",
    )  # fmt: skip
    return dataclasses.replace(plan, min_contributors=least)


def zipf_update(plan: Plan, rng: np.random.Generator) -> Update:
    """Distinct positions, low ones far more often."""
    update: Update = {}
    limit = plan.encoding.q_max
    for segment in plan.segments:
        indices, count = None, segment.m
        if not segment.is_dense:
            drawn = np.minimum(rng.zipf(1.3, size=segment.k_max), segment.m) - 1
            indices = np.unique(drawn).astype(np.int64)
            count = len(indices)
        values = rng.integers(-limit, limit, size=(count, segment.tau), endpoint=True)
        update[segment.name] = SegmentUpdate(indices, values)
    return update


def closed(plan: Plan, updates: list[Update]) -> tuple[Server, Server]:
    servers = make_servers(plan)
    begin_round(servers, 1)
    for client, update in enumerate(updates):
        submit(Wire(servers), client, 1, update)
    return servers


def test_the_attack_reads_a_lone_row_without_the_option_and_not_with_it() -> None:
    result = owner_plans.few_contributors()
    assert result.worked_off, result.off
    assert not result.worked_on, result.on


def test_twenty_rounds_of_zipf_rows_open_as_the_rule_says_and_train_alike() -> None:
    plan, rng = counting(), np.random.default_rng(3)
    servers, plain = make_servers(plan), make_servers(dataclasses.replace(plan, min_contributors=1))
    total_withheld = total_kept = 0
    for number in range(20):
        begin_round(servers, number)
        made = []
        for client in range(6):
            update = zipf_update(plan, rng)
            receipt = submit(Wire(servers), client, number, update)
            missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
            made.append(plaintext.Contribution(update, 1, missing))
        opened = finish_round(servers)
        sums, counts = plaintext.sums(plan, made), plaintext.lanes(plan, made)
        withheld = {}
        for name, count in counts.items():
            sums[name][count < LEAST] = 0
            few = int(np.count_nonzero((count > 0) & (count < LEAST)))
            withheld |= {name: few} if few else {}
            total_kept += int(np.count_nonzero(count >= LEAST))
            assert np.array_equal(opened.lanes[name], count)
        total_withheld += sum(withheld.values())
        assert all(np.array_equal(opened.sums[name], total) for name, total in sums.items())
        assert opened.withheld == withheld
        assert not opened.zeroed
        plain[0].model.apply(plan, dataclasses.replace(opened, sums=sums, lanes=counts))
        digests = {server.model.digest() for server in (*servers, plain[0])}
        assert len(digests) == 1
    assert total_withheld > 100
    assert total_kept > 100


def test_counts_are_opened_before_any_value_leaves_a_server() -> None:
    plan, rng = counting(), np.random.default_rng(0)
    servers = closed(plan, [zipf_update(plan, rng) for _ in range(4)])
    lists = [server.close_round() for server in servers]
    folds = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    for b in (0, 1):
        servers[b].verify(folds[1 - b])
    commitments = [server.commit() for server in servers]
    with pytest.raises(ProtocolError, match="opens the counts first"):
        servers[0].reveal(commitments[1])
    counts = [servers[b].reveal_counts(commitments[1 - b]) for b in (0, 1)]
    assert servers[0]._opening.share[4:16] not in counts[0]  # the values of the first row
    assert {server.state for server in servers} == {RoundState.COUNTED}
    changed = bytearray(counts[1])
    changed[-1] ^= 1
    with pytest.raises(ProtocolError, match="counts do not fit its commitment"):
        servers[0].reveal_kept(bytes(changed))
    assert servers[0].state is RoundState.IDLE
    servers[1].abandon_round()
    begin_round(servers, 2)
    updates = [zipf_update(plan, rng) for _ in range(4)]
    for client, update in enumerate(updates):
        submit(Wire(servers), client, 2, update)
    assert finish_round(servers).num_clients == 4


@pytest.mark.parametrize("place", ["kept row", "leaf", "dense", "salt of a row"])
def test_a_share_that_changes_after_the_counts_are_seen_is_noticed(place: str) -> None:
    plan, rng = counting(), np.random.default_rng(0)
    servers = closed(plan, [zipf_update(plan, rng) for _ in range(5)])
    lists = [server.close_round() for server in servers]
    folds = [servers[b].agree(lists[1 - b]) for b in (0, 1)]
    for b in (0, 1):
        servers[b].verify(folds[1 - b])
    commitments = [server.commit() for server in servers]
    counts = [servers[b].reveal_counts(commitments[1 - b]) for b in (0, 1)]
    shares = [servers[b].reveal_kept(counts[1 - b]) for b in (0, 1)]
    kept = servers[0]._opening._kept["table"]
    start = HEADER_BYTES + 32
    at = {
        "kept row": start + 32 * int(np.flatnonzero(kept)[0]) + 16,
        "salt of a row": start + 32 * int(np.flatnonzero(kept)[0]),
        "leaf": start + 32 * int(np.flatnonzero(~kept)[0]),
        "dense": len(shares[1]) - 1,
    }[place]
    wrong = bytearray(shares[1])
    wrong[at] ^= 1
    before = servers[0].model.digest()
    with pytest.raises(ProtocolError, match="does not fit its commitment: nothing is applied"):
        servers[0].open(bytes(wrong))
    assert servers[0].model.digest() == before
    assert servers[0].state is RoundState.IDLE


def test_hidden_rows_of_equal_values_have_leaves_that_differ() -> None:
    """A leaf alone must not tell that a row's share is a guess: each has a salt of its own."""
    plan = counting()
    rows = {"few": np.zeros((20, 4), dtype=np.uint8)}
    leaves = RowCommitments(plan, 0, bytes(32)).leaves(rows, row_salts(plan, bytes(16)))["few"]
    assert len({leaf.tobytes() for leaf in leaves}) == 20


def test_it_needs_counts() -> None:
    plan = make_plan(make_segment("few", "scalars", (4,), k_max=2))
    with pytest.raises(ValueError, match="pass average='rows'"):
        dataclasses.replace(plan, min_contributors=2)


def test_costs_and_explain_know_it() -> None:
    plan, plain = counting(), counting(least=1)
    # 30 rows of 3 values in 4 bytes and 20 scalars, each in 32 bytes; 3 dense values with a salt.
    assert predict(plan).opening_bytes == 3 * 64 + 32 + (64 + 50 * 4) + (32 + 50 * 32 + 16 + 12)
    assert predict(plain).opening_bytes == 2 * 64 + 32 + (32 + 30 * 16 + 20 * 8 + 12)
    assert predict(plan).upload_bytes == predict(plain).upload_bytes
    assert "fewer than 3 clients have sent stay closed" in explain(plan)
    assert "stay closed" not in explain(plain)

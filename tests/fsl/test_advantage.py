"""Advantages of attackers against numbers worked out by hand and the pages that name them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
from pathlib import Path

import pytest

from tests.fsl.test_proofs import small
from tests.support.audited import audited
from tests.support.federation import make_plan, make_segment, mixed_plan
from torchfsl.crypto.field128 import MODULUS
from torchfsl.crypto.fixed_point import FixedPoint
from torchfsl.fsl import advantage
from torchfsl.fsl.plan.plan import Plan
from torchfsl.sesa.sesa_plan import SesaPlan

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "specification" / "security.md"


def bits(plan: Plan) -> dict[str, float]:
    return {f"{term.game}: {term.event}": term.bits for term in advantage.terms(plan)}


def full(k_max: int, m: int, tau: int = 1, retrieve: bool = False) -> Plan:
    """As many full-domain trees as k_max, values of 32 bits, four clients, one round."""
    return make_plan(make_segment("s", "rows", (m, tau), k_max=k_max, tau=tau, retrieve=retrieve))


def din(**options: object) -> Plan:
    """DIN's published shape: 588 bins of 1012 rows and a stash tree, 64,327 dense values."""
    plan = make_plan(
        make_segment("rows18", "rows", (197_372, 18), k_max=419, tau=18, theta=1012, stash=1,
                     retrieve=True),
        make_segment("rest", "dense", (64_327,)),
        encoding=FixedPoint(32, 16, 4.0), max_clients=1, lane="count",
    )  # fmt: skip
    return dataclasses.replace(plan, l2_bound=1 << 16, proofs="norm", **options)  # type: ignore[arg-type]


def test_a_state_takes_the_work_of_the_table_of_security() -> None:
    """p B d / 2**125: 106 bits at 2**15 trees of depth 16, 112 at 600 trees of depth 9."""
    assert bits(full(1 << 15, 1 << 16))["view: a state is guessed"] == 106
    bins = make_plan(make_segment("s", "rows", (102_400, 1), k_max=9, theta=512))
    assert advantage.secret_blocks(bins) == [2 * 600 * 9, 600]
    assert math.floor(bits(bins)["view: a state is guessed"]) == 112


def test_wide_rows_have_more_blocks_at_a_leaf_than_on_its_path() -> None:
    """Four trees of depth 2, 768 values of 4 bytes: 16 blocks on paths, 192 at each leaf."""
    plan = full(4, 4, tau=768)
    assert advantage.secret_blocks(plan) == [16, 4 * 192]
    assert bits(plan)["view: a state is guessed"] == pytest.approx(126 - math.log2(768))


def test_terms_of_one_round_by_hand() -> None:
    """2**15 trees of depth 16 and 2**16 leaves of one value, retrieved, four reports."""
    found = bits(full(1 << 15, 1 << 16, retrieve=True))
    blocks = 4 * (2**40 + 2**30)  # 2**20 under K_tree, 2**15 under K_conv
    assert found["view: blocks collide"] == pytest.approx(127 - math.log2(blocks))
    assert found["view: two sets of trees have one key"] == 129 - 2 * math.log2(6 * 4)
    assert found["view: a sealed answer is opened"] == 128 - 3  # two servers, four clients
    assert found["report: digests of other leaves agree"] == 128 - 2 - 31 - 2
    assert found["report: two leaves under a check word"] == 85
    assert found["retrieval: an altered answer passes"] == 127 - 2
    assert found["retrieval: a row of another's digest"] == 128 - 16


def test_terms_of_a_proof_by_hand() -> None:
    """588 x 1012 + 197,372 leaves, and 6 carry trees over 75,526 values in blocks of 16."""
    plan = din()
    assert plan.statement is not None
    assert plan.statement.num_values == (588 + 1) * 18 + 64_327 + 4 + (588 + 1) + 4
    leaves = 588 * 1012 + 197_372 + 6 * math.ceil(plan.statement.num_values / 16)
    assert advantage.forged_trees(plan) == 4 * leaves / 2**128
    # 19 values of 4 bytes at a leaf; of carry trees 13 levels, and 16 values of 7 bytes.
    paths = [2 * (588 * 10 + 18), 589 * 5, 2 * 6 * 13, 6 * 7]
    assert advantage.secret_blocks(plan) == paths
    # Norm, counts, k_max, carries, and three bits; wires and coefficients of order 256.
    assert advantage.proof_error(plan.statement) == (2 * 256 - 2 + 7) / (MODULUS - 256)
    magnitudes = (269 + 2) * 65_536 + 419 + 2 * 21
    seen = 2.0**-60 + magnitudes / 2.0**32 / 2.0**56
    assert bits(plan)["view: a report is drawn again"] == pytest.approx(-math.log2(seen))


def test_levels_of_security_are_those_of_the_bounds() -> None:
    """SECURITY.md, Levels: one report at DIN's shape."""
    plan = din()
    assert plan.statement is not None
    false = advantage.forged_trees(plan) + advantage.proof_error(plan.statement)
    assert math.floor(-math.log2(false)) == 106
    assert math.floor(bits(plan)["view: a report is drawn again"]) == 59
    assert math.floor(bits(audited(plan))["audit: a false report is accepted"]) == 106
    levels = (ROOT / "SECURITY.md").read_text().partition("## Levels")[2].partition("\n## ")[0]
    assert {"106 bits", "2**85 steps", "chance 2**-106", "2**-59"} <= set(
        re.findall(r"106 bits|2\*\*85 steps|chance 2\*\*-106|2\*\*-59", levels)
    )


def test_weights_have_a_second_proof() -> None:
    """Of order 16: 60 more. Norm, weight, claim, k_max, carries and their four bits, weights."""
    statement = din(lane="weight", max_weight=10).statement
    assert statement is not None
    assert statement.same is not None
    wanted = (2 * 256 - 2 + 10) / (MODULUS - 256) + 60 / (MODULUS - 16)
    assert advantage.proof_error(statement) == wanted


def test_more_rounds_and_clients_cost_as_many_bits_as_they_have() -> None:
    one, task = din(), din(max_rounds=1 << 10)
    before, after = bits(one), bits(task)
    lost = {event: round(before[event] - after[event], 6) for event in before}
    assert lost.pop("view: two sets of trees have one key") == 20
    assert lost.pop("view: a sealed answer is opened") == 10
    constant = ("guessed", "one digest", "check word", "another's digest")
    assert {event for event, less in lost.items() if less == 0} == {
        event for event in lost if event.endswith(constant)
    }
    assert {less for less in lost.values() if less} == {10}


def test_a_row_finds_no_bin_in_segments_that_have_bins_which_can_fail() -> None:
    event = "none: a row finds no bin"
    assert bits(din())[event] == 40
    assert bits(mixed_plan())[event] == 40 - 2, "one of its two tables has bins of three rows"
    names = [make_segment(name, "rows", (99, 1), k_max=9, theta=9) for name in "ab"]
    assert bits(make_plan(*names))[event] == 40 - 2 - 1
    assert event not in bits(full(4, 64))
    assert event not in bits(make_plan(make_segment("s", "rows", (99, 1), k_max=9, theta=3)))


def test_a_plan_has_the_games_that_it_can_lose() -> None:
    def games(plan: Plan) -> set[str]:
        return {term.game for term in advantage.terms(plan)}

    assert games(full(4, 64)) == {"view", "report"}
    assert games(mixed_plan(secure=False)) == {"view", "none"}
    assert games(mixed_plan()) == {"view", "report", "retrieval", "none"}
    assert "audit" in games(audited(small(proofs="norm", l2_bound=400)))
    dense = make_plan(make_segment("d", "dense", (1 << 20,)))
    assert bits(dense)["view: blocks collide"] == 127 - 2 - 36, "2**18 blocks of a stream"


def test_explain_adds_the_terms_if_it_is_asked() -> None:
    plan = din(max_rounds=1000)
    text = plan.explain(security=True)
    assert text == "\n".join([plan.explain(), *advantage.lines(plan)])
    assert "advantages over 1000 rounds of 1 reports, per game" in text
    assert "1 round (max_rounds is 0: no limit)" in din().explain(security=True)
    assert re.search(r"view +a state is guessed +work +2\^112\.4 ", text), "rounded down"
    assert re.search(r"view +a sealed answer is opened +work +2\^117\.0 ", text)
    assert re.search(r"none +a row finds no bin +chance +2\^-30\.0 ", text)
    with pytest.raises(TypeError, match="security"):
        SesaPlan.explain(object.__new__(SesaPlan), security=True)


def test_the_page_has_every_event_and_no_other() -> None:
    plans = [
        din(lane="weight", max_weight=10), audited(small(proofs="norm", l2_bound=400)), mixed_plan()
    ]  # fmt: skip
    events = {(term.game, term.event) for plan in plans for term in advantage.terms(plan)}
    rows = re.findall(r"^\| (\w+) \| `([^`]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert set(rows) == events
    assert len(rows) == len(events)


def test_the_page_prints_what_its_program_prints() -> None:
    program, shown = re.search(
        r"```python\n(.*?)```.*?```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL
    ).groups()  # type: ignore[union-attr]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(program, {})  # noqa: S102
    assert out.getvalue().endswith(shown)

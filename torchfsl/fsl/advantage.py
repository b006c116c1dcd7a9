"""Advantages of attackers over a whole task, as sums of terms.

docs/specification/security.md has the games and the formulas.

`chance` is a probability over all rounds and reports of the task. `work` is the number of calls of
AES, BLAKE2s or SHA-256 at which a chance that grows with them reaches one. Reports are counted as
if every round were full, and every report as if it had fresh trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from torchfsl.crypto.field128 import MODULUS
from torchfsl.fsl.cuckoo.bounds import ALWAYS_SAFE_THETA
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.proof_shape import WRAP_BITS
from torchfsl.fsl.plan.statement import CARRY_BITS, Statement
from torchfsl.fsl.suite import FAILURE_BITS
from torchfsl.submodel.segments import ceil_div, ceil_shift

_BLOCK: Final = 128
_SEED: Final = 127
"""Secret bits of a state: one of 128 is the control bit."""
_PUBLIC_KEYS: Final = 6
"""AES keys of a set of trees under which states are hashed: tree, three of the check, Conv, tag."""
_CHECK_WORK: Final = 85
"""Generalised birthday over the 256 bits of a check word: `2**(256 / 3)` steps and memory."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term of an advantage.

    Attributes:
        game: view, report, retrieval, audit, or none for what is not an attack.
        event: what happens.
        kind: see above.
        bits: the chance is 2**-bits, or the work 2**bits.
        assumes: on what the bound rests.
    """

    game: str
    event: str
    kind: Literal["chance", "work"]
    bits: float
    assumes: str


def terms(plan: Plan) -> tuple[Term, ...]:
    """The terms of all games that the plan has."""
    reports = (plan.max_rounds or 1) * plan.max_clients
    return (*_view(plan, reports), *_report(plan, reports), *_retrieval(plan, reports),
            *_audit(plan), *_placement(plan, reports))  # fmt: skip


def lines(plan: Plan) -> list[str]:
    """The terms as a table, behind a line on the task that they are about."""
    rounds, found = plan.max_rounds or 1, terms(plan)
    limit = "" if plan.max_rounds else " (max_rounds is 0: no limit)"
    wide = max(len(term.event) for term in found)
    return [
        f"advantages over {rounds} round{'s' * (rounds > 1)}{limit} of {plan.max_clients} reports, "
        "per game a sum of its terms:",
        *(
            f"{term.game:<10}{term.event:<{wide}}  {term.kind:<6}  2^"
            f"{'-' * (term.kind == 'chance')}{math.floor(10 * term.bits) / 10:.1f}  {term.assumes}"
            for term in found
        ),
    ]


def _chance(game: str, event: str, chance: float, assumes: str) -> Term:
    return Term(game, event, "chance", -math.log2(chance), assumes)


def secret_blocks(plan: Plan) -> list[int]:
    """By public AES key of a report that hashes most: blocks whose input one server cannot know.

    A path of d levels has 2 d blocks under K_tree, and a leaf as many under K_conv as its values
    take.
    """
    counts = []
    sizes = [(s, plan.value_bytes(s) << s.nu) for s in plan.with_trees]
    if plan.statement is not None:
        carries = plan.statement.carries
        sizes.append((carries, CARRY_BITS // 8 << carries.nu))
    for segment, size in sizes:
        counts.append(2 * sum(group.num_trees * group.depth for group in segment.groups))
        counts.append(segment.num_trees * ceil_div(size, 16))
    return counts


def _view(plan: Plan, reports: int) -> Iterator[Term]:
    """One malicious server, with any clients, tells two vectors of inputs apart."""
    blocks = secret_blocks(plan)
    streams = [ceil_div(plan.dense_bytes(s), 16) for s in plan.dense]
    if any(blocks):
        work = _SEED - 1 - math.log2(max(blocks))
        yield Term("view", "a state is guessed", "work", work, "AES as an ideal cipher")
        keys = _PUBLIC_KEYS * len(blocks) // 2 * reports
        yield _chance("view", "two sets of trees have one key", keys**2 / 2.0**129, "HKDF as a PRF")
    squares = sum(count**2 for count in (*blocks, *streams)) * reports
    yield _chance("view", "blocks collide", squares / 2.0**_SEED, "AES as an ideal cipher")
    yield Term("view", "a master seed is guessed", "work", _BLOCK, "HKDF as a PRF, seals")
    if plan.retrieving:
        work = _BLOCK - math.log2(2 * reports)
        yield Term("view", "a sealed answer is opened", "work", work, "AES as an ideal cipher")
    yield Term("view", "two texts have one digest", "work", _BLOCK, "SHA-256")
    if plan.statement is not None:
        wraps = plan.statement.proven.magnitudes() / 2.0**plan.statement.ring_bits
        seen = reports * (2.0**-WRAP_BITS + wraps / 2.0**CARRY_BITS)
        yield _chance("view", "a report is drawn again", seen, "none: statistical")


def _report(plan: Plan, reports: int) -> Iterator[Term]:
    """A client has a false report accepted by two honest servers."""
    if not plan.verified:
        return
    chance = reports * forged_trees(plan)
    yield _chance("report", "digests of other leaves agree", chance, "AES as a PRF")
    yield Term("report", "two leaves under a check word", "work", _CHECK_WORK, "no better attack")
    if plan.statement is not None:
        false = reports * proof_error(plan.statement)
        yield _chance("report", "a false proof passes", false, "none: random point")


def forged_trees(plan: Plan) -> float:
    """Chance that the servers' digests agree on one report whose leaves are not those certified."""
    trees: list[TreeSegment] = [*plan.with_trees]
    if plan.statement is not None:
        trees.append(plan.statement.carries)
    return 4 * sum(g.num_trees * g.num_leaves for s in trees for g in s.groups) / 2.0**_BLOCK


def proof_error(statement: Statement) -> float:
    """Chance that one report with a false statement passes, its trees being certified."""
    zeros = statement.residues(
        [(np.zeros(statement.num_values, np.int64), 1)], [0] * statement.shape.num_calls, 0,
        [0] * len(statement.carry_weights), 0,
    )  # fmt: skip
    order = statement.shape.order
    error = (2 * order - 2 + len(zeros)) / (MODULUS - order)
    if statement.same is not None:
        error += (4 * statement.same.order - 4) / (MODULUS - statement.same.order)
    return error


def _retrieval(plan: Plan, reports: int) -> Iterator[Term]:
    """One malicious server reads a bit of a row id from whether clients go on."""
    tagged = [s for s in plan.retrieving if s.tag_bytes]
    if tagged:
        chance = reports / 2.0**_SEED
        yield _chance("retrieval", "an altered answer passes", chance, "AES as an ideal cipher")
        most = max(ceil_shift(s.m, s.nu) for s in tagged)
        work = _BLOCK - math.log2(most)
        yield Term("retrieval", "a row of another's digest", "work", work, "BLAKE2s as random")


def _audit(plan: Plan) -> Iterator[Term]:
    """One malicious server has a false aggregate opened, or the other server blamed."""
    if plan.audited:
        assert plan.statement is not None
        yield Term("audit", "two texts have one digest", "work", _BLOCK, "SHA-256")
        yield Term("audit", "a signature is forged", "work", _BLOCK, "Ed25519")
        work = -math.log2(forged_trees(plan) + proof_error(plan.statement))
        yield Term("audit", "a false report is accepted", "work", work, "SHA-256 as random")


def _placement(plan: Plan, reports: int) -> Iterator[Term]:
    """A row waits for another round: a loss, and not an attack."""
    tables = [s for s in plan.with_trees if s.num_bins and not s.binned]
    unsafe = sum(s.theta > ALWAYS_SAFE_THETA for s in tables)
    if unsafe:
        chance = min(1.0, unsafe * reports / 2.0**FAILURE_BITS)
        yield _chance("none", "a row finds no bin", chance, "permutations as random")

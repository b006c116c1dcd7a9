"""A server's verdict on a report's proof, from its share alone, and whether both agree.

A proof is asked at one point, ever: the point follows from the key of the check, which the coins
of both servers and the agreed set make, and a report is in one round's set once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from torchfsl.crypto import field128, kdf
from torchfsl.fsl import uploads
from torchfsl.fsl.dpf import carries, checks, lifts
from torchfsl.fsl.dpf.checks import FoldMasks
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.statement import Statement
from torchfsl.fsl.server.loaded import LoadedReport
from torchfsl.fsl.server.reports import Report
from torchfsl.fsl.suite import FOLD_BYTES
from torchfsl.kernels.portable.proofs import HALF, Words
from torchfsl.types import Whole

Lifted: TypeAlias = Callable[[Report, TreeSegment], tuple[Whole, ...] | None]
"""Sums over the leaves of a report's trees where they are at hand, see `lifts.tree_sums`; of rings
whose sums fit the low part, perhaps that alone."""


class Questions:
    """One server's questions to the proofs of one round.

    Args:
        plan: with proofs.
        party: of this server.
        verify_key: the key of the check, secret until all reports are in.
        lifted: tells sums that were made while reports were added up; what it lacks is made here,
            for which trees are expanded once more.
    """

    def __init__(
        self, plan: Plan, party: int, verify_key: bytes, lifted: Lifted = lambda *_: None
    ) -> None:
        """Draw what all reports share."""
        assert plan.statement is not None
        self._lifted = lifted
        self._plan, self._party, self._key = plan, party, verify_key
        self._statement: Statement = plan.statement
        self._masks: FoldMasks = checks.fold_masks(self._statement.carries, verify_key)

    def verdict(self, fold: bytes, loaded: LoadedReport, threads: int = 0) -> bytes:
        """This server's verdict on a report whose trees have this fold."""
        carries, opened = self.ask(loaded, threads)
        whole = int.from_bytes(fold, "little") ^ carries
        return whole.to_bytes(FOLD_BYTES, "little") + opened

    def ask(self, loaded: LoadedReport, threads: int = 0) -> tuple[int, bytes]:
        """The fold of the carry trees, and what this server opens: `said_elements` as bytes.

        By `threads` threads, or as many as a kernel may use where that is 0.
        """
        statement, report, party = self._statement, loaded.report, self._party
        context, seed = report.context, report.trees.master_seed
        assert report.public is not None
        assert seed is not None
        segment, public = statement.carries, uploads.carries(self._plan, report.public)
        keys, roots = context.carry_keys(segment), context.roots(segment, seed, party)
        trees, carried, sums = carries.evaluate(statement, keys, roots, public, party)
        fold = checks.fold(segment, keys.tree, keys.check, self._masks, roots, trees, threads)
        slack, elements = loaded.proof_share()
        first, last = len(statement.carry_weights), len(elements) - statement.same_elements
        bits = field128.integers(elements[:first])
        proof, of_weights = elements[first:last], elements[last:]
        vectors = self._values(loaded, lifts.lift(slack, party), threads)
        parts = [(carried, -(1 << statement.ring_bits)), *zip(vectors, lifts.SCALES, strict=False)]
        point = statement.shape.point(self._derived(report.client, b"point"))
        query = statement.shape.query(statement.inputs(parts, sums, bits), proof, point)
        of_same, same = self._of_weights(report.client, parts, of_weights)
        (rho,) = field128.integers(field128.uniform(self._derived(report.client, b"rho"), 1))
        zeros = statement.residues(parts, query.outputs, same, bits, party)
        output = field128.evaluate([0, *(share for _, share in zeros)], rho)
        opened = np.concatenate([query.opened, of_same, field128.words([output])])
        return fold, field128.to_bytes(opened)

    def _of_weights(
        self, client: int, parts: list[tuple[Whole, int]], proof: Words
    ) -> tuple[Words, int]:
        """The opened part of the proof of weights, and this server's share of its output."""
        statement = self._statement
        if statement.same is None:
            return field128.words([]), 0
        (group,) = (group for group in statement.groups if group.kind == "weight")
        laid = [(statement.lanes(part), part[group.start], scale) for part, scale in parts]
        point = statement.same.point(self._derived(client, b"weights"))
        query = statement.same.query(laid, proof, point)
        return query.opened, query.output

    def _values(self, loaded: LoadedReport, slack: Whole, threads: int) -> list[Whole]:
        """The vector of this server's lifted shares: low parts, and high ones of wide rings."""
        statement, plan = self._statement, self._plan
        width = statement.ring_bits // 8
        trees: list[dict[str, Whole]] = [{}, {}]
        for segment in plan.with_trees:
            count, shape = statement.leaf_values(segment), (segment.num_trees, 1 << segment.nu, -1)
            parts = self._lifted(loaded.report, segment)
            if parts is None:
                given = loaded.contribution(segment)
                parts = lifts.tree_sums(segment, given, width, count, self._party, threads)
            for half, part in zip(trees, parts, strict=False):
                half[segment.name] = part.reshape(shape)
        dense = {}
        if statement.reads_dense:
            dense = {s.name: lifts.lift(loaded.dense_share(s), self._party) for s in plan.dense}
        low = statement.vector(trees[0], dense, slack)
        if statement.ring_bits <= HALF:  # sums fit the lower part
            return [low]
        none = {name: np.zeros_like(part) for name, part in dense.items()}
        return [low, statement.vector(trees[1], none, np.zeros_like(slack))]

    def _derived(self, client: int, what: bytes) -> bytes:
        context = kdf.frame(what, client.to_bytes(8, "little"))
        return kdf.derive(self._key, kdf.LABEL_PROOF, context)


def passes(plan: Plan, ours: bytes, others: bytes) -> bool:
    """Whether a report is accepted, by both servers' verdicts of `verdict_bytes`.

    Both are canonical: ours was made here, the peer's was decoded.
    """
    if not kdf.digests_equal(ours[:FOLD_BYTES], others[:FOLD_BYTES]):
        return False
    if plan.statement is None:
        return True
    opened = (field128.checked(verdict[FOLD_BYTES:]) for verdict in (ours, others))
    return plan.statement.accepts(*opened)

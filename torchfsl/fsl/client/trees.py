"""A client's trees: where its rows went, its master seeds, its secret leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import hpke, kdf
from torchfsl.crypto.entropy import random_below, random_bytes
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import AnswerBody
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.cuckoo.placement import Placement
from torchfsl.fsl.dpf import bits, psr
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import FETCH_ROUND, ReportContext, TreeContext
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.submodel.halves import heard
from torchfsl.submodel.update import SegmentUpdate
from torchfsl.types import Bytes, Indices


@dataclass(frozen=True, slots=True)
class Selection:
    """Trees of one segment at the client. Secret.

    Attributes:
        indices: positions in the order in which they were placed.
        placement: the tree that holds each.
        leaves: both parties' states at the selected leaves.
    """

    indices: Indices = field(repr=False)
    placement: Placement = field(repr=False)
    leaves: dpf.SelectedLeaves = field(repr=False)

    def values_of(self, part: SegmentUpdate) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Values in the order of `indices`, and 1 for each position that has any, else 0."""
        chosen = part.positions
        if chosen is self.indices:  # trees of this very update
            return part.values, np.ones(len(self.indices), dtype=np.int64)
        values = np.zeros((len(self.indices), part.values.shape[1]), dtype=np.int64)
        present = np.zeros(len(self.indices), dtype=np.int64)
        if len(chosen):
            order = np.argsort(self.indices, kind="stable")
            where = order[np.searchsorted(self.indices, chosen, sorter=order)]
            values[where] = part.values
            present[where] = 1
        return values, present


class ClientTrees:
    """One set of trees: for one round, or for the epochs of a session.

    The nonce and both master seeds are fresh; trees of two sets share nothing. `seeds_sent` are the
    seeds as they travel, the same bytes whenever they are sent: sealed where the plan has keys.
    `wrong` is why these trees are all dummies, if they are.
    """

    def __init__(self, plan: Plan, client_id: int, round_number: int) -> None:
        """Draw nonce and master seeds from the operating system."""
        self.plan = plan
        self.context = TreeContext(plan, round_number, client_id, random_bytes(16))
        self.master_seeds = (random_bytes(16), random_bytes(16))
        self.seeds_sent = tuple(self._as_sent(party) for party in (0, 1))
        self.uploaded = False
        self.wrong: Exception | None = None
        self._selections: dict[str, Selection] = {}

    def __repr__(self) -> str:
        return f"ClientTrees(client={self.context.client}, round={self.context.opening_round})"

    def _as_sent(self, party: int) -> bytes:
        seed, keys = self.master_seeds[party], self.plan.server_keys
        if not keys:
            return seed
        return hpke.seal(bytes.fromhex(keys[party]), self.context.seal_info(party), seed)

    def heads(self, party: int, commitment: bytes) -> tuple[bytes, bytes, bytes]:
        """Nonce, master seed and tag of what one server gets of the trees."""
        tag = self.context.upload_tag(self.master_seeds[party], party, commitment)
        return self.context.nonce, self.seeds_sent[party], tag

    def report_heads(
        self, report: ReportContext, party: int, private: bytes, *digests: bytes
    ) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Nonce, master seed, hint nonce, tag and `private` of what one server gets of a report."""
        told = (private,) if private else ()
        tag = report.upload_tag(self.master_seeds[party], party, *told, *digests)
        return self.context.nonce, self.seeds_sent[party], report.hint_nonce, tag, private

    def selection(self, segment: TreeSegment) -> Selection:
        """The segment's selection; it must have been grown."""
        return self._selections[segment.name]

    def grow(
        self, segment: TreeSegment, order: Indices, report: ReportContext | None = None
    ) -> list[dpf.Trees]:
        """Place positions in the given order and generate the segment's trees, once.

        `report` is given for trees that travel in a report.
        """
        assert segment.name not in self._selections, "trees of one set are grown once"
        plan, context = self.plan, self.context
        placement = self._placed(segment, segment.tree_positions(order), report)
        dummies = [random_below(group.domain, group.num_trees) for group in segment.groups]
        alpha = np.where(placement.item < 0, np.concatenate(dummies), placement.position)
        source = context if report is None else report
        roots = [source.roots(segment, self.master_seeds[party], party) for party in (0, 1)]
        key = context.tree_key(segment)
        key_check = context.check_key(segment) if plan.verified else b""
        trees, leaves = dpf.gen(segment, key, key_check, roots[0], roots[1], alpha)
        self._selections[segment.name] = Selection(order, placement, leaves)
        return trees

    def _placed(
        self, segment: TreeSegment, positions: Indices, report: ReportContext | None
    ) -> Placement:
        if segment.binned:  # trees of one round, which travel in its report
            assert report is not None
            bins = self.plan.public_bins(segment, report.round_number)
            return cuckoo.place_in_bins(bins, positions)
        table = self.plan.permutations(segment) if segment.num_bins else None
        return cuckoo.place(table, positions, segment.num_bins, segment.theta, segment.stash)

    def forget(self, segments: Iterable[TreeSegment]) -> None:
        """Drop the trees of a report that was not sent, for another draw under another nonce."""
        for segment in segments:
            del self._selections[segment.name]

    def rows_in(
        self, answers: tuple[AnswerBody, AnswerBody], round_number: int, bound: bytes = b""
    ) -> dict[str, tuple[Indices, npt.NDArray[np.generic]]]:
        """Both servers' answers on these trees: by retrieving segment indices and `[k, tau]` rows.

        Raises:
            ProtocolError: a seal or a tag does not fit, or the servers hold different models.
        """
        plan, context = self.plan, self.context
        seeds = self.master_seeds
        keys = [context.answer_key(seeds[p], p, round_number, bound) for p in (0, 1)]
        fetched = round_number == FETCH_ROUND
        first, second = (
            a.unseal(plan, key, fetched=fetched) for a, key in zip(answers, keys, strict=True)
        )
        if not kdf.digests_equal(bytes(first[-1]), bytes(second[-1])):
            raise ProtocolError(
                "the two servers hold different models, so this client stops: report this to "
                "both operators",
                code="models-differ",
            )
        retrieved: dict[str, Bytes] = {}
        for segment, *pair in zip(plan.retrieving, first[:-1], second[:-1], strict=True):
            if fetched and segment.by_bits:
                retrieved[segment.name] = bits.decode(segment, pair)
                continue
            mac_key = context.mac_key(segment, round_number)
            row_key = psr.row_key(plan, segment, bytes(first[-1]))
            leaves = self.selection(segment).leaves
            retrieved[segment.name] = psr.decode(segment, mac_key, row_key, pair, leaves)
        return {s.name: self._rows_by_index(s, retrieved[s.name]) for s in plan.retrieving}

    def _rows_by_index(
        self, segment: TreeSegment, retrieved: Bytes
    ) -> tuple[Indices, npt.NDArray[np.generic]]:
        """Retrieved rows `[num_trees, row_bytes]` as matched indices and values `[k, tau]`."""
        selection = self.selection(segment)
        used = np.flatnonzero(selection.placement.item >= 0)
        indices = selection.indices[selection.placement.item[used]]
        order = np.argsort(indices)
        rows = heard(retrieved[used[order]].tobytes(), segment.download, segment.tensors[0].dtype)
        return indices[order], rows.reshape(-1, segment.tau)


def nothing() -> Indices:
    """No positions."""
    return np.empty(0, dtype=np.int64)

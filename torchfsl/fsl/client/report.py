"""One report, made and proven: late trees, hints, masked values, and under `proofs` the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl.bodies import Pieces
from torchfsl.fsl.client import proof
from torchfsl.fsl.client.proof import Sent
from torchfsl.fsl.client.trees import ClientTrees, nothing
from torchfsl.fsl.dpf import ssa
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.kernels import ring
from torchfsl.submodel.update import SegmentUpdate, Update
from torchfsl.types import Bytes, Indices, Whole


@dataclass(frozen=True, slots=True)
class DrawnReport:
    """A report as it goes up.

    Attributes:
        context: what it is bound to.
        public: pieces of its public share.
        masked: of every dense segment and, under `proofs`, of the proof.
        without_tree: by segment the positions that found no tree.
    """

    context: ReportContext
    public: Pieces = field(repr=False)
    masked: Pieces = field(repr=False)
    without_tree: dict[str, Indices] = field(repr=False)


def draw(trees: ClientTrees, begun: ReportContext, update: Update, weight: int) -> DrawnReport:
    """The report of an update, under a nonce that is drawn here.

    At the last moment: a process restored from a snapshot taken inside the round must not send two
    updates under one nonce. Under `proofs` a report in which more values have wrapped than there
    are carry trees, one in 2**60, is drawn anew.
    """
    plan = trees.plan
    parts = {**update, **{s.name: _by_weight(update[s.name]) for s in plan.late}}
    while True:
        context = ReportContext(begun.trees, begun.round_number, random_bytes(16))
        drawn = _draw(trees, context, parts, weight)
        if drawn is not None:
            return drawn
        trees.forget(plan.late)


def _draw(
    trees: ClientTrees, context: ReportContext, parts: Mapping[str, SegmentUpdate], weight: int
) -> DrawnReport | None:
    plan = trees.plan
    public: list[memoryview] = []
    for segment in plan.late:
        order = parts[segment.name].positions
        public += [p for tree in trees.grow(segment, order, context) for p in tree.pieces()]
    sent = Sent({}, {}, {}, {}, weight)
    for segment in plan.with_trees:
        carried = _carried(trees, segment, parts[segment.name], weight)
        leaves = trees.selection(segment).leaves
        hints = dpf.gen_hints(segment, context.convert_key(segment), leaves, carried)
        public.append(dpf.bytes_of(hints))
        sent.values[segment.name], sent.hints[segment.name] = carried, hints
    for segment in plan.dense:
        whole = _whole(trees, segment, parts[segment.name], weight)
        sent.dense[segment.name] = whole
        sent.masked[segment.name] = _mask(trees, context, segment, whole)
    masked = [dpf.bytes_of(part) for part in sent.masked.values()]
    if plan.statement is not None:
        proven = proof.prove(plan.statement, trees, context, sent)
        if proven is None:
            return None
        public += proven.public
        masked.append(memoryview(proven.masked))
    missing = {s.name: _without_tree(trees, s, parts[s.name]) for s in plan.with_trees}
    return DrawnReport(context, tuple(public), tuple(masked), missing)


def _carried(trees: ClientTrees, segment: TreeSegment, part: SegmentUpdate, weight: int) -> Bytes:
    """A segment's values as its trees carry them."""
    selection = trees.selection(segment)
    values, lane = selection.values_of(part)
    placed = selection.placement
    return ssa.tree_values(trees.plan, segment, placed, values * weight, lane * weight)


def _whole(trees: ClientTrees, segment: TreeSegment, part: SegmentUpdate, weight: int) -> Whole:
    """A dense segment's values, behind the weight if there is a weight lane."""
    flat = part.values.reshape(-1) * weight
    if trees.plan.lane == "weight":
        flat = np.concatenate([np.array([weight], dtype=np.int64), flat])
    return flat


def _mask(trees: ClientTrees, context: ReportContext, segment: TreeSegment, whole: Whole) -> Bytes:
    """A dense segment as it goes to the public party: values minus both parties' masks."""
    plain = ring.from_int64(whole, trees.plan.encoding_of(segment).ring_bits)
    for party, seed in enumerate(trees.master_seeds):
        plain = ring.sub(plain, context.dense_mask(segment, seed, party))
    return plain


def _without_tree(trees: ClientTrees, segment: TreeSegment, part: SegmentUpdate) -> Indices:
    """Positions of the update that found no tree."""
    selection = trees.selection(segment)
    if not len(selection.placement.unmatched):
        return nothing()
    assert part.indices is not None
    missing = selection.indices[selection.placement.unmatched]
    return np.intersect1d(missing, part.indices, assume_unique=True)


def _by_weight(part: SegmentUpdate) -> SegmentUpdate:
    """Items in order of falling magnitude, so that the lightest ones are left out, if any."""
    assert part.indices is not None
    magnitude = np.abs(part.values).sum(axis=1)
    order = np.argsort(-magnitude, kind="stable").astype(np.int64, copy=False)
    return SegmentUpdate(part.indices[order], part.values[order])

"""A client's proof of what its report carries: slack, wraps, carry trees, the proof itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from torchfsl.crypto import field128
from torchfsl.crypto.entropy import random_bytes
from torchfsl.fsl.client.trees import ClientTrees
from torchfsl.fsl.dpf import carries, lifts
from torchfsl.fsl.dpf import trees as dpf
from torchfsl.fsl.dpf.keys import ReportContext
from torchfsl.fsl.plan import proof_shape
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.statement import Statement
from torchfsl.kernels import ring
from torchfsl.kernels.portable.proofs import Words
from torchfsl.submodel.norm_bound import four_squares, norm_squared
from torchfsl.types import Bytes, Whole


@dataclass(frozen=True, slots=True)
class Sent:
    """The values that a report carries, by segment. Secret.

    Attributes:
        values: `[num_trees, lanes + tau, l/8]`, of segments with trees.
        hints: `[num_trees, W/8 << nu]`.
        dense: `int64[values]`, of the others.
        masked: `[values, l/8]`, as they travel.
        weight: w, of dummies 0.
    """

    values: dict[str, Bytes] = field(repr=False)
    hints: dict[str, Bytes] = field(repr=False)
    dense: dict[str, Whole] = field(repr=False)
    masked: dict[str, Bytes] = field(repr=False)
    weight: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof: pieces of the public share, and what travels masked."""

    public: list[memoryview] = field(repr=False)
    masked: bytes = field(repr=False)


def prove(
    statement: Statement, trees: ClientTrees, context: ReportContext, sent: Sent
) -> Proven | None:
    """Prove what was sent; None where more values have wrapped than the carry trees take.

    The values are those that honest code may send: within the bounds of the plan.
    """
    true, shares = _values(statement, trees, context, sent)
    slack = _slack(statement, true, sent.weight)
    masks = [context.proof_mask(seed, party) for party, seed in enumerate(trees.master_seeds)]
    plain = ring.from_int64(slack, statement.ring_bits)
    masked = ring.sub(ring.sub(plain, masks[0][0]), masks[1][0])
    first = context.trees.public_party
    lifted = [
        lifts.lift(ring.add(masked, mask) if party == first else mask, party)
        for party, (mask, _) in enumerate(masks)
    ]
    vector = statement.vector(*true, slack)
    wraps = sum(statement.vector(*part, own) for part, own in zip(shares, lifted, strict=True))
    wrapped = np.asarray(wraps - vector) >> statement.ring_bits
    if np.count_nonzero(wrapped) > statement.num_carries:
        return None
    grown = carries.grow(statement, context, trees.master_seeds, wrapped)
    if grown is None:
        return None
    carry_trees, hints, sums = grown
    totals = sums.reshape(-1).tolist()
    bits = proof_shape.chosen_parts(statement.num_carries, sum(total**2 for total in totals))
    seeds = field128.uniform(random_bytes(16), statement.shape.arity)
    proof = statement.shape.prove(statement.inputs([(vector, 1)], totals, bits), seeds)
    elements = np.concatenate(
        [field128.words(bits), proof, _of_weights(statement, vector, sent.weight)]
    )
    for _, mask in masks:
        elements = field128.subtract(elements, mask)
    public = [piece for part in carry_trees for piece in part.pieces()]
    pieces = dpf.bytes_of(masked), field128.to_bytes(elements)
    return Proven([*public, dpf.bytes_of(hints)], b"".join(pieces))


def _of_weights(statement: Statement, vector: Whole, weight: int) -> Words:
    """The proof that every lane is 0 or the weight; nothing without weights."""
    if statement.same is None:
        return field128.words([])
    seeds = field128.uniform(random_bytes(16), statement.same.num_wires)
    return statement.same.prove(statement.lanes(vector), weight, seeds)


_Vectors = tuple[dict[str, Whole], dict[str, Whole]]
"""By segment with trees `[num_trees, 2**nu, values]`, by dense segment `[values]`."""


def _values(
    statement: Statement, trees: ClientTrees, context: ReportContext, sent: Sent
) -> tuple[_Vectors, list[_Vectors]]:
    """The carried values, and both parties' lifted shares of them."""
    true: _Vectors = ({}, {})
    shares: list[_Vectors] = [({}, {}), ({}, {})]
    width = statement.ring_bits // 8
    for segment in statement.segments:
        leaves, count = trees.selection(segment).leaves, statement.leaf_values(segment)
        shape = segment.num_trees, 1 << segment.nu, -1
        true[0][segment.name] = _in_slots(segment, leaves.slots, sent.values[segment.name])
        hints = np.ascontiguousarray(sent.hints[segment.name][:, : count * width])
        key = context.convert_key(segment)
        for party, states in enumerate((leaves.leaf0, leaves.leaf1)):
            lifted = lifts.leaf_lifts(key, states, hints, width, party)
            shares[party][0][segment.name] = lifted.reshape(shape)
    for segment in trees.plan.dense if statement.reads_dense else ():
        name, first = segment.name, context.trees.public_party
        true[1][name] = sent.dense[name]
        for party, seed in enumerate(trees.master_seeds):
            share = context.dense_mask(segment, seed, party)
            share = ring.add(sent.masked[name], share) if party == first else share
            shares[party][1][name] = lifts.lift(share, party)
    return true, shares


def _in_slots(segment: TreeSegment, slots: dpf.Positions, values: Bytes) -> Whole:
    """Values `[num_trees, n, l/8]` at the selected slots, else zeros: `[num_trees, 2**nu, n]`."""
    whole = ring.to_int64(values)
    placed = np.zeros((segment.num_trees, 1 << segment.nu, whole.shape[1]), dtype=np.int64)
    placed[np.arange(segment.num_trees), slots.astype(np.int64)] = whole
    return placed


def _slack(statement: Statement, true: _Vectors, weight: int) -> Whole:
    """The rest of every bound, as the roots of four squares; and the weight."""
    proven = statement.proven
    unit = weight if proven.weighted else 1
    blank = statement.vector(*true, np.zeros(statement.num_slack, dtype=np.int64))
    parts = {(g.kind, g.name): blank[g.start : g.start + g.size] for g in statement.groups}
    values = {name: part for (kind, name), part in parts.items() if kind == "norm"}
    bounds = {s.name: s.l2_bound for s in proven.bounded}
    limits = {s.name: s.k_max for s in proven.trees}
    slack: list[int] = []
    for kind, name in ((g.kind, g.name) for g in statement.groups if g.slack):
        if kind == "weight":
            slack.append(weight)
            continue
        if kind == "norm":
            left = (unit * proven.norm) ** 2 - norm_squared(values)
        elif kind == "own":
            left = (unit * bounds[name]) ** 2 - norm_squared({name: values[name]})
        elif kind == "range":
            left = weight * (proven.max_weight - weight)
        else:
            lanes = parts["lane", name]
            used = norm_squared({name: lanes}) if proven.weighted else int(lanes.sum())
            left = unit**2 * limits[name] - used
        slack += four_squares(left)
    return np.array(slack, dtype=np.int64)

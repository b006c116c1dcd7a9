"""A client's part of a round: upload trees, retrieve rows, submit values on the same trees.

Whatever happens inside a round, the servers see the same messages of the same lengths: a failure
that depends on private rows or values is raised to the caller only after a well-formed all-dummy
report has left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import numpy.typing as npt

from torchfsl import cuckoo, dpf, messages, psr, ring, ssa
from torchfsl.cuckoo import Placement
from torchfsl.entropy import random_below, random_bytes
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.keys import ReportContext
from torchfsl.messages import Kind
from torchfsl.plan import Plan, Segment
from torchfsl.transport import Transport
from torchfsl.update import Indices, SegmentUpdate, Update, check_indices, check_update

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a submission cost and left out.

    Attributes:
        upload_bytes: bytes sent to both servers in this round so far, headers included.
        download_bytes: bytes received from both.
        unmatched: by segment, the selected positions that found no bin and were not sent (with
            probability at most 2**-40 any); keep their values in the residual.
    """

    upload_bytes: int
    download_bytes: int
    unmatched: dict[str, Indices]


@dataclass(slots=True)
class _Selection:
    """Trees of one segment at the client. Secret."""

    indices: Indices = field(repr=False)
    placement: Placement = field(repr=False)
    leaves: dpf.SelectedLeaves = field(repr=False)


class Client:
    """A participant of a task, bound to a plan and to the two servers.

    Args:
        plan: the public plan, equal at both servers.
        servers: the transport to both servers.
        client_id: public number in [0, 2**64), authenticated by the transport.
    """

    def __init__(self, plan: Plan, servers: Transport, *, client_id: int) -> None:
        """Nothing is sent yet."""
        self.plan = plan
        self.servers = servers
        self.client_id = client_id

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> ClientRound:
        """Begin a round; uploads the trees of the retrieving segments, if there are any.

        Args:
            round_number: the open round.
            indices: for every retrieving segment, the rows wanted: distinct, increasing, at most
                k_max.

        Raises:
            ParameterError: bad indices; the servers have then been sent dummies throughout.
        """
        return ClientRound(self.plan, self.servers, self.client_id, round_number, indices or {})


class ClientRound:
    """One client in one round. Use as a context manager: an exception submits dummies."""

    def __init__(
        self,
        plan: Plan,
        servers: Transport,
        client_id: int,
        round_number: int,
        indices: Mapping[str, npt.ArrayLike],
        entropy: Callable[[int], bytes] = random_bytes,
    ) -> None:
        """Draw nonce and master seeds, and upload trees; see `Client.start_round`."""
        self._plan, self._servers = plan, servers
        self._context = ReportContext(plan, round_number, client_id, entropy(16))
        self._master_seeds = (entropy(16), entropy(16))
        self._hint_nonce = entropy(16)
        self._selections: dict[str, _Selection] = {}
        self._upload = self._download = 0
        self._submitted = False
        try:
            wanted = self._check_wanted(indices)
        except ParameterError:
            self._send_trees({s.name: _nothing() for s in messages.retrieving(plan)})
            self.abort()
            raise
        self._send_trees(wanted)

    def __repr__(self) -> str:
        return f"ClientRound(client={self._context.client}, round={self._context.round_number})"

    def __enter__(self) -> ClientRound:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._submitted and kind is not None:
            self.abort()

    def download(self) -> dict[str, npt.NDArray[np.generic]]:
        """The clear part of the model: every tensor outside retrieving segments.

        One server sends it, the other its digest and that of the rows.

        Raises:
            ProtocolError: the servers hold different models.
        """
        data = self._receive(self._context.public_party, Kind.MODEL)
        other = self._receive(1 - self._context.public_party, Kind.MODEL_DIGEST)
        return messages.decode_model(self._plan, data, other)

    def retrieve(self) -> dict[str, tuple[Indices, npt.NDArray[np.generic]]]:
        """The rows asked for in `start_round`, by segment: matched indices and `[k, tau]` values.

        A row that found no bin (probability at most 2**-40) is missing from the indices.
        """
        bodies = [self._receive(party, Kind.ANSWER) for party in (0, 1)]
        rows: dict[str, tuple[Indices, npt.NDArray[np.generic]]] = {}
        start = 0
        for segment in messages.retrieving(self._plan):
            stop = start + segment.answer_bytes
            parts = [
                np.frombuffer(body[start:stop], dtype=np.uint8).reshape(segment.num_trees, -1)
                for body in bodies
            ]
            selection = self._selections[segment.name]
            answers = (parts[0], parts[1])
            found = psr.decode(segment, answers, selection.leaves.slots)
            rows[segment.name] = _rows_by_index(segment, selection, found)
            start = stop
        return rows

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        """Send the update on the trees of this round.

        Args:
            update: quantised, one entry for every segment. Positions of a retrieving segment must
                be among those retrieved.
            weight: this client's weight under a weight lane; values are multiplied by it.

        Raises:
            ParameterError: the update does not fit the plan; an all-dummy report was sent.
            ProtocolError: this round was submitted before.
        """
        if self._submitted:
            raise ProtocolError("this round was submitted already; start the next one")
        try:
            self._check_submission(update, weight)
        except ParameterError:
            self.abort()
            raise
        unmatched = self._send_report(update, weight)
        return Receipt(self._upload, self._download, unmatched)

    def abort(self) -> Receipt:
        """Send a report of the usual form that adds nothing to any sum."""
        if self._submitted:
            raise ProtocolError("this round was submitted already")
        zeros: Update = {}
        for segment in self._plan.segments:
            if segment.policy == "dense":
                empty = np.zeros((segment.m, 1), dtype=np.int64)
                zeros[segment.name] = SegmentUpdate(None, empty)
            else:
                empty = np.zeros((0, segment.tau), dtype=np.int64)
                zeros[segment.name] = SegmentUpdate(_nothing(), empty)
        self._send_report(zeros, 0)
        return Receipt(self._upload, self._download, {})

    # --- what the methods above are made of ---------------------------------------------------

    def _check_wanted(self, indices: Mapping[str, npt.ArrayLike]) -> dict[str, Indices]:
        segments = {segment.name: segment for segment in messages.retrieving(self._plan)}
        if set(indices) != set(segments):
            raise ParameterError(
                f"rows wanted for segments {sorted(indices)}, the plan retrieves {sorted(segments)}"
            )
        return {name: check_indices(segments[name], indices[name]) for name in segments}

    def _check_submission(self, update: Update, weight: int) -> None:
        check_update(self._plan, update)
        if not 1 <= weight <= self._plan.max_weight:
            raise ParameterError(f"weight is {weight}; the plan allows 1..{self._plan.max_weight}")
        for segment in messages.retrieving(self._plan):
            positions = update[segment.name].indices
            assert positions is not None
            if not np.all(np.isin(positions, self._selections[segment.name].indices)):
                raise ParameterError(
                    f"segment {segment.name!r}: the update has rows that were not retrieved"
                )

    def _grow(self, segment: Segment, order: Indices) -> list[dpf.Trees]:
        """Place the rows in the given order and generate the segment's trees."""
        plan, context = self._plan, self._context
        table = None
        if segment.num_bins:
            seed = bytes.fromhex(plan.hash_seed)
            table = cuckoo.permutations(seed, segment.name, segment.m)
        placement = cuckoo.place(table, order, segment.num_bins, segment.theta, segment.stash)
        dummy = placement.item < 0
        alpha = np.concatenate(
            [random_below(group.domain, group.num_trees) for group in segment.groups]
        )
        alpha = np.where(dummy, alpha, placement.position)
        roots = [context.roots(segment, self._master_seeds[b], b) for b in (0, 1)]
        trees, leaves = dpf.gen(segment, context.tree_key(segment), roots[0], roots[1], alpha)
        self._selections[segment.name] = _Selection(order, placement, leaves)
        return trees

    def _send_trees(self, wanted: dict[str, Indices]) -> None:
        segments = messages.retrieving(self._plan)
        if not segments:
            return
        trees = [t for s in segments for t in self._grow(s, wanted[s.name])]
        public = b"".join(tree.encode() for tree in trees)
        self._send(Kind.TREES, Kind.TREES_COMMIT, b"", public, b"")

    def _send_report(self, update: Update, weight: int) -> dict[str, Indices]:
        plan, context = self._plan, self._context
        self._submitted = True
        trees, hints, masked = [], [], []
        unmatched: dict[str, Indices] = {}
        for segment in plan.segments:
            part = update[segment.name]
            if part.indices is None:
                masked.append(self._mask(segment, part.values, weight))
                continue
            if not segment.retrieve:
                order = _by_weight(part)
                trees += [tree.encode() for tree in self._grow(segment, part.indices[order])]
            selection = self._selections[segment.name]
            values, lane = _values_of(selection, part)
            carried = ssa.tree_values(
                plan, segment, selection.placement, values * weight, lane * weight
            )
            key = context.convert_key(segment, self._hint_nonce)
            hints.append(dpf.gen_hints(segment, key, selection.leaves, carried).tobytes())
            missing = selection.indices[selection.placement.unmatched]
            unmatched[segment.name] = np.intersect1d(missing, part.indices)
        public = b"".join(trees + hints)
        self._send(Kind.REPORT, Kind.REPORT_COMMIT, self._hint_nonce, public, b"".join(masked))
        return unmatched

    def _mask(self, segment: Segment, values: npt.NDArray[np.int64], weight: int) -> bytes:
        """The public party's share of a dense segment: values minus the other's mask."""
        plan = self._plan
        flat = values.reshape(-1) * weight
        if plan.lane == "weight":
            flat = np.concatenate([np.array([weight], dtype=np.int64), flat])
        plain = ring.from_int64(flat, plan.encoding.ring_bits)
        seed = self._master_seeds[1 - self._context.public_party]
        mask = self._context.dense_mask(segment, seed, self._hint_nonce)
        return ring.sub(plain, mask).tobytes()

    def _send(
        self, kind: Kind, commit_kind: Kind, extra: bytes, public: bytes, private: bytes
    ) -> None:
        """Public part to one server, its commitment to the other, a master seed to each."""
        context, party = self._context, self._context.public_party
        commitment = context.commitment(kind, extra + public)
        for to, what, parts in (
            (1 - party, commit_kind, (commitment,)),
            (party, kind, (public, private)),
        ):
            message = messages.encode(
                self._plan, what, to, context.round_number, context.client,
                context.nonce, self._master_seeds[to], extra, *parts,
            )  # fmt: skip
            self._upload += len(message)
            self._servers.send(to, message)

    def _receive(self, party: int, kind: Kind) -> memoryview:
        context = self._context
        data = self._servers.fetch(party, kind, context.round_number, context.client)
        self._download += len(data)
        message = messages.decode(self._plan, data, kind)
        if (message.party, message.round_number) != (party, context.round_number):
            raise ProtocolError(f"server {party} answered for another server or round")
        return message.body


def _nothing() -> Indices:
    return np.empty(0, dtype=np.int64)


def _by_weight(part: SegmentUpdate) -> Indices:
    """Items in order of falling magnitude, so that the lightest ones are left out, if any."""
    magnitude = np.abs(part.values).sum(axis=1)
    return np.argsort(-magnitude, kind="stable").astype(np.int64)


def _values_of(
    selection: _Selection, part: SegmentUpdate
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Values in the order of the selection's items, and 1 for each item that has any, else 0."""
    values = np.zeros((len(selection.indices), part.values.shape[1]), dtype=np.int64)
    present = np.zeros(len(selection.indices), dtype=np.int64)
    assert part.indices is not None
    if len(part.indices):
        order = np.argsort(selection.indices, kind="stable")
        where = np.searchsorted(selection.indices, part.indices, sorter=order)
        values[order[where]] = part.values
        present[order[where]] = 1
    return values, present


def _rows_by_index(
    segment: Segment, selection: _Selection, found: Bytes
) -> tuple[Indices, npt.NDArray[np.generic]]:
    used = np.flatnonzero(selection.placement.item >= 0)
    indices = selection.indices[selection.placement.item[used]]
    order = np.argsort(indices)
    dtype = np.dtype(segment.tensors[0].dtype).newbyteorder("<")
    rows = np.ascontiguousarray(found[used[order]]).view(dtype)
    return indices[order], rows.reshape(-1, segment.tau)

"""From the reports of a closed round to its sums: one set, one pair of shares, one opening."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import (
    CountsBody,
    ReportSet,
    ShareBody,
    ShareCommit,
    Verdicts,
    share_by_segment,
)
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server import commitments, proofs, ranges
from torchfsl.fsl.server.commitments import RowCommitments
from torchfsl.fsl.server.norms import Norms
from torchfsl.fsl.server.reports import Report
from torchfsl.kernels import ring
from torchfsl.submodel import sum_bound
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.segments import subset_array

log = logging.getLogger("torchfsl.server")

_CHUNK: Final = 1 << 17
"""Values that are decoded at once."""


class Opening:
    """The state of one server between closing a round and opening its sums.

    Attributes:
        coin: this server's half of the key of the check.
        accepted: the agreed reports by client, later those that passed the check.
        folds: this server's verdicts, by client of the agreed set.
        salt: with which it commits to its share; where counts are opened first, that of the
            commitment and the key of the row salts.
        share: of the sums. Secret until the peer has committed to its own.
        set_digest: of the reports that are accepted so far, see `accepted`.
    """

    def __init__(self, plan: Plan, party: int, coin: bytes = b"") -> None:
        """Nothing is agreed yet."""
        self._plan, self._party, self.coin = plan, party, coin
        self.accepted: dict[int, Report] = {}
        self.folds: dict[int, bytes] = {}
        self.salt = b""
        self.share: Buffer = b""
        self.set_digest = self._peer_commitment = self._root = b""
        self._peer_counts = CountsBody(b"", b"", b"")
        self._kept: dict[str, npt.NDArray[np.bool_]] = {}
        self._withheld: dict[str, int] = {}

    def agree(self, own: Mapping[int, Report], peer_reports: ReportSet) -> bytes:
        """Keep the reports that both servers hold with equal digests.

        Returns:
            The key of the check, from both servers' coins.

        Raises:
            ProtocolError: fewer than `min_clients`, or the peer's clients do not rise.
        """
        clients = [client for client, _ in peer_reports.entries]
        if clients != sorted(set(clients)):
            raise ProtocolError(
                "the peer's REPORT_SET does not name its clients in rising order, each once: "
                "nothing is opened. Compare both servers' versions and ask the peer's operator",
                code="report-sets-differ",
            )
        entries = dict(peer_reports.entries)
        self._accept({c: r for c, r in own.items() if entries.get(c) == r.digest()})
        coins = sorted([self.coin, peer_reports.coin])
        return kdf.digest(kdf.LABEL_FOLD, self.set_digest, *coins)

    def verify(self, peer_folds: Verdicts) -> None:
        """Keep the reports whose folds agree with the peer's and whose proofs hold; reject others.

        Raises:
            ProtocolError: fewer than `min_clients`, or the peer agreed on another set.
        """
        if len(peer_folds.verdicts) != len(self.folds):
            raise ProtocolError(
                "the two servers accepted different sets of reports, so nothing is opened: begin "
                "the next round",
                code="report-sets-differ",
            )
        passed = {
            client: self.accepted[client]
            for (client, fold), other in zip(self.folds.items(), peer_folds.verdicts, strict=True)
            if proofs.passes(self._plan, fold, other)
        }
        for client, report in self.accepted.items():
            if client not in passed:
                log.warning("round %d: the report of client %d fails its check, and is not in the "
                            "sum", report.round_number, client)  # fmt: skip
                report.rejected = report.failed = True
        self._accept(passed)

    def commit(self, share: Buffer, salt: bytes) -> ShareCommit:
        """Fix this server's share. Returns the commitment for the peer."""
        self.share, self.salt = share, salt
        if not self._plan.opens_counts_first:
            return ShareCommit(self._commitment(self._party, salt, share))
        rows, key = commitments.split(self._plan, share), salt[DIGEST_BYTES:]
        ours = self._rows_of(self._party)
        self._root = ours.root(ours.leaves(rows, commitments.row_salts(self._plan, key)))
        return ShareCommit(self._counts_commitment(self._party, self._own_counts()))

    def reveal(self, peer_commit: ShareCommit) -> ShareBody:
        """The share, once the peer has fixed its own."""
        self._peer_commitment = peer_commit.commitment
        return ShareBody(self.salt, self.share)

    def reveal_counts(self, peer_commit: ShareCommit) -> CountsBody:
        """The counts' share, once the peer has fixed its whole share."""
        self._peer_commitment = peer_commit.commitment
        return self._own_counts()

    def reveal_kept(self, peer_counts: CountsBody) -> ShareBody:
        """Open the counts; the share of the rows that enough clients have sent.

        A count that no honest reports make up is below any number.

        Raises:
            ProtocolError: the peer's counts are not those committed to, or over another set.
        """
        computed = self._counts_commitment(1 - self._party, peer_counts)
        if not kdf.digests_equal(self._peer_commitment, computed):
            raise ProtocolError(
                "the peer's counts do not fit its commitment: nothing is opened",
                code="commitment-mismatch",
            )
        self._count_out(peer_counts.counts)
        self._peer_counts = CountsBody(
            peer_counts.salt, peer_counts.root, bytes(peer_counts.counts)
        )
        key = self.salt[DIGEST_BYTES:]
        shown = self._rows_of(self._party).shown(self.share, key, self._kept)
        return ShareBody(self.salt[:DIGEST_BYTES], shown.data)

    def _count_out(self, peer_counts: Buffer) -> None:
        """Which rows are kept, and how many are not although somebody sent them."""
        ours, others = (
            commitments.counts_by_segment(self._plan, share)
            for share in (self._own_counts().counts, peer_counts)
        )
        least, num_clients = self._plan.min_contributors, len(self.accepted)
        for segment in self._plan.with_trees:
            name = segment.name
            counts, fits = ranges.signed(ring.add(ours[name], others[name]))
            most = ranges.most_opened_lane(self._plan, segment, num_clients)
            self._kept[name] = fits & (least <= counts) & (counts <= most)
            num_few = int(np.count_nonzero((counts > 0) & (counts < least)))
            self._withheld |= {segment.name: num_few} if num_few else {}

    def open(self, peer_share: ShareBody) -> Opened:
        """The exact sums, of rows that are kept if counts are opened first.

        Raises:
            ProtocolError: the peer's share is not the one committed to, or over another set.
        """
        if self._plan.opens_counts_first:
            counts = self._peer_counts
            peers = self._rows_of(1 - self._party)
            other = peers.take(peer_share.sums, counts.root, self._kept, counts.counts)
            ours = commitments.hide(self._plan, self.share, self._kept)
            opened = decode_shares(self._plan, ours.data, other.data, tuple(self.accepted))
            return dataclasses.replace(opened, withheld=self._withheld)
        computed = self._commitment(1 - self._party, peer_share.salt, peer_share.sums)
        if not kdf.digests_equal(self._peer_commitment, computed):
            raise ProtocolError(
                "the peer's share does not fit its commitment: nothing is applied",
                code="commitment-mismatch",
            )
        return decode_shares(self._plan, self.share, peer_share.sums, tuple(self.accepted))

    def _accept(self, reports: dict[int, Report]) -> None:
        """Take these as the set; its digest binds the key of the check and both shares."""
        if len(reports) < self._plan.min_clients:
            raise ProtocolError(
                f"acceptable reports: {len(reports)}, the plan wants {self._plan.min_clients} "
                "(min_clients), so the round closes unopened: let more clients participate, or "
                "leave the next round open for longer",
                code="too-few-reports",
            )
        self.accepted = reports
        digests = [report.digest() for report in reports.values()]
        self.set_digest = kdf.digest(kdf.LABEL_REPORT_SET, self._plan.digest, *digests)

    def _own_counts(self) -> CountsBody:
        counts = commitments.counts_of(self._plan, self.share)
        return CountsBody(self.salt[:DIGEST_BYTES], self._root, counts)

    def _counts_commitment(self, party: int, body: CountsBody) -> bytes:
        head = bytes([party]), self.set_digest, body.salt, body.root
        return kdf.digest(kdf.LABEL_SHARE, *head, pieces=[body.counts])

    def _rows_of(self, party: int) -> RowCommitments:
        return RowCommitments(self._plan, party, self.set_digest)

    def _commitment(self, party: int, salt: bytes, share: Buffer) -> bytes:
        head = bytes([party]), self.set_digest, salt
        return kdf.digest(kdf.LABEL_SHARE, *head, pieces=[share])


def decode_shares(plan: Plan, first: Buffer, second: Buffer, clients: tuple[int, ...]) -> Opened:
    """Add two servers' shares and cut the sums into segments; `ranges` zeroes what cannot be.

    Raises:
        ProtocolError: under `sum_bound`, more than reports make up whose proofs have held.
    """
    ours, others = (share_by_segment(plan, share) for share in (first, second))
    opened = Opened({}, {}, len(clients), len(clients), clients)
    norms = Norms(plan)
    for segment in plan.with_trees:
        pair = ours[segment.name], others[segment.name]
        values = _decoded(plan, pair, segment, opened, norms)
        values = _in_index_space(segment, values)
        if plan.lane_values:
            opened.lanes[segment.name] = values[:, 0]
        opened.sums[segment.name] = values[:, plan.lane_values :]
    opened = _with_dense(plan, opened, ours, others, norms)
    norms.check(len(clients))
    sum_bound.keep(plan, opened)
    if opened.scaled:
        log.warning(
            "the aggregate is larger than honest reports can make it, so both servers multiplied "
            "it (%s): look for clients that send false reports",
            ", ".join(f"segment {name} by {left:.3g}" for name, left in opened.scaled.items()),
        )
    return opened


def _decoded(
    plan: Plan, pair: tuple[Buffer, Buffer], segment: TreeSegment, opened: Opened, norms: Norms
) -> npt.NDArray[np.int64]:
    """Sums `[m, lanes + tau]` of a segment with trees.

    The function notes in `opened` how many positions it zeroed or cut. It decodes a few positions
    at a time, so that only the sums themselves take memory.
    """
    width, num_wrong, num_cut = plan.ring_bytes(segment), 0, 0
    shares = [np.frombuffer(s, np.uint8).reshape(segment.m, -1, width) for s in pair]
    values = np.empty(shares[0].shape[:2], dtype=np.int64)
    step = max(1, _CHUNK // values.shape[1])
    for start in range(0, segment.m, step):
        stop = min(start + step, segment.m)
        part, fits = ranges.signed(ring.add(*(share[start:stop] for share in shares)))
        if plan.payload == "masks":
            part = (part != 0).any(axis=1, keepdims=True) & np.ones_like(part)
        else:
            lane = part[:, 0] if plan.lane_values else None
            body = part[:, plan.lane_values :]
            fit = np.logical_and.reduce(fits, axis=1)
            norms.add(segment, body, fits[:, plan.lane_values :])
            far = np.zeros(len(part), dtype=np.bool_)
            if lane is not None:
                far = ranges.cut_lane(plan, segment, opened.num_clients, lane)
            far |= ranges.cut(plan, segment, opened.num_clients, body, lane)
            wrong = ranges.zero_out_of_range(plan, segment, opened.num_clients, body, fit, lane)
            part[wrong] = 0
            num_cut += int(np.count_nonzero(far & ~wrong))
            num_wrong += int(np.count_nonzero(wrong))
        values[start:stop] = part
    _count(opened, segment.name, num_wrong, num_cut)
    return values


def _with_dense(
    plan: Plan,
    opened: Opened,
    ours: dict[str, memoryview],
    others: dict[str, memoryview],
    norms: Norms,
) -> Opened:
    """The dense segments' sums, in front of which the total weight may stand."""
    weight, clamped = opened.total_weight, False
    lane: npt.NDArray[np.int64] | None = None
    for segment in plan.dense:
        values, fits = _added(plan, segment, ours[segment.name], others[segment.name])
        if plan.lane == "weight":
            weight = ranges.clamp_weight(plan, opened.num_clients, int(values[0]))
            clamped = clamped or weight != int(values[0]) or not bool(fits[0])
            values, fits, lane = values[1:], fits[1:], np.array([weight])
        values = values[:, None]
        norms.add(segment, values, fits)
        far = ranges.cut(plan, segment, opened.num_clients, values, lane)
        wrong = ranges.zero_out_of_range(plan, segment, opened.num_clients, values, fits, lane)
        _count(opened, segment.name, *(int(np.count_nonzero(x)) for x in (wrong, far & ~wrong)))
        opened.sums[segment.name] = values
    if clamped:
        log.warning("the sum of the reports' weights was outside the range of honest reports, so "
                    "both servers set it to %d, the end of this range", weight)  # fmt: skip
    return dataclasses.replace(opened, total_weight=weight, weight_clamped=clamped)


def _added(
    plan: Plan, segment: TreeSegment, first: Buffer, second: Buffer
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """A dense segment's sums of two shares as signed numbers, and whether each fits 64 bits."""
    width = plan.ring_bytes(segment)
    shares = [np.frombuffer(share, np.uint8).reshape(-1, width) for share in (first, second)]
    return ranges.signed(ring.add(*shares))


def _count(opened: Opened, name: str, num_wrong: int, num_cut: int) -> None:
    """Note how many positions of a segment were out of range, if any were."""
    told = (
        (opened.zeroed, num_wrong, "are zero now"),
        (opened.cut, num_cut, "were cut to the end of this range"),
    )
    for counts, count, what in told:
        if count:
            counts[name] = count
            log.warning("segment %s: the sums of %d positions were outside the range of honest "
                        "reports, and %s", name, count, what)  # fmt: skip


def _in_index_space(segment: TreeSegment, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Values `[m, n]` of a segment's trees at their positions, zeros outside its subset."""
    if not segment.subset:
        return values
    full = np.zeros((segment.index_space, values.shape[1]), dtype=np.int64)
    full[subset_array(segment.subset)] = values
    return full

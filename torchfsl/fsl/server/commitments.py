"""A share in rows, all fixed by one root, of which some are shown and the others stay hidden.

Under `min_contributors` the servers open the counts before the values. Each commits to its counts
and to a root; the root fixes one leaf a row, and one a dense segment:

    leaf = H(set digest, party, segment, position, row salt, row's share of the values)
    root = H(set digest, party, all leaves)

Row salts are a stream of a key that never leaves the server, so the salts of rows that are shown
tell nothing of the others: of those the peer sees the leaf alone. In SHARE a row has a slot of
`slot_bytes`: row salt 16 and values, or the leaf, filled up with zeros. A dense segment is salt 16
and values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import by_segment, share_by_segment
from torchfsl.fsl.messages import Buffer, slot_bytes, sum_bytes
from torchfsl.fsl.plan.layout import TreeSegment
from torchfsl.fsl.plan.plan import Plan
from torchfsl.types import Bytes

SALT_BYTES: Final = DIGEST_BYTES + SEED_BYTES
"""Of a server's secret salt: that of its commitment, then the key of the row salts."""

Kept = Mapping[str, npt.NDArray[np.bool_]]
"""By tree segment, `bool[m]`: the positions whose values are opened."""


class RowCommitments:
    """The leaves of one party's rows over one set of reports."""

    def __init__(self, plan: Plan, party: int, set_digest: bytes) -> None:
        """Of this party."""
        self._plan, self._head = plan, (set_digest, bytes([party]))

    def root(self, leaves: Mapping[str, Bytes]) -> bytes:
        """What fixes all leaves."""
        return kdf.digest(
            kdf.LABEL_ROW_ROOT, *self._head, pieces=[leaf.data for leaf in leaves.values()]
        )

    def leaves(self, rows: Mapping[str, Bytes], salts: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """By segment, `uint8[rows, 32]`."""
        return {name: self._leaves(name, salts[name], part) for name, part in rows.items()}

    def shown(self, share: Buffer, key: bytes, kept: Kept) -> bytes:
        """What SHARE says: rows that are kept, leaves of the others, dense segments."""
        rows, salts = split(self._plan, share), row_salts(self._plan, key)
        leaves, parts = self.leaves(rows, salts), []
        for segment in self._plan.with_trees:
            name, width = segment.name, slot_bytes(self._plan, segment)
            slots = np.zeros((segment.m, width), dtype=np.uint8)
            whole = np.concatenate([salts[name], rows[name]], axis=1)
            slots[:, : whole.shape[1]][kept[name]] = whole[kept[name]]
            slots[:, :DIGEST_BYTES][~kept[name]] = leaves[name][~kept[name]]
            parts.append(slots.tobytes())
        for segment in self._plan.dense:
            parts += [salts[segment.name].tobytes(), rows[segment.name].tobytes()]
        return b"".join(parts)

    def take(self, said: Buffer, root: bytes, kept: Kept) -> dict[str, Bytes]:
        """The rows of a peer's SHARE, zeros where they are hidden.

        Raises:
            ProtocolError: they are not those that the root fixed.
        """
        plan = self._plan
        slots = by_segment((*plan.with_trees, *plan.dense), self._said_bytes, memoryview(said))
        rows: dict[str, Bytes] = {}
        leaves: dict[str, Bytes] = {}
        for segment in (*plan.with_trees, *plan.dense):
            count = 1 if segment.is_dense else segment.m
            slot = np.frombuffer(slots[segment.name], np.uint8).reshape(count, -1)
            shown = kept.get(segment.name, np.ones(1, dtype=np.bool_))
            stop = SEED_BYTES + self._row_bytes(segment)
            salts, values = slot[:, :SEED_BYTES], slot[:, SEED_BYTES:stop]
            leaf = np.zeros((count, DIGEST_BYTES), dtype=np.uint8)
            if not shown.all():
                leaf[~shown] = slot[~shown, :DIGEST_BYTES]
            leaf[shown] = self._leaves(segment.name, salts, values, shown)
            leaves[segment.name] = leaf
            rows[segment.name] = np.where(shown[:, None], values, np.uint8(0))
        if not kdf.digests_equal(root, self.root(leaves)):
            raise ProtocolError("the peer's share does not fit its commitment: nothing is applied")
        return rows

    def _said_bytes(self, segment: TreeSegment) -> int:
        if segment.is_dense:
            return SEED_BYTES + sum_bytes(self._plan, segment)
        return segment.m * slot_bytes(self._plan, segment)

    def _row_bytes(self, segment: TreeSegment) -> int:
        if segment.is_dense:
            return sum_bytes(self._plan, segment)
        return segment.tau * self._plan.ring_bytes(segment)

    def _leaves(
        self, name: str, salts: Bytes, rows: Bytes, which: npt.NDArray[np.bool_] | None = None
    ) -> Bytes:
        """Leaves of a segment's rows, or of some of them in order."""
        start = hashlib.sha256(kdf.frame(kdf.LABEL_ROW, *self._head, name.encode()))
        found = np.arange(len(rows)) if which is None else np.flatnonzero(which)
        digests = []
        for place in found.tolist():
            leaf = start.copy()
            leaf.update(
                place.to_bytes(8, "little") + salts[place].tobytes() + rows[place].tobytes()
            )
            digests.append(leaf.digest())
        return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def split(plan: Plan, share: Buffer) -> dict[str, Bytes]:
    """A share's values by segment: `[m, tau l/8]` without the counts, dense ones as one row."""
    views = share_by_segment(plan, share)
    rows = {
        s.name: np.frombuffer(views[s.name], np.uint8).reshape(s.m, -1)[:, plan.ring_bytes(s) :]
        for s in plan.with_trees
    }
    dense = {s.name: np.frombuffer(views[s.name], np.uint8).reshape(1, -1) for s in plan.dense}
    return {**rows, **dense}


def counts_of(plan: Plan, share: Buffer) -> bytes:
    """A share of the counts, segment by segment, `[m, l/8]` each."""
    views = share_by_segment(plan, share)
    return b"".join(
        np.frombuffer(views[s.name], np.uint8).reshape(s.m, -1)[:, : plan.ring_bytes(s)].tobytes()
        for s in plan.with_trees
    )


def counts_by_segment(plan: Plan, counts: Buffer) -> dict[str, Bytes]:
    """What `counts_of` says, by segment `[m, l/8]`."""
    views = by_segment(plan.with_trees, lambda s: s.m * plan.ring_bytes(s), memoryview(counts))
    return {s.name: np.frombuffer(views[s.name], np.uint8).reshape(s.m, -1)
            for s in plan.with_trees}  # fmt: skip


def join(plan: Plan, counts: Buffer, rows: Mapping[str, Bytes]) -> bytes:
    """Inverse of `counts_of` and `split` together."""
    own = counts_by_segment(plan, counts)
    parts = [np.concatenate([own[name], rows[name]], axis=1).tobytes() for name in own]
    return b"".join([*parts, *(rows[s.name].tobytes() for s in plan.dense)])


def hide(plan: Plan, share: Buffer, kept: Kept) -> bytes:
    """A share with zeros for the values that are not opened."""
    rows = split(plan, share)
    seen = {s.name: np.where(kept[s.name][:, None], rows[s.name], np.uint8(0))
            for s in plan.with_trees}  # fmt: skip
    return join(plan, counts_of(plan, share), {**rows, **seen})


def row_salts(plan: Plan, key: bytes) -> dict[str, Bytes]:
    """By segment `uint8[rows, 16]`: a stream of the key."""
    sizes = {s.name: s.m for s in plan.with_trees} | {s.name: 1 for s in plan.dense}
    stream = kdf.stream(key, SEED_BYTES * sum(sizes.values())).reshape(-1, SEED_BYTES)
    salts, start = {}, 0
    for name, count in sizes.items():
        salts[name] = stream[start : start + count]
        start += count
    return salts

"""A share in rows, all fixed by one root: some rows are shown, the others stay hidden.

Under `min_contributors` the servers open the counts before the values. Each server commits to its
counts and to a root. The root fixes one leaf per row, and one per dense segment:

    leaf = H(set digest, party, segment, position, row salt, row's share of the values)
    root = H(set digest, party, all leaves)

Row salts are a stream of a key that never leaves the server, so the salts of shown rows reveal
nothing about the other salts. Of a hidden row the peer sees the leaf alone. In SHARE a row has a
slot: row salt 16 and values, or the leaf, filled up with zeros. A dense segment is salt 16 and
values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from torchfsl.crypto import kdf
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import by_segment, share_by_segment
from torchfsl.fsl.messages import Buffer, share_bytes, slot_bytes, slots_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.types import Bytes

SALT_BYTES: Final = DIGEST_BYTES + SEED_BYTES
"""Of a server's secret salt: that of its commitment, then the key of the row salts."""

Kept = Mapping[str, npt.NDArray[np.bool_]]
"""By tree segment, `bool[m]`: the positions whose values are opened."""

_WHOLE: Final = np.ones(1, dtype=np.bool_)
"""Of a dense segment, which is always opened."""


class RowCommitments:
    """The leaves of one party's rows over one set of reports."""

    def __init__(self, plan: Plan, party: int, set_digest: bytes) -> None:
        """Of this party."""
        self._plan, self._head = plan, (set_digest, bytes([party]))

    def root(self, leaves: Mapping[str, Bytes]) -> bytes:
        """The digest that fixes all leaves."""
        return kdf.digest(
            kdf.LABEL_ROW_ROOT, *self._head, pieces=[leaf.data for leaf in leaves.values()]
        )

    def leaves(self, rows: Mapping[str, Bytes], salts: Mapping[str, Bytes]) -> dict[str, Bytes]:
        """By segment, `uint8[rows, 32]`."""
        return {name: self._leaves(name, salts[name], part) for name, part in rows.items()}

    def shown(self, share: Buffer, key: bytes, kept: Kept) -> Bytes:
        """What SHARE says: rows that are kept, leaves of the others, dense segments."""
        rows, salts = split(self._plan, share), row_salts(self._plan, key)
        body = np.zeros(slots_bytes(self._plan), dtype=np.uint8)
        slots = self._slots(body.data)
        for name, leaf in self.leaves(rows, salts).items():
            slot, stop = slots[name], SEED_BYTES + rows[name].shape[1]
            shown = kept.get(name, _WHOLE)[:, None]
            np.copyto(slot[:, :SEED_BYTES], salts[name], where=shown)
            np.copyto(slot[:, SEED_BYTES:stop], rows[name], where=shown)
            if name in kept:
                np.copyto(slot[:, :DIGEST_BYTES], leaf, where=~shown)
        return body

    def take(self, body: Buffer, root: bytes, kept: Kept, counts: Buffer) -> Bytes:
        """The peer's share of its SHARE and counts, zeros for the values that are hidden.

        Raises:
            ProtocolError: they are not those that the root fixed.
        """
        plan, share = self._plan, np.zeros(share_bytes(self._plan), dtype=np.uint8)
        for name, part in counts_by_segment(plan, counts).items():
            _count_columns(plan, share.data)[name][:] = part
        rows, leaves = split(plan, share.data), {}
        for name, slot in self._slots(memoryview(body)).items():
            shown = kept.get(name, _WHOLE)
            salts, values = slot[:, :SEED_BYTES], slot[:, SEED_BYTES:][:, : rows[name].shape[1]]
            leaves[name] = self._leaves(name, salts, values, shown)
            if name in kept:
                np.copyto(leaves[name], slot[:, :DIGEST_BYTES], where=~shown[:, None])
            np.copyto(rows[name], values, where=shown[:, None])
        if not kdf.digests_equal(root, self.root(leaves)):
            raise ProtocolError(
                "the peer's share does not fit its commitment: nothing is applied. "
                "Talk to the operator of the other server",
                code="commitment-mismatch",
            )
        return share

    def _slots(self, body: memoryview) -> dict[str, Bytes]:
        """Views of a SHARE's slots by segment, `[rows, slot bytes]`."""
        ordered = (*self._plan.with_trees, *self._plan.dense)
        views = by_segment(ordered, partial(slot_bytes, self._plan), body)
        return {
            s.name: np.frombuffer(views[s.name], np.uint8).reshape(1 if s.is_dense else s.m, -1)
            for s in ordered
        }

    def _leaves(
        self, name: str, salts: Bytes, rows: Bytes, which: npt.NDArray[np.bool_] | None = None
    ) -> Bytes:
        """Leaves `uint8[rows, 32]` of a segment's rows, or of some of them and zeros."""
        start = hashlib.sha256(kdf.frame(kdf.LABEL_ROW, *self._head, name.encode()))
        leaves = bytearray(DIGEST_BYTES * len(rows))
        for place in range(len(rows)):
            if which is None or which[place]:
                leaf = start.copy()
                leaf.update(
                    place.to_bytes(8, "little") + salts[place].tobytes() + rows[place].tobytes()
                )
                leaves[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)] = leaf.digest()
        return np.frombuffer(leaves, np.uint8).reshape(-1, DIGEST_BYTES)


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
    return b"".join(part.tobytes() for part in _count_columns(plan, share).values())


def _count_columns(plan: Plan, share: Buffer) -> dict[str, Bytes]:
    """Views of the counts in a share, by segment `[m, l/8]`."""
    views = share_by_segment(plan, share)
    return {
        s.name: np.frombuffer(views[s.name], np.uint8).reshape(s.m, -1)[:, : plan.ring_bytes(s)]
        for s in plan.with_trees
    }


def counts_by_segment(plan: Plan, counts: Buffer) -> dict[str, Bytes]:
    """What `counts_of` says, by segment `[m, l/8]`."""
    views = by_segment(plan.with_trees, lambda s: s.m * plan.ring_bytes(s), memoryview(counts))
    return {
        s.name: np.frombuffer(views[s.name], np.uint8).reshape(s.m, -1) for s in plan.with_trees
    }


def hide(plan: Plan, share: Buffer, kept: Kept) -> Bytes:
    """A share with zeros for the values that are not opened."""
    seen = np.frombuffer(share, np.uint8).copy()
    rows = split(plan, seen.data)
    for name, shown in kept.items():
        rows[name][~shown] = 0
    return seen


def row_salts(plan: Plan, key: bytes) -> dict[str, Bytes]:
    """By segment `uint8[rows, 16]`: a stream of the key."""
    sizes = {s.name: s.m for s in plan.with_trees} | {s.name: 1 for s in plan.dense}
    stream = kdf.stream(key, SEED_BYTES * sum(sizes.values())).reshape(-1, SEED_BYTES)
    salts, start = {}, 0
    for name, count in sizes.items():
        salts[name] = stream[start : start + count]
        start += count
    return salts

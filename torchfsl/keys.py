"""Keys of one report: every one bound to plan, session, round, client, nonce and segment.

The AES keys of the tree and of Conv are public and fresh for every report (derived from the
client's nonce), which keeps the number of secret blocks under one key small (protocol design,
"fixed key, many users"). The roots and the dense mask come from the master seed of one server, the
only secret a client sends it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchfsl import kdf
from torchfsl.plan import Plan, Segment

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What a report is bound to. All public.

    Attributes:
        plan: the task.
        round_number: in [0, 2**64).
        client: in [0, 2**64).
        nonce: 16 random bytes chosen by the client for this report.
    """

    plan: Plan
    round_number: int
    client: int
    nonce: bytes

    def encode(self) -> bytes:
        """The context as framed bytes; the plan's digest covers version, suite and session."""
        return kdf.frame(
            self.plan.digest,
            self.round_number.to_bytes(8, "little"),
            self.client.to_bytes(8, "little"),
            self.nonce,
        )

    def _segment(self, segment: Segment) -> bytes:
        return kdf.frame(self.encode(), segment.name.encode())

    def tree_key(self, segment: Segment) -> bytes:
        """K_tree, public, 16 bytes."""
        return kdf.derive(self.nonce, kdf.LABEL_TREE, self._segment(segment))

    def convert_key(self, segment: Segment, hint_nonce: bytes) -> bytes:
        """K_conv of one hint, public, 16 bytes; a fresh hint has a fresh nonce, so a fresh key."""
        return kdf.derive(hint_nonce, kdf.LABEL_CONVERT, self._segment(segment))

    def roots(self, segment: Segment, master_seed: bytes, party: int) -> Bytes:
        """Root states `[num_trees, 16]` of one party, bins before stash; control bit = party."""
        key = kdf.derive(master_seed, kdf.LABEL_ROOTS, self._segment(segment))
        states = kdf.stream(key, 16 * segment.num_trees).reshape(-1, 16)
        states[:, 0] = (states[:, 0] & 0xFE) | party
        return states

    def dense_mask(self, segment: Segment, master_seed: bytes, hint_nonce: bytes) -> Bytes:
        """One party's share of a dense segment, `[values, l/8]`: uniform ring values."""
        context = kdf.frame(self._segment(segment), hint_nonce)
        key = kdf.derive(master_seed, kdf.LABEL_DENSE, context)
        width = self.plan.encoding.ring_bits // 8
        return kdf.stream(key, self.plan.dense_bytes(segment)).reshape(-1, width)

    def commitment(self, kind: int, public_part: bytes) -> bytes:
        """What the client tells the other server about a public part: SHA-256, 32 bytes."""
        return kdf.digest(kdf.LABEL_COMMITMENT, bytes([kind]), self.encode(), public_part)

    @property
    def public_party(self) -> int:
        """The server that gets the public part from the client; the other gets its hash."""
        return self.client % 2

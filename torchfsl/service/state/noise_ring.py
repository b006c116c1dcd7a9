"""Correlated noise of past rounds on disk: a mapped file of slots, and a word on each.

A server writes and syncs a slot before its ledger says that it has committed to a share with that
noise, and its auditor once the other server has taken its pass. After a start a slot counts only
if it is the one that the word names, index and digest; any other counts as 0, which costs
usefulness and no privacy (docs/specification/privacy-proofs.md).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Final, Literal

import numpy as np

from torchfsl.errors import ParameterError
from torchfsl.fsl.noise import noise_values, ring_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.state.ledger import REMEDY, Ledger, LedgerError
from torchfsl.submodel.correlated_noise import NO_ROUND, CorrelatedNoise

log = logging.getLogger("torchfsl.service.noise")

NOISE: Final = "noise"
"""Setting of the ledger, the word: by slot index, digest and round of what it holds."""
_BLOCK: Final = 1 << 20


class NoiseRing:
    """The file of one task's noise. Secret: with the peer's view it shows past sums.

    Args:
        folder: of a server's or an auditor's state.
        plan: of the task, with `noise_taps`.
        mode: of the map; "c" to read an auditor's evidence, which stays as it is.

    Attributes:
        lost: slots that the word names and the file does not hold.
        path: of the file.

    Raises:
        ParameterError: the disk has no room for the file.
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, plan: Plan, mode: Literal["r+", "c"] = "r+") -> None:
        """Map the file; make it if it is missing, so that no later write lacks room."""
        self.path, self.lost = folder / f"noise-{plan.digest.hex()[:16]}.ring", 0
        self._named: dict[int, tuple[int, str, int]] = {}
        is_new = not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, ring_bytes(plan))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            if is_new:
                self.path.unlink()
            raise ParameterError(
                f"correlated noise needs {ring_bytes(plan):,} bytes in {folder}, and the disk has "
                "fewer: free space on this disk",
                code="no-room",
            ) from error
        finally:
            os.close(handle)
        shape = (len(plan.noise_taps), noise_values(plan))
        self.slots: np.memmap[tuple[int, ...], np.dtype[np.int32]] = np.memmap(
            self.path, dtype=np.int32, mode=mode, shape=shape
        )

    def attach(self, noise: CorrelatedNoise, word: bytes) -> None:
        """Let noise go on from the file.

        Raises:
            LedgerError: the word on the slots cannot be read.
        """
        noise.slots, noise.held = self.slots, [-1] * len(self.slots)
        self._named = self._read(word)
        # An attempt that never was committed may lie in the slot that turns over next.
        over = max((index for index, _, _ in self._named.values()), default=0) + 1 - len(self.slots)
        for slot, (index, digest, number) in self._named.items():
            if self._digest(slot) == digest:
                noise.held[slot], noise.rounds[slot] = index, number
            elif index != over:
                self.lost += 1
                log.warning(
                    "the past noise with index %d is lost. Privacy holds, but later rounds have "
                    "more noise: find out what changed its file", index)  # fmt: skip

    def keep(self, noise: CorrelatedNoise, index: int) -> bytes:
        """Sync the slot of an index; the word from the commitment on."""
        slot = index % len(self.slots)
        self.slots.flush()
        self._named[slot] = index, self._digest(slot), noise.rounds[slot]
        return self.word(noise)

    def word(self, noise: CorrelatedNoise) -> bytes:
        """The word on the slots that it named before and that still count."""
        self._named = {s: word for s, word in self._named.items() if noise.held[s] == word[0]}
        return json.dumps(self._named).encode()

    def forget_damaged(self, noise: CorrelatedNoise) -> list[int]:
        """Let slots count as 0 that the file does not hold any more; their indices."""
        named = [(index, self._digest(slot) == digest) for slot, (index, digest, _) in
                 self._named.items() if noise.held[slot] == index]  # fmt: skip
        damaged = [index for index, is_whole in named if not is_whole]
        for index in damaged:
            noise.forget(index)
        return damaged

    def _read(self, word: bytes) -> dict[int, tuple[int, str, int]]:
        try:
            named = {
                int(slot): (int(index), str(told), int(number[0]) if number else NO_ROUND)
                for slot, (index, told, *number) in json.loads(word).items()
            }
            if named and not 0 <= min(named) <= max(named) < len(self.slots):
                raise ValueError(
                    f"expected past noise in places 0 to {len(self.slots) - 1}, got {sorted(named)}"
                )
        except (AttributeError, TypeError, ValueError) as error:
            raise LedgerError(
                f"the stored list of past noise is damaged ({error}): {REMEDY}"
            ) from error
        return named

    def _digest(self, slot: int) -> str:
        return hashlib.sha256(self.slots[slot].data).hexdigest()


class NoiseStore:
    """The noise of whichever task a server has, none at first."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder, ledger
        self._ring: NoiseRing | None = None

    @property
    def lost(self) -> int:
        """Past rounds whose noise was not found at the start."""
        return 0 if self._ring is None else self._ring.lost

    def reserve(self, plan: Plan) -> None:
        """Make room for a task's correlated noise, if it has any.

        Raises:
            ParameterError: the disk has none.
        """
        self._ring = NoiseRing(self._folder, plan) if plan.noise_taps else None

    def attach(self, noise: CorrelatedNoise | None, plan: Plan) -> None:
        """Let a server's noise go on from the file; wipe other files, and that of an ended task."""
        wipe_rings(self._folder, but=None if self._ring is None else plan)
        if self._ring is not None and noise is not None:
            self._ring.attach(noise, self._ledger.setting(NOISE) or b"{}")

    def keep(self, noise: CorrelatedNoise | None, index: int) -> bytes | None:
        """See `NoiseRing.keep`; None without correlated noise."""
        return None if self._ring is None or noise is None else self._ring.keep(noise, index)

    def forget_damaged(self, noise: CorrelatedNoise) -> None:
        """See `NoiseRing.forget_damaged`: under an audit a false share names its server."""
        if self._ring is not None:
            self._ring.forget_damaged(noise)

    def end(self) -> None:
        """Overwrite the noise of a task that opens no more rounds."""
        if self._ring is not None:
            forget_noise(self._ledger)
            self._ring = None
            wipe_rings(self._folder)


def forget_noise(ledger: Ledger) -> None:
    """Inside a transaction: no slot counts any more."""
    ledger.put_setting(NOISE, None)


def wipe_rings(folder: Path, *, but: Plan | None = None) -> None:
    """Overwrite and delete the files of all tasks, or of every task except one."""
    kept = "" if but is None else but.digest.hex()[:16]
    for path in folder.glob("noise-*.ring"):
        if path.name == f"noise-{kept}.ring":
            continue
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for start in range(0, size, _BLOCK):
                file.write(bytes(min(_BLOCK, size - start)))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()

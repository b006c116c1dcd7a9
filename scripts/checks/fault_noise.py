"""Correlated noise at servers under faults: what was added, and what must not lie on disk any more.

Servers draw from the operating system, so the noise of a round is not known before. Afterwards the
slot that a server's ledger names last holds what it has added, byte for byte.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from pathlib import Path
from typing import Final

import numpy as np

from scripts.checks.fault_kinds import Faults, asked, round_of
from scripts.checks.fault_servers import Supervised
from torchfsl.fsl.noise import by_segment, noise_values, taking
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.state.noise_ring import NOISE
from torchfsl.service.state.steps import StoredState
from torchfsl.submodel.opened import Opened

TERMS: Final = {
    "l2_bound": 1 << 20, "noise_sigma": 1000, "noise_taps": (256, 128), "min_separation": 2,
    "max_rounds": 10_000, "max_clients": 3,
}  # fmt: skip
"""Of a plan with noise; a client may report in every second round. A round takes half of them: if
it took all, none could come to the next."""
Named = dict[str, set[int]]
SLOT: Final = "slot written"
"""The moment between the write of a slot and the commitment to a share with it."""
AROUND: Final = (StoredState.VERIFIED, SLOT, StoredState.COMMITTED, StoredState.REVEALED)
"""States around the noise steps."""
KINDS_OF_NOISE: Final = (
    *("kill", "kill both", "freeze", "freeze, then kill", "disk full", "disk full, then kill"),
    "writes refused",
)
"""Faults of servers that are done there."""
_PIECE: Final = 64
"""Bytes of a slot that are looked for: they lie on disk by no chance."""


class NoiseOnDisk:
    """Reads the noise that both servers keep.

    Attributes:
        seen: by server, by index of the round what its slot held.
        named: by server, by digest of a slot the rounds that committed to a share with it.
    """

    def __init__(self, servers: Supervised, plan: Plan) -> None:
        """Nothing read yet."""
        self._servers, self._plan = servers, plan
        self.seen: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        self.named: tuple[Named, Named] = ({}, {})

    def add_to(self, sums: Opened) -> Opened:
        """The sums with what both servers have added to those of the last opened round."""
        total = {name: values.copy() for name, values in sums.sums.items()}
        for party in (0, 1):
            slot = np.frombuffer(self._newest(party), np.int32).astype(np.int64)
            for name, values in by_segment(self._plan, taking([slot])).items():
                if name in total:
                    total[name] += values
        return dataclasses.replace(sums, sums=total)

    def left(self) -> list[str]:
        """Slots whose time is over, and of which a piece lies in a server's state folder."""
        found = []
        for party, slots in enumerate(self.seen):
            state = self._servers.state(party)
            files = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
            over = sorted(slots)[: -len(self._plan.noise_taps)]
            found += [
                f"server {party}, round {index}: {path.name}"
                for index in over
                for path, content in files.items()
                if slots[index][:_PIECE] in content
            ]
        return found

    def caught(self, party: int, faults: Faults, seconds: float) -> bool:
        """Whether a server was stopped between the write of a slot and the commitment."""
        before, limit = self._rings(party), time.monotonic() + seconds
        while time.monotonic() < limit:
            time.sleep(0.0003)
            if (now := self._rings(party)) == before:
                continue
            faults.freeze(party)
            if round_of(self._servers.state(party))[1] == StoredState.VERIFIED:
                return True
            faults.freeze(party, signal.SIGCONT)
            before = now
        return False

    def shared(self) -> list[str]:
        """Slots that two rounds have committed to: shares under one draw."""
        return [
            f"server {party}, rounds {sorted(rounds)}"
            for party, named in enumerate(self.named)
            for rounds in named.values()
            if len(rounds) > 1
        ]

    def look(self, party: int) -> dict[str, tuple[int, str, int]]:
        """A server's word on its slots, of which the rounds are noted."""
        query = f"SELECT value FROM settings WHERE name = '{NOISE}'"  # noqa: S608 (ours)
        word: dict[str, tuple[int, str, int]] = {}
        for (value,) in asked(self._servers.state(party), query):
            word = json.loads(value)
        for _, digest, number in word.values():
            self.named[party].setdefault(digest, set()).add(number)
        return word

    def lost(self) -> list[str]:
        """Lines of the servers' logs that say that past noise was lost."""
        lines = (line for party in (0, 1) for line in self._servers.log(party).splitlines())
        return [line for line in lines if "is lost: later rounds" in line]

    def _rings(self, party: int) -> list[bytes]:
        return [path.read_bytes() for path in self._servers.state(party).glob("noise-*.ring")]

    def _newest(self, party: int) -> bytes:
        state: Path = self._servers.state(party)
        slot, (index, _, _) = max(self.look(party).items(), key=lambda item: item[1][0])
        (ring,) = state.glob("noise-*.ring")
        size = 4 * noise_values(self._plan)
        held = ring.read_bytes()[int(slot) * size :][:size]
        self.seen[party].setdefault(index, held)
        return held

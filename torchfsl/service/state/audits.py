"""Audits on disk: secrets of the running round, its sealed transcript, the records.

Secrets lie in the ledger from ROUND_STATE to the end of the round. The transcript is a file that
the auditor alone can open, from SHARE_COMMIT to the end of the round. The records are kept for
good. They hold what both servers and the other one's auditor signed, about 1 kB per round.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from torchfsl.crypto import hpke, kdf
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import ShareCommit
from torchfsl.fsl.messages import Buffer
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.state.ledger import Ledger
from torchfsl.service.state.records import sync_folder

_SECRETS, _KEY, _RECORD, _ALERTS = "audit secrets", "audit key", "audit record", "audit alerts"
MISSING: Final = "audit_missing"
LIAR: Final = "audit_liar_named"
UNTAKEN: Final = "audit_finding_refused"
"""A finding that was not taken: of another task, of a round that has opened, or not signed."""
UNCOMMITTED: Final = "audit_uncommitted"
"""A round that ended before both servers had committed, in which one may have seen its noise."""
_COUNTED: Final = (MISSING, LIAR, UNTAKEN, UNCOMMITTED)
TWICE: Final = ("commitment", "it has signed two commitments in this round")
"""Step and reason of a finding that another signed commitment shows."""
KEY_BYTES: Final = 32
_ROUND: Final = struct.Struct("<Q")


class AuditStore:
    """Of one server.

    Args:
        folder: state folder.
        ledger: of the same server.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._folder, self._ledger = folder / "audit", ledger

    @property
    def secrets(self) -> bytes:
        """Of the running round, see `Server.secrets`; empty before it has any. Secret."""
        return self._ledger.setting(_SECRETS) or b""

    def keep_secrets(self, secrets: bytes) -> None:
        """Inside the transaction that stores ROUND_STATE."""
        self._ledger.put_setting(_SECRETS, secrets or None)

    @property
    def key(self) -> bytes:
        """The public key of the auditor for the running round; empty before it came."""
        return (self._ledger.setting(_KEY) or b"")[:KEY_BYTES]

    @property
    def offered(self) -> tuple[int, ...]:
        """Rounds whose noise the auditor holds, as it said with its key."""
        return unpack_rounds((self._ledger.setting(_KEY) or b"")[KEY_BYTES:])

    def keep_key(self, key: bytes) -> None:
        """Store the auditor's key of the running round; it does not change any more.

        `pack_rounds` of what the auditor holds is behind the key.

        Raises:
            ProtocolError: there is another one.
        """
        if self._ledger.setting(_KEY) not in (None, key):
            raise ProtocolError(
                "the auditor has sent another key for this round before: send that key again",
                code="wrong-step",
            )
        self._ledger.put_setting(_KEY, key)

    def path(self, number: int) -> Path:
        """Of a round's sealed transcript."""
        return self._folder / f"{number}.tfsa"

    def seal(self, info: bytes, number: int, parts: Iterable[Buffer]) -> None:
        """Write a transcript that the auditor's key of this round opens, whole or not at all.

        Raises:
            OSError: there is no room.
        """
        path = self.path(number)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(path.name + ".part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            for piece in hpke.seal_pieces(self.key, info, parts):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)

    def note(self, plan: Plan, number: int, **fields: str) -> None:
        """Add fields to the record of a round, inside a transaction or not."""
        text = json.dumps(self.record(plan, number) | fields, sort_keys=True)
        self._ledger.put_setting(_record_name(plan, number), text.encode())

    def held(self, plan: Plan, number: int) -> tuple[bytes, bytes] | None:
        """Digest of the record and the peer's commitment, once it signed both; else None."""
        known = self.record(plan, number)
        if not {"record", "share_commit"} <= known.keys():
            return None
        said = ShareCommit.read(plan, bytes.fromhex(known["share_commit"]))
        return bytes.fromhex(known["record"]), said.commitment

    def record(self, plan: Plan, number: int) -> dict[str, str]:
        """Fields of a round that are kept for good, in hex; empty without an audit."""
        known: dict[str, str] = json.loads(
            self._ledger.setting(_record_name(plan, number)) or b"{}"
        )
        return known

    @property
    def alerts(self) -> Mapping[str, float]:
        """How often which alert was raised, in the life of this state."""
        return {
            **dict.fromkeys(_COUNTED, 0.0),
            **json.loads(self._ledger.setting(_ALERTS) or b"{}"),
        }

    def alert(self, name: str) -> None:
        """Count an alert."""
        counts = dict(self.alerts)
        counts[name] += 1
        self._ledger.put_setting(_ALERTS, json.dumps(counts).encode())

    def end(self, number: int) -> None:
        """Inside the transaction that ends a round: forget its secrets."""
        for name in (_SECRETS, _KEY):
            self._ledger.put_setting(name, None)

    def drop(self) -> None:
        """Delete the sealed transcripts: no round runs."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _record_name(plan: Plan, number: int) -> str:
    return f"{_RECORD} {plan.digest.hex()[:16]} {number:020d}"


def transcript_info(plan_digest: bytes, number: int, party: int) -> bytes:
    """Context of a sealed transcript, and of the auditor's key for it."""
    about = number.to_bytes(8, "little"), bytes([party])
    return kdf.frame(kdf.LABEL_AUDIT_KEY, plan_digest, *about)


def pack_rounds(rounds: Iterable[int] | None) -> bytes:
    """Rounds whose noise an auditor holds, 8 bytes each, behind its key; see `Auditor.offer`."""
    return b"".join(map(_ROUND.pack, rounds or ()))


def unpack_rounds(packed: bytes) -> tuple[int, ...]:
    """Inverse of `pack_rounds`."""
    starts = range(0, len(packed), _ROUND.size)
    return tuple(int.from_bytes(packed[at : at + _ROUND.size], "little") for at in starts)


def named_parts(
    plan: Plan, number: int, party: int, held: tuple[bytes, bytes], step: str, why: str
) -> tuple[bytes, ...]:
    """Parts that the auditor of server `party` signs under `LABEL_NAMED` if it finds a lie.

    `held` is the digest of the round's record and the commitment, both signed by that server.
    """
    about = number.to_bytes(8, "little"), bytes([party])
    return plan.digest, *about, *held, step.encode(), why.encode()

"""Promises, records and signatures of a server in a round of a plan with an audit.

ROUND_STATE promises three secrets of 32 bytes, before the peer has said anything: the noise secret,
the coin of REPORT_SET and the noise coin of VERDICTS. So neither server chooses its coins or its
noise by what it hears. A server's noise follows from its secret, the peer's noise coin and the set
that both agreed on. Its signature in SHARE_COMMIT is over the record, which has every message
before, of both servers, and over its commitment, which fixes its share.

Where noise is correlated over rounds, ROUND_STATE says the noise index and the rounds whose noise
this server holds. The auditor says which it holds before the server commits: a round counts if both
do. So a server does not choose what counts once it has heard the peer's coin.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from torchfsl.crypto import kdf
from torchfsl.crypto.entropy import random_bytes
from torchfsl.crypto.kdf import DIGEST_BYTES, SEED_BYTES
from torchfsl.crypto.signing import SignKey, is_signed
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.fsl import messages
from torchfsl.fsl.bodies import ReportSet, RoundDigest, ShareCommit, Verdicts
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.reports import Report
from torchfsl.submodel.correlated_noise import NO_ROUND, CorrelatedNoise

RECORDED: Final = (Kind.ROUND_STATE, Kind.REPORT_SET, Kind.VERDICTS)
"""Messages of a record, of each server, in order."""
_PLACES: Final = {"noise": 0, "coin": 1, "noise_coin": 2}


@dataclass(frozen=True, slots=True)
class Secrets:
    """Of one server in one round, 32 bytes each; `encoded` is what it stores until the end."""

    noise: bytes = field(repr=False)
    coin: bytes = field(repr=False)
    noise_coin: bytes = field(repr=False)

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Inverse of `encoded`; drawn from the operating system where that is empty."""
        whole = encoded or random_bytes(3 * DIGEST_BYTES)
        parts = (whole[start : start + DIGEST_BYTES] for start in range(0, 96, DIGEST_BYTES))
        return cls(*parts)

    @property
    def encoded(self) -> bytes:
        """96 bytes."""
        return self.noise + self.coin + self.noise_coin


class AuditedRound:
    """One round at server `party`, or as an auditor reads it.

    Attributes:
        record: by kind and speaker, the messages of the record.
        reports: those that both servers agreed on, by client, set by `Server.agree`.
        set_digest: of these.
        peer_commit: the other server's signed commitment, once it was checked.
        offered: rounds whose noise this server's auditor holds; None for all that are stated.
    """

    def __init__(self, plan: Plan, party: int, round_number: int) -> None:
        """Start without messages."""
        self.plan, self.party, self.round_number = plan, party, round_number
        self.record: dict[tuple[Kind, int], bytes] = {}
        self.reports: Mapping[int, Report] = {}
        self.set_digest = b""
        self.peer_commit = ShareCommit(b"")
        self.offered: Collection[int] | None = None

    def note(self, speaker: int, message: bytes) -> None:
        """Put a message of either server into the record, if it belongs there."""
        kind = messages.peek(message).kind
        if kind in RECORDED:
            self.record[kind, speaker] = bytes(message)

    @property
    def digest(self) -> bytes:
        """Of the record, equal at both servers: 32 bytes."""
        said = (self.record[kind, speaker] for kind in RECORDED for speaker in (0, 1))
        number = self.round_number.to_bytes(8, "little")
        return kdf.digest(kdf.LABEL_RECORD, self.plan.digest, number, *said)

    def promises(self, secrets: Secrets) -> bytes:
        """This server's promises in ROUND_STATE: 96 bytes."""
        return b"".join(self._promise(self.party, name, getattr(secrets, name)) for name in _PLACES)

    def check_opened(self, speaker: int, name: str, value: bytes) -> None:
        """Refuse a secret that is not the promised one.

        Raises:
            ProtocolError: it is another.
        """
        state = RoundDigest.read(self.plan, self.record[Kind.ROUND_STATE, speaker])
        place = DIGEST_BYTES * _PLACES[name]
        promised = state.promises[place : place + DIGEST_BYTES]
        if not kdf.digests_equal(promised, self._promise(speaker, name, value)):
            raise ProtocolError(
                f"server {speaker} sent a {name.replace('_', ' ')} that does not fit its "
                "commitment, so the round ends unopened: ask its operator",
                code="commitment-mismatch",
            )

    def _promise(self, speaker: int, name: str, value: bytes) -> bytes:
        about = self.round_number.to_bytes(8, "little"), bytes([speaker, _PLACES[name]])
        return kdf.digest(kdf.LABEL_PROMISE, self.plan.digest, *about, value)

    def check_peer_coin(self, name: str) -> None:
        """The same of a coin that the peer has opened in the record."""
        peer = 1 - self.party
        if name == "coin":
            said = ReportSet.read(self.plan, self.record[Kind.REPORT_SET, peer]).coin
        else:
            said = self.noise_coin(peer)
        self.check_opened(peer, name, said)

    def noise_coin(self, speaker: int) -> bytes:
        """The noise coin that a server has opened."""
        return Verdicts.read(self.plan, self.record[Kind.VERDICTS, speaker]).noise_coin

    def past_noise(self) -> tuple[int, tuple[int, ...]]:
        """This server's noise index, and by lag the round whose noise counts, or `NO_ROUND`."""
        index, *rounds = self._noise_of(self.party)
        offered = self.offered
        return index, tuple(r if offered is None or r in offered else NO_ROUND for r in rounds)

    def check_peer_noise(self, least: int) -> int:
        """The noise index that the peer states, in a plan with `noise_taps`.

        Past noise counts by the distance of indices. If an index came again after a round that has
        opened, the same noise could be taken off in round after round.

        Args:
            least: its index in the last round in which this server revealed, one more if it opened.

        Raises:
            ProtocolError: its index is lower.
        """
        index = self._noise_of(1 - self.party)[0]
        if index < least:
            raise ProtocolError(
                f"server {1 - self.party} states noise index {index}, expected {least} or more: "
                "the round ends unopened. Ask its operator whether its state is an older copy",
                code="noise-index-used",
            )
        return index

    def _noise_of(self, speaker: int) -> tuple[int, ...]:
        state = RoundDigest.read(self.plan, self.record[Kind.ROUND_STATE, speaker])
        return struct.unpack(f"<{len(self.plan.noise_taps)}Q", state.noise)

    def noise_key(self, secret: bytes) -> bytes:
        """From which this server's noise of the round follows: 16 bytes. Secret."""
        context = kdf.frame(
            self.plan.digest,
            self.round_number.to_bytes(8, "little"),
            bytes([self.party]),
            self.noise_coin(1 - self.party),
            self.set_digest,
        )
        return kdf.derive(secret, kdf.LABEL_NOISE, context, SEED_BYTES)

    def signed(self, key: SignKey, commitment: bytes) -> ShareCommit:
        """The commitment to this server's share, signed with the record."""
        signature = key.sign(kdf.LABEL_RECORD, self.digest, bytes([self.party]), commitment)
        return ShareCommit(commitment, signature)

    def is_signed(self, speaker: int, said: ShareCommit) -> bool:
        """Whether a server signed this record and its commitment."""
        key = bytes.fromhex(self.plan.audit_keys[speaker])
        parts = self.digest, bytes([speaker]), said.commitment
        return is_signed(key, said.signature, kdf.LABEL_RECORD, *parts)

    def take_commit(self, said: ShareCommit) -> None:
        """Keep the peer's commitment.

        Raises:
            ProtocolError: it is not signed with the record that this server has.
        """
        if not self.is_signed(1 - self.party, said):
            raise ProtocolError(
                "the other server signed a record of the round that differs from this server's, so "
                "nothing is opened: talk to its operator",
                code="bad-signature",
            )
        self.peer_commit = said

    def pass_parts(self, party: int, commitment: bytes) -> tuple[bytes, bytes, bytes]:
        """Parts that the auditor of server `party` signs under `LABEL_PASS`."""
        return self.digest, bytes([party]), commitment

    def check_pass(self, party: int, signature: bytes, commitment: bytes) -> None:
        """Refuse a signature that is not a pass of the auditor of server `party` for this round.

        Raises:
            ProtocolError: it is not, or for another record or commitment.
        """
        key = bytes.fromhex(self.plan.auditors[party])
        parts = self.pass_parts(party, commitment)
        if not is_signed(key, signature, kdf.LABEL_PASS, *parts):
            raise ProtocolError(
                f"the auditor of server {party} did not sign its approval of this round, so "
                "nothing is opened: see the log of this auditor",
                code="bad-signature",
            )


def stated(noise: CorrelatedNoise, index: int) -> bytes:
    """What ROUND_STATE says of correlated noise: see `RoundDigest`."""
    return struct.pack(f"<{len(noise.held)}Q", index, *noise.past(index))


def check_key(plan: Plan, party: int, key: SignKey | None) -> None:
    """Refuse a server of a plan with an audit that cannot sign as the plan says.

    Raises:
        ParameterError: it has another key, or none.
    """
    named = plan.audit_keys[party] if plan.audited else None
    own = None if key is None else key.public.hex()
    if named is not None and named != own:
        raise ParameterError(
            f"audit_keys of the plan expects {named}, got {own} at server {party}: pass "
            "Server(..., sign_key=...) with the key of the plan",
            code="wrong-server-key",
        )

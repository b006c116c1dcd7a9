"""Calls of the auditors at a server, and the waiting for them.

Its own auditor gives it a key for each round, fetches the transcript that is sealed to it, and
takes what it found to the other server. So the other server's auditor calls this server, which
reveals its share only once it has the pass. Auditors open no port: they call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from torchfsl.crypto import kdf
from torchfsl.crypto.signing import is_signed
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import ShareCommit
from torchfsl.fsl.messages import Kind
from torchfsl.service.net.calls import NotReady
from torchfsl.service.net.identity import Identity, NotAllowed
from torchfsl.service.server.station import Station
from torchfsl.service.state.audits import (
    LIAR,
    MISSING,
    TWICE,
    UNTAKEN,
    named_parts,
    transcript_info,
)
from torchfsl.service.state.steps import StoredState

log = logging.getLogger("torchfsl.service.auditing")

_POLL_SECONDS: Final = 0.25
_WAITS: Final = (StoredState.COMMITTED, StoredState.AUDITING)


class AuditDesk:
    """One server's dealings with both auditors; `Limits.audit_seconds` is how long it waits."""

    def __init__(self, station: Station) -> None:
        """No auditor has called."""
        self._station = station
        self._since: dict[tuple[int, str], float] = {}
        self._watching: set[asyncio.Task[None]] = set()

    # --- what auditors call -------------------------------------------------------------------

    async def take_key(self, caller: Identity, number: int, key: str, signature: str) -> None:
        """The key for this round of this server's auditor, and rounds whose noise it holds.

        Raises:
            NotAllowed: it is the other server's auditor.
            ProtocolError: the round does not run, has another key, or the key is not signed.
        """
        self._check_own(caller)
        await self._station.write(self._keep_key, number, key, signature)
        await self._station.tell()

    async def transcript(self, caller: Identity, number: int) -> bytes:
        """The sealed transcript of a round, once this server has committed.

        Raises:
            NotAllowed: it is the other server's auditor.
            NotReady: there is none yet, or none any more.
        """
        self._check_own(caller)
        data = await self._station.run(self._transcript, number)
        if not data:
            raise NotReady(f"this server has no transcript of round {number}")
        return data

    async def take_pass(self, caller: Identity, number: int, message: bytes) -> None:
        """Take the pass of the other server's auditor.

        Raises:
            NotAllowed: it is this server's own auditor.
            DecodeError, ProtocolError: see `Node.take_pass`.
        """
        self._check_other(caller)
        await self._station.write(self._station.node.take_pass, number, message)
        await self._station.tell()

    async def take_named(
        self, caller: Identity, number: int, step: str, why: str, signature: str
    ) -> None:
        """Take the finding of a lie from the other server's auditor. The session halts.

        Raises:
            NotAllowed: it is this server's own auditor.
            ProtocolError: the round was never begun or has opened, this server holds no commitment
                that the other one signed, or that auditor did not sign the finding for it.
        """
        self._check_other(caller)
        await self._station.write(self._halt, number, step, why, signature)
        await self._station.tell()

    async def take_signed(
        self, caller: Identity, number: int, record: bytes, said: ShareCommit, signature: str
    ) -> None:
        """Take another commitment of the other server than this one holds. The session halts.

        Args:
            caller: auditor.
            number: of the round.
            record: digest of the record that the other server signed.
            said: commitment that it signed with it.
            signature: of the auditor, which says that this was in that round.

        Raises:
            NotAllowed: it is this server's own auditor.
            ProtocolError: this server holds that very one or none, or a signature is not theirs.
        """
        self._check_other(caller)
        await self._station.write(self._halt_for_two, number, record, said, signature)
        await self._station.tell()

    # --- what the rounds wait for -------------------------------------------------------------

    async def before_commit(self, number: int) -> None:
        """Wait for the key to which the transcript is sealed; at once without an audit.

        Raises:
            ProtocolError: it did not come in time, and the round has ended unopened.
        """
        node = self._station.node
        row = node.storage.ledger.round(number)
        if not node.plan.audited or row is None or row.state.has_ended:
            return
        if await self._station.run(node.transcript.said, number, Kind.SHARE_COMMIT) is not None:
            return
        while not await self._station.run(lambda: node.storage.audits.key):
            await self._wait(number, f"the auditor of server {node.party} to send a key")

    async def passed(self, number: int) -> None:
        """Wait until the other server's auditor has passed it; at once without an audit.

        Raises:
            ProtocolError: it did not in time, or named it: the round has ended unopened.
        """
        node = self._station.node
        if not node.plan.audited:
            return
        while not await self._station.run(node.has_counted, number, Kind.AUDIT_PASS):
            await self._wait(number, f"the auditor of server {1 - node.party} to approve the round")
        self._station.stalled = ""

    def watch(self, number: int) -> None:
        """Let a round that waits for a pass end in time, whoever else waits or does not."""
        if self._station.node.plan.audited:
            task = asyncio.create_task(self._watched(number))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)

    def resume(self) -> None:
        """Go on waiting after a start."""
        node = self._station.node
        running = node.storage.running()
        if running is not None and running.state in _WAITS:
            self.watch(running.number)

    def stop(self) -> None:
        """Wait no more."""
        for task in self._watching:
            task.cancel()

    # --- what the methods above are made of ---------------------------------------------------

    async def _watched(self, number: int) -> None:
        try:
            await self.passed(number)
        except ProtocolError as error:
            log.warning("round %d ends without an aggregate: %s", number, error)

    async def _wait(self, number: int, what: str) -> None:
        station = self._station
        station.node.storage.ledger.running_round(number)
        since = self._since.setdefault((number, what), time.monotonic())
        if time.monotonic() - since < station.limits.audit_seconds:
            station.stalled = f"waiting for {what}"
            await station.wait(_POLL_SECONDS)
            return
        reason = f"{MISSING}: waited {station.limits.audit_seconds:g} s for {what}"
        await station.write(self._end, number, reason)
        await station.tell()
        raise ProtocolError(f"round {number} ends unopened: {reason}", code="audit-missing")

    def _transcript(self, number: int) -> bytes:
        """None before the commitment is stored: after a crash it would be another one."""
        node = self._station.node
        path = node.storage.audits.path(number)
        said = node.transcript.said(number, Kind.SHARE_COMMIT)
        return path.read_bytes() if said is not None and path.exists() else b""

    def _end(self, number: int, reason: str) -> None:
        node = self._station.node
        node.abandon(number, reason)
        node.storage.audits.alert(MISSING)
        log.error("an auditor did not answer in time", extra={"round": number, "alert": MISSING})

    def _keep_key(self, number: int, key: str, signature: str) -> None:
        node = self._station.node
        node.storage.ledger.running_round(number)
        parts = transcript_info(node.plan.digest, number, node.party), bytes.fromhex(key)
        self._check_signed("the key", node.party, kdf.LABEL_AUDIT_KEY, parts, signature)
        node.storage.audits.keep_key(bytes.fromhex(key))

    def _halt(self, number: int, step: str, why: str, signature: str) -> None:
        node, peer = self._station.node, 1 - self._station.node.party
        row, held = node.storage.ledger.round(number), node.storage.audits.held(node.plan, number)
        try:
            if row is None or row.state is StoredState.APPLIED:  # a late finding counts
                node.storage.ledger.running_round(number)
            if held is None and node.plan.audited:
                raise ProtocolError(
                    f"this server has no signed commitment of server {peer} in round {number}: "
                    "ask this server's operator",
                    code="wrong-step",
                )
            parts = named_parts(node.plan, number, peer, held or (b"", b""), step, why)
            self._check_signed("the finding", peer, kdf.LABEL_NAMED, parts, signature)
        except ProtocolError as error:
            node.storage.audits.alert(UNTAKEN)
            log.error(
                "an auditor's finding is refused", extra={"round": number, "reason": str(error)}
            )
            raise
        self._name(number, step, why, signature=signature)

    def _halt_for_two(self, number: int, record: bytes, said: ShareCommit, signature: str) -> None:
        node, peer = self._station.node, 1 - self._station.node.party
        held = node.storage.audits.held(node.plan, number)
        shown = record, said.commitment
        if held in (None, shown):
            raise ProtocolError(
                f"round {number}: this commitment of server {peer} is the stored one. Only another "
                "commitment that it signed proves a lie: send that one",
                code="wrong-step",
            )
        parts = named_parts(node.plan, number, peer, shown, *TWICE)
        self._check_signed("the commitment", peer, kdf.LABEL_NAMED, parts, signature)
        key, signs = bytes.fromhex(node.plan.audit_keys[peer]), (record, bytes([peer]))
        if not is_signed(key, said.signature, kdf.LABEL_RECORD, *signs, said.commitment):
            raise ProtocolError(
                f"server {peer} did not sign this commitment: send a commitment that it signed",
                code="bad-signature",
            )
        second = (said.commitment + said.signature).hex()
        self._name(number, *TWICE, signature=signature, second_record=record.hex(), second=second)

    def _name(self, number: int, step: str, why: str, **kept: str) -> None:
        """Halt for what the other server's auditor has shown, once; the record keeps it."""
        node, peer = self._station.node, 1 - self._station.node.party
        if "named" in node.storage.audits.record(node.plan, number):
            return
        node.storage.audits.note(node.plan, number, named=f"{step}: {why}", **kept)
        node.storage.audits.alert(LIAR)
        reason = f"{LIAR}: the auditor of server {peer} found that it lied ({step}: {why})"
        text = "an auditor reports a lie of the other server"
        log.error(text, extra={"round": number, "alert": LIAR, "reason": reason})
        node.halt(reason)

    def _check_signed(
        self, what: str, party: int, label: bytes, parts: tuple[bytes, ...], signature: str
    ) -> None:
        """Refuse what the plan's auditor of a server has not signed."""
        plan = self._station.node.plan
        if not plan.audited:
            raise ProtocolError(
                f"this server's task has no audit, so {what} is for another task: compare the "
                "plans of auditor and server",
                code="another-plan",
            )
        public = bytes.fromhex(plan.auditors[party])
        if not is_signed(public, bytes.fromhex(signature), label, *parts):
            raise ProtocolError(
                f"{what} is not signed by the plan's auditor: check the key of this auditor",
                code="bad-signature",
            )

    def _check_own(self, caller: Identity) -> None:
        if caller.number != self._station.node.party:
            raise NotAllowed(f"expected the auditor of this server, got {caller}")

    def _check_other(self, caller: Identity) -> None:
        if caller.number == self._station.node.party:
            raise NotAllowed(f"expected the auditor of the other server, got {caller}")

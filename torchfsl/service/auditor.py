"""The auditor of one server: it gives keys, fetches transcripts, replays them, and tells the other.

It calls both servers and opens no port. For each round it signs a fresh key for its server, to
which the transcript is sealed; it destroys the key with its verdict, so that no later theft opens
the transcript. Only where it names a server it keeps key and transcript: that is the evidence.

Where noise is correlated over rounds it keeps what its server added in rounds that it passed and
whose pass the other server has taken, in a ring file as its server does. With a key it says the
rounds that it holds, and no others count.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torchfsl.crypto import kdf
from torchfsl.crypto.hpke import SealKey
from torchfsl.crypto.signing import SignKey
from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError
from torchfsl.fsl.audit.replay import Auditor, Finding
from torchfsl.fsl.audit.transcript import auditor_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES
from torchfsl.kernels.backends import backend
from torchfsl.service.client.links import Link, Links, RetryPolicy
from torchfsl.service.net import calls
from torchfsl.service.net.answers import PLAN_BYTES, decode_plan
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.state.audits import (
    KEY_BYTES,
    TWICE,
    named_parts,
    pack_rounds,
    transcript_info,
    unpack_rounds,
)
from torchfsl.service.state.noise_ring import NoiseRing, wipe_rings
from torchfsl.service.state.steps import BEFORE_COMMITMENTS, OPEN_STATES, StoredState
from torchfsl.service.state.vault import write_whole
from torchfsl.submodel.correlated_noise import CorrelatedNoise

log = logging.getLogger("torchfsl.service.auditor")

_BACKEND: Final = "TORCHFSL_BACKEND"
_SEALED: Final = OPEN_STATES[OPEN_STATES.index(StoredState.COMMITTED) :]
"""States with a transcript. A server is past AUDITING once the other auditor passed its peer."""
_KEYED: Final = OPEN_STATES[: OPEN_STATES.index(StoredState.AUDITING) + 1]
PASSED, LIAR, REFUSED = 0, 3, 4
"""Exit statuses of `torchfsl audit`."""


class AuditorProcess:
    """Of server `party`, with what it has to keep in `folder`.

    Args:
        party: whose auditor this is.
        servers: URLs of server 0 and server 1.
        files: certificate of `auditor:PARTY`, and `auditor-PARTY-sign.key` in the same folder.
        folder: of keys that are not used yet, verdicts, and evidence; made when missing.

    Raises:
        ParameterError: the certificate is another party's, or there is no key for signatures.
    """

    def __init__(self, party: int, servers: list[str], files: TlsFiles, folder: Path) -> None:
        if files.identity() != Identity(Role.AUDITOR, party):
            raise ParameterError(
                f"expected the certificate of auditor {party} in {files.certificate}, got that of "
                f"{files.identity()}: put the certificate of auditor {party} there",
                code="wrong-certificate",
            )
        signing = files.sign_pair()
        if signing is None:
            raise ParameterError(
                f"expected auditor-{party}-sign.key in the folder of {files.certificate}: "
                "for a trial, `torchfsl certs DIR --auditors` makes keys"
            )
        self.party, self.key, self.folder = party, signing[0], folder
        for name in ("keys", "verdicts", "named", "noise"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        policy = RetryPolicy(attempt_seconds=600, total_seconds=5)
        self.links = Links(servers, files, policy)
        self._digest, self._past = "", _PastNoise(folder / "noise")
        self._auditor: Auditor | None = None

    def run(self, still: Callable[[], bool], pause: float = 0.25) -> None:
        """Look after the server again and again, as long as `still` holds."""
        while still():
            try:
                self.look()
            except calls.RETRIED as error:
                log.warning("a server does not answer: %s", error)
            except Error as error:
                log.error("the auditor cannot continue now, and tries again: %s", error)
            time.sleep(pause)

    def look(self) -> None:
        """Do what is due: give the key of the running round, audit it, tell the other server.

        Raises:
            Error: a server does not answer, or refuses.
        """
        self._tell()
        info = self.links.info(self.party)
        self._destroy_keys(info)
        auditor = self._auditor_of(info["plan_digest"])
        if auditor is None:
            return
        plan = auditor.plan
        if info["state"] not in OPEN_STATES:
            if auditor.noise is not None and _has_ended(plan, auditor.noise, info):
                self._past.end(auditor.noise)
            return
        number = info["round"]
        if self._verdict(plan, number).exists():
            return
        if info["state"] in _KEYED:
            self._give_key(auditor, number)
        if info["state"] in _SEALED:
            self._audit(auditor, number)
            self._tell()

    def close(self) -> None:
        """Close the connections."""
        self.links.close()

    # --- what the methods above are made of ---------------------------------------------------

    @property
    def _own(self) -> Link:
        return self.links.links[self.party]

    def _auditor_of(self, digest: str) -> Auditor | None:
        """That of the server's plan, if it names this one's key."""
        if not digest:
            return None
        if self._digest != digest:
            plan = plan_of(self._own)
            self._auditor = None
            if names_auditor(plan, self.party, self.key):
                self._auditor = Auditor(plan, self.party, self.key)
            self._past.attach(plan, None if self._auditor is None else self._auditor.noise)
            if self._auditor is not None:
                self._warn_of_disk(plan)
            self._digest = digest
        return self._auditor

    def _warn_of_disk(self, plan: Plan) -> None:
        free, needed = room(self.folder, plan)
        if free < needed:
            log.warning(
                "%s has %d bytes free, and the evidence of a round can need %d: free space on its "
                "disk",
                self.folder,
                free,
                needed,
            )

    def _destroy_keys(self, info: Mapping[str, Any]) -> None:
        """Destroy keys of rounds that are over: no transcript is due for them."""
        running = f"{info['plan_digest'][:16]}-{info['round']}"
        for key in (self.folder / "keys").glob("*.key"):
            if key.stem != running or info["state"] not in OPEN_STATES:
                destroy(key)

    def _name(self, plan: Plan, number: int) -> str:
        return f"{plan.digest.hex()[:16]}-{number}"

    def _verdict(self, plan: Plan, number: int) -> Path:
        return self.folder / "verdicts" / f"{self._name(plan, number)}.json"

    def _key_file(self, plan: Plan, number: int) -> Path:
        return self.folder / "keys" / f"{self._name(plan, number)}.key"

    def _give_key(self, auditor: Auditor, number: int) -> None:
        path = self._key_file(auditor.plan, number)
        if not path.exists():
            write_whole(path, SealKey.generate().raw + pack_rounds(auditor.offer()))
        kept = path.read_bytes()
        public = SealKey.from_raw(kept[:KEY_BYTES]).public + kept[KEY_BYTES:]
        info = transcript_info(auditor.plan.digest, number, self.party)
        signature = self.key.sign(kdf.LABEL_AUDIT_KEY, info, public).hex()
        fields = {"round": number, "key": public.hex(), "signature": signature}
        try:
            self._own.call("AuditKey", calls.encode_request(**fields), limit=0)
        except ProtocolError as error:  # the round has ended, or has an older key
            log.info("the server did not take the key for round %d: %s", number, error)

    def _audit(self, auditor: Auditor, number: int) -> None:
        plan, request = auditor.plan, calls.encode_request(round=number)
        try:
            data = self._own.once("Transcript", request, limit=MAX_MESSAGE_BYTES)
        except calls.NotReady:
            return
        key, start = self._key_file(plan, number), time.perf_counter()
        verdict: dict[str, Any] = {"plan": plan.to_json(), "party": self.party, "round": number}
        try:
            found = judged(auditor, number, key.read_bytes(), data)
            if found.step:
                self._past.check(auditor.noise)
        except (Error, OSError) as error:
            verdict |= {"refused": str(error), "told": True}
            log.error("round %d: the auditor cannot check the server's messages: %s", number, error)
        else:
            verdict |= self._said(auditor, found)
            level = logging.ERROR if found.step else logging.INFO
            log.log(level, "%s, %.2f s", found, time.perf_counter() - start)
            if found.step:
                verdict |= {"noise": self._past.show(self.folder / "named", auditor.noise)}
                write_whole(self.folder / "named" / f"{self._name(plan, number)}.tfsa", data)
                write_whole(self.folder / "named" / key.name, key.read_bytes())
        write_whole(self._verdict(plan, number), json.dumps(verdict).encode())
        destroy(key)

    def _said(self, auditor: Auditor, found: Finding) -> dict[str, Any]:
        """Signed fields for the other server."""
        said = {"record": found.record.hex(), "commitment": found.commitment.hex(), "told": False}
        held = found.record, found.commitment

        def signature(*what: str) -> str:
            parts = named_parts(auditor.plan, found.round_number, self.party, held, *what)
            return self.key.sign(kdf.LABEL_NAMED, *parts).hex()

        said |= {"signed": found.signed.hex(), "twice": signature(*TWICE)}
        if not found.step:
            return said | {"message": auditor.sign(found).hex()}
        what = found.step, found.why
        return said | {"step": found.step, "why": found.why, "signature": signature(*what)}

    def _tell(self) -> None:
        """Take verdicts to the other server, until it has each or has gone on."""
        for path in sorted((self.folder / "verdicts").glob("*.json")):
            verdict = json.loads(path.read_bytes())
            if verdict["told"]:
                continue
            method = "Passed" if "message" in verdict else "Named"
            names = ("message",) if method == "Passed" else ("step", "why", "signature")
            fields = {name: verdict[name] for name in names}
            request = calls.encode_request(round=verdict["round"], **fields)
            link = self.links.links[1 - self.party]
            if method == "Named" and self._runs_at_other(path, verdict, BEFORE_COMMITMENTS):
                continue
            try:
                link.call(method, request, limit=0)
            except (DecodeError, ProtocolError) as error:
                if self._runs_at_other(path, verdict, BEFORE_COMMITMENTS):
                    continue  # it has not heard its peer's commitment yet
                if not self._shows_second(link, verdict) and (
                    method == "Passed" and self._runs_at_other(path, verdict, OPEN_STATES)
                ):
                    continue
                level = logging.ERROR if method == "Named" else logging.WARNING
                log.log(level, "server %d does not take the verdict: %s", 1 - self.party, error)
            else:
                if method == "Passed":
                    self._keep(path, verdict["round"])
            write_whole(path, json.dumps(verdict | {"told": True}).encode())

    def _shows_second(self, link: Link, verdict: Mapping[str, Any]) -> bool:
        """Whether the other server has taken the replayed commitment for a second one."""
        names = ("record", "commitment", "signed", "twice")
        fields = {name: verdict.get(name, "") for name in names}  # none of an older auditor
        try:
            link.call("Signed", calls.encode_request(round=verdict["round"], **fields), limit=0)
        except (DecodeError, ProtocolError):  # it holds this very one, or does not know the call
            return False
        log.error("round %d, server %d: %s", verdict["round"], self.party, TWICE[1])
        return True

    def _keep(self, path: Path, number: int) -> None:
        """Let the noise of a round count, once the other server has taken the verdict."""
        auditor = self._auditor
        if auditor is None or path != self._verdict(auditor.plan, number):
            return
        if auditor.keep(number):
            self._past.keep(auditor.noise)

    def _runs_at_other(
        self, path: Path, verdict: Mapping[str, Any], states: Collection[StoredState]
    ) -> bool:
        """Whether the round of a verdict runs at the other server, in one of these states."""
        other = self.links.info(1 - self.party)
        runs = other["plan_digest"][:16], other["round"], other["state"] in states
        return runs == (path.stem[:16], verdict["round"], True)


def plan_of(link: Link) -> Plan:
    """The plan of a server's task; raises Error if it does not answer."""
    answer = link.call("Plan", calls.encode_request(), limit=PLAN_BYTES)
    return Plan.from_json(decode_plan(answer)["plan"])


def names_auditor(plan: Plan, party: int, key: SignKey) -> bool:
    """Whether a plan names this key as that of server `party`'s auditor."""
    return plan.audited and plan.auditors[party] == key.public.hex()


def room(folder: Path, plan: Plan) -> tuple[int, int]:
    """Bytes that are free for an auditor's folder, and that a task can still take there."""
    disk, rings = os.statvfs(folder), (folder / "noise").glob("*.ring")
    taken = sum(path.stat().st_size for path in rings)
    return disk.f_bavail * disk.f_frsize, auditor_bytes(plan, plan.max_clients) - taken


class _PastNoise:
    """The noise that a server added in rounds whose pass the other one took, on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ring: NoiseRing | None = None

    def attach(self, plan: Plan, noise: CorrelatedNoise | None) -> None:
        """Let the noise of a plan go on from what is stored; wipe that of other plans.

        Raises:
            ParameterError: the disk has no room for it.
            LedgerError: it is damaged.
        """
        wipe_rings(self._folder, but=plan)
        self._ring = None if noise is None else NoiseRing(self._folder, plan)
        for word in self._folder.glob("*.json"):
            if self._ring is None or word != self._word:
                word.unlink()
        if noise is not None and self._ring is not None:
            self._ring.attach(noise, self._stored)

    def keep(self, noise: CorrelatedNoise | None) -> None:
        """Sync the noise of a round that counts now, then the word on it."""
        if self._ring is not None and noise is not None:
            write_whole(self._word, self._ring.keep(noise, noise.index))

    def check(self, noise: CorrelatedNoise | None) -> None:
        """Name no server if the disk has lost noise on which its share builds.

        Raises:
            ProtocolError: it has. This noise counts as 0 from now on.
        """
        damaged = [] if self._ring is None or noise is None else self._ring.forget_damaged(noise)
        if damaged:
            raise ProtocolError(
                f"the stored noise with index {', '.join(map(str, damaged))} has changed on the "
                "auditor's disk, so the round ends unopened: check this disk"
            )

    def show(self, folder: Path, noise: CorrelatedNoise | None) -> str:
        """Copy the noise on which a lying share builds to the evidence; the word on it."""
        if self._ring is None or noise is None:
            return "{}"
        write_whole(folder / self._ring.path.name, self._ring.slots.tobytes())
        return self._ring.word(noise).decode()

    def end(self, noise: CorrelatedNoise) -> None:
        """Overwrite the noise of a task that opens no more rounds."""
        noise.held = [-1] * len(noise.held)
        if self._ring is not None:
            self._word.unlink(missing_ok=True)
            self._ring = None
            wipe_rings(self._folder)

    @property
    def _word(self) -> Path:
        assert self._ring is not None
        return self._ring.path.with_suffix(".json")

    @property
    def _stored(self) -> bytes:
        return self._word.read_bytes() if self._word.exists() else b"{}"


def _has_ended(plan: Plan, noise: CorrelatedNoise, info: Mapping[str, Any]) -> bool:
    """Whether a server between rounds opens no more of a plan's task."""
    left = info["state"] == StoredState.APPLIED or info.get("may_have_opened", False)
    return bool(info["halted"]) or (left and max(noise.held) + 1 == plan.max_rounds)


def judged(auditor: Auditor, number: int, key: bytes, data: bytes) -> Finding:
    """Replay a sealed transcript. A lie counts only if both kernel paths find it.

    Args:
        auditor: of the server.
        number: of the round.
        key: private, and behind it `pack_rounds` of what the auditor offered.
        data: sealed.

    Raises:
        DecodeError, ProtocolError: it cannot be opened or read, is of another round, is not signed
            by its server, or the two paths differ. This names no server.
    """
    info = transcript_info(auditor.plan.digest, number, auditor.party)
    text = SealKey.from_raw(key[:KEY_BYTES]).unseal_pieces(info, data)
    offered = unpack_rounds(key[KEY_BYTES:])
    found = auditor.replay(text, offered)
    if found.round_number != number:
        raise DecodeError(
            f"expected the transcript of round {number}, got that of round {found.round_number}: "
            f"give the transcript of round {number}",
            code="wrong-round",
        )
    if found.step:
        with _other_backend():
            again = auditor.replay(text, offered)
        if again != found:
            raise ProtocolError(
                f"the backends {backend()!r} and 'portable' give different verdicts on this round, "
                "which is a bug and not a lie of the server: report it"
            )
    return found


def audit_file(path: Path, records: Path, key: Path) -> tuple[int, str]:
    """Replay a kept transcript.

    Args:
        path: `named/*.tfsa` of an auditor.
        records: `verdicts/*.json` of the same name: plan, party and round.
        key: `named/*.key` of the same name.

    Returns:
        Exit status `PASSED`, `LIAR` or `REFUSED`, and what to say.

    Raises:
        ParameterError: a file cannot be read.
    """
    try:
        told = json.loads(records.read_bytes())
        data, private = path.read_bytes(), key.read_bytes()
        SealKey.from_raw(private[:KEY_BYTES])
        replayer = Replayer(Plan.from_json(told["plan"]), told["party"])
        party, number = told["party"], told["round"]
        if replayer.noise is not None:
            ring = NoiseRing(path.parent, replayer.plan, "c")
            ring.attach(replayer.noise, told["noise"].encode())
    except OSError as error:
        raise ParameterError(
            f"cannot read {error.filename}: {error.strerror}. "
            "Correct the path, or make the file readable"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ParameterError(
            f"{records} or {key} is not a file of an auditor ({error}): give --records a file of "
            "the auditor's folder 'verdicts', and --key a file of its folder 'named'"
        ) from None
    try:
        found = judged(replayer, number, private, data)
    except Error as error:
        return (
            REFUSED,
            f"round {number}: the transcript of server {party} cannot be judged: {error}",
        )
    if told.get("record", found.record.hex()) != found.record.hex():
        return REFUSED, f"round {number}: the transcript shows another record than {records}"
    return (LIAR if found.step else PASSED), str(found)


class Replayer(Auditor):
    """An auditor that signs nothing."""

    def __init__(self, plan: Plan, party: int) -> None:
        self._prepare(plan, party)


def destroy(path: Path) -> None:
    """Overwrite a key and delete its file, if there is one."""
    if path.exists():
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()


@contextmanager
def _other_backend() -> Iterator[None]:
    """Let kernels be the portable ones, the reference, in this process."""
    before = os.environ.get(_BACKEND)
    os.environ[_BACKEND] = "portable"
    try:
        yield
    finally:
        del os.environ[_BACKEND]
        if before is not None:
            os.environ[_BACKEND] = before

"""Whom a server lets in: the authorities as their files are now, less who is on the deny list.

Both are read again when a file changes, so that a new authority of clients, or a client that is
shut out, needs no restart. What cannot be read leaves in force what was read before. The servers'
authorities may be renewed with the same keys; other keys are another task, and are refused.

TLS reads a server's own certificates again (`channels.server_credentials`) and does not report why
it refuses. So a server also reads them: if one has run out, no caller can connect, and
only the server can log this.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.channels import TlsFiles, read_certificates
from torchfsl.service.net.identity import (
    Identity,
    NotAllowed,
    Role,
    days_left,
    in_days,
    load_certificate,
    load_certificates,
)

log = logging.getLogger("torchfsl.service.trust")
_own_log = logging.getLogger("torchfsl.service.validity")

_ASK: Final = "ask both operators to remove the entry"
_LOOK_SECONDS: Final = 1.0
_PREFIX: Final = re.compile(r"sha256(:| fingerprint=)", re.IGNORECASE)
_OF_TOKEN: Final = re.compile(r"jkt:[A-Za-z0-9_-]{43}|jti:[A-Za-z0-9._:/@-]{1,64}")
_FINGERPRINT: Final = re.compile(r"sha256:([0-9a-f]{64})")


class Trust:
    """Who may call.

    Args:
        files: with the authorities.
        deny: the deny list, see `read_deny_list`; None denies no one.
        is_issued: whether a client's number belongs to an issuer of tokens.

    Attributes:
        is_stale: a file has changed and cannot be read; for a metric.

    Raises:
        ParameterError: a file cannot be read, or its content is not valid.
    """

    def __init__(
        self,
        files: TlsFiles,
        deny: Path | None = None,
        is_issued: Callable[[int], object] = lambda number: None,
    ) -> None:
        self._files, self._deny, self._is_issued = files, deny, is_issued
        self._stamp = self._now()
        self._authorities = files.authorities()
        self._denied = read_deny_list(deny)
        self._looked = time.monotonic()
        self.is_stale = False

    def identify(self, pem: bytes) -> Identity:
        """The party that a peer's certificate, which TLS has checked, stands for.

        Raises:
            NotAllowed: the certificate stands for no party, for one on the deny list, or for a
                client whose number belongs to an issuer of tokens.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look()
        identity = self._authorities.identify(pem)
        denied = self._denied
        if denied and (identity.uri in denied or fingerprint(pem) in denied):
            raise NotAllowed(f"{identity} is on this server's deny list: {_ASK}")
        if identity.role is Role.CLIENT and self._is_issued(identity.number):
            raise NotAllowed(
                f"the number of {identity} belongs to an issuer of tokens: issue a certificate "
                "with a number outside `numbers` in the admission files"
            )
        return identity

    def check(self, *entries: str) -> None:
        """Raise NotAllowed if the deny list has one of these."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look()
        if not self._denied.isdisjoint(entries):
            raise NotAllowed(
                f"the client, its key or its token is on this server's deny list: {_ASK}"
            )

    def look(self, *, is_asked: bool = False) -> None:
        """Read what has changed; if the operator asks, also what could not be read before."""
        self._looked = time.monotonic()
        try:
            stamp = self._now()
            if stamp == self._stamp and not (is_asked and self.is_stale):
                return
            self._stamp = stamp
            authorities, denied = self._files.authorities(), read_deny_list(self._deny)
            if authorities.keys != self._authorities.keys:
                raise ParameterError(
                    "the servers' authorities have other keys than at the start of this server: "
                    "put the old files back"
                )
        except (Error, OSError) as error:
            log.error("the list of who may call stays as it was: %s", error)
            self.is_stale = True
            return
        self._authorities, self._denied = authorities, denied
        self.is_stale = False
        log.info("the server has reloaded the list of who may call", extra={"count": len(denied)})

    def _now(self) -> tuple[tuple[int, int, int], ...]:
        files = [*self._files.server_authorities, self._files.clients_authority]
        try:
            return tuple(stamp_of(path) for path in (*files, *([self._deny] if self._deny else [])))
        except OSError as error:
            read_deny_list(self._deny)  # raises with a remedy if that is the missing file
            raise ParameterError(
                f"cannot read {error.filename} ({error.strerror}): put the file back, or make it "
                "readable"
            ) from error


def read_deny_list(path: Path | None) -> frozenset[str]:
    """Denied parties, certificates, keys and tokens, one per line; a remark begins with #.

        torchfsl:client:17       # a client, whatever its certificate
        torchfsl:owner           # every coordinator
        sha256:0123...           # one certificate, by its fingerprint, colons allowed
        sha256 Fingerprint=01:.. # the same, as openssl writes it
        jkt:NzbLs...             # the key of a client with tokens, by its thumbprint
        jti:0123...              # one token

    Raises:
        ParameterError: the file cannot be read, or a line is none of these.
    """
    if path is None:
        return frozenset()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        remedy = f"put the file back. For a list that shuts nobody out, run `touch {path}`"
        if not isinstance(error, FileNotFoundError):
            remedy = "correct the path or the file"
        raise ParameterError(f"cannot read the deny list {path} ({why}): {remedy}") from error
    found = set()
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            found.add(_entry(entry, f"{path}, line {number}"))
    return frozenset(found)


def _entry(text: str, where: str) -> str:
    if _OF_TOKEN.fullmatch(text):
        return text
    if is_fingerprint := _PREFIX.match(text):
        plain = "sha256:" + text[is_fingerprint.end() :].replace(":", "").lower()
        if _FINGERPRINT.fullmatch(plain):
            return plain
    else:
        try:
            if Identity.parse(text).role is not Role.SERVER:
                return text
        except NotAllowed:
            pass
    raise ParameterError(
        f"{where}: {text[:80]!r} is neither torchfsl:client:N nor torchfsl:owner nor sha256:HEX, "
        "jkt:THUMBPRINT or jti:NAME: correct the line"
    )


def fingerprint(pem: bytes) -> str:
    """As a deny list names a certificate: `sha256:` and 64 hex digits."""
    return "sha256:" + load_certificate(pem).fingerprint(hashes.SHA256()).hex()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Values that change when a file is written or replaced: time, size and inode."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


_SOON_SECONDS: Final = 14 * 86400
"""Left of a certificate that is to be renewed soon."""


class Validity:
    """Looks at the files at most once a second. Usable from any thread.

    Args:
        files: of the server, which can be used now.
        party: of the server.

    Attributes:
        is_stale: a file has changed and cannot be used: what was read before stays in force.

    Raises:
        ParameterError, NotAllowed: a file cannot be read, or as `checked_seal`.
    """

    def __init__(self, files: TlsFiles, party: int) -> None:
        self._files, self._party = files, party
        self._key, self._seal = checked_seal(files, party)
        self._chain, self._wrong, self.is_stale = b"", "", False
        self._has_complained = False
        self._ends = self._read()
        self._looked = time.monotonic()
        path, left = self.first
        if 0 <= left < _SOON_SECONDS:
            _own_log.warning("%s expires in %d days: renew it", path, in_days(left))

    @property
    def first(self) -> tuple[Path, float]:
        """The file that runs out first, and the seconds it has left; negative when it has."""
        self._look()
        path, end = min(self._ends.items(), key=lambda item: item[1])
        return path, end - time.time()

    @property
    def expired(self) -> str:
        """Reason why no caller can connect any more, or empty."""
        path, left = self.first
        return f"{path} has EXPIRED: renew it; nothing has to be restarted" if left < 0 else ""

    def seal_certificate(self) -> bytes:
        """The sealing certificate, PEM; a new one in its file if that is for the same key."""
        self._look()
        return self._seal

    def _look(self) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            self._ends = self._read()
            self._renew()
        except (Error, OSError) as error:
            self._complain(str(error))
            return
        self._wrong, self.is_stale = "", False
        if self._has_complained:
            self._has_complained = False
            _own_log.info("keys and certificates can be used again")

    def _complain(self, wrong: str) -> None:
        """Log once what is wrong for two looks in a row: for a moment any rotation is."""
        if wrong == self._wrong and not self.is_stale:
            self.is_stale = self._has_complained = True
            _own_log.error("the certificates stay as they were: %s", wrong)
        elif wrong != self._wrong:
            self._wrong, self.is_stale = wrong, False

    def _renew(self) -> None:
        """Take a new sealing certificate of the same key.

        Raises:
            ParameterError: it or the key next to it is of another key.
            NotAllowed: it is not this server's, or out of date.
        """
        path, (key, seal) = self._files.seal_certificate, self._files.seal_pair()
        if (key.public, seal) == (self._key, self._seal):
            return
        certified = self._files.authorities().seal_key(self._party, seal)
        if (key.public, certified) != (self._key, self._key):
            raise ParameterError(
                f"{path} or the key file next to it does not have the key that the plan names: put "
                "back the key file with that key, and a certificate of that key"
            )
        self._seal = seal
        _own_log.info("the server has read %s again", path)

    def _read(self) -> dict[Path, float]:
        """When each file runs out; logs once that a renewed certificate is used."""
        chain = self._files.server_pair(self._party)[1]
        ends = ends_of(self._files)
        if self._chain and chain != self._chain:
            new, path = load_certificate(chain), self._files.certificate
            told = new.subject.rfc4514_string(), f"{new.not_valid_after_utc:%Y-%m-%d %H:%M UTC}"
            _own_log.info("new connections use the new certificate %s: %s, until %s", path, *told)
        self._chain = chain
        return ends


def checked_seal(files: TlsFiles, party: int) -> tuple[bytes, bytes]:
    """The public sealing key of a server, 32 bytes, and its certificate, PEM.

    Raises:
        ParameterError: a file cannot be read, or the certificate is of another key or out of date.
        NotAllowed: the certificate is not this server's.
    """
    key, certificate = files.seal_pair()
    days_left(certificate, files.seal_certificate)
    authorities = files.authorities()
    try:
        certified = authorities.seal_key(party, certificate)
    except NotAllowed as error:
        raise NotAllowed(f"{files.seal_certificate}: {error}") from None
    if certified != key.public:
        raise ParameterError(
            f"{files.seal_certificate} is not the certificate of the key next to it: put the "
            "certificate of this key there"
        )
    return key.public, certificate


def ends_of(files: TlsFiles) -> dict[Path, float]:
    """When each file runs out, in seconds of the epoch; of several authorities the last one.

    Raises:
        ParameterError: a file cannot be read.
    """
    paths = (files.certificate, files.seal_certificate, *files.server_authorities)
    ends = {path: load_certificates(read_certificates(path))[0] for path in paths}
    clients = load_certificates(read_certificates(files.clients_authority))
    ends[files.clients_authority] = max(clients, key=lambda one: one.not_valid_after_utc)
    return {path: one.not_valid_after_utc.timestamp() for path, one in ends.items()}

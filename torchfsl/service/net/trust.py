"""Whom a server lets in: the authorities as their files are now, less who is on the deny list.

Both are read again when a file changes, so that a new authority of clients, or a client that is
shut out, needs no restart. What cannot be read leaves in force what was read before. The servers'
authorities may be renewed with the same keys; other keys are another task, and are refused.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.channels import TlsFiles
from torchfsl.service.net.identity import Identity, NotAllowed, Role, load_certificate

log = logging.getLogger("torchfsl.service.trust")

_LOOK_SECONDS: Final = 1.0
_PREFIX: Final = re.compile(r"sha256(:| fingerprint=)", re.IGNORECASE)
_FINGERPRINT: Final = re.compile(r"sha256:([0-9a-f]{64})")


class Trust:
    """Who may call.

    Args:
        files: with the authorities.
        deny: the deny list, see `read_deny_list`; None for nobody.

    Attributes:
        is_stale: a file has changed and cannot be read; for a metric.

    Raises:
        ParameterError: a file cannot be read, or says nothing valid.
    """

    def __init__(self, files: TlsFiles, deny: Path | None = None) -> None:
        """Read the files."""
        self._files, self._deny = files, deny
        self._stamp = self._now()
        self._authorities = files.authorities()
        self._denied = read_deny_list(deny)
        self._looked = time.monotonic()
        self.is_stale = False

    def identify(self, pem: bytes) -> Identity:
        """Whom a peer's certificate, which TLS has checked, stands for.

        Raises:
            NotAllowed: nobody, or somebody on the deny list.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self.look()
        identity = self._authorities.identify(pem)
        denied = self._denied
        if denied and (identity.uri in denied or fingerprint(pem) in denied):
            raise NotAllowed(f"{identity} is on this server's deny list")
        return identity

    def look(self) -> None:
        """Read what has changed."""
        self._looked = time.monotonic()
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            authorities, denied = self._files.authorities(), read_deny_list(self._deny)
            if authorities.keys != self._authorities.keys:
                raise ParameterError(
                    "the servers' authorities have other keys, which is another task: stop both "
                    "servers for it"
                )
        except (Error, OSError) as error:
            log.error("who may call stays as it was: %s", error)
            self.is_stale = True
            return
        self._authorities, self._denied = authorities, denied
        self.is_stale = False
        log.info("read again who may call", extra={"count": len(denied)})

    def _now(self) -> tuple[tuple[int, int, int], ...]:
        files = [*self._files.server_authorities, self._files.clients_authority]
        try:
            return tuple(stamp_of(path) for path in (*files, *([self._deny] if self._deny else [])))
        except OSError as error:
            raise ParameterError(f"cannot read {error.filename}: {error.strerror}") from error


def read_deny_list(path: Path | None) -> frozenset[str]:
    """Who is shut out, one a line; what follows a # is a remark.

        torchfsl:client:17       # a client, whatever its certificate
        torchfsl:owner           # every owner
        sha256:0123...           # one certificate, by its fingerprint, colons allowed
        sha256 Fingerprint=01:.. # the same, as openssl writes it

    Raises:
        ParameterError: the file cannot be read, or a line is none of these.
    """
    if path is None:
        return frozenset()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read the deny list {path}: {error}") from error
    found = set()
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            found.add(_entry(entry, f"{path}, line {number}"))
    return frozenset(found)


def _entry(text: str, where: str) -> str:
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
        f"{where}: {text[:80]!r} is neither torchfsl:client:N nor torchfsl:owner nor sha256:HEX"
    )


def fingerprint(pem: bytes) -> str:
    """As a deny list names a certificate: `sha256:` and 64 hex digits."""
    return "sha256:" + load_certificate(pem).fingerprint(hashes.SHA256()).hex()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino

"""A server's own certificates and the authorities as their files are now: which have run out.

TLS reads them again on its own (`channels.server_credentials`) and does not report why it refuses.
So a server also reads them. If a certificate has run out, no caller can connect, and only the
server can log this. If a new one cannot be used, the old one stays in use; the log has the reason.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net.channels import TlsFiles, read_file
from torchfsl.service.net.identity import load_certificates

log = logging.getLogger("torchfsl.service.validity")

_LOOK_SECONDS: Final = 1.0
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
        ParameterError: a file cannot be read, or the sealing certificate is of another key.
        NotAllowed: the sealing certificate is not this server's, or out of date.
    """

    def __init__(self, files: TlsFiles, party: int) -> None:
        """Read them."""
        self._files, self._party = files, party
        key, self._seal = files.seal_pair()
        self._key = key.public
        if files.authorities().seal_key(party, self._seal) != self._key:
            raise ParameterError("the sealing certificate is of another key than the one beside it")
        self._refused, self._wrong, self.is_stale = b"", "", False
        self._ends = self._read()
        self._looked = time.monotonic()
        path, left = self.first
        if 0 <= left < _SOON_SECONDS:
            log.warning("%s expires in %.1f days: renew it", path, left / 86400)

    @property
    def first(self) -> tuple[Path, float]:
        """The file that runs out first, and the seconds it has left; negative when it has."""
        self._look()
        path, end = min(self._ends.items(), key=lambda item: item[1])
        return path, end - time.time()

    @property
    def expired(self) -> str:
        """Why nobody gets in any more, or empty."""
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
            self._renew(read_file(self._files.seal_certificate))
        except (Error, OSError) as error:
            self._complain(str(error))
            return
        self._wrong, self.is_stale = "", False

    def _complain(self, wrong: str) -> None:
        """Log once what is wrong for two looks in a row: for a moment any rotation is."""
        if wrong == self._wrong and not self.is_stale:
            self.is_stale = True
            log.error("the certificates stay as they were: %s", wrong)
        elif wrong != self._wrong:
            self._wrong, self.is_stale = wrong, False

    def _renew(self, seal: bytes) -> None:
        if seal in (self._seal, self._refused):
            return
        try:
            if self._files.authorities().seal_key(self._party, seal) != self._key:
                raise ParameterError("it is of another key, which is another task")
        except Error as error:
            self._refused = seal
            log.error("%s stays as it was: %s", self._files.seal_certificate, error)
            return
        self._seal = seal
        log.info("read again %s", self._files.seal_certificate)

    def _read(self) -> dict[Path, float]:
        """When each file runs out, in seconds of the epoch; of several authorities the last one."""
        files = self._files
        files.server_pair(self._party)
        paths = (files.certificate, files.seal_certificate, *files.server_authorities)
        ends = {path: load_certificates(read_file(path))[0] for path in paths}
        clients = load_certificates(read_file(files.clients_authority))
        ends[files.clients_authority] = max(clients, key=lambda one: one.not_valid_after_utc)
        return {path: one.not_valid_after_utc.timestamp() for path, one in ends.items()}

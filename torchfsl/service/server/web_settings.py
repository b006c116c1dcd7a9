"""The HTTPS door's settings, its TLS, and what it needs to be installed. Loads no h11 itself."""

from __future__ import annotations

import importlib.util
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchfsl.errors import ParameterError
from torchfsl.service.net.addresses import split_address, user_path
from torchfsl.service.net.identity import days_left, load_certificate

_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[a-z0-9.-]+(:[0-9]{1,5})?")
_NAMES: Final = ("listen", "certificate", "key", "admission")


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The section `[web]` of a server's settings.

    Attributes:
        listen: `HOST:PORT`; port 0 takes a free one.
        certificate: of a public authority, with its chain, PEM.
        key: its private key, PEM.
        admission: file of the issuers of tokens, see `torchfsl.service.net.issuers`.
        origins: of the pages whose scripts may call, as `https://app.example`.
    """

    listen: str
    certificate: Path
    key: Path
    admission: Path
    origins: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, values: Any) -> WebSettings:
        """From a table of TOML.

        Raises:
            ParameterError: a setting is missing, unknown or not valid.
        """
        known = {*_NAMES, "origins"}
        if not isinstance(values, Mapping) or not set(_NAMES) <= set(values) <= known:
            raise ParameterError(
                f"[web] needs the settings {', '.join(_NAMES)}, and origins if web pages call this "
                "server: add what is missing, remove other settings"
            )
        for name in _NAMES:
            if type(values[name]) is not str:
                raise ParameterError(
                    f"{name} in [web] is {values[name]!r}: write the value as text in quotes"
                )
        origins = values.get("origins", [])
        if not isinstance(origins, list):
            raise ParameterError(
                f"origins in [web] is {origins!r}: write a list, as ['https://app.example']"
            )
        for origin in origins:
            if type(origin) is not str or not _ORIGIN.fullmatch(origin):
                raise ParameterError(
                    f"origins in [web]: expected an origin, got {origin!r}: write https://HOST or "
                    "https://HOST:PORT, in lower case, without a path"
                )
        split_address(values["listen"])
        certificate, key, admission = (user_path(values[name]) for name in _NAMES[1:])
        return cls(values["listen"], certificate, key, admission, tuple(origins))

    def check_installed(self) -> None:
        """Raise ParameterError where h11 is missing."""
        if importlib.util.find_spec("h11") is None:
            raise ParameterError(
                "[web] needs the package h11, which is not installed: run `pip install "
                "'torchfsl[web]'`",
                code="package-missing",
            )

    def days_left(self) -> int:
        """Days for which the certificate is still valid; raises as `identity.days_left`."""
        try:
            return days_left(self.certificate.read_bytes(), self.certificate)
        except OSError as error:
            raise ParameterError(
                f"cannot read {error.filename}: {error.strerror}. Correct the path"
            ) from None

    def seconds_left(self) -> float:
        """Until the certificate expires; 0 if it cannot be read."""
        try:
            end = load_certificate(self.certificate.read_bytes()).not_valid_after_utc
        except (OSError, ParameterError):
            return 0.0
        return end.timestamp() - time.time()

    def context(self) -> ssl.SSLContext:
        """TLS 1.3 alone, without early data, which the module ssl never takes.

        Raises:
            ParameterError: certificate and key cannot be read, or are not a pair.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(["http/1.1"])
        context.num_tickets = 0  # they cost each handshake a write, and pages keep connections
        try:
            context.load_cert_chain(self.certificate, self.key, password="")  # asks nobody
        except (OSError, ValueError) as error:
            raise ParameterError(
                f"expected a certificate in {self.certificate} and its key, without a password, in "
                f"{self.key}: {error}"
            ) from None
        return context

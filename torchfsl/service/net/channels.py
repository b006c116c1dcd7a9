"""TLS files, server credentials that follow a rotated certificate, and channels to a server.

gRPC checks a server's chain and DNS name and not the party that its URI names. An authority may
sign a certificate of that DNS name for somebody else, by mistake or by a wildcard. So a caller
reads the server's certificate in a separate handshake, checks whom it names, and then trusts only
this certificate.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from torchfsl.crypto.hpke import SealKey
from torchfsl.crypto.signing import SignKey
from torchfsl.errors import Error, ParameterError
from torchfsl.service.net import calls
from torchfsl.service.net.addresses import split_address
from torchfsl.service.net.calls import CHUNK_BYTES, FRAME_LIMIT
from torchfsl.service.net.identity import (
    Authorities,
    Identity,
    NotAllowed,
    Role,
    days_left,
    load_certificate,
    load_certificates,
    server_name,
)

_T = TypeVar("_T")
_SCHEMES: Final = ("https://", "grpcs://")
FLOW: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
    ("grpc.http2.max_frame_size", 1 << 18),
)
"""A chunk may be on its way without a word back: each word costs about as much as a call."""

_OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    ("grpc.max_receive_message_length", FRAME_LIMIT),
    ("grpc.max_send_message_length", FRAME_LIMIT),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # what gRPC allows an attempt to connect
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.use_local_subchannel_pool", 1),
    *FLOW,
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of a party's key and certificate, and of the task's authorities.

    Attributes:
        certificate: this party's, PEM.
        key: its private key, PEM.
        server_authorities: of server 0 and server 1.
        clients_authority: of clients and owner.
        auditor_authorities: of the auditors of server 0 and server 1, or none.
    """

    certificate: Path
    key: Path
    server_authorities: tuple[Path, Path]
    clients_authority: Path
    auditor_authorities: tuple[Path, ...] = ()

    @classmethod
    def in_folder(cls, folder: Path, name: str) -> TlsFiles:
        """The files of `server-0`, `client-17` or `owner`, as `torchfsl certs` names them."""
        auditors = tuple(folder / f"ca-auditor-{party}.pem" for party in (0, 1))
        return cls(
            folder / f"{name}.pem",
            folder / f"{name}.key",
            (folder / "ca-server-0.pem", folder / "ca-server-1.pem"),
            folder / "ca-clients.pem",
            auditors if all(path.exists() for path in auditors) else (),
        )

    def authorities(self) -> Authorities:
        """The authorities.

        Raises:
            ParameterError: a file cannot be read.
        """
        first, second = self.server_authorities
        auditors = tuple(read_certificates(path) for path in self.auditor_authorities)
        servers = read_certificates(first), read_certificates(second)
        return Authorities(servers, read_certificates(self.clients_authority), auditors)

    def pair(self) -> tuple[bytes, bytes]:
        """Key and certificate chain.

        Raises:
            ParameterError: a file cannot be read, or the key is not the certificate's.
        """
        key, chain = read_file(self.key), read_certificates(self.certificate)
        try:
            public = load_pem_private_key(key, None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ParameterError(
                f"{self.key}: expected a private key in PEM without a password, got other bytes: "
                f"put the key of {self.certificate} there"
            ) from error
        if public != load_certificate(chain).public_key():
            raise ParameterError(
                f"{self.key} is not the key of the certificate {self.certificate}: put a "
                "certificate and its own key there"
            )
        return key, chain

    def server_pair(self, party: int) -> tuple[bytes, bytes]:
        """The same, if server `party` can answer with it.

        Raises:
            ParameterError: as `pair`; or the certificate is another party's.
            NotAllowed: it is not from the authority for that party.
        """
        identity = self.identity()
        if identity != Identity(Role.SERVER, party):
            raise ParameterError(
                f"expected the certificate of server {party} in {self.certificate}, got that of "
                f"{identity}: put the certificate of server {party} there"
            )
        return self.pair()

    @property
    def seal_certificate(self) -> Path:
        """A server's certificate for seals; its key lies in the same folder."""
        return self.certificate.with_stem(f"{self.certificate.stem}-seal")

    def seal_pair(self) -> tuple[SealKey, bytes]:
        """A server's key for seals and its certificate, `server-0-seal.*` by `server-0.pem`."""
        certificate = self.seal_certificate
        key = _read(certificate.with_suffix(".key"), SealKey.from_pem)
        return key, read_certificates(certificate)

    def sign_pair(self) -> tuple[SignKey, bytes] | None:
        """A server's or auditor's key for signatures and its certificate, which auditors lack.

        They are `server-0-sign.*` in the folder of `server-0.pem`. None without a key.
        """
        certificate = self.certificate.with_stem(f"{self.certificate.stem}-sign")
        if not certificate.with_suffix(".key").exists():
            return None
        key = _read(certificate.with_suffix(".key"), SignKey.from_pem)
        return key, read_certificates(certificate) if certificate.exists() else b""

    def days_left(self) -> int:
        """Days for which the certificate is still valid; raises as `identity.days_left`."""
        return days_left(read_file(self.certificate), self.certificate)

    def identity(self) -> Identity:
        """Whom the certificate stands for.

        Raises:
            NotAllowed: it is not from the authority for that party.
        """
        authorities, (_, chain) = self.authorities(), self.pair()
        try:
            return authorities.identify(chain)
        except NotAllowed as error:
            raise NotAllowed(f"{self.certificate}: {error}") from None


def server_credentials(files: TlsFiles, party: int) -> grpc.ServerCredentials:
    """Mutual TLS for server `party`: callers are clients, the coordinator, both servers.

    All files are read again when one changes, so a rotation needs no restart.
    """
    stamp: list[Any] = [_stamp(files)]

    def configuration() -> grpc.ServerCertificateConfiguration:
        authorities = files.authorities()
        known = (*authorities.server_pems, *authorities.auditor_pems)
        roots = b"".join((authorities.clients_pem, *known))
        return grpc.ssl_server_certificate_configuration(
            [files.server_pair(party)], root_certificates=roots
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        try:
            now = _stamp(files)
            if now == stamp[0]:
                return None
            fresh = configuration()
        except (OSError, Error):
            return None  # the old certificate goes on; what stays wrong `Validity` logs
        stamp[0] = now
        return fresh

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=True
    )


def channel(url: str, party: int, files: TlsFiles, certificate: bytes) -> grpc.Channel:
    """A channel to server `party` that trusts this certificate alone; nothing is sent yet."""
    return grpc.secure_channel(
        target(url), _client_credentials(files, certificate), options=_all(party)
    )


def aio_channel(url: str, party: int, files: TlsFiles, certificate: bytes) -> grpc.aio.Channel:
    """The same for asyncio."""
    return grpc.aio.secure_channel(
        target(url), _client_credentials(files, certificate), options=_all(party)
    )


def target(url: str) -> str:
    """`host:port` of a URL.

    Raises:
        ParameterError: if it is not a URL of a server.
    """
    rest = url
    for scheme in _SCHEMES:
        rest = rest.removeprefix(scheme)
    rest = rest.rstrip("/")
    with contextlib.suppress(ParameterError):
        host, port = split_address(rest)
        if port and not re.search(r"[\s/?#@]", host):
            return rest
    raise ParameterError(
        f"expected https://HOST:PORT, got {url!r}: write a URL such as https://127.0.0.1:7000",
        code="invalid-address",
    )


def _client_credentials(files: TlsFiles, certificate: bytes) -> grpc.ChannelCredentials:
    key, chain = files.pair()
    return grpc.ssl_channel_credentials(
        root_certificates=certificate, private_key=key, certificate_chain=chain
    )


def _all(party: int) -> list[tuple[str, Any]]:
    return [*_OPTIONS, ("grpc.ssl_target_name_override", server_name(party))]


def read_file(path: Path) -> bytes:
    """A file of keys or certificates; raises ParameterError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ParameterError(
            f"cannot read {path} ({error.strerror}): correct the path. "
            "For a trial, `torchfsl certs DIR` makes certificates and keys"
        ) from error


def read_certificates(path: Path) -> bytes:
    """A file of certificates, PEM; raises ParameterError, with its name, for other bytes."""

    def checked(pem: bytes) -> bytes:
        load_certificates(pem)
        return pem

    return _read(path, checked)


def _read(path: Path, parse: Callable[[bytes], _T]) -> _T:
    """Read and parse a file; an error names the file."""
    data = read_file(path)
    try:
        return parse(data)
    except ParameterError as error:
        raise ParameterError(f"{path}: {error}") from None


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    authorities = (*files.server_authorities, *files.auditor_authorities, files.clients_authority)
    paths = (files.key, files.certificate, *authorities)
    stats = [path.stat() for path in paths]
    return tuple(value for stat in stats for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino))


_HANDSHAKE_SECONDS: Final = 5.0
"""Also the limit of gRPC for an attempt to connect."""


def server_certificate(
    url: str, party: int, files: TlsFiles, seconds: float = _HANDSHAKE_SECONDS
) -> bytes:
    """The certificate, PEM, with which server `party` answers at a URL.

    Args:
        url: of the server.
        party: its number.
        files: of the caller.
        seconds: for the handshake.

    Raises:
        NotReady: if no one answers, or another party.
        ParameterError: a file cannot be read, or the other server answers.
    """
    authorities = files.authorities()
    host, _, port = target(url).rpartition(":")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # of the DNS name: gRPC does, on the channel
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(cadata=b"\n".join(authorities.server_pems).decode())
        context.load_cert_chain(files.certificate, files.key)
        address = host.removeprefix("[").removesuffix("]"), int(port)
        with (
            socket.create_connection(address, timeout=min(seconds, _HANDSHAKE_SECONDS)) as raw,
            context.wrap_socket(raw, server_hostname=server_name(party)) as tls,
        ):
            der = tls.getpeercert(binary_form=True)
    except (OSError, ValueError) as error:
        raise calls.unreachable(f"failed to connect: {error}", f"server {party}") from None
    assert der is not None
    pem = ssl.DER_cert_to_PEM_cert(der).encode()
    try:
        found = authorities.identify(pem)
    except Error as error:
        raise calls.NotReady(
            f"server {party}: expected the certificate of server {party} at {url}, got that of an "
            f"unknown party: {error}"
        ) from None
    if found == Identity(Role.SERVER, 1 - party):
        raise ParameterError(
            f"expected server {party} at {url}, got server {1 - party}: give the URL of server "
            f"{party} in its place. In a list of URLs, server 0 is first",
            code="wrong-certificate",
        )
    if found != Identity(Role.SERVER, party):
        raise calls.NotReady(
            f"server {party}: expected the certificate of server {party} at {url}, got that of "
            f"{found}: check the URL"
        )
    return pem

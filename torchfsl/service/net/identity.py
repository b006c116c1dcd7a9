"""Parties that certificates stand for, and how the servers' identities enter every digest.

Each server has a separate certificate authority, clients have a third one. A certificate names its
holder in a URI: `torchfsl:server:0`, `torchfsl:client:17`, `torchfsl:owner` (the coordinator, which
sets up tasks and opens rounds). Only server p's authority can vouch for server p, so that neither
operator can pose as the other. A plan's session number is a hash over both authorities and a nonce.
The plan's digest is in every message, so messages for servers of other authorities do not fit.

A server's authority also signs its *sealing certificate* (`torchfsl:server:0:seal`), whose key
opens the seeds that clients seal to that server. This key is not a TLS key, so a program that ends
TLS for a server does not need it. The plan names the sealing keys of both servers.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from torchfsl.crypto import kdf
from torchfsl.errors import Error, ParameterError

LABEL_SESSION: Final = b"torchfsl session"
_SCHEME: Final = "torchfsl"
_NO_CERTIFICATE: Final = (
    "expected a certificate in PEM, got other bytes: copy the certificate there again"
)


class NotAllowed(Error):
    """The certificate does not stand for who the message claims to be from."""

    code = "not-allowed"


class NotAdmitted(NotAllowed):
    """A request brings no token, or none that lets it in, or is not signed by the token's key."""

    code = "not-admitted"


class Role(Enum):
    """Kinds of parties."""

    SERVER = "server"
    CLIENT = "client"
    OWNER = "owner"
    AUDITOR = "auditor"


@dataclass(frozen=True, slots=True)
class Identity:
    """A party: role, and number of a server or client, or of the server whose auditor it is."""

    role: Role
    number: int = 0

    @property
    def uri(self) -> str:
        """As in a certificate."""
        if self.role is Role.OWNER:
            return f"{_SCHEME}:owner"
        return f"{_SCHEME}:{self.role.value}:{self.number}"

    def __str__(self) -> str:
        return "the coordinator" if self.role is Role.OWNER else f"{self.role.value} {self.number}"

    @classmethod
    def parse(cls, uri: str) -> Identity:
        """Inverse of `uri`.

        Raises:
            NotAllowed: it names no party.
        """
        scheme, _, rest = uri.partition(":")
        name, _, digits = rest.partition(":")
        try:
            number = int(digits) if digits else 0
            found = cls(Role(name), number)
        except ValueError:
            found = None
        limit = 2 if found and found.role in (Role.SERVER, Role.AUDITOR) else 1 << 64
        if found is None or scheme != _SCHEME or found.uri != uri or not 0 <= found.number < limit:
            raise NotAllowed(
                f"expected the URI of a party in a certificate, got {uri[:80]!r}: issue a "
                "certificate with a URI such as torchfsl:client:17"
            )
        return found


def server_name(party: int) -> str:
    """The DNS name in server `party`'s certificate, whatever host it runs on."""
    return f"server-{party}.torchfsl"


def seal_uri(party: int) -> str:
    """What server `party`'s sealing certificate names; no party that could call anybody."""
    return f"{_SCHEME}:server:{party}:seal"


def sign_uri(party: int) -> str:
    """Name in the certificate of the key by which server `party` signs audited rounds."""
    return f"{_SCHEME}:server:{party}:sign"


class Authorities:
    """The certificate authorities of a task, in public.

    Args:
        servers: PEM of server 0's and server 1's authority.
        clients: PEM of clients' and coordinator's authority, or of several in a row, as when one
            takes the place of another.
        auditors: PEM of the authorities of server 0's and server 1's auditor, or none.
    """

    def __init__(
        self, servers: tuple[bytes, bytes], clients: bytes, auditors: tuple[bytes, ...] = ()
    ) -> None:
        self.auditor_pems = auditors
        self._auditors = tuple(load_certificate(pem) for pem in auditors)
        self.server_pems, self.clients_pem = servers, clients
        self._servers = tuple(load_certificate(pem) for pem in servers)
        self._clients = load_certificates(clients)
        own = {_public_key(certificate) for certificate in self._servers}
        if len(own) != 2 or own & {_public_key(certificate) for certificate in self._clients}:
            raise ParameterError(
                "expected separate certificate authorities for server 0, server 1 and the clients, "
                "got the same authority in two files: give each party its own authority"
            )
        others = [_public_key(certificate) for certificate in (*self._auditors, *self._clients)]
        if self._auditors and len(own | set(others)) != 2 + len(others):
            raise ParameterError(
                "expected a separate certificate authority for each auditor, got the same "
                "authority in two files: give each auditor its own authority"
            )
        self._cached = functools.lru_cache(maxsize=4096)(self._identify)

    def identify(self, pem: bytes) -> Identity:
        """Whom a peer's certificate, which TLS has checked, stands for.

        Raises:
            NotAllowed: it names no party, or an authority that may not vouch for that party.
        """
        return self._cached(pem)

    @property
    def keys(self) -> tuple[str, ...]:
        """SHA-256 of the public keys of server 0's and server 1's authority, in hex."""
        return tuple(_public_key(certificate).hex() for certificate in self._servers)

    def seal_key(self, party: int, pem: bytes) -> bytes:
        """The public key, 32 bytes, in server `party`'s sealing certificate.

        Raises:
            NotAllowed: it is not that server's, not from its authority, or out of date.
        """
        key = self._certified(party, load_certificate(pem), seal_uri(party), "sealing")
        if not isinstance(key, X25519PublicKey):
            raise NotAllowed(
                f"expected an X25519 key in the sealing certificate of server {party}, got another "
                "type: issue this certificate for an X25519 key"
            )
        return key.public_bytes_raw()

    def sign_key(self, party: int, pems: bytes) -> bytes:
        """The public key, 32 bytes, by which server `party` signs audited rounds.

        `pems` has its certificate, perhaps behind the sealing certificate.

        Raises:
            NotAllowed: there is none, or as `seal_key`.
        """
        found = [c for c in load_certificates(pems) if _uris(c) == [sign_uri(party)]]
        if not found:
            raise NotAllowed(
                f"server {party} has no certificate of {sign_uri(party)}: run `torchfsl certs DIR "
                "--auditors` for its folder, and start this server again"
            )
        key = self._certified(party, found[0], sign_uri(party), "signing")
        if not isinstance(key, Ed25519PublicKey):
            raise NotAllowed(
                f"expected an Ed25519 key in the signing certificate of server {party}, got "
                "another type: issue this certificate for an Ed25519 key"
            )
        return key.public_bytes_raw()

    def _certified(self, party: int, certificate: x509.Certificate, uri: str, what: str) -> object:
        """The key of a certificate that a server's authority made for this use."""
        if _uris(certificate) != [uri]:
            raise NotAllowed(f"the {what} certificate does not name {uri}: issue it with this URI")
        whose, issuers = Identity(Role.SERVER, party), self._servers[party : party + 1]
        self._check_issuer(certificate, issuers, f"the {what} certificate of {whose}", whose)
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise NotAllowed(f"the {what} certificate of server {party} is out of date: renew it")
        return certificate.public_key()

    def session(self, nonce: bytes) -> str:
        """A plan's session number, bound to these servers: 16 bytes in hex."""
        keys = map(bytes.fromhex, self.keys)
        return kdf.digest(LABEL_SESSION, nonce, *keys)[:16].hex()

    def _identify(self, pem: bytes) -> Identity:
        certificate = load_certificate(pem)
        _check_strength(certificate.public_key())
        uris = _uris(certificate)
        if len(uris) != 1:
            raise NotAllowed(
                f"expected one URI in a certificate, got {len(uris)}: issue a certificate with a "
                "URI such as torchfsl:client:17"
            )
        identity = Identity.parse(uris[0])
        kept = {Role.SERVER: self._servers, Role.AUDITOR: self._auditors}.get(identity.role)
        issuers = self._clients if kept is None else kept[identity.number : identity.number + 1]
        self._check_issuer(certificate, issuers, f"the certificate of {identity}", identity)
        return identity

    @staticmethod
    def _check_issuer(
        certificate: x509.Certificate,
        issuers: tuple[x509.Certificate, ...],
        what: str,
        whose: Identity,
    ) -> None:
        for issuer in issuers:
            try:
                certificate.verify_directly_issued_by(issuer)
            except (ValueError, TypeError, InvalidSignature):
                continue
            return
        raise NotAllowed(f"{what} is not from the authority in {_authority(whose)}")


def load_certificate(pem: bytes) -> x509.Certificate:
    """A certificate from PEM.

    Raises:
        ParameterError: if the bytes are not a certificate in PEM.
    """
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ParameterError(_NO_CERTIFICATE) from error


def days_left(pem: bytes, path: Path) -> int:
    """Days for which a certificate is still valid, to the nearest, at least 0.

    Raises:
        ParameterError: if it is not a certificate, has expired, or is not valid yet.
    """
    certificate, now = load_certificate(pem), datetime.datetime.now(datetime.UTC)
    if certificate.not_valid_before_utc > now:
        raise ParameterError(f"{path} is not valid yet: check the clock of this machine")
    left = (certificate.not_valid_after_utc - now).total_seconds()
    if left < 0:
        raise ParameterError(f"{path} has EXPIRED: renew it", code="certificate-expired")
    return in_days(left)


def in_days(seconds: float) -> int:
    """Seconds in days, to the nearest: a new certificate of 30 days shows 30 and not 29."""
    return round(seconds / 86400)


def load_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """One certificate or several, from PEM.

    Raises:
        ParameterError: there is none.
    """
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise ParameterError(_NO_CERTIFICATE) from error


def _authority(whose: Identity) -> str:
    """Setting and file of the authority that vouches for a party, with the remedy."""
    if whose.role in (Role.OWNER, Role.CLIENT):
        return "tls-clients-ca (ca-clients.pem): issue the certificate again with this authority"
    kind = whose.role.value
    name = f"tls-{kind}-ca"
    return (
        f"{name}-{whose.number} (ca-{kind}-{whose.number}.pem): exchange the files of {name}-0 and "
        f"{name}-1 if they are exchanged, else ask the operator of {whose} for the authority's file"
    )


def _check_strength(key: object) -> None:
    """Raise NotAllowed for a key that others may find: shorter than P-256 or RSA-2048."""
    least = 2048 if isinstance(key, RSAPublicKey) else 256
    size = getattr(key, "key_size", least)  # Ed25519 has one size
    if size < least:
        raise NotAllowed(
            f"expected at least {least} bits in the key of a certificate, got {size}: make a "
            "longer key"
        )


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)


def _public_key(certificate: x509.Certificate) -> bytes:
    encoded = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(encoded).digest()

"""A development authority: keys and certificates for both servers, a coordinator and clients.

Files in one folder; keys are readable by their owner only:

    ca-server-0.pem  ca-server-1.pem  ca-clients.pem     the authorities, which everybody has
    server-0.pem     server-1.pem     owner.pem          certificates, each with a .key
    server-0-seal.pem  server-1-seal.pem                 keys to which clients seal
    server-0-sign.pem  server-1-sign.pem                 keys by which they sign audited rounds
    client-17.pem                                        one for every client
    ca-auditor-0.pem  auditor-0.pem  auditor-0-sign.pub  and the same of auditor 1, if wanted

In use every organisation makes its own authority and keys, and hands out certificates only.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from torchfsl.errors import ParameterError
from torchfsl.service.net.identity import Identity, Role, seal_uri, server_name, sign_uri

_SKEW: Final = datetime.timedelta(minutes=5)
Key = ec.EllipticCurvePrivateKey
AnyKey = Key | x25519.X25519PrivateKey | ed25519.Ed25519PrivateKey


def make_development_certificates(
    folder: Path,
    clients: Iterable[int],
    *,
    days: int = 30,
    role: Role | None = None,
    auditors: bool = False,
) -> list[Path]:
    """Make what is missing in `folder`: authorities, both servers, the coordinator, clients.

    Args:
        folder: made when missing; authorities that are there are used again.
        clients: client numbers.
        days: how long certificates are valid; authorities twelve times as long.
        role: make only the certificates of this role; None for all.
        auditors: also make authorities, certificates and signing keys of both auditors, and the
            keys by which servers sign audited rounds.

    Returns:
        The certificates made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: list[Path] = []
    wanted: dict[str, list[Identity]] = {
        "ca-server-0": [Identity(Role.SERVER, 0)],
        "ca-server-1": [Identity(Role.SERVER, 1)],
        "ca-clients": [Identity(Role.OWNER), *(Identity(Role.CLIENT, c) for c in clients)],
    }
    for party in (0, 1) if auditors else ():
        wanted[f"ca-auditor-{party}"] = [Identity(Role.AUDITOR, party)]
    for name, identities in wanted.items():
        if not (folder / f"{name}.pem").exists():
            _make_authority(folder, name, days * 12)
            made.append(folder / f"{name}.pem")
        missing = [
            i
            for i in identities
            if role in (None, i.role) and not (folder / f"{file_name(i)}.pem").exists()
        ]
        if missing:
            authority = _read_authority(folder, name)
            made += [_issue(folder, identity, authority, days) for identity in missing]
    for party in (0, 1) if role in (None, Role.SERVER) else ():
        if not (folder / f"server-{party}-seal.pem").exists():
            authority = _read_authority(folder, f"ca-server-{party}")
            made.append(_issue_key(folder, party, "seal", authority, days))
        if auditors and not (folder / f"server-{party}-sign.pem").exists():
            authority = _read_authority(folder, f"ca-server-{party}")
            made.append(_issue_key(folder, party, "sign", authority, days))
        if auditors and not (folder / f"auditor-{party}-sign.key").exists():
            make_sign_key(folder / f"auditor-{party}-sign.key")
    return made


def make_sign_key(path: Path) -> str:
    """Make an auditor's key for signatures and a file `.pub` of its public half, in hex."""
    key = ed25519.Ed25519PrivateKey.generate()
    _write_key(path, key)
    public = key.public_key().public_bytes_raw().hex()
    path.with_suffix(".pub").write_text(public + "\n")
    return public


def client_numbers(text: str) -> list[int]:
    """`0-9,20` as numbers.

    Raises:
        ParameterError: it is not of that form, or a range ends below its start.
    """
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ParameterError(
                f"--clients is {text!r}: write numbers and ranges with commas between, as 0-9,20,31"
            )
        if int(last or first) < int(first):
            raise ParameterError(
                f"--clients is {text!r}, where {part} ends below its start: write {last}-{first}"
            )
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def file_name(identity: Identity) -> str:
    """`server-0`, `client-17` or `owner`."""
    return identity.uri.split(":", 1)[1].replace(":", "-")


def _make_authority(folder: Path, name: str, days: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"torchfsl development {name}")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _builder(title, title, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write(folder, name, builder.sign(key, hashes.SHA256()), key)


def _issue(
    folder: Path, identity: Identity, authority: tuple[x509.Certificate, Key], days: int
) -> Path:
    """A certificate for client and server use, naming the party in a URI."""
    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role is Role.SERVER:
        names.append(x509.DNSName(server_name(identity.number)))
        usage.append(ExtendedKeyUsageOID.SERVER_AUTH)
    vouching = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file_name(identity))])
    builder = (
        _builder(title, issuer.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(vouching, critical=False)  # tells authorities of one name apart
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return _write(folder, file_name(identity), builder.sign(issuer_key, hashes.SHA256()), key)


def _issue_key(
    folder: Path, party: int, use: str, authority: tuple[x509.Certificate, Key], days: int
) -> Path:
    """A certificate to `seal` or `sign`. Renew it for the same key: running tasks name that one."""
    issuer, issuer_key = authority
    key = (x25519.X25519PrivateKey if use == "seal" else ed25519.Ed25519PrivateKey).generate()
    name = f"server-{party}-{use}"
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    uri = x509.UniformResourceIdentifier((seal_uri if use == "seal" else sign_uri)(party))
    builder = (
        _builder(title, issuer.subject, key, days)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return _write(folder, name, builder.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: AnyKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: AnyKey) -> Path:
    _write_key(folder / f"{name}.key", key)
    path = folder / f"{name}.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path


def _write_key(path: Path, key: AnyKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(private)


def _read_authority(folder: Path, name: str) -> tuple[x509.Certificate, Key]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ParameterError(f"cannot use the authority {name} in {folder}: {error}") from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return certificate, key

"""Certificates for a key that there is already: renewed ones, and such that have run out."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def reissue(folder: Path, authority: str, name: str, *, days: float) -> None:
    """Put a certificate for the same key and names over `name`.pem, good for `days` from now."""
    path, now = folder / f"{name}.pem", datetime.datetime.now(datetime.UTC)
    old = x509.load_pem_x509_certificate(path.read_bytes())
    signer = serialization.load_pem_private_key((folder / f"{authority}.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(signer, hashes.SHA256())
    fresh = path.with_suffix(".new")
    fresh.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    os.replace(fresh, path)

"""The HTTPS door from outside: a public authority, plain requests, and a client over it."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.network import CONFIG, Pair
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION

ORIGIN = "https://app.example"
VERSION = {"Torchfsl-Wire": str(WIRE_VERSION)}


def make_public_certificate(folder: Path, *, days: int = 9) -> None:
    """`web.pem` and `web.key` for 127.0.0.1, which is its own authority, as a public one's."""
    folder.mkdir(parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "web")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "web.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "web.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    (folder / "web.key").chmod(0o600)


class WebPair(Pair):
    """A pair with HTTPS doors; `limits` are lines put behind `[limits]`."""

    def __init__(self, folder: Path, plan: Plan | None = None, limits: str = "") -> None:
        self.web = folder / "web"
        make_public_certificate(self.web)
        self.admission = self.web / "admission.toml"
        self.admission.touch()
        section = (
            f'[web]\nlisten = "127.0.0.1:0"\ncertificate = "{self.web}/web.pem"\n'
            f'key = "{self.web}/web.key"\nadmission = "{self.admission}"\n'
            f'origins = ["{ORIGIN}"]\n'
        )
        super().__init__(folder, plan, CONFIG + limits + section)

    def tls_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.web / "web.pem"))

    def raw(self, party: int = 0) -> ssl.SSLSocket:
        """A connection that has finished its handshake."""
        plain = socket.create_connection(("127.0.0.1", self.web_ports[party]), timeout=60)
        return self.tls_context().wrap_socket(plain, server_hostname="127.0.0.1")

    def post(
        self, name: str, body: bytes = b"{}", headers: dict[str, str] | None = None, party: int = 0
    ) -> Answer:
        """One request on a connection of its own."""
        port, tls = self.web_ports[party], self.tls_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=60)
        try:
            connection.request("POST", f"/torchfsl/v1/{name}", body, VERSION | (headers or {}))
            return Answer.of(connection.getresponse())
        finally:
            connection.close()


@dataclass(frozen=True)
class Answer:
    """Status, headers by name in small letters, body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, response: http.client.HTTPResponse) -> Answer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        return cls(response.status, headers, response.read())

    @classmethod
    def read_from(cls, connection: socket.socket, method: str = "POST") -> Answer:
        """The next answer on a raw connection."""
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return cls.of(response)

"""The HTTPS door from outside: a public authority, plain requests, and a client over it."""

from __future__ import annotations

import datetime
import hashlib
import http.client
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tests.support.federation import wanted_rows
from tests.support.network import CONFIG, Pair
from tests.support.reference.plaintext import Contribution
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.fsl.transport import InProcess
from torchfsl.service.client.remote import RemoteTransport
from torchfsl.service.net import tokens

FIRST = 1000
"""The first number of the issuer's clients; there are 1,000."""

ORIGIN = "https://app.example"
VERSION = {"Torchfsl-Wire": str(WIRE_VERSION)}

STALE = ("nonce-expired", "proof-used")
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3)
"""Seconds before a client calls again."""


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
    """A pair with HTTPS doors and an issuer; `limits` are lines put behind `[limits]`."""

    def __init__(
        self, folder: Path, plan: Plan | None = None, limits: str = "", *, counts: int = 99,
        share: float = 1.0, clients: int = 8,
    ) -> None:  # fmt: skip
        self.web = folder / "web"
        make_public_certificate(self.web)
        self.deny = self.web / "deny"
        self.deny.touch()
        self.admission = self.web / "admission.toml"
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
        self.issuer = tokens.Issuer("login.example", pem)
        self.admission.write_text(
            f'[[issuer]]\nname = "login.example"\nshare = {share}\ncounts = {counts}\n'
            f'key = "{key.public_key().public_bytes_raw().hex()}"\n'
            f"numbers = [[{FIRST}, {FIRST + 999}]]\n"
        )
        section = (
            f'[web]\nlisten = "127.0.0.1:0"\ncertificate = "{self.web}/web.pem"\n'
            f'key = "{self.web}/web.key"\nadmission = "{self.admission}"\n'
            f'origins = ["{ORIGIN}"]\n'
        )
        super().__init__(folder, plan, CONFIG + limits + section, clients=clients)

    def command(self, party: int) -> list[str]:
        return [*super().command(party), "--deny", str(self.deny)]

    def admit(self, number: int, key: WebKey) -> tuple[str, str]:
        """Tokens for both servers and all rounds of a test."""
        return self.issuer.admit(number, key.jkt, task=self.plan.session, rounds=(1, 20))

    def take_part_by_web(self, numbers: Iterable[int], seed: int = 0) -> list[Contribution]:
        """Whole rounds of honest clients with tokens."""
        made = []
        for number in numbers:
            key = WebKey()
            links = WebLinks(self, key, self.admit(number, key))
            transport = RemoteTransport(links, self.plan)  # type: ignore[arg-type]
            update = self.update(number, seed)
            client = Client(self.plan, transport, client_id=number)
            session = client.start_round(self.number, indices=wanted_rows(self.plan, update))
            session.download()
            session.retrieve()
            receipt = session.submit(update)
            missing = {name: rows.tolist() for name, rows in receipt.unmatched.items()}
            made.append(Contribution(update, 1, missing))
            links.close()
        return made

    def first_messages(self, number: int) -> list[bytes]:
        """What a client of the open round sends both servers first: its trees."""
        kept: list[bytes] = []

        class Kept(InProcess):
            def send(self, party: int, message: bytes) -> None:
                kept.append(message)

        update, nowhere = self.update(number), Kept(None, None)  # type: ignore[arg-type]
        client = Client(self.plan, nowhere, client_id=number)
        client.start_round(self.number, indices=wanted_rows(self.plan, update)).submit(update)
        return sorted(kept[:2], key=lambda message: message[7])  # by party

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


class WebKey:
    """A client's key, with what is sent of it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PublicFormat.UncompressedPoint
        self.point = self._key.public_key().public_bytes(serialization.Encoding.X962, form)
        self.jkt = tokens.thumbprint(self.point)

    def sign(self, text: bytes) -> bytes:
        r, s = decode_dss_signature(self._key.sign(text, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def headers(self, party: int, name: str, token: str, body: bytes, nonce: str) -> dict[str, str]:
        """Those of a request with this body."""
        digest = hashlib.sha256(body).digest()
        text = tokens.signed_text(party, name, token, digest, len(body), nonce)
        return {
            "Authorization": f"Torchfsl {token}", "Torchfsl-Key": tokens.encode(self.point),
            "Torchfsl-Digest": tokens.encode(digest), "Torchfsl-Nonce": nonce,
            "Torchfsl-Proof": tokens.encode(self.sign(text)),
        }  # fmt: skip


class WebLink:
    """Calls to one server, as `torchfsl.service.client.links.Link` makes them."""

    def __init__(self, pair: WebPair, party: int, key: WebKey, token: str) -> None:
        self.party, self._key, self._token, self._nonce = party, key, token, ""
        port, tls = pair.web_ports[party], pair.tls_context()
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=120)

    def ask(self, name: str, body: bytes) -> Answer:
        """One request, and once more if the nonce is not fresh."""
        for _ in range(2):
            given = self._key.headers(self.party, name, self._token, body, self._nonce)
            self._connection.request("POST", f"/torchfsl/v1/{name}", body, VERSION | given)
            answer = Answer.of(self._connection.getresponse())
            self._nonce = answer.headers.get("torchfsl-nonce", self._nonce)
            if answer.status != 401 or json.loads(answer.body)["code"] not in STALE:
                break
        return answer

    def call(self, name: str, body: bytes, *, limit: int) -> bytes:
        """An answer. As a page does, it calls again where the server drops a connection."""
        for pause in PAUSES:
            try:
                answer = self.ask(name, body)
                break
            except (ssl.SSLError, ConnectionError):
                self._connection.close()
                time.sleep(pause)
        else:
            answer = self.ask(name, body)
        assert answer.status == 200, answer
        assert len(answer.body) <= limit
        return answer.body

    once = call

    def close(self) -> None:
        self._connection.close()


class WebLinks:
    """Both servers, for a `RemoteTransport`."""

    def __init__(self, pair: WebPair, key: WebKey, given: tuple[str, str]) -> None:
        self.links = tuple(WebLink(pair, party, key, given[party]) for party in (0, 1))

    def both(self, ask: Callable[[Any], bytes]) -> tuple[bytes, bytes]:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(ask, self.links)
        return first, second

    def close(self) -> None:
        for link in self.links:
            link.close()

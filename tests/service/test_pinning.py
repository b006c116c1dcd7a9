"""A certificate of the server's authority with its DNS name, but for somebody else, is refused."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from tests.support.network import HASTY
from torchfsl.errors import ParameterError
from torchfsl.service.client.links import Link
from torchfsl.service.net import calls, certificates
from torchfsl.service.net.channels import TlsFiles, channel
from torchfsl.service.net.identity import NotAllowed
from torchfsl.service.server.peers import PeerLink

SERVER, DNS = "torchfsl:server:0", "server-0.torchfsl"
WRONG: list[tuple[list[str], str]] = [
    (["torchfsl:client:3"], DNS), (["torchfsl:client:3"], "*.torchfsl"),
    (["torchfsl:server:1"], DNS), (["torchfsl:owner"], DNS), (["torchfsl:server:0:seal"], DNS),
    (["torchfsl:client:3", SERVER], DNS), ([SERVER, "torchfsl:client:3"], DNS), ([], DNS),
    (["torchfsl:server:00"], DNS), (["TORCHFSL:server:0"], DNS),
]  # fmt: skip


def issue(folder: Path, name: str, uris: list[str], dns: str, key: Any = None) -> None:
    """A certificate that server 0's authority signs."""
    issuer, issuer_key = certificates._read_authority(folder, "ca-server-0")
    key = key or ec.generate_private_key(ec.SECP256R1())
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [*map(x509.UniformResourceIdentifier, uris), x509.DNSName(dns)]
    builder = certificates._builder(title, issuer.subject, key, 3)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificates._write(folder, name, builder.sign(issuer_key, hashes.SHA256()), key)


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: Any) -> Any:
        if details.method.endswith("/Converse"):
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


def serve(folder: Path, name: str, port: int = 0) -> tuple[grpc.Server, int]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Echo(),))
    pair = (folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes()
    credentials = grpc.ssl_server_credentials([pair])
    bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    return server, bound


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.make_development_certificates(tmp_path, [0])
    return tmp_path


def say(link: Link) -> bytes:
    try:
        return link.call("Info", b"{}", limit=100)
    finally:
        link.close()


@pytest.mark.parametrize(("uris", "dns"), WRONG)
def test_clients_and_the_other_server_refuse_it(folder: Path, uris: list[str], dns: str) -> None:
    issue(folder, "wrong", uris, dns)
    server, port = serve(folder, "wrong")
    url, files = f"https://127.0.0.1:{port}", TlsFiles.in_folder(folder, "client-0")
    with pytest.raises(calls.NotReady, match="got that of "):
        say(Link(url, 0, files, HASTY))

    async def peer() -> None:
        link = PeerLink(url, 0, TlsFiles.in_folder(folder, "server-1"))
        with pytest.raises(calls.NotReady, match="expected the certificate of server 0"):
            await link.call("Info", b"{}", limit=100)
        assert link.unreachable
        await link.close()

    asyncio.run(peer())
    root = files.authorities().server_pems[0]  # and so it was taken before, by chain and DNS name
    with channel(url, 0, files, root) as trusting:
        assert trusting.unary_unary(calls.path("Info"))(b"x", timeout=60) == b"x"
    server.stop(None)


@pytest.mark.parametrize("dns", [DNS, "*.torchfsl"])
def test_the_servers_own_is_taken_and_a_new_one_of_its_too(folder: Path, dns: str) -> None:
    files = TlsFiles.in_folder(folder, "client-0")
    server, port = serve(folder, "server-0")
    link = Link(f"https://127.0.0.1:{port}", 0, files, HASTY)
    assert link.call("Info", b"{}", limit=100) == b"{}"
    server.stop(None).wait()
    issue(folder, "new", [SERVER], dns)
    server, _ = serve(folder, "new", port)
    assert link.call("Info", b"{}", limit=100, seconds=30) == b"{}"
    server.stop(None).wait()
    issue(folder, "wrong", ["torchfsl:client:3"], DNS)
    server, _ = serve(folder, "wrong", port)
    with pytest.raises(calls.NotReady):
        link.call("Info", b"{}", limit=100)
    link.close()
    server.stop(None)


@pytest.mark.parametrize(
    ("key", "bits"),
    [
        (lambda: rsa.generate_private_key(65537, 1024), 1024),  # noqa: S505 (is refused)
        (lambda: ec.generate_private_key(ec.SECP192R1()), 192),
        (lambda: rsa.generate_private_key(65537, 2048), 0),
        (lambda: ec.generate_private_key(ec.SECP384R1()), 0),
        (lambda: ed25519.Ed25519PrivateKey.generate(), 0),
    ],
    ids=["RSA-1024", "P-192", "RSA-2048", "P-384", "Ed25519"],
)
def test_a_certificate_with_a_short_key_names_nobody(key: Any, bits: int, tmp_path: Path) -> None:
    certificates.make_development_certificates(tmp_path, [])
    issue(tmp_path, "short", [SERVER], DNS, key())
    authorities = TlsFiles.in_folder(tmp_path, "server-0").authorities()
    pem = (tmp_path / "short.pem").read_bytes()
    if bits:
        with pytest.raises(NotAllowed, match=f"bits in the key of a certificate, got {bits}: make"):
            authorities.identify(pem)
    else:
        assert authorities.identify(pem).uri == SERVER


def test_exchanged_urls_are_named_at_once(folder: Path) -> None:
    server, port = serve(folder, "server-0")
    url, files = f"https://127.0.0.1:{port}", TlsFiles.in_folder(folder, "client-0")
    link = Link(url, 1, files, HASTY)
    told = f"expected server 1 at {url}, got server 0: give the URL of server 1"
    with pytest.raises(ParameterError, match=told):
        link.call("Info", b"{}", limit=100)
    assert link.attempts["Info"] == 1  # nothing is tried again

    async def peer() -> None:
        own = PeerLink(url, 1, TlsFiles.in_folder(folder, "server-0"))
        with pytest.raises(calls.NotReady, match="got server 0: give the URL of server 1"):
            await own.call("Info", b"{}", limit=100)
        assert own.unreachable
        await own.close()

    asyncio.run(peer())
    server.stop(None)

"""The certificate with which a server answers, checked before the caller sends data.

gRPC checks a server's chain and DNS name and not the party that its URI names. An authority may
sign a certificate of that DNS name for somebody else, by mistake or by a wildcard. So a caller
reads the server's certificate in a separate handshake, checks whom it names, and then trusts only
this certificate (`channels.channel`).
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from torchfsl.errors import Error
from torchfsl.service.net import calls
from torchfsl.service.net.channels import TlsFiles, target
from torchfsl.service.net.identity import Identity, Role, server_name

_SECONDS: Final = 5.0
"""Also the limit of gRPC for an attempt to connect."""


def server_certificate(url: str, party: int, files: TlsFiles, seconds: float = _SECONDS) -> bytes:
    """The certificate, PEM, with which server `party` answers at a URL.

    Args:
        url: of the server.
        party: its number.
        files: of the caller.
        seconds: for the handshake.

    Raises:
        NotReady: if no one answers, or another party than that server.
        ParameterError: a file cannot be read.
    """
    authorities = files.authorities()
    host, _, port = target(url).rpartition(":")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # of the DNS name: gRPC does, on the channel
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(cadata=authorities.server_pems[party].decode())
        context.load_cert_chain(files.certificate, files.key)
        address = host.removeprefix("[").removesuffix("]"), int(port)
        with (
            socket.create_connection(address, timeout=min(seconds, _SECONDS)) as raw,
            context.wrap_socket(raw, server_hostname=server_name(party)) as tls,
        ):
            der = tls.getpeercert(binary_form=True)
    except (OSError, ValueError) as error:
        raise calls.unreachable(f"failed to connect: {error}", f"server {party}") from None
    assert der is not None
    pem = ssl.DER_cert_to_PEM_cert(der).encode()
    try:
        found = str(authorities.identify(pem))
    except Error as error:
        found = f"nobody ({error})"
    if found != str(Identity(Role.SERVER, party)):
        raise calls.NotReady(
            f"server {party}: at {url} answers the certificate of {found}, not of server {party}: "
            "check the URL, and ask that server's operator"
        )
    return pem

"""A caller that writes HTTP/2 by hand, with a client's certificate."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
VERSIONS: tuple[tuple[str, bytes], ...] = (("torchfsl-wire", b"4"), ("torchfsl-library", b"x"))


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data
    )


def block(*fields: tuple[str, bytes]) -> bytes:
    """Headers without compression, each shorter than 127 bytes."""
    parts = [(name.encode(), value) for name, value in fields]
    return b"".join(b"\0%c%b%c%b" % (len(n), n, len(v), v) for n, v in parts)


def request(path: bytes, *fields: tuple[str, bytes]) -> bytes:
    return block(
        (":method", b"POST"), (":scheme", b"https"), (":path", path), (":authority", b"server"),
        ("te", b"trailers"), ("content-type", b"application/grpc"), *fields,
    )  # fmt: skip


class RawCaller:
    """One connection; in the clear without a certificate."""

    def __init__(self, port: int, certificate: Path | None, *, window: int = 65535) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            context.set_alpn_protocols(["h2"])
            self.socket = context.wrap_socket(self.socket)
        self.socket.sendall(PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, window)))

    def call(self, path: bytes, message: bytes, *fields: tuple[str, bytes]) -> None:
        body = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(frame(1, 4, 1, request(path, *fields)) + frame(0, 1, 1, body))

    def read(self, seconds: float) -> bytes:
        """What comes until nothing does for so long."""
        self.socket.settimeout(seconds)
        parts = []
        try:
            while part := self.socket.recv(65536):
                parts.append(part)
        except OSError:
            pass
        return b"".join(parts)

    def close(self) -> None:
        self.socket.close()

"""Rules that both ends of a call share: method names, chunks, versions, errors.

Calls may follow one another on one stream, the method CONVERSE. A request begins with the name of
its method and a line break. Request and answer each end with the first chunk that is shorter than
1 MiB. A refusal ends the stream.

A message travels as a stream of chunks of at most 1 MiB. The first chunk holds the whole header, so
that a server can refuse a message before the rest arrives. Requests that are not protocol messages
are small JSON objects. Every call carries the versions of its sender as metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc

from torchfsl.errors import DecodeError, Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.net.identity import NotAdmitted, NotAllowed
from torchfsl.service.net.text import printable
from torchfsl.service.state.records import StoreFull
from torchfsl.version import __version__

SERVICE: Final = "torchfsl.v1"
CHUNK_BYTES: Final = 1 << 20
MAX_REQUEST_BYTES: Final = 4096
"""Longest JSON request."""

NUMBERS: Final = range(1 << 64)
"""Of rounds and clients."""

FRAME_LIMIT: Final = CHUNK_BYTES + 4096
"""gRPC refuses longer frames before it allocates them."""

CONVERSE: Final = "Converse"
"""The method on whose stream other calls follow one another."""

CONVERSED: Final = frozenset(("Plan", "Model", "Retrieve", "Answer", "Upload", "Submit", "Relay"))
"""What may be called there."""

_NAME_BYTES: Final = 16
_UNKNOWN_METHOD: Final = "Method not found!"
"""What gRPC says of a method that the server does not have."""

_WIRE, _LIBRARY, CODE = "torchfsl-wire", "torchfsl-library", "torchfsl-code"
TRAVELS: Final = ("participations-spent", "too-early")
"""Codes that a client acts on; a refusal names its own in the trailing metadata."""


class VersionMismatch(ProtocolError):
    """The two sides speak different versions. The message says which one to upgrade."""

    code = "version"


class Overloaded(Error):
    """The server has as much in flight as it may; come back later."""

    code = "overloaded"


class NotReady(Error):
    """The server or its peer cannot answer yet; come back later."""

    code = "not-ready"


_CODES: Final[tuple[tuple[type[Error], grpc.StatusCode], ...]] = (
    (VersionMismatch, grpc.StatusCode.UNIMPLEMENTED),
    (NotAdmitted, grpc.StatusCode.UNAUTHENTICATED),
    (NotAllowed, grpc.StatusCode.PERMISSION_DENIED),
    (StoreFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotReady, grpc.StatusCode.UNAVAILABLE),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (ParameterError, grpc.StatusCode.INVALID_ARGUMENT),
    (RejectedSubmission, grpc.StatusCode.FAILED_PRECONDITION),
    (ProtocolError, grpc.StatusCode.ABORTED),
)
_ERRORS: Final[dict[grpc.StatusCode, type[Error]]] = {
    grpc.StatusCode.UNIMPLEMENTED: VersionMismatch,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.INVALID_ARGUMENT: DecodeError,
    grpc.StatusCode.FAILED_PRECONDITION: RejectedSubmission,
    grpc.StatusCode.ABORTED: ProtocolError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: NotReady,
    grpc.StatusCode.DEADLINE_EXCEEDED: NotReady,
    grpc.StatusCode.CANCELLED: NotReady,
    grpc.StatusCode.INTERNAL: NotReady,  # of gRPC itself when a connection breaks, as UNKNOWN
    grpc.StatusCode.UNKNOWN: NotReady,
}
EXPIRED: Final = "its certificate, or its authority's, has expired"
"""Part of the message of a handshake with a server whose certificate has expired."""

RETRIED: Final = (Overloaded, NotReady)
"""Errors after which the same bytes may be sent again."""


def path(method: str) -> str:
    """The full name of a method."""
    return f"/{SERVICE}/{method}"


def status_of(error: Error) -> grpc.StatusCode:
    """The status by which an error travels."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def error_of(error: grpc.RpcError, peer: str) -> Error:
    """The error behind a failed call to `peer`."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = error.details() if hasattr(error, "details") else ""
    kind = _ERRORS.get(code, ProtocolError)
    if code is grpc.StatusCode.UNIMPLEMENTED and details == _UNKNOWN_METHOD:
        details = "this server is older and does not have the call: upgrade its torchfsl"
    text = f"{peer}: {printable(_of_tls(details) or details or code.name)}"
    given = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    named = dict(given or ()).get(CODE)
    return kind(text, code=named if named in TRAVELS else None)


def unreachable(details: str, peer: str) -> NotReady:
    """The error where no connection to `peer` came about."""
    return NotReady(f"{peer}: {printable(_of_tls(details) or details)}")


def _of_tls(details: str) -> str:
    """Meaning of a failed handshake, with gRPC's text behind it; empty if it is unknown."""
    if not details.startswith("failed to connect"):
        return ""
    if "certificate has expired" in details:
        said = f"{EXPIRED}: ask its operator to renew it"
    elif "unable to get local issuer" in details or "self-signed" in details:
        said = (
            "its certificate is not from its authority here, or is new: "
            "if this error stays, compare the files ca-server-*.pem of both sides"
        )
    elif "Socket closed" in details:
        said = (
            "the server closed the connection, as it does if it refuses your certificate: "
            "run `torchfsl doctor --tls DIR` on the folder of the certificate"
        )
    elif "UNEXPECTED_EOF" in details or "WRONG_VERSION" in details or "record layer" in details:
        said = "the TLS handshake failed at its start: check host and port of this server's URL"
    else:
        return ""
    return f"{said} ({details})"


def metadata() -> tuple[tuple[str, str], ...]:
    """Versions that every call carries."""
    return ((_WIRE, str(WIRE_VERSION)), (_LIBRARY, __version__))


def check_versions(given: Iterable[tuple[str, str | bytes]], caller: str, callee: str) -> None:
    """Refuse a caller that speaks another wire version.

    Raises:
        VersionMismatch: with the side that has to be upgraded.
    """
    fields = dict(given)
    theirs = str(fields.get(_WIRE, "none"))
    if theirs == str(WIRE_VERSION):
        return
    newer = _is_number(theirs) and int(theirs) > WIRE_VERSION
    library = str(fields.get(_LIBRARY, "unknown"))[:32]
    raise VersionMismatch(
        f"{callee} has wire version {WIRE_VERSION} (torchfsl {__version__}), {caller} has "
        f"{theirs[:16]} (torchfsl {library}): upgrade {callee if newer else caller}"
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def chunks(*parts: bytes | memoryview) -> Iterator[bytes]:
    """The parts one after the other, in pieces; one empty piece for an empty part."""
    for part in parts:
        if isinstance(part, bytes) and len(part) <= CHUNK_BYTES:
            yield part  # as most are: nothing is copied
            continue
        view = memoryview(part)
        yield bytes(view[:CHUNK_BYTES])
        for start in range(CHUNK_BYTES, len(view), CHUNK_BYTES):
            yield bytes(view[start : start + CHUNK_BYTES])


def one_chunk(*parts: bytes | memoryview, limit: int) -> bytes | None:
    """A request as one chunk, where that and an answer of up to `limit` bytes are one each.

    gRPC sends the same bytes then as for a stream of one chunk, with fewer steps on the way.
    """
    if limit > CHUNK_BYTES or sum(map(len, parts)) > CHUNK_BYTES:
        return None
    return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


def conversed(method: str, *parts: bytes | memoryview) -> Iterator[bytes]:
    """A request on a stream of calls, in chunks of which the last alone is shorter than 1 MiB."""
    return _ended(b"".join((method.encode(), b"\n", *parts)))


def replied(data: bytes | memoryview) -> Iterator[bytes]:
    """An answer on a stream of calls, likewise."""
    return _ended(data)


def method_of(chunk: bytes) -> tuple[str, bytes]:
    """Which method the first chunk of a request is for, and what follows the name.

    Raises:
        DecodeError: none that may be called on a stream of calls.
    """
    end = chunk.find(b"\n", 0, _NAME_BYTES)
    name = chunk[: max(end, 0)].decode("ascii", "replace")
    if name not in CONVERSED:
        raise DecodeError(
            "expected a request that begins with the name of its method, got another: correct the "
            "program that sends it"
        )
    return name, chunk[end + 1 :]


def _ended(data: bytes | memoryview) -> Iterator[bytes]:
    yield from chunks(data)
    if data and not len(data) % CHUNK_BYTES:
        yield b""


def encode_request(**fields: Any) -> bytes:
    """A small request."""
    return json.dumps(fields).encode()


def decode_request(data: bytes, **kinds: type[Any] | range) -> dict[str, Any]:
    """A small request with exactly these fields, each of its type or in its range.

    Numbers lie in [0, 2**64) unless a range is given; text is what UTF-8 can encode.

    Raises:
        DecodeError: if the data are not such a request.
    """
    what = f"a request with the fields {sorted(kinds)}" if kinds else "a request without fields, {}"
    fields = json_object(data, MAX_REQUEST_BYTES, what)
    if set(fields) != set(kinds):
        raise DecodeError(
            f"expected {what}, got {sorted(fields)[:9]}: "
            "run the same version of torchfsl at both ends"
        )
    for name, kind in kinds.items():
        fields[name] = checked(name, fields[name], kind)
    return fields


def json_object(data: bytes, limit: int, what: str = "an answer") -> dict[str, Any]:
    """The JSON object that came as at most `limit` bytes, in UTF-8 throughout.

    Raises:
        DecodeError: if the data are not such an object.
    """
    try:
        fields = json.loads(data.decode()) if len(data) <= limit else None
        if b"\\ud" in data.lower():  # perhaps half a surrogate pair, which has no UTF-8
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise DecodeError(
            f"expected {what}, as a JSON object of at most {limit} bytes in UTF-8: "
            "correct the program that sends it"
        )
    return fields


def checked(name: str, value: Any, kind: type[Any] | range) -> Any:
    """A field of a request; raises DecodeError if it is of another type or out of range."""
    wanted, limits = (int, kind) if isinstance(kind, range) else (kind, NUMBERS)
    if wanted is float and type(value) is int and value in limits:
        value = float(value)
    if type(value) is not wanted:
        raise DecodeError(
            f"the field {name!r} is of type {type(value).__name__}, expected {wanted.__name__}: "
            "correct the program that sends it"
        )
    if wanted in (int, float) and not limits.start <= value < limits.stop:
        raise DecodeError(
            f"the field {name!r} is {str(value)[:40]}, expected {limits.start} to "
            f"{limits.stop - 1}: correct the program that sends it"
        )
    return value


class Answer:
    """An answer that comes in chunks.

    Args:
        peer: who answers, for messages.
        limit: most bytes that it may have.
    """

    def __init__(self, peer: str, limit: int) -> None:
        self._peer, self._limit, self._chunks, self._size = peer, limit, list[bytes](), 0

    def add(self, chunk: bytes) -> None:
        """One more chunk; raises ProtocolError if that makes the answer too long."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._limit:
            raise ProtocolError(
                f"expected at most {self._limit} bytes from {self._peer}, got more: "
                "upgrade torchfsl at both ends",
                code="answer-too-long",
            )

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self._chunks) if len(self._chunks) != 1 else self._chunks[0]

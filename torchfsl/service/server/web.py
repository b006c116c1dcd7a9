"""The HTTPS door: clients without gRPC, by the same messages to the same server.

    POST /torchfsl/v1/NAME      Info Plan Certificate Model Retrieve Answer Upload Submit Fetch

A body has the bytes of the gRPC message, an answer too. A refusal is JSON: `code`, one of
`torchfsl.errors.CODES`, and `message`. TLS here is that of any web server, so a token and a
signature on each request say who calls (`admission`): a connection has no caller, a request has.
Until its proof is checked, a connection counts to its address, at a separate `Door`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import grpc

from torchfsl.errors import DecodeError, Error
from torchfsl.fsl import messages
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity, NotAdmitted, NotAllowed, Role
from torchfsl.service.net.trust import stamp_of
from torchfsl.service.server.admission import NONCE, Admitted, Tokens
from torchfsl.service.server.door import Door
from torchfsl.service.server.http import PIECE_BYTES, Request, Wire
from torchfsl.service.server.intake import Budget, Limits, Slots, Turns
from torchfsl.service.server.logs import Refusals
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.router import Method, Methods
from torchfsl.service.server.station import Station
from torchfsl.service.server.streams import Stream
from torchfsl.service.server.web_settings import WebSettings

log = logging.getLogger("torchfsl.service.web")

_PREFIX: Final = "/torchfsl/v1/"
_OPEN: Final = frozenset(("Plan", "Certificate", "Info"))
"""Calls that need no token; `Info` needs one once there is a task."""

_STRANGER: Final = Identity(Role.CLIENT)
"""Handed to handlers of open calls, which ignore who calls."""

RETRY: Final = "retry-after"
_RETRY_SECONDS: Final = "2"
_MAX_AGE: Final = "7200"
_LOOK_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 5.0
_HEADERS: Final = (
    ("Cache-Control", "no-store"), ("Vary", "Origin"), ("X-Content-Type-Options", "nosniff"),
)  # fmt: skip
_STATUS: Final[Mapping[grpc.StatusCode, int]] = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 412,
    grpc.StatusCode.UNIMPLEMENTED: 426,
    grpc.StatusCode.INTERNAL: 500,
}
_STATUS_OF_CODE: Final = {"unknown-call": 404, "length-required": 411}


class WebStream(Stream):
    """A request and its answer, as handlers know calls; the body is checked before it counts."""

    def __init__(self, wire: Wire, limits: Limits, budget: Any, length: int) -> None:
        super().__init__(wire, limits, budget)
        self._wire, self._length, self._hash = wire, length, hashlib.sha256()
        self.admitted: Admitted | None = None
        self.admission: Tokens | None = None
        self.headers: list[tuple[str, str]] = []

    async def request(self, **kinds: type | range) -> dict[str, Any]:
        """See `Stream.request`; its round is one that the token is for."""
        if self._length > calls.MAX_REQUEST_BYTES:
            raise DecodeError(
                f"expected a request of at most {calls.MAX_REQUEST_BYTES} bytes, got "
                f"{self._length}",
                code="length",
            )
        fields = await super().request(**kinds)
        self._check_round(fields.get("round"))
        return fields

    async def _rest(self, first: bytes, total: int) -> bytes:
        kind, number, _ = messages.peek(first)
        if total != self._length:
            raise DecodeError(
                f"expected a body of {total} bytes, as its header says, got {self._length}: "
                "send exactly this body",
                code="length",
            )
        if kind not in (Kind.FETCH, Kind.FETCH_COMMIT):  # which are of no round
            self._check_round(number)
            if self.admission is not None and self.admitted is not None:
                await self.admission.enter(self.admitted, number)
        return await super()._rest(first, total)

    def _check_round(self, number: int | None) -> None:
        if number is not None and self.admitted and number not in self.admitted.rounds:
            raise NotAdmitted(
                f"the token is not for round {number}: ask its issuer for a token for this round",
                code="token-refused",
            )

    async def _read(self) -> bytes:
        """The next piece; first as much as holds a header or a whole request."""
        wanted = 1 if self.received else min(self._length, calls.MAX_REQUEST_BYTES)
        parts, size = [], 0
        while size < wanted and (piece := await self._wire.body()):
            self._hash.update(piece)
            parts.append(piece)
            size += len(piece)
        is_whole = self.received + size == self._length
        if is_whole and self.admitted is not None and self._hash.digest() != self.admitted.body:
            raise NotAdmitted("expected the signed body, got another body", code="proof-refused")
        return b"".join(parts)

    def _framed(self, data: bytes | memoryview) -> Iterator[bytes]:
        self._wire.begin(200, [*self.headers, ("Content-Type", "application/octet-stream")],
                         len(data))  # fmt: skip
        return calls.chunks(data)


class _Part(Budget):
    """This door's part of the server's bytes in flight: what it holds counts in both."""

    def __init__(self, limits: Limits, whole: Budget) -> None:
        super().__init__(limits)
        self._whole = whole

    @contextlib.asynccontextmanager
    async def hold(self, size: int, whose: Identity | None = None) -> AsyncIterator[None]:
        """See `Budget.hold`."""
        async with super().hold(size, whose), self._whole.hold(size, whose):
            yield


class WebDoor:
    """Takes calls from `start` to `stop`.

    Args:
        settings: of the door.
        listening: bound socket.
        limits: of this door's connections and messages; half of them may be under way here.
        served: node, budget and slots, shared with the gRPC door.
        methods: of clients, by name.
        observer: counts every call.
        admission: who may call.

    Attributes:
        door: counts connections.
        refused: calls by the code of their error.

    Raises:
        ParameterError: certificate or key cannot be used.
    """

    def __init__(
        self,
        settings: WebSettings,
        listening: socket.socket,
        limits: Limits,
        served: Station,
        methods: Methods,
        observer: Observer,
        admission: Tokens,
    ) -> None:
        self._settings, self._listening, self._limits = settings, listening, limits
        self._station, self._methods, self._observer = served, methods, observer
        self._admission = admission
        self._context = settings.context()
        self._context.sni_callback = self._greet
        self._stamp, self._looked = self._now(), time.monotonic()
        self._refusals = Refusals()
        self._serving: set[asyncio.Task[None]] = set()
        self.refused: Counter[str] = Counter()
        half = dataclasses.replace(
            limits, calls=-(-limits.calls // 2), bytes_in_flight=-(-limits.bytes_in_flight // 2)
        )
        self._slots, self._budget = Slots(half), _Part(half, served.budget)
        turns = Turns(limits.strangers_per_second, limits.strangers_per_address)
        self.door = Door(limits, turns)

    async def start(self) -> None:
        """Take calls from now on."""
        self._server = await asyncio.start_unix_server(
            self._serve, self.door.inside, ssl=self._context, limit=PIECE_BYTES, backlog=1024,
            ssl_handshake_timeout=self._limits.handshake_seconds,
            ssl_shutdown_timeout=_GRACE_SECONDS,
        )  # fmt: skip
        self.door.open(self._listening)

    async def stop(self) -> None:
        """Take no more calls; those that run may end."""
        self.door.close_listening()
        self._server.close()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=_GRACE_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._refusals.close()
        self.door.close()

    # --- a connection -------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        wire, peer = Wire(reader, writer, self._limits), writer.get_extra_info("peername")
        try:
            await self.door.turn(str(peer))
            while await self._one(wire, str(peer)):
                await self.door.turn(str(peer))
        finally:
            self._serving.discard(task)
            await wire.close()

    async def _one(self, wire: Wire, peer: str) -> bool:
        """One request; whether the connection goes on."""
        try:
            request = await wire.head()
        except DecodeError as error:
            stream = WebStream(wire, self._limits, self._budget, 0)
            self._note("unknown", calls.status_of(error).name, stream, time.perf_counter())
            self._refuse(wire, [], error)
            await wire.end()
            return False
        if request is None:
            return False
        origin = request.headers.get("origin", ())
        headers = [*_HEADERS]
        if len(origin) == 1 and origin[0] in self._settings.origins:
            headers += [("Access-Control-Allow-Origin", origin[0]),
                        ("Access-Control-Expose-Headers", f"{NONCE}, {RETRY}")]  # fmt: skip
            if request.method == "OPTIONS":
                wire.begin(204, [*headers, *self._preflight()], 0)
                return await wire.end()
        return await self._call(wire, peer, request, headers) and await wire.end()

    def _preflight(self) -> list[tuple[str, str]]:
        names = ("content-type", "torchfsl-wire", "torchfsl-library", *self._admission.headers)
        return [("Access-Control-Allow-Methods", "POST"), ("Access-Control-Max-Age", _MAX_AGE),
                ("Access-Control-Allow-Headers", ", ".join(names))]  # fmt: skip

    # --- a call -------------------------------------------------------------------------------

    async def _call(
        self, wire: Wire, peer: str, request: Request, headers: list[tuple[str, str]]
    ) -> bool:
        """Answer; whether there is an answer to end."""
        start, name, error = time.perf_counter(), "unknown", None
        stream = WebStream(wire, self._limits, self._budget, request.length or 0)
        stream.headers, stream.admission = headers, self._admission
        try:
            name, method = self._method(request)
            self._admit(stream, name, request)
            with contextlib.ExitStack() as held:
                if stream.client is not None:
                    held.enter_context(self.door.call(peer, stream.client))
                    held.enter_context(self._slots.take(stream.client))
                    held.enter_context(self._station.slots.take(stream.client))
                await method(stream.client or _STRANGER, stream)
        except Error as failure:
            error = failure
        except asyncio.CancelledError:
            self._note(name, "CANCELLED", stream, start)
            raise
        except Exception as failure:
            self._note(name, "UNKNOWN", stream, start)
            self._station.failures.take("handler", failure)
            return False
        code = calls.status_of(error) if error is not None else grpc.StatusCode.OK
        self._note(name, code.name, stream, start)
        if error is not None:
            caller = str(stream.client or "nobody")
            fields = {"method": name, "caller": caller, "code": code.name, "door": "web"}
            fields["peer"] = self.door.address_of(peer)
            self._refusals.note(logging.INFO, error, fields)
            self._observer.refusal(error.code)
            self.refused[error.code] += 1
            if wire.has_begun:
                return False
            is_stranger = stream.client is None and error.code != "nonce-expired"
            self._refuse(wire, headers, error, close=is_stranger)
        return True

    def _note(self, name: str, code: str, stream: Stream, start: float) -> None:
        self._observer.call(name, code, stream, time.perf_counter() - start, door="web")

    def _method(self, request: Request) -> tuple[str, Method]:
        """Which call it is; raises where origin, path, length or version are not served."""
        for origin in request.headers.get("origin", ()):
            if origin not in self._settings.origins:
                raise NotAllowed(
                    f"pages of {origin[:80]!r} may not call this server: add the origin to "
                    "origins in [web]",
                    code="origin-refused",
                )
        name = request.target.removeprefix(_PREFIX)
        if request.method != "POST" or name == request.target or name not in self._methods:
            got = f"{request.method[:20]} {request.target[:80]}"
            raise DecodeError(
                f"the HTTPS door has no call {got}: use its calls, such as POST {_PREFIX}Info",
                code="unknown-call",
            )
        if request.length is None:
            raise DecodeError(
                "expected a header Content-Length in the request, got none: add this header",
                code="length-required",
            )
        sent = [(key, request.one(key)) for key in ("torchfsl-wire", "torchfsl-library")
                if key in request.headers]  # fmt: skip
        calls.check_versions(sent, "the client", f"server {self._station.node.party}")
        return name, self._methods[name]

    def _admit(self, stream: WebStream, name: str, request: Request) -> None:
        """Say whose the request is; open calls without a token have no caller."""
        is_open = name in _OPEN and not (name == "Info" and self._station.node.task is not None)
        if is_open and "authorization" not in request.headers:
            return
        stream.admitted = self._admission.admit(name, request)
        stream.client = stream.admitted.caller
        stream.headers.append((NONCE, self._admission.nonce()))

    def _refuse(
        self, wire: Wire, headers: list[tuple[str, str]], error: Error, *, close: bool = True
    ) -> None:
        status = _STATUS_OF_CODE.get(error.code) or _STATUS[calls.status_of(error)]
        told = json.dumps({"code": error.code, "message": str(error)[:1000]}).encode()
        given = [*(headers or _HEADERS), ("Content-Type", "application/json")]
        if status == 401:
            given = [one for one in given if one[0] != NONCE]
            given += [(NONCE, self._admission.nonce()), ("WWW-Authenticate", "Torchfsl")]
        if status in (429, 503):
            given.append((RETRY, _RETRY_SECONDS))
        if status == 426:
            given.append(("Upgrade", f"torchfsl-wire/{WIRE_VERSION}"))
        if close:
            given.append(("Connection", "close"))
        wire.begin(status, given, len(told))
        wire.add(told)

    # --- the certificate ----------------------------------------------------------------------

    def _now(self) -> tuple[object, ...]:
        return stamp_of(self._settings.certificate), stamp_of(self._settings.key)

    def _greet(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Use the certificate as it is now; files that do not fit change nothing."""
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._looked = time.monotonic()
            try:
                stamp = self._now()
                if stamp != self._stamp:
                    self._stamp, self._context = stamp, self._settings.context()
                    log.info("the server has read %s again", self._settings.certificate)
            except (Error, OSError) as error:
                log.error("the certificate of the HTTPS door stays as it was: %s", error)
        connection.context = self._context

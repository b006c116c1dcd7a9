"""From gRPC to a handler: who calls, whether they may, and the status by which an error travels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from torchfsl.errors import Error, ParameterError
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity, NotAllowed, Role
from torchfsl.service.net.trust import Trust, fingerprint
from torchfsl.service.server.door import Door
from torchfsl.service.server.logs import Refusals
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.station import Station
from torchfsl.service.server.streams import Context, Conversations, Stream
from torchfsl.service.state.records import StoreDamaged

Method = Callable[[Identity, Stream], Awaitable[None]]
Methods = Mapping[str, Method]
"""Methods that one role may call, by name."""


class Router(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Admits a caller, finds the method of its role, and counts the call.

    Args:
        `station`: the server.
        trust: who may call.
        methods: by role; under None what this server's own certificate may call.
        observer: receives every call.
        door: by which callers came.

    Attributes:
        conversations: streams of several calls.
        refusals: calls that were refused, for the log.
    """

    def __init__(
        self,
        station: Station,
        trust: Trust,
        methods: Mapping[Role | None, Methods],
        observer: Observer,
        door: Door,
    ) -> None:
        self._station, self._trust = station, trust
        self._methods, self._observer, self._door = methods, observer, door
        self.conversations = Conversations(station.limits, station.budget)
        self.refusals = Refusals()

    def service(self, details: Any) -> Any:
        """The handler of a method, for gRPC; None for an unknown one."""
        prefix, _, name = details.method.rpartition("/")
        known = any(name in methods for methods in self._methods.values())
        if prefix == f"/{calls.SERVICE}" and name == calls.CONVERSE:
            return grpc.stream_stream_rpc_method_handler(self._converse)
        if prefix != f"/{calls.SERVICE}" or not known:
            return None
        return grpc.stream_stream_rpc_method_handler(self._handler(name))

    def _handler(self, name: str) -> Callable[[Any, Context], Awaitable[None]]:
        async def handle(_: Any, context: Context) -> None:
            stream = Stream(context, self._station.limits, self._station.budget)
            await self._call(name, context, stream)

        return handle

    async def _converse(self, _: Any, context: Context) -> None:
        """Calls that follow one another on one stream; the first that is refused ends it."""
        try:
            pem = _certificate(context)
            caller = self._identify(pem)
            self._check_versions(caller, context)
            async with contextlib.aclosing(self.conversations.turns(context, caller)) as turns:
                async for turn in turns:
                    await self._call(turn.method, context, turn, pem)
        except Error as error:
            stream = Stream(context, self._station.limits, self._station.budget)
            self._observer.call(calls.CONVERSE, calls.status_of(error).name, stream, 0.0)
            await self._refuse(calls.CONVERSE, context, error, _said_in(context))

    async def _call(
        self, name: str, context: Context, stream: Stream, pem: bytes | None = None
    ) -> None:
        """One call; `pem` is of a caller whose version was looked at before."""
        start, caller, error = time.perf_counter(), None, None
        try:
            caller = self._identify(_certificate(context) if pem is None else pem)
            if pem is None:
                self._check_versions(caller, context)
            method = self._method(caller, name)
            stream.client = caller if caller.role is Role.CLIENT else None
            with self._door.call(context.peer(), caller), self._station.slots.take(caller):
                await method(caller, stream)
        except Error as failure:
            error = failure
        except asyncio.CancelledError:
            self._observer.call(name, "CANCELLED", stream, time.perf_counter() - start)
            raise
        except Exception as failure:
            self._observer.call(name, "UNKNOWN", stream, time.perf_counter() - start)
            self._station.failures.take("handler", failure)
            raise
        code = calls.status_of(error) if error is not None else grpc.StatusCode.OK
        self._observer.call(name, code.name, stream, time.perf_counter() - start)
        if error is not None:
            name_of_caller = str(caller) if caller is not None else _said_in(context)
            await self._refuse(name, context, error, name_of_caller)

    async def _refuse(self, name: str, context: Context, error: Error, caller: str) -> None:
        """Log, and end the stream with the status."""
        code = calls.status_of(error)
        level = logging.ERROR if isinstance(error, StoreDamaged) else logging.INFO
        fields = {"method": name, "caller": caller, "code": code.name}
        fields["peer"] = self._door.address_of(context.peer())
        self.refusals.note(level, error, fields)
        self._observer.refusal(error.code)
        named = ((calls.CODE, error.code),) if error.code in calls.TRAVELS else ()
        with contextlib.suppress(grpc.aio.InternalError):  # the caller has left
            await context.abort(code, str(error)[:1000], trailing_metadata=named)

    def _identify(self, pem: bytes) -> Identity:
        """The party that a certificate names; raises NotAllowed if it may not call."""
        try:
            return self._trust.identify(pem)
        except ParameterError as error:
            raise NotAllowed(str(error)) from None

    def _check_versions(self, caller: Identity, context: Context) -> None:
        """Raise VersionMismatch for a caller of another wire version."""
        names = {Role.CLIENT: "the client", Role.OWNER: "the coordinator's program"}
        names[Role.AUDITOR] = f"the auditor of server {caller.number}"
        theirs = names.get(caller.role, f"server {caller.number}")
        me = f"server {self._station.node.party}"
        calls.check_versions(context.invocation_metadata() or (), theirs, me)

    def _method(self, caller: Identity, name: str) -> Method:
        """The method for this caller; raises NotAllowed where there is none."""
        is_own = caller == Identity(Role.SERVER, self._station.node.party)  # to its operator
        method = self._methods[None if is_own else caller.role].get(name)
        if method is None:
            methods = self._methods.items()
            may = sorted(role.value for role, some in methods if role and name in some)
            names = " or ".join(may).replace("owner", "coordinator")
            names = f"an {names}" if names.startswith("auditor") else f"a {names}"
            raise NotAllowed(f"{caller} may not call {name}: use the certificate of {names}")
        return method


def _certificate(context: Context) -> bytes:
    """The caller's, PEM; raises NotAllowed without one."""
    pems = context.auth_context().get("x509_pem_cert", [])
    if len(pems) != 1:
        raise NotAllowed(
            "expected a certificate of the caller, got none: connect with tls=, the folder of "
            "your files"
        )
    return bytes(pems[0])


def _said_in(context: Context) -> str:
    """Of a caller that is not let in: which certificate it showed, as a deny list names it."""
    pems = context.auth_context().get("x509_pem_cert", [])
    if len(pems) != 1:
        return "no certificate"
    try:
        return f"certificate {fingerprint(bytes(pems[0]))}"
    except ParameterError:
        return "a certificate that cannot be read"

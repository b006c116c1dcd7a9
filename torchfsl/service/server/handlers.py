"""What a server answers, method by method, and who may call it.

Info, Plan                       everybody
Model, Retrieve, Answer, Upload, Submit     clients
Relay, Step, Abandon             the other server
SetUp, Open, Close, Abandon, Result, State  the owner (rounds at server 0)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from torchfsl.errors import FslError, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl.messages import Header, Kind
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES, WIRE_VERSION
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Authorities, Identity, NotAllowed, Role
from torchfsl.service.server.coordinator import Coordinator
from torchfsl.service.server.node import STEPS
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.peers import Relays
from torchfsl.service.server.station import Station
from torchfsl.service.server.streams import Context, Stream
from torchfsl.service.state.records import StoreDamaged
from torchfsl.version import __version__

log = logging.getLogger("torchfsl.service.handlers")

Method = Callable[[Identity, Stream], Awaitable[None]]
_ALL: Final = (Role.CLIENT, Role.OWNER, Role.SERVER)
_MAX_TASK: Final = MAX_MESSAGE_BYTES


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of one server.

    Args:
        station: the server.
        authorities: who vouches for callers.
        relays: on the way to the other server.
        coordinator: at server 0.
        observer: hears of every call.
    """

    def __init__(
        self,
        station: Station,
        authorities: Authorities,
        relays: Relays,
        coordinator: Coordinator | None,
        observer: Observer,
    ) -> None:
        """Ready to answer."""
        self._station, self._authorities = station, authorities
        self._relays, self._coordinator, self._observer = relays, coordinator, observer
        client, owner, server = (Role.CLIENT,), (Role.OWNER,), (Role.SERVER,)
        self._methods: dict[str, tuple[tuple[Role, ...], Method]] = {
            "Info": (_ALL, self._info),
            "Plan": (_ALL, self._plan),
            "Model": (client, self._model),
            "Retrieve": (client, self._retrieve),
            "Answer": (client, self._answer),
            "Upload": (client, self._upload),
            "Submit": (client, self._submit),
            "Relay": (server, self._relay),
            "Step": (server, self._step),
            "SetUp": (owner, self._set_up),
            "Open": (owner, self._open),
            "Close": (owner, self._close),
            "Abandon": ((Role.OWNER, Role.SERVER), self._abandon),
            "Result": (owner, self._result),
            "State": (owner, self._state),
        }

    def service(self, details: Any) -> Any:
        """The handler of a method, for gRPC; None for an unknown one."""
        prefix, _, name = details.method.rpartition("/")
        if prefix != f"/{calls.SERVICE}" or name not in self._methods:
            return None
        return grpc.stream_stream_rpc_method_handler(self._handler(name))

    def _handler(self, name: str) -> Callable[[Any, Context], Awaitable[None]]:
        roles, method = self._methods[name]

        async def handle(_: Any, context: Context) -> None:
            stream = Stream(context, self._station.limits, self._station.budget)
            start, caller, error = time.perf_counter(), None, None
            try:
                caller = self._admit(context, roles, name)
                with self._station.slots.take(caller):
                    await method(caller, stream)
            except FslError as failure:
                error = failure
            except asyncio.CancelledError:
                self._observer.call(name, "CANCELLED", stream, time.perf_counter() - start)
                raise
            code = calls.status_of(error) if error is not None else grpc.StatusCode.OK
            self._observer.call(name, code.name, stream, time.perf_counter() - start)
            if error is not None:
                level = logging.ERROR if isinstance(error, StoreDamaged) else logging.INFO
                fields = {"method": name, "caller": str(caller), "code": code.name}
                log.log(level, "refused: %s", error, extra=fields)
                await context.abort(code, str(error)[:1000])

        return handle

    def _admit(self, context: Context, roles: tuple[Role, ...], name: str) -> Identity:
        """Who calls, by certificate.

        Raises:
            NotAllowed: nobody who may call this method.
            VersionMismatch: a caller of another wire version.
        """
        pems = context.auth_context().get("x509_pem_cert", [])
        if len(pems) != 1:
            raise NotAllowed("a certificate is needed")
        try:
            caller = self._authorities.identify(bytes(pems[0]))
        except ParameterError as error:
            raise NotAllowed(str(error)) from None
        me = self._station.node.party
        if caller == Identity(Role.SERVER, me):
            raise NotAllowed(f"this is server {me} itself")
        names = {Role.CLIENT: "the client", Role.OWNER: "the owner's program"}
        theirs = names.get(caller.role, f"server {caller.number}")
        calls.check_versions(context.invocation_metadata() or (), theirs, f"server {me}")
        if caller.role not in roles:
            raise NotAllowed(f"{caller} may not call {name}")
        return caller

    # --- everybody ----------------------------------------------------------------------------

    async def _info(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.send(json.dumps(await self.info()).encode())

    async def info(self) -> dict[str, Any]:
        """What anybody in the task may know of the state."""
        station, node = self._station, self._station.node
        last = node.ledger.last_round()
        complete = 0
        if station.is_open:
            complete = await station.run(_complete, station)
        return {
            "party": node.party,
            "library": __version__,
            "wire_version": WIRE_VERSION,
            "plan_digest": node.task.plan.digest.hex() if node.task else "",
            "model": node.model_version,
            "round": last.number if last else -1,
            "state": last.state if last else "",
            "open": station.is_open,
            "closes_at": last.closes_at if last else 0.0,
            "complete": complete,
            "halted": node.halted,
            "stalled": station.stalled,
        }

    async def _plan(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        plan = self._station.node.plan
        task = self._station.node.task
        assert task is not None
        answer = {"nonce": task.nonce.hex(), "plan": plan.to_json()}
        await stream.send(json.dumps(answer).encode())

    # --- clients ------------------------------------------------------------------------------

    async def _model(self, caller: Identity, stream: Stream) -> None:
        """MODEL at the server of this client's public parts, MODEL_DIGEST at the other."""
        fields = await stream.request(round=int)
        party = self._station.node.party
        kind = Kind.MODEL if caller.number % 2 == party else Kind.MODEL_DIGEST
        await self._reply(kind, fields["round"], caller, stream)

    async def _retrieve(self, caller: Identity, stream: Stream) -> None:
        """Trees up, answer down."""
        number = await self._take_trees(caller, stream)
        await self._answer_with_trees(number, caller, stream)

    async def _answer(self, caller: Identity, stream: Stream) -> None:
        """The answer on trees of an earlier round."""
        fields = await stream.request(round=int)
        await self._answer_with_trees(fields["round"], caller, stream)

    async def _upload(self, caller: Identity, stream: Stream) -> None:
        """Trees up, where nothing is retrieved."""
        await self._take_trees(caller, stream)
        await stream.send(b"")

    async def _submit(self, caller: Identity, stream: Stream) -> None:
        """A report up; answered when it is on disk here and, if it was public, at the peer."""
        kinds = (Kind.REPORT, Kind.REPORT_COMMIT)
        async with stream.message(self._station.node.plan, *kinds) as (header, data):
            self._check_sender(header, caller)
            await self._station.accept(header.kind, data)
        if header.kind is Kind.REPORT:
            await self._relayed(header)
        await stream.send(b"")

    async def _take_trees(self, caller: Identity, stream: Stream) -> int:
        kinds = (Kind.TREES, Kind.TREES_COMMIT)
        async with stream.message(self._station.node.plan, *kinds) as (header, data):
            self._check_sender(header, caller)
            await self._station.accept(header.kind, data)
        if header.kind is Kind.TREES:
            self._relays.start(header.kind, header.round_number, header.client)
        return header.round_number

    async def _answer_with_trees(self, number: int, caller: Identity, stream: Stream) -> None:
        await self._station.wait_for_begin()
        await self._station.wait_for_trees(caller.number)
        await self._reply(Kind.ANSWER, number, caller, stream)

    async def _reply(self, kind: Kind, number: int, caller: Identity, stream: Stream) -> None:
        station = self._station
        await station.wait_for_begin()
        reply = await station.run(station.node.reply, kind, number, caller.number)
        station.counts[kind.name] += 1
        await stream.send(reply)

    async def _relayed(self, header: Header) -> None:
        """Wait for the relay of a report; it goes on even if the client does not wait."""
        task = self._relays.start(header.kind, header.round_number, header.client)
        try:
            async with asyncio.timeout(self._station.limits.peer_seconds):
                await asyncio.shield(task)
        except TimeoutError:
            raise calls.NotReady("the other server does not answer: send it again") from None
        except asyncio.CancelledError:
            if task.cancelled():
                raise RejectedSubmission("the round closed before the report was relayed") from None
            raise
        except RejectedSubmission as error:
            raise RejectedSubmission(f"refused by the other server: {error}") from None

    def _check_sender(self, header: Header, caller: Identity) -> None:
        if header.client != caller.number:
            raise NotAllowed(f"{caller} sent a message of client {header.client}")

    # --- the other server ---------------------------------------------------------------------

    async def _relay(self, _: Identity, stream: Stream) -> None:
        kinds = (Kind.TREES_RELAY, Kind.REPORT_RELAY)
        async with stream.message(self._station.node.plan, *kinds) as (header, data):
            await self._station.accept(header.kind, data)
        await stream.send(b"")

    async def _step(self, _: Identity, stream: Stream) -> None:
        """Server 1's side of a step: answer with our message, then let theirs count."""
        station, node = self._station, self._station.node
        if node.party != 1:
            raise ProtocolError("server 0 leads the rounds: it takes no steps from server 1")
        async with stream.message(node.plan, *STEPS) as (header, data):
            number, kind = header.round_number, header.kind
            if kind is Kind.ROUND_STATE:
                await self._end_before(number)
                await station.run(node.begin, number)
            if kind is Kind.REPORT_SET:
                await station.gate.close()
            own = await station.run(_exchange, station, number, kind, data)
        counting = asyncio.create_task(self._count(number, kind))
        counting.add_done_callback(_note_failure)
        await stream.send(own)

    async def _end_before(self, number: int, reason: str = "") -> None:
        """Server 0 has ended every round below `number`: one that still runs here ends, too."""
        station, node = self._station, self._station.node
        running = node.running()
        if running is not None and running.number < number:
            reason = reason or f"server 0 went on to round {number}"
            with contextlib.suppress(ProtocolError):
                await station.run(node.abandon, running.number, reason, forced=True)
            self._relays.stop()
            await station.gate.close()
            await station.tell()

    async def _count(self, number: int, kind: Kind) -> None:
        station = self._station
        if kind is Kind.ROUND_STATE and station.is_opening:
            station.gate.open()  # before the node takes messages, so that none is too late already
        try:
            await station.run(_take_once, station, number, kind)
        finally:
            if kind is not Kind.ROUND_STATE:
                self._relays.stop()
            await station.tell()

    # --- the owner ----------------------------------------------------------------------------

    async def _set_up(self, _: Identity, stream: Stream) -> None:
        data = await stream.blob(_MAX_TASK)
        await self._station.run(self._station.node.set_up, data)
        await stream.send(json.dumps(await self.info()).encode())

    async def _open(self, _: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, expected=int, seconds=float)
        answer = await self._leader().open(fields["round"], fields["expected"], fields["seconds"])
        await stream.send(json.dumps(answer).encode())

    async def _close(self, _: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int)
        await stream.send(json.dumps(await self._leader().close(fields["round"])).encode())

    async def _abandon(self, caller: Identity, stream: Stream) -> None:
        """From the owner at server 0, which then tells server 1."""
        fields = await stream.request(round=int, reason=str)
        if caller.role is Role.SERVER and self._coordinator is None:
            await self._end_before(fields["round"] + 1, fields["reason"])
            await stream.send(b"")
            return
        if caller.role is Role.SERVER:
            raise ProtocolError("server 0 leads the rounds: it ends none for server 1")
        answer = await self._leader().abandon(fields["round"], fields["reason"])
        await stream.send(json.dumps(answer).encode())

    async def _result(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.send(await self._station.run(self._station.node.result_bytes))

    async def _state(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.send(await self._station.run(self._station.node.model_bytes))

    def _leader(self) -> Coordinator:
        if self._coordinator is None:
            raise ProtocolError("server 0 leads the rounds: ask it")
        return self._coordinator


def _complete(station: Station) -> int:
    return station.node.server.reports.num_complete if station.is_open else 0


def _exchange(station: Station, number: int, kind: Kind, theirs: bytes) -> bytes:
    """In the node's thread: our message for a step first, so that theirs cannot shape it."""
    node = station.node
    for earlier in STEPS[: STEPS.index(kind)]:
        _take_once(station, number, earlier)
    own = node.own(number, kind)
    node.note(number, kind, theirs)
    return own


def _take_once(station: Station, number: int, kind: Kind) -> None:
    node = station.node
    known = node.ledger.step(number, kind, sent=False) is not None
    if known and not node.is_taken(number, kind):
        node.take(number, kind)


def _note_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        error = task.exception()
        known = isinstance(error, FslError)
        log.log(logging.WARNING if known else logging.ERROR, "a step failed: %s", error)

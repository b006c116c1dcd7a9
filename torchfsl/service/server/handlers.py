"""A server's answers, by role of the caller. A handler reads, calls, and writes; nothing else.

Everybody           Info, Plan, Certificate
clients             Model, Retrieve, Answer, Upload, Submit, Fetch
the other server    Relay, RelayFetch, Step, Abandon
the coordinator     Toss, Reveal, SetUp, Replace, Open, Close, Abandon, Result, State
                    (rounds at server 0)
auditors            AuditKey, Transcript (at their server), Passed, Named, Signed (at the other)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from torchfsl.crypto.kdf import DIGEST_BYTES
from torchfsl.crypto.signing import SIGNATURE_BYTES
from torchfsl.errors import ProtocolError
from torchfsl.fsl.bodies import ShareCommit
from torchfsl.fsl.messages import HEADER_BYTES, Header, Kind
from torchfsl.fsl.suite import MAX_MESSAGE_BYTES, SIGN_KEY_BYTES
from torchfsl.service.net.identity import Identity, NotAllowed, Role
from torchfsl.service.net.text import printable
from torchfsl.service.server.auditing import AuditDesk
from torchfsl.service.server.fetching import FetchDesk
from torchfsl.service.server.peers import Relays
from torchfsl.service.server.round_driver import Follower, RoundDriver
from torchfsl.service.server.router import Method, Methods
from torchfsl.service.server.station import Station
from torchfsl.service.server.streams import Stream
from torchfsl.service.state.steps import steps_of
from torchfsl.service.task import Task
from torchfsl.submodel.plan_fields import check_hex
from torchfsl.submodel.taps import MAX_BAND

_REPORTS: Final = range(1 << 63)
"""Numbers of reports that a ledger can hold."""


def all_methods(
    station: Station,
    relays: Relays,
    desk: FetchDesk,
    side: RoundDriver | Follower,
    certificate: Callable[[], bytes],
    audits: AuditDesk,
) -> Mapping[Role | None, Methods]:
    """Methods that each role may call; under None those of the server's own certificate.

    `station` is the server, and `relays` are on the way to the other server. `desk` is that of
    fetches, `audits` that of auditors. `side` leads the rounds at server 0, and follows at server
    1. `certificate` gives the server's sealing certificate as it is now, PEM; the certificate of
    its signing key stands behind it.
    """
    common = _Everybody(station, certificate).methods()
    return {
        None: common,
        Role.CLIENT: common | _Clients(station, relays, desk).methods(),
        Role.SERVER: common | _OtherServer(station, desk, side).methods(),
        Role.OWNER: common | _Owner(station, side).methods(),
        Role.AUDITOR: common | _Auditors(audits).methods(),
    }


class _Everybody:
    def __init__(self, station: Station, certificate: Callable[[], bytes]) -> None:
        self._station, self._certificate = station, certificate
        self._plan_answer: tuple[Task | None, tuple[bytes, str], bytes] = None, (b"", ""), b""

    def methods(self) -> dict[str, Method]:
        return {"Info": self._info, "Plan": self._plan, "Certificate": self._tell_certificate}

    async def _info(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.answer(await self._station.info())

    async def _plan(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        plan, task = self._station.node.plan, self._station.node.task
        assert task is not None
        said = certificate, issuers = self._certificate(), self._station.issuers()
        known, kept, answer = self._plan_answer
        if known is not task or kept != said:  # else the same for all
            fields = {
                **task.settings(),
                "plan": plan.to_json(),
                "certificate": certificate.decode(),
            }
            fields |= {"issuers": issuers} if issuers else {}
            answer = json.dumps(fields).encode()
            self._plan_answer = task, said, answer
        await stream.send(answer)

    async def _tell_certificate(self, _: Identity, stream: Stream) -> None:
        """The sealing certificate, also before there is a task."""
        await stream.request()
        await stream.send(self._certificate())


class _Clients:
    def __init__(self, station: Station, relays: Relays, desk: FetchDesk) -> None:
        self._station, self._relays, self._desk = station, relays, desk

    def methods(self) -> dict[str, Method]:
        return {
            "Model": self._model,
            "Retrieve": self._retrieve,
            "Answer": self._answer,
            "Upload": self._upload,
            "Submit": self._submit,
            "Fetch": self._desk.fetch,
        }

    async def _model(self, caller: Identity, stream: Stream) -> None:
        """MODEL at the server of this client's public shares, MODEL_DIGEST at the other."""
        fields = await stream.request(round=int)
        party = self._station.node.party
        kind = Kind.MODEL if caller.number % 2 == party else Kind.MODEL_DIGEST
        await stream.send(await self._station.reply(kind, fields["round"], caller.number))

    async def _retrieve(self, caller: Identity, stream: Stream) -> None:
        """Trees up, answer down."""
        header = await self._take_trees(caller, stream)
        await self._answer_with_trees(header.round_number, caller, stream)

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
        header = await self._take(caller, stream, Kind.REPORT, Kind.REPORT_COMMIT)
        if header.kind is Kind.REPORT:
            await self._relays.deliver(header.kind, header.round_number, header.client)
        await stream.send(b"")

    async def _take(self, caller: Identity, stream: Stream, *kinds: Kind) -> Header:
        """A message of the caller's own, once it is on disk."""
        async with stream.message(self._station.node.plan, *kinds) as (header, data):
            if header.client != caller.number:
                raise NotAllowed(f"{caller} sent a message of client {header.client}")
            await self._station.accept(header, data)
        return header

    async def _take_trees(self, caller: Identity, stream: Stream) -> Header:
        header = await self._take(caller, stream, Kind.TREES, Kind.TREES_COMMIT)
        if header.kind is Kind.TREES:
            self._relays.start(header.kind, header.round_number, header.client)
        return header

    async def _answer_with_trees(self, number: int, caller: Identity, stream: Stream) -> None:
        await stream.send(await self._station.answer(number, caller.number))


class _OtherServer:
    def __init__(self, station: Station, desk: FetchDesk, side: RoundDriver | Follower) -> None:
        self._station, self._desk, self._side = station, desk, side

    def methods(self) -> dict[str, Method]:
        return {
            "Relay": self._relay,
            "RelayFetch": self._relay_fetch,
            "Step": self._step,
            "Abandon": self._abandon,
        }

    async def _relay(self, _: Identity, stream: Stream) -> None:
        kinds = (Kind.TREES_RELAY, Kind.REPORT_RELAY)
        async with stream.message(self._station.node.plan, *kinds) as (header, data):
            await self._station.accept(header, data)
        await stream.send(b"")

    async def _relay_fetch(self, _: Identity, stream: Stream) -> None:
        await self._desk.take_relay(stream)

    async def _step(self, _: Identity, stream: Stream) -> None:
        if not isinstance(self._side, Follower):
            raise ProtocolError(
                "server 0 leads the rounds, so it rejects this step, which server 1 sent: correct "
                "the program that sends this step",
                code="not-the-leader",
            )
        plan = self._station.node.plan
        async with stream.message(plan, *steps_of(plan)) as (header, data):
            ours = await self._side.step(header.round_number, header.kind, data)
        await stream.send(ours)

    async def _abandon(self, _: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, reason=str)
        if not isinstance(self._side, Follower):
            raise ProtocolError(
                "server 0 leads the rounds, so server 1 cannot end one: ask the coordinator to run "
                "`torchfsl abandon`",
                code="not-the-leader",
            )
        await self._side.end_before(fields["round"] + 1, fields["reason"])
        await stream.send(b"")


class _Auditors:
    def __init__(self, desk: AuditDesk) -> None:
        self._desk = desk

    def methods(self) -> dict[str, Method]:
        return {
            "AuditKey": self._key,
            "Transcript": self._transcript,
            "Passed": self._passed,
            "Named": self._named,
            "Signed": self._signed,
        }

    async def _key(self, caller: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, key=str, signature=str)
        held = min(len(fields["key"]) // 16 - SIGN_KEY_BYTES // 8, MAX_BAND)
        check_hex("key", fields["key"], SIGN_KEY_BYTES + 8 * max(held, 0))
        check_hex("signature", fields["signature"], SIGNATURE_BYTES)
        await self._desk.take_key(caller, fields["round"], fields["key"], fields["signature"])
        await stream.send(b"")

    async def _transcript(self, caller: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int)
        await stream.send(await self._desk.transcript(caller, fields["round"]))

    async def _passed(self, caller: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, message=str)
        check_hex("message", fields["message"], HEADER_BYTES + SIGNATURE_BYTES)
        await self._desk.take_pass(caller, fields["round"], bytes.fromhex(fields["message"]))
        await stream.send(b"")

    async def _named(self, caller: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, step=str, why=str, signature=str)
        check_hex("signature", fields["signature"], SIGNATURE_BYTES)
        told = (printable(fields["step"]), printable(fields["why"]), fields["signature"])
        await self._desk.take_named(caller, fields["round"], *told)
        await stream.send(b"")

    async def _signed(self, caller: Identity, stream: Stream) -> None:
        sizes = {"record": DIGEST_BYTES, "commitment": DIGEST_BYTES}
        sizes |= {"signed": SIGNATURE_BYTES, "twice": SIGNATURE_BYTES}
        fields = await stream.request(round=int, **dict.fromkeys(sizes, str))
        for name, size in sizes.items():
            check_hex(name, fields[name], size)
        record, *told = (bytes.fromhex(fields[name]) for name in ("record", "commitment", "signed"))
        said = ShareCommit(*told)
        await self._desk.take_signed(caller, fields["round"], record, said, fields["twice"])
        await stream.send(b"")


class _Owner:
    def __init__(self, station: Station, side: RoundDriver | Follower) -> None:
        self._station, self._side = station, side
        self._coins = station.node.storage.coins

    def methods(self) -> dict[str, Method]:
        return {
            "Toss": self._toss,
            "Reveal": self._reveal,
            "SetUp": self._set_up,
            "Replace": self._replace,
            "Open": self._open,
            "Close": self._close,
            "Abandon": self._abandon,
            "Result": self._result,
            "State": self._state,
        }

    async def _toss(self, _: Identity, stream: Stream) -> None:
        """A commitment to this server's coin."""
        fields = await stream.request(template=str)
        template = _digest("template", fields["template"])
        await stream.send(await self._station.write(self._coins.toss, template))

    async def _reveal(self, _: Identity, stream: Stream) -> None:
        """The coin, for who brings the other server's commitment."""
        fields = await stream.request(template=str, peer=str)
        template, peer = (_digest(name, fields[name]) for name in ("template", "peer"))
        await stream.send(await self._station.write(self._coins.reveal, template, peer))

    async def _set_up(self, _: Identity, stream: Stream) -> None:
        await self._take_task(stream, replace=False)

    async def _replace(self, _: Identity, stream: Stream) -> None:
        """Set up in place of a live task."""
        await self._take_task(stream, replace=True)

    async def _take_task(self, stream: Stream, *, replace: bool) -> None:
        data = await stream.blob(MAX_MESSAGE_BYTES)
        await self._station.write(self._station.node.set_up, data, replace=replace)
        await stream.answer(await self._station.info())

    async def _open(self, _: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int, expected=_REPORTS, seconds=float)
        row = await self._leader().open(fields["round"], fields["expected"], fields["seconds"])
        await stream.answer(row)

    async def _close(self, _: Identity, stream: Stream) -> None:
        fields = await stream.request(round=int)
        await stream.answer(await self._leader().close(fields["round"]))

    async def _abandon(self, _: Identity, stream: Stream) -> None:
        """At server 0, which then tells server 1."""
        fields = await stream.request(round=int, reason=str)
        await stream.answer(await self._leader().abandon(fields["round"], fields["reason"]))

    async def _result(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.send(await self._station.run(self._station.node.storage.result_bytes))

    async def _state(self, _: Identity, stream: Stream) -> None:
        await stream.request()
        await stream.send(await self._station.run(self._station.node.storage.model_bytes))

    def _leader(self) -> RoundDriver:
        if not isinstance(self._side, RoundDriver):
            raise ProtocolError(
                "server 0 leads the rounds: send this call to server 0", code="not-the-leader"
            )
        return self._side


def _digest(name: str, text: str) -> bytes:
    """A digest in hex from a request; raises ParameterError for other text."""
    check_hex(name, text, DIGEST_BYTES)
    return bytes.fromhex(text)

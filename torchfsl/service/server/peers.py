"""Messages from one server to the other: steps of the round, and clients' public shares."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio

from torchfsl.errors import Error, ParameterError, ProtocolError, RejectedSubmission
from torchfsl.fsl import messages
from torchfsl.fsl.messages import HEADER_BYTES, Buffer, Kind
from torchfsl.service.net import calls
from torchfsl.service.net.channels import TlsFiles, aio_channel, server_certificate
from torchfsl.service.net.identity import load_certificate
from torchfsl.service.server.station import Station

log = logging.getLogger("torchfsl.service.peers")

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 3.0
_WATCH_SECONDS: Final = 10.0
_RELAYS_AT_ONCE: Final = 8
_RELAY_OF: Final = {Kind.TREES: Kind.TREES_RELAY, Kind.REPORT: Kind.REPORT_RELAY}


class PeerLink:
    """The channel to the other server.

    Args:
        url: of the other server.
        party: its number.
        files: this server's key and certificate.
        attempt_seconds: of one attempt.

    Attributes:
        why: why the last call got no answer, or empty.
    """

    def __init__(
        self, url: str, party: int, files: TlsFiles, *, attempt_seconds: float = 600.0
    ) -> None:
        self._url, self._party, self._files = url, party, files
        self._seconds = attempt_seconds
        self._channel: grpc.aio.Channel | None = None
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._resting: list[Any] = []
        self.why = ""
        self._since = self._ends = 0.0

    @property
    def unreachable(self) -> bool:
        """Whether the last call got no answer; for a metric."""
        return bool(self.why)

    @property
    def expired(self) -> str:
        """That the other server's certificate has expired, or empty."""
        if not self._is_expired():
            return ""
        return (
            f"waiting for server {self._party} to renew its certificate or its authority's, which "
            "has expired"
        )

    async def watch(self) -> None:
        """Connect anew while the other server's certificate is expired, until cancelled.

        Log at first if another party than the other server answers at its URL.
        """
        with contextlib.suppress(calls.NotReady):  # as long as that server is not started
            try:
                to = self._url, self._party, self._files
                await asyncio.to_thread(server_certificate, *to)
            except ParameterError as error:
                log.error("--peer: %s", error)
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._is_expired():
                channel, self._channel = self._channel, None
                if channel is not None:
                    self._leave(channel)
                with contextlib.suppress(calls.NotReady):
                    await self._open()
                    self._answered()

    async def call(self, method: str, *parts: bytes | memoryview, limit: int) -> bytes:
        """One attempt to send the parts as one message.

        Raises:
            Error: the peer refused, cannot be reached, or answers with more than `limit` bytes.
        """
        channel = self._channel or await self._open()
        metadata = grpc.aio.Metadata(*calls.metadata())
        one = calls.one_chunk(*parts, limit=limit)
        answer: bytes
        try:
            if method in calls.CONVERSED:
                answer = await self._converse(channel, method, *parts, limit=limit)
            elif one is not None:
                invoke = channel.unary_unary(calls.path(method))
                short = calls.Answer(f"server {self._party}", limit)
                short.add(await invoke(one, timeout=self._seconds, metadata=metadata))
                answer = short.whole()
            else:
                invoke = channel.stream_stream(calls.path(method))
                call = invoke(calls.chunks(*parts), timeout=self._seconds, metadata=metadata)
                answer = await self._all_of(call, limit)
        except grpc.aio.AioRpcError as error:
            failure = calls.error_of(error, f"server {self._party}")
            if not isinstance(failure, calls.NotReady):
                self._answered()
                raise failure from None
            self._failed(failure)
            if self._channel is channel:
                self._channel = None  # the next call reads key and certificate again
                self._leave(channel)
            raise failure from None
        self._answered()
        return answer

    def _failed(self, error: Error) -> None:
        """Keep why there is no answer, and log it when that begins."""
        if not self.why:
            self._since = time.monotonic()
            log.warning("the other server does not answer: %s (peer = %s)", error, self._url)
        self.why = str(error)

    def _answered(self) -> None:
        """Log the end of a time without answers."""
        if self.why:
            seconds = time.monotonic() - self._since
            log.info(
                "the other server answers again, %.0f s after the first call without an answer",
                seconds,
            )
        self.why = ""

    def _is_expired(self) -> bool:
        return calls.EXPIRED in self.why or 0 < self._ends <= time.time()

    async def insist(
        self, method: str, *parts: bytes | memoryview, limit: int, still: Callable[[str], bool]
    ) -> bytes:
        """Send the same bytes until the peer answers or refuses, as long as `still` holds.

        `still` gets the reason why the last attempt got no answer, at first an empty one.

        Raises:
            Error: the peer refused.
            NotReady: `still` does not hold any more.
        """
        pause, why = _FIRST_PAUSE, ""
        while still(why):
            try:
                return await self.call(method, *parts, limit=limit)
            except calls.RETRIED as error:
                why = str(error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (not a secret)
                pause = min(2 * pause, _LONGEST_PAUSE)
        raise calls.NotReady("the other server did not answer before the round ended")

    async def _converse(
        self, channel: grpc.aio.Channel, method: str, *parts: bytes | memoryview, limit: int
    ) -> bytes:
        """A call on a stream that rests, or on a new one."""
        stream = self._stream_on(channel)
        try:
            async with asyncio.timeout(self._seconds):
                for chunk in calls.conversed(method, *parts):
                    await stream.write(chunk)
                answer = await self._all_of(_until_short(stream), limit)
        except (TimeoutError, asyncio.InvalidStateError, EOFError):
            stream.cancel()
            raise calls.NotReady(f"server {self._party} gave no answer") from None
        except BaseException:
            stream.cancel()
            raise
        if channel is self._channel:
            self._resting.append(stream)
        else:
            stream.cancel()
        return answer

    def _stream_on(self, channel: grpc.aio.Channel) -> Any:
        while channel is self._channel and self._resting:
            stream = self._resting.pop()
            if not stream.done():  # the peer ends what has rested for long
                return stream
        metadata = grpc.aio.Metadata(*calls.metadata())
        return channel.stream_stream(calls.path(calls.CONVERSE))(metadata=metadata)

    def _stop_resting(self) -> None:
        while self._resting:
            self._resting.pop().cancel()

    async def _all_of(self, call: Any, limit: int) -> bytes:
        """An answer in chunks; cancels one that is too long."""
        answer = calls.Answer(f"server {self._party}", limit)
        async for chunk in call:
            try:
                answer.add(chunk)
            except ProtocolError:
                if isinstance(call, grpc.aio.Call):
                    call.cancel()
                raise
        return answer.whole()

    async def _open(self) -> grpc.aio.Channel:
        """A channel with keys and certificates, the other server's too, as they are now.

        Raises:
            NotReady: they cannot be read, as in the middle of a rotation, or somebody else
                answers: to be tried again.
        """
        to = self._url, self._party, self._files
        async with self._opening:
            if self._channel is not None:  # of another call
                return self._channel
            try:
                certificate = await asyncio.to_thread(server_certificate, *to)
                self._ends = load_certificate(certificate).not_valid_after_utc.timestamp()
                self._channel = aio_channel(*to, certificate)
            except ParameterError as error:
                self._failed(error)
                raise calls.NotReady(str(error)) from None
            except calls.NotReady as error:
                self._failed(error)
                raise
            return self._channel

    def _leave(self, channel: grpc.aio.Channel) -> None:
        """Close a channel once the other calls on it have ended."""
        self._stop_resting()
        ending = asyncio.create_task(channel.close(grace=self._seconds))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Close every channel, calls under way included."""
        self._stop_resting()
        for ending in self._ending:
            ending.cancel()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


class Relays:
    """Public shares on their way to the peer; each is sent until the peer has or refuses it."""

    def __init__(self, station: Station, link: PeerLink) -> None:
        self._station, self._link = station, link
        self._tasks: dict[tuple[int, Kind, int], asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(_RELAYS_AT_ONCE)

    def start(self, kind: Kind, round_number: int, client: int) -> asyncio.Task[None]:
        """The task that relays what `client` sent as `kind` in a round; one for each.

        It ends with None when the peer has stored the part, else with the peer's refusal.
        """
        key = (round_number, _RELAY_OF[kind], client)
        task = self._tasks.get(key)
        if task is None or (task.done() and not task.cancelled() and task.exception() is not None):
            task = self._tasks[key] = asyncio.create_task(self._relay(*key))
            task.add_done_callback(_retrieve)
        return task

    async def deliver(self, kind: Kind, round_number: int, client: int) -> None:
        """Relay a part and wait until the peer has it; it goes on also without the waiter.

        The round may close between the peer's storing a part and its answer. Then the set that the
        peer announced tells: a client whose report counts is never told that it was refused, for
        it would send the same values once more in a later round.

        Raises:
            NotReady: the peer does not answer in time.
            RejectedSubmission: it refuses the part, or the round closed before.
        """
        task = self.start(kind, round_number, client)
        try:
            async with asyncio.timeout(self._station.limits.peer_seconds):
                await asyncio.shield(task)
            return
        except TimeoutError:
            raise calls.NotReady(
                "the other server does not answer: send the report again"
            ) from None
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            refusal = "the round closed before the report was relayed"
        except RejectedSubmission as error:
            refusal = f"refused by the other server: {error}"
        station = self._station
        node = station.node
        if not await station.run(node.transcript.peer_counts, node.plan, round_number, client):
            raise RejectedSubmission(refusal)

    def restart(self) -> None:
        """Relay everything in the report log again: the peer takes a resend for what it is."""
        for message in self._station.node.storage.report_log:
            peek = messages.peek(message)
            if peek.kind in _RELAY_OF and peek.client % 2 == self._station.node.party:
                self.start(*peek)

    def stop(self) -> None:
        """Forget everything: the round is over."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}

    async def _relay(self, round_number: int, kind: Kind, client: int) -> None:
        station = self._station
        async with self._room:
            head, public = await station.run(self._parts, round_number, kind, client)
            await self._link.insist(
                "Relay", head, public, limit=HEADER_BYTES, still=lambda _: station.is_open
            )
            station.counts[kind.name + " sent"] += 1

    def _parts(self, round_number: int, kind: Kind, client: int) -> tuple[bytes, Buffer]:
        """The relayed message. In the node's thread."""
        reports = self._station.node.server.reports
        if reports.round_number != round_number:
            raise RejectedSubmission(
                "the round closed before this server could relay the message to the other server: "
                "participate in the next round",
                code="too-late",
            )
        return reports.relay_parts(kind, client)


async def _until_short(stream: Any) -> AsyncIterator[bytes]:
    """An answer on a stream of calls; raises EOFError where that ends before it."""
    while (chunk := await stream.read()) is not grpc.aio.EOF:
        yield chunk
        if len(chunk) < calls.CHUNK_BYTES:
            return
    raise EOFError


def _retrieve(task: asyncio.Task[None]) -> None:
    """Note a failed relay; who waits for it hears it too."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, Error):
        log.debug("a relay was refused: %s", error)  # its client's call is logged as refused
    elif error is not None:
        log.error("cannot relay a client's message to the other server", exc_info=error)

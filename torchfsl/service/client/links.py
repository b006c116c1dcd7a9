"""A party's calls to both servers, with deadlines, and retries that send the same bytes."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc

from torchfsl.errors import Error, ParameterError, ProtocolError
from torchfsl.fsl.suite import WIRE_VERSION
from torchfsl.service.net import calls
from torchfsl.service.net.answers import INFO_BYTES, decode_info
from torchfsl.service.net.channels import TlsFiles, channel, server_certificate


class HasEnded(Exception):
    """The server has ended the stream since the last call."""


class Conversation:
    """One stream. One thread at a time."""

    def __init__(self, channel: grpc.Channel, server: str) -> None:
        """Open it; `server` is for messages."""
        self._server = server
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = channel.stream_stream(calls.path(calls.CONVERSE))
        self._stream = stream(iter(self._requests.get, None), metadata=calls.metadata())

    def ask(self, method: str, data: bytes, *, limit: int, seconds: float) -> bytes:
        """One call, and its answer of up to `limit` bytes.

        After an error the stream can only be closed.

        Raises:
            HasEnded: the stream has ended, and the server has not received the call.
            Error: the server's refusal, or `NotReady` if there was no answer in time.
        """
        clock = threading.Timer(seconds, self._stream.cancel)
        clock.daemon = True
        clock.start()
        try:
            for chunk in calls.conversed(method, data):
                self._requests.put(chunk)
            return self._answer(limit)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED:
                raise calls.NotReady(f"{self._server}: no answer in {seconds:.0f} s") from None
            raise calls.error_of(error, self._server) from None
        finally:
            clock.cancel()

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)
        self._stream.cancel()

    def _answer(self, limit: int) -> bytes:
        answer, chunk = calls.Answer(self._server, limit), None
        for chunk in self._stream:
            answer.add(chunk)
            if len(chunk) < calls.CHUNK_BYTES:
                return answer.whole()
        if chunk is not None:
            raise calls.NotReady(f"{self._server}: the answer ended too early")
        raise HasEnded


log = logging.getLogger("torchfsl.service.links")


class Closing:
    """A context manager whose block ends with `close`."""

    def close(self) -> None:
        """Close the channels; each class that has some does it.

        Raises:
            NotImplementedError: if the class does not define `close`.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to try.

    Attributes:
        attempt_seconds: of one call.
        total_seconds: after which a failure is final; no call lasts longer.
        first_pause: before the second attempt; doubles from there, with jitter.
        longest_pause: between attempts.
    """

    attempt_seconds: float = 90.0
    total_seconds: float = 300.0
    first_pause: float = 0.05
    longest_pause: float = 3.0


class Link:
    """One party's calls to one server. Usable from several threads.

    `counts` has the successful calls by method, `attempts` all.
    """

    def __init__(self, url: str, party: int, files: TlsFiles, policy: RetryPolicy) -> None:
        self.url, self.party, self.policy = url, party, policy
        self.counts: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        files.pair()
        self._files = files
        self._pinned, self._in_doubt, self._opening = b"", True, threading.Lock()
        self._opened: grpc.Channel | None = None
        self._resting: list[Conversation] = []

    def call(self, method: str, data: bytes, *, limit: int, seconds: float = 0.0) -> bytes:
        """Call until it is answered or refused, or the time is over.

        The first failure after which it tries again is logged as a warning.

        Raises:
            Error: the refusal; `NotReady` or `Overloaded` when the time is over.
        """
        deadline = time.monotonic() + (seconds or self.policy.total_seconds)
        pause, told = self.policy.first_pause, False
        while True:
            left = deadline - time.monotonic()
            self.attempts[method] += 1
            try:
                answer = self._attempt(method, data, limit, min(left, self.policy.attempt_seconds))
            except calls.RETRIED as error:
                self._in_doubt |= _is_unconnected(error)
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 (not a secret)
                if time.monotonic() + wait >= deadline:
                    raise
                if not told:
                    self._tell(error, deadline - time.monotonic())
                    told = True
                time.sleep(wait)
                pause = min(2 * pause, self.policy.longest_pause)
                continue
            self.counts[method] += 1
            return answer

    def once(self, method: str, data: bytes, *, limit: int) -> bytes:
        """One attempt, for what must not be sent twice.

        Raises:
            Error: the refusal, or `NotReady` where there was no answer in time.
        """
        self.attempts[method] += 1
        try:
            answer = self._attempt(method, data, limit, self.policy.attempt_seconds)
        except calls.NotReady as error:
            self._in_doubt |= _is_unconnected(error)
            raise
        self.counts[method] += 1
        return answer

    def close(self) -> None:
        """Close the channel; calls under way are `NotReady`."""
        while self._resting:
            self._resting.pop().close()
        if self._opened is not None:
            self._opened.close()

    @property
    def _channel(self) -> grpc.Channel:
        """The channel to the server with the certificate that it has now.

        Raises:
            NotReady: if no server answers, or another party.
        """
        with self._opening:
            if self._in_doubt:  # at first, and after a call without an answer
                pem = server_certificate(
                    self.url, self.party, self._files, self.policy.attempt_seconds
                )
                if self._opened is None or pem != self._pinned:
                    self.close()  # else gRPC connects again and again, and trusts the old one only
                    self._opened = channel(self.url, self.party, self._files, pem)
                self._pinned, self._in_doubt = pem, False
            assert self._opened is not None
            return self._opened

    def _tell(self, error: Exception, left: float) -> None:
        said = "refuses for now" if isinstance(error, calls.Overloaded) else "gives no answer yet"
        why = str(error).removeprefix(f"server {self.party}: ")
        log.warning(
            "server %d (%s) %s, trying again for %.0f s: %s", self.party, self.url, said, left, why
        )

    def _attempt(self, method: str, data: bytes, limit: int, seconds: float) -> bytes:
        ask = self._converse if method in calls.CONVERSED else self._ask
        try:
            return ask(method, data, limit, max(seconds, 0.001))
        except ValueError as error:
            if isinstance(error, Error):
                raise
            # gRPC's: another thread has closed the channel of an earlier certificate.
            raise calls.NotReady(f"server {self.party}: {error}") from None

    def _ask(self, method: str, data: bytes, limit: int, seconds: float) -> bytes:
        path, one = calls.path(method), calls.one_chunk(data, limit=limit)
        metadata = calls.metadata()
        answer = calls.Answer(f"server {self.party}", limit)
        try:
            if one is not None:
                invoke = self._channel.unary_unary(path)
                answer.add(invoke(one, timeout=seconds, metadata=metadata))
                return answer.whole()
            stream = self._channel.stream_stream(path)
            call = stream(calls.chunks(data), timeout=seconds, metadata=metadata)
            try:
                for chunk in call:
                    answer.add(chunk)
            except ProtocolError:
                call.cancel()
                raise
        except grpc.RpcError as error:
            raise calls.error_of(error, f"server {self.party}") from None
        return answer.whole()

    def _converse(self, method: str, data: bytes, limit: int, seconds: float) -> bytes:
        """A call on a stream that rests, or on a new one where that has ended meanwhile."""
        while True:
            try:
                talk, is_new = self._resting.pop(), False
            except IndexError:
                talk, is_new = Conversation(self._channel, f"server {self.party}"), True
            try:
                answer = talk.ask(method, data, limit=limit, seconds=seconds)
            except HasEnded:
                talk.close()
                if is_new:
                    raise calls.NotReady(f"server {self.party} is about to stop") from None
            except BaseException:
                talk.close()
                raise
            else:
                self._resting.append(talk)
                return answer


def _is_unconnected(error: Exception) -> bool:
    """Whether a call found no connection, perhaps as the server has another certificate now."""
    return "failed to connect" in str(error)


class Links:
    """Both servers."""

    def __init__(self, urls: Sequence[str], files: TlsFiles, policy: RetryPolicy) -> None:
        if len(urls) != 2:
            raise ParameterError(
                f"expected two URLs, of server 0 and server 1, got {len(urls)}: give both URLs",
                code="two-servers-needed",
            )
        self.links = tuple(Link(url, party, files, policy) for party, url in enumerate(urls))
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="torchfsl-call")

    def both(self, ask: Callable[[Link], bytes]) -> tuple[bytes, bytes]:
        """The answers of both servers, asked side by side.

        Raises:
            Error: the first failure, once both calls have ended.
        """
        futures = [self._threads.submit(ask, link) for link in self.links]
        errors = [future.exception() for future in futures]
        final = [e for e in errors if e is not None and not isinstance(e, calls.RETRIED)]
        for error in (*final, *errors):
            if error is not None:
                raise error
        return futures[0].result(), futures[1].result()

    def info(self, party: int) -> dict[str, Any]:
        """A server's answer about itself.

        Raises:
            VersionMismatch: the server has another wire version.
        """
        link = self.links[party]
        answer = link.call("Info", calls.encode_request(), limit=INFO_BYTES)
        theirs = calls.json_object(answer, INFO_BYTES).get("wire_version")
        if theirs != WIRE_VERSION:
            theirs = theirs if isinstance(theirs, int) else "none"
            is_newer = isinstance(theirs, int) and theirs > WIRE_VERSION
            older = "this program" if is_newer else f"server {party}"
            raise calls.VersionMismatch(
                f"expected wire version {WIRE_VERSION}, server {party} has {theirs}: upgrade "
                f"{older}"
            )
        return decode_info(answer)

    def common_model(self) -> tuple[int, str]:
        """Version and digest of the model at both servers.

        Server 1 applies a round a moment after server 0: a version behind is waited for.

        Raises:
            ProtocolError: the models differ.
        """
        deadline = time.monotonic() + self.links[0].policy.total_seconds
        pause = self.links[0].policy.first_pause
        while True:
            first, second = (self.info(party)["model"] for party in (0, 1))
            late = first.get("version") != second.get("version")
            if not late or time.monotonic() >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, self.links[0].policy.longest_pause)
        if not first and not second:
            raise ProtocolError(
                "the servers have no task now: start this program again after the coordinator has "
                "started a task",
                code="no-task",
            )
        if first != second:
            raise ProtocolError(
                f"the servers hold different models, {first} and {second}: tell their operators",
                code="models-differ",
            )
        return int(first["version"]), str(first["digest"])

    def close(self) -> None:
        """Close both channels."""
        self._threads.shutdown(wait=False)
        for link in self.links:
            link.close()

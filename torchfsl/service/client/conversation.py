"""A client's stream to a server on which its calls follow one another; see `net.calls`."""

from __future__ import annotations

import queue
import threading

import grpc

from torchfsl.errors import ProtocolError
from torchfsl.service.net import calls


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

        After an error there is nothing to be done with the stream but to close it.

        Raises:
            HasEnded: nobody has heard the call.
            Error: the refusal, or `NotReady` where there was no answer in time.
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
        parts: list[bytes] = []
        size = 0
        for chunk in self._stream:
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise ProtocolError(
                    f"{self._server} answers with more than {limit} bytes", code="answer-too-long"
                )
            if len(chunk) < calls.CHUNK_BYTES:
                return b"".join(parts) if len(parts) > 1 else chunk
        if parts:
            raise calls.NotReady(f"{self._server}: the answer broke off")
        raise HasEnded

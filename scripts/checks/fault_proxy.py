"""A TCP proxy on loopback that delays, resets, swallows or slows connections, for tests and demos.

    python -m scripts.checks.fault_proxy --target HOST:7000 --listen HOST:7100 --delay-ms 3

In a program: `proxy = FaultProxy(target_port); proxy.start()`, then set `proxy.faults` at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from dataclasses import dataclass

from scripts.program import Options, option, program


@dataclass
class Faults:
    """Disturbances of the bytes; may change while connections are open.

    Attributes:
        delay: seconds added in each direction.
        jitter: most seconds added at random.
        reset: probability that the proxy resets a connection at a chunk.
        swallow: whether connections stay open and nothing arrives (half-open).
        bytes_per_second: limit of each direction; 0 for no limit.
        down: whether the proxy resets new connections, and open ones at their next chunk.
    """

    delay: float = 0.0
    jitter: float = 0.0
    reset: float = 0.0
    swallow: bool = False
    bytes_per_second: float = 0.0
    down: bool = False


class FaultProxy:
    """Passes connections to a target port on loopback, in a separate thread."""

    def __init__(self, target: int, *, port: int = 0, seed: int = 0) -> None:
        self.target, self.port, self.faults = target, port, Faults()
        self.connections = 0
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready, self._stopped = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> FaultProxy:
        """Listen; `port` is known after."""
        self._thread.start()
        self._ready.wait()
        return self

    def stop(self) -> None:
        """Reset everything and stop."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(timeout=5)

    def break_all(self) -> None:
        """Reset the open connections."""
        self._loop.call_soon_threadsafe(lambda: [self._reset(w) for w in list(self._writers)])

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for writer in list(self._writers):
            self._reset(writer)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # asyncio keeps no strong reference of its own
        task.add_done_callback(self._tasks.discard)
        if self.faults.down:
            self._reset(writer)
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            self._reset(writer)
            return
        self.connections += 1
        self._writers |= {writer, back}
        await asyncio.gather(self._pass(reader, back, writer), self._pass(there, writer, back))
        self._writers -= {writer, back}

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        """One direction: a reader that stamps chunks, a writer that lets them go in time."""
        clock = self._loop.time
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

        async def read() -> None:
            data = b"."
            while data:
                data = await reader.read(1 << 16)
                faults = self.faults
                if faults.swallow and data:
                    continue
                if faults.down or (faults.reset and self._random.random() < faults.reset):
                    self._reset(writer)
                    self._reset(other)
                    return
                wait = faults.delay + self._random.random() * faults.jitter
                await queue.put((clock() + wait, data))

        async def write() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - clock()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()
                if self.faults.bytes_per_second:
                    await asyncio.sleep(len(data) / self.faults.bytes_per_second)

        tasks = [asyncio.create_task(read()), asyncio.create_task(write())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.transport.abort()


@program(
    option("--target", int, required=True, metavar="PORT"),
    option("--listen", int, required=True, metavar="PORT"),
    option("--delay-ms", 0.0, "in each direction"),
    option("--reset", 0.0, "probability a chunk"),
    finds=False,
)
def main(options: Options) -> None:
    """Run one proxy until it is stopped."""
    proxy = FaultProxy(options.target, port=options.listen)
    proxy.faults = Faults(delay=options.delay_ms / 1000, reset=options.reset)
    proxy.start()
    threading.Event().wait()

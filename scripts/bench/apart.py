"""One server in a separate process: its memory, and its time without the other's load.

`run_apart` writes the clients' messages to files. Then two processes, one per server, read their
messages and exchange data through a pipe. Only one process computes at a time, so that it has the
machine for itself. Of each figure `run_apart` returns the larger one of the two.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scripts.bench import measure
from scripts.parties import zeros
from torchfsl.fsl.cuckoo import placement as cuckoo
from torchfsl.fsl.messages import Kind
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.server.server import Server
from torchfsl.submodel.server_model import ServerModel


def run_apart(plan: Plan, sent: list[tuple[int, bytes]]) -> dict[str, float]:
    """Seconds and peak memory of the stages, and of all, of the larger of two server processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for number, (party, message) in enumerate(sent):
            Path(folder, f"{party}-{number}").write_bytes(message)
        ends, results, turn = context.Pipe(), context.SimpleQueue(), context.Lock()
        processes = [
            context.Process(target=_serve, args=(plan, party, folder, ends[party], results, turn))
            for party in (0, 1)
        ]
        for process in processes:
            process.start()
        figures: list[dict[str, float]] = [results.get() for _ in processes]
        for process in processes:
            process.join()
    return {name: max(own[name] for own in figures) for name in figures[0]}


def relayed(server: Server, kind: Kind, client: int) -> tuple[bytes, bytes | memoryview]:
    """The parts of a client's message that this server sends to the other one."""
    return server.reports.relay_parts(kind, client)


def forget_peak() -> None:
    """Let the system's account of the largest resident size begin anew, where it can."""
    account = Path("/proc/self/clear_refs")
    if account.exists():
        account.write_text("5")


def settle(server: Server) -> None:
    """The part of a commit that grows with the clients; `commit` finds it done."""
    server._evaluator.sums.settle(list(server._opening.accepted.values()))


def _serve(plan: Plan, party: int, folder: str, peer: Connection, results: Any, turn: Any) -> None:
    """Run one server, from its permutations to the aggregate."""
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}

    def timed(stage: str, call: Callable[[], Any]) -> Any:
        with turn:
            note_peak("between")  # messages that the peer sends, and copies of them on their way
            start = time.perf_counter()
            result = call()
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
            note_peak(stage)
        return result

    def note_peak(stage: str) -> None:
        name = f"{stage}_peak_bytes"
        peaks[name] = max(peaks.get(name, 0.0), float(measure.peak_memory_bytes()))
        forget_peak()

    def swap(*mine: bytes | memoryview) -> bytes:
        if party == 1:  # one sends while the other reads: a pipe holds little
            theirs = read()
        peer.send(len(mine))
        for part in mine:
            peer.send_bytes(part)
        return read() if party == 0 else theirs

    def read() -> bytes:
        return b"".join([peer.recv_bytes() for _ in range(peer.recv())])

    segment = plan.segments[0]
    seed = bytes.fromhex(plan.hash_seed)
    if segment.num_bins:
        timed("permutations", lambda: cuckoo.permutations(seed, segment.name, segment.m))
    server = Server(party, plan=plan, model=ServerModel(zeros(plan)))
    server.start(swap(server.open_round(0)))
    for path in sorted(Path(folder).glob(f"{party}-*")):
        message = path.read_bytes()
        due = timed("receive", lambda message=message: server.receive(message))
        relay = timed("receive", lambda due=due: relayed(server, *due)) if due else (b"", b"")
        other = swap(*relay)
        if other:
            timed("receive", lambda other=other: server.receive(other))
        del message, relay, other  # a server keeps them as long as it needs them
    theirs = swap(server.close_round())
    said = timed("verify", lambda: server.agree(theirs))
    theirs = swap(said)
    timed("verify", lambda: server.verify(theirs))
    timed("accumulate", lambda: settle(server))
    commitment = timed("gather", server.commit)
    theirs = swap(commitment)
    share = timed("open", lambda: server.reveal(theirs))
    theirs = swap(share)
    timed("open", lambda: server.open(theirs))
    peaks["peak_memory_bytes"] = max(peaks.values())
    results.put({**seconds, **peaks})

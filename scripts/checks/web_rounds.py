"""Rounds of two server processes with a page of Chromium, and with slow connections.

    python -m scripts.checks.web_rounds [--clients 50] [--rounds 10] [--slow 100] [--handshakes 32]

First a page and so many clients of Python participate in each round, with proofs and sealed seeds:
sums must be exact. `growth` is the memory of the page's process in the last round over that in the
second. Then 20 clients of Python and one with a token participate by turns with and without callers
to the HTTPS door that send a byte now and then, and with and without callers that make handshakes
one after the other: `slowdown` and `web slowdown` are ratios of the medians over five turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import multiprocessing
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.bench.measure import status_bytes
from scripts.program import Found, Options, check, option
from tests.support.federation import mixed_plan
from tests.support.network import assert_sums
from tests.support.reference.plaintext import Contribution
from tests.support.web import FIRST, WebPair
from tests.support.web_page import Page, PagePair
from torchfsl.fsl.plan.plan import Plan
from torchfsl.fsl.plan.planner import default_proofs

TURNS, PYTHON_CLIENTS = 5, 20


def counted_plan(max_clients: int) -> Plan:
    """Every policy, counted and proven."""
    plan = dataclasses.replace(mixed_plan(lane="count"), max_clients=max_clients)
    proofs = default_proofs(plan.rings, plan.lane, plan.l2_bound, plan.segments)
    return dataclasses.replace(plan, proofs=proofs)


def page_bytes(folder: Path) -> int:
    """Memory of the processes that run this profile's pages."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):
            words = (process / "cmdline").read_bytes()
            if b"--type=renderer" in words and str(folder).encode() in words:
                total += status_bytes("VmRSS", int(process.name))
    return total


def with_a_page(folder: Path, clients: int, rounds: int) -> Found:
    """Exact sums of all rounds, or an AssertionError; memory of the page."""
    plan, memory = counted_plan(clients + 1), []
    folder.mkdir()
    with (
        Page(folder, is_page=True) as page,
        PagePair(folder / "pair", plan, page.origin, clients=clients + 2) as pair,
    ):
        pair.start()
        pair.set_up()
        page.set_job(pair, rounds=rounds)
        for number in range(1, rounds + 1):
            pair.open()
            if number == 1:
                page.start()
                page.next("connected")
            page.next("training")
            page.next("submitted")
            memory.append(page_bytes(folder))
            own = Contribution(pair.update_of(number), 1, {})
            made = [own, *pair.take_part(range(2, clients + 2), seed=number)]
            assert_sums(pair.plan, pair.close(), made)
    growth = memory[-1] / memory[1]
    return {"clients": clients, "rounds": rounds, "proofs": plan.proofs, "growth": growth}


@contextlib.contextmanager
def callers(count: int, call: Callable[[threading.Event], None]) -> Iterator[None]:
    """So many threads in each of which `call` is made again and again."""
    ends = threading.Event()

    def repeat() -> None:
        while not ends.is_set():
            with contextlib.suppress(OSError):
                call(ends)

    threads = [threading.Thread(target=repeat, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def send_slowly(pair: WebPair, ends: threading.Event) -> None:
    """A byte of a request a second, to server 0. A dropped caller comes again after a second."""
    with contextlib.suppress(OSError), pair.raw() as connection:
        for byte in b"POST /torchfsl/v1/Plan HTTP/1.1\r\n":
            connection.sendall(bytes([byte]))
            if ends.wait(1):
                return
    ends.wait(1)


def shake_hands(port: int, count: int) -> None:
    """Whole TLS handshakes with a server, from an address of loopback that no client has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def call(_: threading.Event) -> None:
        to, own = ("127.0.0.1", port), ("127.0.0.2", 0)
        with socket.create_connection(to, timeout=60, source_address=own) as plain:
            context.wrap_socket(plain).close()

    with callers(count, call):
        time.sleep(3600)


@contextlib.contextmanager
def handshakes(pair: WebPair, count: int) -> Iterator[None]:
    """So many callers of server 0, in a process that takes no time from the clients'."""
    given = pair.web_ports[0], count
    process = multiprocessing.get_context("spawn").Process(target=shake_hands, args=given)
    process.start()
    time.sleep(5)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def slow_connections(pair: WebPair, count: int) -> contextlib.AbstractContextManager[None]:
    """So many callers of server 0."""
    return callers(count, functools.partial(send_slowly, pair))


def beside(
    folder: Path,
    count: int,
    crowd: Callable[[WebPair, int], contextlib.AbstractContextManager[None]],
) -> dict[str, Any]:
    """Seconds of a round of Python's clients and a web client's, alone and among callers."""
    seconds: dict[str, list[float]] = {"alone": [], "among": [], "web alone": [], "web among": []}
    with WebPair(folder, counted_plan(PYTHON_CLIENTS + 1), clients=PYTHON_CLIENTS + 2) as pair:
        pair.start()
        pair.set_up()
        for turn in range(2 * TURNS):
            name = ("alone", "among")[turn % 2]
            with crowd(pair, count) if turn % 2 else contextlib.nullcontext():
                pair.open()
                start = time.monotonic()
                made = pair.take_part(range(2, PYTHON_CLIENTS + 2), seed=turn)
                middle = time.monotonic()
                made += pair.take_part_by_web((FIRST,), seed=turn)
                end = time.monotonic()
                opened = pair.close()
                seconds[name].append(middle - start + time.monotonic() - end)
                seconds[f"web {name}"].append(end - middle)
            assert_sums(pair.plan, opened, made)
    found = {name: statistics.median(one) for name, one in seconds.items()}
    slowdown, web = found["among"] / found["alone"], found["web among"] / found["web alone"]
    return {"connections": count, "seconds": seconds, "slowdown": slowdown, "web slowdown": web}


@check(
    option("--clients", 50, "of Python next to the page"), option("--rounds", 10, "at most 10"),
    option("--slow", 100, "connections"), option("--handshakes", 32, "callers at a time"),
)  # fmt: skip
def main(options: Options, folder: Path) -> Found:
    """Run both; a part for which 0 is asked is left out."""
    found: Found = {}
    if options.clients:
        found["page"] = with_a_page(folder / "page", options.clients, options.rounds)
    if options.slow:
        found["slow"] = beside(folder / "slow", options.slow, slow_connections)
    if options.handshakes:
        found["handshakes"] = beside(folder / "handshakes", options.handshakes, handshakes)
    return found

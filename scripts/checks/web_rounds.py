"""Rounds of two server processes with a page of Chromium, and with slow connections.

    python -m scripts.checks.web_rounds [--clients 50] [--rounds 10] [--slow 100] [--json FILE]

First a page and so many clients of Python participate in each round, with proofs and sealed seeds:
sums must be exact. `growth` is the memory of the page's process in the last round over that in the
second. Then 20 clients of Python participate by turns with and without callers to the HTTPS door
that send a byte now and then: `slowdown` is the ratio of the medians over five turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from scripts.bench.measure import status_bytes
from scripts.program import Found, Options, check, option
from tests.support.federation import mixed_plan
from tests.support.network import assert_sums
from tests.support.reference.plaintext import Contribution
from tests.support.web import WebPair
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
def slow_connections(pair: WebPair, count: int) -> Iterator[None]:
    """So many at server 0 that send a byte of a request a second. Dropped ones come again."""
    ends = threading.Event()

    def send() -> None:
        while not ends.is_set():
            with contextlib.suppress(OSError), pair.raw() as connection:
                for byte in b"POST /torchfsl/v1/Plan HTTP/1.1\r\n":
                    connection.sendall(bytes([byte]))
                    if ends.wait(1):
                        return
            ends.wait(1)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def beside_slow(folder: Path, count: int) -> Found:
    """Seconds of a round of Python's clients, alone and among slow connections."""
    seconds: dict[str, list[float]] = {"alone": [], "among": []}
    with WebPair(folder, counted_plan(PYTHON_CLIENTS), clients=PYTHON_CLIENTS + 2) as pair:
        pair.start()
        pair.set_up()
        for turn in range(2 * TURNS):
            slow = turn % 2
            with slow_connections(pair, count if slow else 0):
                start = time.monotonic()
                pair.open()
                made = pair.take_part(range(2, PYTHON_CLIENTS + 2), seed=turn)
                opened = pair.close()
                seconds["among" if slow else "alone"].append(time.monotonic() - start)
            assert_sums(pair.plan, opened, made)
    alone, among = (statistics.median(seconds[name]) for name in ("alone", "among"))
    return {"connections": count, "seconds": seconds, "slowdown": among / alone}


@check(
    option("--clients", 50, "of Python next to the page"), option("--rounds", 10, "at most 10"),
    option("--slow", 100, "connections"),
)  # fmt: skip
def main(options: Options, folder: Path) -> Found:
    """Run both; a part for which 0 is asked is left out."""
    found: Found = {}
    if options.clients:
        found["page"] = with_a_page(folder / "page", options.clients, options.rounds)
    if options.slow:
        found["slow"] = beside_slow(folder / "slow", options.slow)
    return found

"""How much one client may hold of a server, and how slowly it may send."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.federation import mixed_plan, random_update, wanted_rows
from tests.support.network import HANGS_AFTER, Pair, wait_until
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.messages import HEADER_BYTES, Kind, body_bytes
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.links import Link, RetryPolicy
from torchfsl.service.net import calls
from torchfsl.service.net.identity import Identity, Role
from torchfsl.service.server.intake import Budget, Limits
from torchfsl.service.server.streams import Stream

FIRST, SECOND = Identity(Role.CLIENT, 0), Identity(Role.CLIENT, 1)


@pytest.mark.parametrize(("own", "passes"), [(100, False), (50, True)], ids=["off", "on"])
def test_a_client_that_holds_its_part_waits_and_leaves_room_for_others(
    own: int, passes: bool
) -> None:
    limits = Limits(bytes_in_flight=100, bytes_per_client=own, wait_seconds=0.2)

    async def run() -> bool:
        budget = Budget(limits)
        async with contextlib.AsyncExitStack() as held:
            for _ in range(2):
                with contextlib.suppress(calls.Overloaded):
                    await held.enter_async_context(budget.hold(40, FIRST))
            try:
                await held.enter_async_context(budget.hold(40, SECOND))
            except calls.Overloaded:
                return False
        assert budget.used == 0
        return True

    assert asyncio.run(run()) is passes


def test_one_message_may_be_longer_than_a_clients_part() -> None:
    async def run() -> None:
        budget = Budget(Limits(bytes_in_flight=100, bytes_per_client=10, wait_seconds=0.05))
        async with budget.hold(90, FIRST):
            assert budget.used == 90
            with pytest.raises(calls.Overloaded):
                async with budget.hold(1, FIRST):
                    raise AssertionError

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["in turn", "cancelled", "cancelled with the room in hand"])
def test_room_goes_to_who_waits_longest_and_none_is_lost(ends: str) -> None:
    came: list[int] = []

    async def hold(budget: Budget, number: int) -> None:
        async with budget.hold(60):
            came.append(number)

    async def run() -> int:
        budget = Budget(Limits(bytes_in_flight=100, wait_seconds=5.0))
        async with contextlib.AsyncExitStack() as held:
            await held.enter_async_context(budget.hold(60))
            waiting = [asyncio.create_task(hold(budget, number)) for number in range(3)]
            await asyncio.sleep(0)
            if ends == "cancelled":
                waiting[0].cancel()
                await asyncio.sleep(0)
        if ends == "cancelled with the room in hand":
            waiting[0].cancel()  # before it could run with the room that it was given
        await asyncio.gather(*waiting, return_exceptions=True)
        return budget.used

    assert asyncio.run(run()) == 0
    assert came == ([0, 1, 2] if ends == "in turn" else [1, 2])


def trees_of(plan: Plan, number: int, client: int) -> bytes:
    """The trees for server 0 that a client would send."""
    kept: list[bytes] = []

    class Deaf:
        def send(self, party: int, message: bytes) -> None:
            if party == 0:
                kept.append(message)

        def fetch(self, party: int, kind: Kind, round_number: int, client: int) -> bytes:
            raise AssertionError

    update = random_update(plan, np.random.default_rng(client))
    one = Client(plan, Deaf(), client_id=client)
    one.start_round(number, indices=wanted_rows(plan, update)).submit(update)
    return kept[0]


@pytest.mark.parametrize(("least", "passes"), [(1, True), (1 << 20, False)], ids=["off", "on"])
def test_a_sender_below_the_least_rate_is_dropped(least: int, passes: bool) -> None:
    plan = mixed_plan()
    data = trees_of(plan, 1, 0)
    step = (len(data) - HEADER_BYTES) // 40 + 1
    pieces = [data[:HEADER_BYTES]]
    pieces += [data[start : start + step] for start in range(HEADER_BYTES, len(data), step)]
    limits = Limits(idle_seconds=0.4, bytes_per_second=least)

    class Slow:
        async def read(self) -> bytes:
            await asyncio.sleep(0.02)
            return pieces.pop(0)

    async def run() -> bool:
        stream = Stream(Slow(), limits, Budget(limits))
        try:
            async with stream.message(plan, Kind.TREES) as (_, received):
                return received == data
        except calls.NotReady as error:
            return f"at least {least} bytes per second" not in str(error)

    pieces.append(b"")
    assert asyncio.run(run()) is passes


@pytest.mark.slow
@pytest.mark.parametrize(("own", "passes"), [(1 << 20, False), (1, True)], ids=["off", "on"])
def test_one_slow_client_does_not_keep_the_others_out(
    own: int, passes: bool, tmp_path: Path
) -> None:
    release = threading.Event()
    sealed = dataclasses.replace(mixed_plan(), server_keys=("00" * 32, "11" * 32))
    size = HEADER_BYTES + body_bytes(sealed, Kind.TREES)
    config = (
        f"[limits]\nbytes_in_flight = {3 * size}\nbytes_per_client = {own}\n"
        "wait_seconds = 1.0\nidle_seconds = 60.0\n"
    )
    with Pair(tmp_path, mixed_plan(), config) as pair:
        pair.start()
        pair.set_up()
        pair.open()

        piece = trees_of(pair.plan, pair.number, 0)[:HEADER_BYTES]

        def first_piece() -> Iterator[bytes]:
            yield piece
            release.wait(HANGS_AFTER)

        def in_flight() -> float:
            url = f"http://127.0.0.1:{pair.metrics_ports[0]}/metrics"
            lines = urllib.request.urlopen(url).read().decode().splitlines()
            return float(dict(one.rsplit(" ", 1) for one in lines)["torchfsl_bytes_in_flight"])

        slow = Link(pair.urls[0], 0, pair.files("client-0"), RetryPolicy())
        upload = slow._channel.stream_stream(calls.path("Upload"))
        held = [
            upload(first_piece(), timeout=HANGS_AFTER, metadata=calls.metadata()) for _ in range(3)
        ]
        wait_until(lambda: in_flight() >= size * (1 if passes else 3))
        policy = RetryPolicy(attempt_seconds=10, total_seconds=10)
        honest = Link(pair.urls[0], 0, pair.files("client-2"), policy)
        try:
            answer = honest.call("Upload", trees_of(pair.plan, pair.number, 2), limit=64) == b""
        except calls.Overloaded as error:
            answer = "too much in flight" not in str(error)
        release.set()
        del held
        slow.close()
        honest.close()
        assert answer is passes

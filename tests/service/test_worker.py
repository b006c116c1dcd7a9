"""The node's thread: calls in order, results and errors where they belong, none after the end."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from typing import Any

import pytest

from torchfsl.service.server import worker
from torchfsl.service.server.worker import Worker, keep_memory


def test_calls_are_made_one_after_the_other_in_one_thread_that_is_not_the_loops() -> None:
    made: list[tuple[int, int]] = []

    async def run() -> list[int]:
        own = Worker("torchfsl-test")

        def call(number: int) -> int:
            made.append((number, threading.get_ident()))
            return number * number

        results = await asyncio.gather(*(own.call(lambda n=n: call(n)) for n in range(50)))
        own.close()
        return results

    assert asyncio.run(run()) == [number * number for number in range(50)]
    assert [number for number, _ in made] == list(range(50))
    assert len({thread for _, thread in made} | {threading.get_ident()}) == 2


def test_an_error_is_the_callers_and_what_nobody_waits_for_is_not_begun() -> None:
    async def run() -> list[str]:
        own, go, made = Worker("torchfsl-test"), threading.Event(), list[str]()
        with pytest.raises(ValueError, match="no"):
            await own.call(lambda: int("no"))
        first = asyncio.create_task(own.call(lambda: (go.wait(), made.append("first"))))
        given_up = asyncio.create_task(own.call(lambda: made.append("given up")))
        last = asyncio.create_task(own.call(lambda: made.append("last")))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, last)
        own.close()
        with pytest.raises(RuntimeError, match="has stopped"):
            await own.call(lambda: made.append("too late"))
        return made

    assert asyncio.run(run()) == ["first", "last"]


def test_memory_is_kept_where_the_allocator_can_be_told_and_elsewhere_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []

    class Library:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            told.append((option, value))
            return 1

    libraries: list[Any] = [Library, object()]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libraries.pop(0))
    monkeypatch.setattr(worker.sys, "platform", "linux")
    keep_memory()
    assert told == [(-8, 1), (-3, 32 << 20), (-1, 256 << 20)]
    keep_memory()  # without mallopt
    monkeypatch.setattr(worker.sys, "platform", "darwin")
    keep_memory()
    assert len(told) == 3

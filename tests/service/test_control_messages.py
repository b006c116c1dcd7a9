"""Control messages out of range or that cannot be encoded; steps that fail as none should.

Both servers run in this process; tests/service/test_hostile.py attacks real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.attacks.in_process_servers import InProcessServers
from tests.scripts.test_fuzz_controls import unchecked_request
from torchfsl.errors import DecodeError, Error, ParameterError
from torchfsl.fsl.server.server import Server
from torchfsl.service.net import calls
from torchfsl.service.server.failures import EXIT_STATE_FAILED
from torchfsl.service.state.coins import CoinBook
from torchfsl.service.state.ledger import Ledger

HALVES = ["\ud800", "a\udfffb", "\ud834", "\udc00\ud800", "ok \udbff"]
ABANDONS = [(who, {"round": 1, "reason": half}) for who in ("owner", "server-0") for half in HALVES]
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    *((who, "Abandon", fields) for who, fields in ABANDONS),
    *(("owner", "Open", {"round": 2, "expected": n, "seconds": 9.0})
      for n in (1 << 63, (1 << 64) - 1, 1 << 64, -1, True, 1.0, "1", None)),
    *(("owner", "Open", {"round": n, "expected": 0, "seconds": 9.0})
      for n in (1 << 64, -1, 10**400, True, 2.0, "2", None, [])),
    *(("owner", "Open", {"round": 2, "expected": 0, "seconds": n})
      for n in (float("nan"), float("inf"), -1.0, 1 << 64, 10**400, True, "9", None)),
    *(("owner", method, {"round": n}) for method in ("Close",) for n in (1 << 64, -1, "1", None)),
    *(("client-1", method, {"round": n}) for method in ("Model", "Answer")
      for n in (1 << 64, -1, 10**400, False, 1.0, "1")),
    *(("owner", "Toss", {"template": text}) for text in (*HALVES, "AB" * 32, "ab" * 31, "", 7)),
    *(("owner", "Reveal", {"template": "ab" * 32, "peer": text}) for text in (*HALVES, "x", 7)),
]  # fmt: skip

Play = Callable[[InProcessServers], Awaitable[None]]


def play(folder: Path, what: Play) -> None:
    async def run() -> None:
        servers = InProcessServers(folder)
        servers.be_patient(20.0)
        try:
            await servers.set_up()
            await what(servers)
        finally:
            await servers.stop()

    asyncio.run(run())


async def opened(servers: InProcessServers) -> None:
    servers.number += 1
    await servers.ask("Open", round=servers.number, expected=0, seconds=600.0)


def are_ready(servers: InProcessServers) -> bool:
    stations = servers.stations.values()
    return not any((*servers.ended, *(station.failures.unready for station in stations)))


def test_a_field_out_of_its_range_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    async def attack(servers: InProcessServers) -> None:
        await opened(servers)
        before = servers.states()
        for caller, method, fields in WRONG:
            for party in (1,) if caller == "server-0" else (0, 1):
                with pytest.raises((DecodeError, ParameterError)):
                    await servers.call(party, caller, method, json.dumps(fields).encode())
        assert servers.states() == before
        assert are_ready(servers)
        await servers.ask("Abandon", round=servers.number, reason="\x1b[2J \U0001f600 \u202e")
        assert await servers.settle()
        assert await servers.honest_round()

    play(tmp_path, attack)


@pytest.mark.parametrize("party", [0, 1])
def test_half_a_surrogate_pair_that_is_not_refused_ends_the_process_and_no_more(
    tmp_path: Path, party: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the check off: the ledger fails once memory has changed, as it was found."""

    async def attack(servers: InProcessServers) -> None:
        await opened(servers)
        with monkeypatch.context() as patch, contextlib.suppress(Exception):
            patch.setattr(calls, "decode_request", unchecked_request)
            reason = json.dumps({"round": 1, "reason": HALVES[0]}).encode()
            await servers.call(party, ("owner", "server-0")[party], "Abandon", reason)
        assert servers.ended[party] == [EXIT_STATE_FAILED]
        await servers.restart(party)
        assert await servers.settle()
        assert are_ready(servers)
        assert servers.states()[party][1] == "open"  # nothing of it is on disk
        await servers.ask("Abandon", round=servers.number, reason="for want of characters")
        assert await servers.honest_round()

    play(tmp_path, attack)


STEPS: list[tuple[type, str]] = [
    (Server, "open_round"), (Server, "start"), (Server, "receive"), (Server, "close_round"),
    (Server, "agree"), (Server, "verify"), (Server, "commit"), (Server, "reveal"),
    (Server, "open"), (Server, "apply"), (Server, "abandon_round"), (CoinBook, "toss"),
    (CoinBook, "reveal"), (Ledger, "start_round"), (Ledger, "put_step"),
]  # fmt: skip


def plant(patch: pytest.MonkeyPatch, owner: type, name: str, party: int, *, once: bool) -> None:
    """A bug: a step raises what nobody expects, at one server."""
    whole, done = getattr(owner, name), []

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        mine = f"state{party}" in str(getattr(self, "path", "")) or party in (
            getattr(self, "party", -1), getattr(self, "_party", -1)
        )  # fmt: skip
        if mine and not (once and done):
            done.append(name)
            raise KeyError("a bug")
        return whole(self, *args, **kwargs)

    patch.setattr(owner, name, fail)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_step_that_fails_as_none_does_ends_the_process_and_the_next_start_goes_on(
    tmp_path: Path, owner: type, name: str, party: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attack(servers: InProcessServers) -> None:
        servers.be_patient(0.2)
        if name == "abandon_round":
            await opened(servers)
        with monkeypatch.context() as patch:
            plant(patch, owner, name, party, once=True)
            task = asyncio.create_task(all_steps(servers))
            while not servers.ended[party]:
                assert not task.done()
                await asyncio.sleep(0.01)
            assert set(servers.ended[party]) == {EXIT_STATE_FAILED}
            await servers.restart(party)
            await asyncio.wait([task], timeout=20)
            task.cancelled() or task.exception()
        servers.be_patient(20.0)
        number, deadline = max(row[0] for row in servers.states()), time.monotonic() + 20
        while time.monotonic() < deadline and not has_ended(servers):
            with contextlib.suppress(Error):  # some rounds can only be finished
                await servers.ask("Abandon", round=number, reason="a server was started again")
            await asyncio.sleep(0.1)
        assert await servers.settle()
        assert await servers.honest_round()
        assert are_ready(servers)

    play(tmp_path, attack)


def has_ended(servers: InProcessServers) -> bool:
    """Whether no round runs at either server."""
    return all(state in ("", "applied", "unopened") for _, state, _ in servers.states())


async def all_steps(servers: InProcessServers) -> None:
    """Every step that writes, at both servers; raises what fails."""
    for party in (0, 1):
        toss = {"template": "ab" * 32}
        for method, fields in (("Toss", toss), ("Reveal", toss | {"peer": "cd" * 32})):
            await servers.call(party, "owner", method, json.dumps(fields).encode())
    await servers.ask("Abandon", round=servers.number, reason="for a start") if (
        servers.number
    ) else None
    await servers.honest_round()


@pytest.mark.parametrize("name", ["receive", "agree", "verify", "reveal"])
def test_a_stored_message_that_always_fails_costs_its_round_and_no_server(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attack(servers: InProcessServers) -> None:
        servers.be_patient(0.2)
        with monkeypatch.context() as patch:
            plant(patch, Server, name, 1, once=False)
            task = asyncio.create_task(servers.honest_round())
            while not servers.ended[1]:
                await asyncio.sleep(0.01)
            await servers.restart(1)  # and does not end at the start
            assert servers.stations[1].node.storage.running() is None
            row = servers.stations[1].node.storage.ledger.last_round()
            assert row is not None
            assert "this server failed with KeyError" in row.reason
            await asyncio.wait([task], timeout=20)
            task.cancelled() or task.exception()
        servers.be_patient(20.0)
        with contextlib.suppress(Error):
            await servers.ask("Abandon", round=servers.number, reason="it failed")
        await servers.honest_round()
        assert are_ready(servers)

    play(tmp_path, attack)

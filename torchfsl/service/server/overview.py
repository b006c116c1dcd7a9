"""Collects what the status page shows: of this server, and what the other one says of itself."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from torchfsl.errors import Error
from torchfsl.service.net import calls
from torchfsl.service.net.answers import INFO_BYTES, decode_info
from torchfsl.service.server.observe import Observer
from torchfsl.service.server.page import View, render
from torchfsl.service.server.peers import PeerLink
from torchfsl.service.server.problems import RecentProblems
from torchfsl.service.server.station import Station

_ROUNDS: Final = 10
_ASK_SECONDS: Final = 2.0
"""How long either server may take to say how it is, and how long its word is good for."""


class Overview:
    """The status page of a running server. Made in its event loop, asked from other threads.

    Args:
        station: the server.
        link: to the other one.
        observer: counts calls and bytes.
    """

    def __init__(self, station: Station, link: PeerLink, observer: Observer) -> None:
        """Begin to keep what the log warns of."""
        self._station, self._link, self._observer = station, link, observer
        self._loop = asyncio.get_running_loop()
        self._asking = asyncio.Lock()
        self._told: tuple[float, list[Mapping[str, Any] | str]] = (-_ASK_SECONDS, [])
        self._problems = RecentProblems()
        logging.getLogger("torchfsl").addHandler(self._problems)

    def close(self) -> None:
        """Keep nothing more of the log."""
        logging.getLogger("torchfsl").removeHandler(self._problems)

    def page(self) -> bytes:
        """The page as it is now."""
        asking = asyncio.run_coroutine_threadsafe(self._infos(), self._loop)
        try:
            infos = asking.result(timeout=5 * _ASK_SECONDS)
        except TimeoutError:
            infos = ["this server does not come round to answering"] * 2
        ledger = self._station.node.storage.ledger
        totals = self._totals()
        view = View(
            infos=infos,
            party=self._station.node.party,
            rounds=ledger.rounds("ORDER BY number DESC LIMIT ?", _ROUNDS),
            received=totals["received"],
            sent=totals["sent"],
            calls={code: n for code, n in totals.items() if code not in ("received", "sent")},
            problems=self._problems.newest(),
        )
        return render(view).encode()

    async def _infos(self) -> list[Mapping[str, Any] | str]:
        """What both say, at most `_ASK_SECONDS` old: who reloads does not load the servers."""
        async with self._asking:
            if self._loop.time() - self._told[0] >= _ASK_SECONDS:
                own, other = await asyncio.gather(self._own(), self._other())
                infos = [own, other] if self._station.node.party == 0 else [other, own]
                self._told = (self._loop.time(), infos)
            return self._told[1]

    async def _own(self) -> Mapping[str, Any] | str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await self._station.info()
        except TimeoutError:
            return "this server is at work: a step of the round takes long"

    async def _other(self) -> Mapping[str, Any] | str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                answer = await self._link.call("Info", calls.encode_request(), limit=INFO_BYTES)
            return decode_info(answer)
        except TimeoutError:
            return f"nothing came in {_ASK_SECONDS:.0f} seconds"
        except Error as error:
            return str(error)

    def _totals(self) -> Counter[str]:
        """Bytes by direction, calls by status."""
        totals: Counter[str] = Counter()
        names = ["torchfsl_bytes_total", "torchfsl_calls_total"]
        for family in self._observer.registry.restricted_registry(names).collect():
            for sample in family.samples:
                if sample.name in names:
                    key = sample.labels.get("direction") or sample.labels["code"]
                    totals[key] += sample.value  # type: ignore[assignment]
        return totals

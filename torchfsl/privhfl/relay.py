"""Carries messages between parties of one process, and counts bytes and processor seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torchfsl.errors import DecodeError, ProtocolError, RejectedSubmission
from torchfsl.privhfl.answering_party import AnsweringParty
from torchfsl.privhfl.messages import PHASES, Kind, answering_of, kind_of
from torchfsl.privhfl.query_server import Outgoing, QueryServer
from torchfsl.privhfl.querying_party import QueryingParty


@dataclass(slots=True)
class Cost:
    """What querying took.

    Attributes:
        sent: bytes by link (`querying-server`, `server-answering`, ...; sender first) and phase
            (`setup`, `offline`, `online`), headers included.
        seconds: processor seconds by party: `querying`, `answering` (all of them), `server`.
        messages: by link and phase.
    """

    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    messages: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, other: Cost) -> None:
        """Add the counts of `other`."""
        self.sent.update(other.sent)
        for party, seconds in other.seconds.items():
            self.seconds[party] += seconds
        self.messages.update(other.messages)

    def phase_bytes(self, phase: str) -> int:
        """Bytes of a phase over all links."""
        return sum(size for (_, p), size in self.sent.items() if p == phase)

    @contextmanager
    def at(self, party: str) -> Iterator[None]:
        """Count the processor time of a block as a party's."""
        start = time.process_time()
        yield
        self.seconds[party] += time.process_time() - start  # type: ignore[assignment]

    def count(self, link: str, data: bytes) -> None:
        """Count the message `data` on a `link`."""
        name = link, PHASES[kind_of(data)]
        self.sent[name] += len(data)
        self.messages[name] += 1


class Relay:
    """The links between one querying party, the server and answering parties.

    Args:
        server: of the plan.
        querying: the party that asks.
        answering: those that answer, by client.
        lose: says of a message, and the answering client that it is of, whether it gets lost; for
            tests. SUM is the querying client's.
        watch: is shown every message with its link; for tests and measurements.
    """

    def __init__(
        self,
        server: QueryServer,
        querying: QueryingParty,
        answering: dict[int, AnsweringParty],
        *,
        lose: Callable[[int, bytes], bool] | None = None,
        watch: Callable[[str, int, bytes], None] | None = None,
    ) -> None:
        self.cost = Cost()
        self._server, self._querying, self._answering = server, querying, answering
        self._lose, self._watch = lose, watch

    def to_server(self, link: str, client: int, messages: list[bytes]) -> None:
        """Deliver messages of one client, and everything that follows from them.

        If one party refuses a message of another, only this message is lost. The sum leaves out
        its answering client unless the message comes again, and the other clients' answers count.

        Raises:
            DecodeError: the server refuses all messages DEALING, and the first one has malformed
                bytes.
            RejectedSubmission: it refuses all of them, and the first one for another reason.
        """
        refused: list[DecodeError | RejectedSubmission] = []
        todo: deque[tuple[str, int, bytes]] = deque((link, client, data) for data in messages)
        while todo:
            link, client, data = todo.popleft()
            if self._is_lost(client, data):
                continue
            self._note(link, client, data)
            try:
                with self.cost.at("server"):
                    following = self._server.receive(client, data)
            except (DecodeError, RejectedSubmission) as error:
                if kind_of(data) == Kind.DEALING:
                    refused.append(error)
                continue
            for out in following:
                todo.extend(("answering-server", out.client, d) for d in self._deliver(out))
        if refused and len(refused) == len(messages):
            raise refused[0]

    def close(self, iteration: int, batch: int) -> None:
        """End a batch: the sum goes to the querying party."""
        with self.cost.at("server"):
            out = self._server.close(self._querying.client, iteration, batch)
        for each in out:
            self._deliver(each)

    def abandon(self, iteration: int, batch: int) -> None:
        """Let every party forget a batch."""
        name = self._querying.client, iteration, batch
        self._server.abandon(*name)
        self._querying.forget(iteration, batch)
        for party in self._answering.values():
            party.abandon(*name)

    def _deliver(self, out: Outgoing) -> list[bytes]:
        if self._is_lost(out.client, out.data):
            return []
        who = "querying" if out.to_querying else "answering"
        party = self._querying if out.to_querying else self._answering.get(out.client)
        if party is None:
            raise ProtocolError(f"client {out.client} is not connected")
        self._note(f"server-{who}", out.client, out.data)
        try:
            with self.cost.at(who):
                return party.receive(out.data)
        except (DecodeError, RejectedSubmission):
            return []

    def _is_lost(self, client: int, data: bytes) -> bool:
        of = answering_of(data)
        return self._lose is not None and self._lose(client if of is None else of, data)

    def _note(self, link: str, client: int, data: bytes) -> None:
        self.cost.count(link, data)
        if self._watch:
            self._watch(link, client, data)

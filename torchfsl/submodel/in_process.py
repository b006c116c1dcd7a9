"""Parts of protocols in one process: servers with a watch, clients with a memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from torchfsl.errors import ParameterError
from torchfsl.submodel.aggregation import Participant, Receipt, RoundSession
from torchfsl.submodel.server_model import ServerModel

_Reply = TypeVar("_Reply")
Session = TypeVar("Session", bound=RoundSession)
_Member = TypeVar("_Member")
_Server = TypeVar("_Server", bound="Replies")


class Stopwatch:
    """Counts the time that calls of a server take.

    Attributes:
        seconds: spent in them since this was set to 0.
    """

    def __init__(self) -> None:
        """Nothing called yet."""
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def timed(self, call: Callable[..., _Reply], *arguments: Any) -> _Reply:
        """Make a call and count the time it takes."""
        with self.running():
            return call(*arguments)


class Replies(Protocol):
    """A server that takes its clients' messages and gives them some."""

    def receive(self, message: bytes) -> Any:
        """Take a message."""

    def reply(self, kind: Any, round_number: int, client: int) -> bytes:
        """Give one."""


class InProcess(Stopwatch, Generic[_Server]):
    """A protocol's one server for clients, through the same bytes as on any network.

    Attributes:
        server: the server.
    """

    def __init__(self, server: _Server) -> None:
        """Connect to it."""
        super().__init__()
        self.server = server

    def send(self, message: bytes) -> Any:
        """Deliver a message; what the server gives back."""
        return self.timed(self.server.receive, message)

    def fetch(self, kind: Any, round_number: int, client: int) -> bytes:
        """The server's reply."""
        return self.timed(self.server.reply, kind, round_number, client)


class Remembered(Generic[Session]):
    """A `Participant` whose session is remembered, for what follows its submission.

    Attributes:
        session: of the round; None if it has not started.
    """

    session: Session | None = None

    def __init__(self, client: Participant) -> None:
        """Not in the round yet."""
        self._client, self.plan, self.client_id = client, client.plan, client.client_id

    def __repr__(self) -> str:
        return repr(self._client)

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> Session:
        """See `Participant`."""
        client: Any = self._client
        session: Session = client.start_round(round_number, indices=indices)
        self.session = session
        return session


class _RememberedForLonger(Remembered[RoundSession]):
    """The same of one that keeps its positions for several rounds."""

    def continue_session(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike]
    ) -> RoundSession:
        client: Any = self._client
        session: RoundSession = client.continue_session(round_number, indices=indices)
        self.session = session
        return session


class Sessions(list[Remembered[RoundSession]]):
    """The clients of one round, in the order in which they were asked for."""

    def watch(self, client: Participant) -> Participant:
        """`client`, whose session will be among these once it starts."""
        kind = _RememberedForLonger if hasattr(client, "continue_session") else Remembered
        self.append(kind(client))
        return self[-1]

    def receipts(self) -> dict[int, Receipt]:
        """See `receipts`."""
        return receipts(self)


def receipts(clients: Iterable[Remembered[Session]]) -> dict[int, Receipt]:
    """The cost of a round for each of these clients that started it, dropped out or not."""
    return {c.client_id: c.session.receipt() for c in clients if c.session is not None}


class OfCohort(Generic[_Member]):
    """An aggregation over one server, whose rounds begin with their clients."""

    _link: InProcess[Any]
    _cohort: dict[int, _Member]

    @property
    def model(self) -> ServerModel:
        """See `Aggregation`."""
        model: ServerModel = self._link.server.model
        return model

    @property
    def models(self) -> tuple[ServerModel, ...]:
        """See `Aggregation`."""
        return (self.model,)

    @property
    def server_seconds(self) -> float:
        """See `Aggregation`."""
        return self._link.seconds

    def abandon_round(self) -> None:
        """See `Aggregation`."""
        self._link.server.abandon_round()

    def participant(self, client: int) -> _Member:
        """See `Aggregation`. A client that never submits has dropped out.

        Raises:
            ParameterError: it is not in this round's cohort.
        """
        if client not in self._cohort:
            raise ParameterError(
                f"client {client} is not among the clients of this round: begin the round with "
                "this client",
                code="not-in-cohort",
            )
        return self._cohort[client]

"""What protocols in one process have in common: a server whose time is counted, and its clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from torchfsl.errors import ParameterError
from torchfsl.submodel.plan import SubmodelPlan

_Reply = TypeVar("_Reply")
Session = TypeVar("Session")
_Started = TypeVar("_Started", covariant=True)
_Found = TypeVar("_Found")


class Stopwatch:
    """Counts the time that calls of a server take.

    Attributes:
        seconds: spent in them since this was set to 0.
    """

    def __init__(self) -> None:
        """Nothing called yet."""
        self.seconds = 0.0

    def timed(self, call: Callable[..., _Reply], *arguments: Any) -> _Reply:
        """Make a call and count the time it takes."""
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.seconds += time.perf_counter() - start


class Abandons(Protocol):
    """A server that can end a round unopened."""

    def abandon_round(self) -> None:
        """End it, whatever its state."""


@contextlib.contextmanager
def abandoned_on_error(server: Abandons) -> Iterator[None]:
    """End the round if the block fails: the server is then ready for the next one."""
    try:
        yield
    except BaseException:
        server.abandon_round()
        raise


class _Client(Protocol[_Started]):
    @property
    def plan(self) -> SubmodelPlan: ...

    @property
    def client_id(self) -> int: ...

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> _Started: ...


class Remembered(Generic[Session]):
    """A `Participant` whose session is remembered, for what follows its submission.

    Attributes:
        session: of the round; None if it has not started.
    """

    def __init__(self, client: _Client[Session]) -> None:
        """Not in the round yet."""
        self._client, self.plan, self.client_id = client, client.plan, client.client_id
        self.session: Session | None = None

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> Session:
        """See `Participant`."""
        self.session = self._client.start_round(round_number, indices=indices)
        return self.session


def of_cohort(cohort: Mapping[int, _Found], client: int) -> _Found:
    """The client of that number.

    Raises:
        ParameterError: it is not in this round's cohort.
    """
    if client not in cohort:
        raise ParameterError(f"client {client} is not in this round's cohort", code="not-in-cohort")
    return cohort[client]

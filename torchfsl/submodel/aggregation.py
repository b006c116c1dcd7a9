"""The seam between what is learnt and the protocol that sums it.

A round is: `open_round` for a cohort, for each client `participant(client).start_round(...)` with
`download`, `retrieve` and `submit`, then `close_round`, which opens the integer sums, applies them
to the model and says what the round has cost each client. A client that started and never submits
has dropped out. The engine and the trainer know these interfaces only; every protocol offers them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, Self

import numpy.typing as npt

from torchfsl.submodel.opened import Opened
from torchfsl.submodel.plan import SubmodelPlan
from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.update import Update
from torchfsl.types import Array, Indices


@dataclass(frozen=True, slots=True)
class Receipt:
    """The cost of a round for a client so far, and what its submission left out.

    Attributes:
        upload_bytes: bytes sent to all servers in this round so far, headers included.
        download_bytes: bytes received from all.
        unmatched: by segment, the selected positions that found no bin and were not sent (with
            probability at most 2**-40 any); keep their values in the residual.
        phases: the same bytes by the protocol's phase. Law: the values add up to
            `upload_bytes + download_bytes`.
    """

    upload_bytes: int
    download_bytes: int
    unmatched: dict[str, Indices]
    phases: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """A round that was opened and applied.

    Attributes:
        opened: the exact sums.
        receipts: by client, of all that started the round, those among them that dropped out; with
            what happened after `submit`.
    """

    opened: Opened
    receipts: Mapping[int, Receipt]


@dataclass(frozen=True, slots=True)
class Traffic:
    """A client's bytes in one round so far, by the protocol's phase."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    def receipt(self, unmatched: Mapping[str, Indices] = MappingProxyType({})) -> Receipt:
        """The costs of the round so far."""
        phases = dict(self.sent + self.received)
        return Receipt(self.sent.total(), self.received.total(), dict(unmatched), phases)


class AbortsOnError(ABC):
    """A client in one round, which hands in nothing if its `with` block fails before it submits."""

    _submitted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._submitted and kind is not None:
            self.abort()

    @abstractmethod
    def abort(self) -> Receipt:
        """See `RoundSession`."""


class RoundSession(Protocol):
    """A client in one round, as `torchfsl.fsl.client.round.ClientRound` is one.

    Where servers see dropouts, a method `drop_out()` hands in nothing and returns the receipt.
    """

    def download(self) -> Mapping[str, Array]:
        """The clear tensors of the model: all outside retrieving segments."""

    def retrieve(self) -> Mapping[str, tuple[Indices, Array]]:
        """By retrieving segment the rows asked for: indices and `[k, tau]` values."""

    def submit(self, update: Update, *, weight: int = 1) -> Receipt:
        """Hand in the quantised update.

        Args:
            update: integers by segment, see `Update`.
            weight: of this client in the average, at least 1.
        """

    def abort(self) -> Receipt:
        """Hand in nothing, in a report like any other; no report once the servers have failed."""

    def receipt(self) -> Receipt:
        """The cost of the round so far, whether submitted or not."""


class Participant(Protocol):
    """A client of a task, as `torchfsl.Client` is one; simulations may bring their own.

    Two more methods are used where they exist: `open_number()` asks for the number of the open
    round, and `continue_session(number, indices=)` takes the place of `start_round` under plans
    with `keeps_positions`.
    """

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan."""

    @property
    def client_id(self) -> int:
        """The client's number, by which residuals and local parameters are kept apart."""

    def start_round(
        self, round_number: int, *, indices: Mapping[str, npt.ArrayLike] | None = None
    ) -> RoundSession:
        """Take part in the open round, asking for the rows of the retrieving segments.

        Args:
            round_number: number of the open round.
            indices: by retrieving segment, the rows to fetch.
        """


class Aggregation(Protocol):
    """Sums updates exactly and holds the model they change."""

    @property
    def plan(self) -> SubmodelPlan:
        """The public plan."""

    @property
    def server_seconds(self) -> float:
        """Time spent as a server since the round was opened; of both where there are two."""

    @property
    def model(self) -> ServerModel:
        """The current model."""

    @property
    def models(self) -> tuple[ServerModel, ...]:
        """The copies of the model in this process, one for each server that holds one."""

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """Begin a round.

        Some protocols must know the cohort before clients start, others do not.

        Args:
            round_number: above that of every earlier round.
            cohort: numbers of the clients.
        """

    def participant(self, client: int) -> Participant:
        """The client of that number."""

    def abandon_round(self) -> None:
        """End the open round unopened; without one nothing happens."""

    def close_round(self) -> Closed:
        """Open the sums over the clients that submitted and apply them to the model.

        Returns:
            The aggregate and the clients' receipts.

        Raises:
            ProtocolError: if too few clients are left; the round ends unopened.
        """

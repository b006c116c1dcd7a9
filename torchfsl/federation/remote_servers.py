"""A client of two running servers.

with torchfsl.connect(URLS, client_id=7, tls="certs", outbox="outbox-7") as servers:
    fed = torchfsl.Federated(model, optimizer, plan=servers.plan)
    for round_number in servers.rounds(timeout=3600):
        with fed.round(servers, batches=batches):
            train(model, optimizer, batches)

Needs the `service` extra.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError
from torchfsl.faces import public
from torchfsl.fsl.client.client import Client
from torchfsl.fsl.floors import ClientPolicy
from torchfsl.fsl.plan.plan import Plan
from torchfsl.service.client.links import Closing
from torchfsl.service.client.remote import Connection
from torchfsl.service.client.remote import connect as connect_client
from torchfsl.service.net.channels import TlsFiles

log = logging.getLogger(__name__)


@public
class RemoteServers(Closing):
    """Two running servers, as one client sees them. Made by `connect`.

    Attributes:
        plan: of the task, equal at both servers and bound to them.
        client_id: number in the client's certificate.
        number: of the round that `rounds` gave last; None lets each round ask the servers.
    """

    def __init__(self, connection: Connection, client_id: int) -> None:
        """Take a `connection` whose plan `connect` checked. Nothing is sent."""
        self._connection, self.client_id = connection, client_id
        self.number: int | None = None

    def __repr__(self) -> str:
        return f"RemoteServers(client_id={self.client_id}, plan={self.plan!r})"

    @property
    def plan(self) -> Plan:
        """See above."""
        return self._connection.plan

    @property
    def rounds_applied(self) -> int:
        """How many rounds the servers' model has seen.

        Raises:
            ProtocolError: the servers hold different models.
        """
        return self._connection.model_version()[0]

    def participant(self, client_id: int) -> Client:
        """This client; `client_id` is its number.

        Raises:
            ParameterError: if the number is not that of its certificate.
        """
        if client_id != self.client_id:
            raise ParameterError(
                f"this connection belongs to client {self.client_id}, got client_id={client_id}: "
                "leave out client_id, fed.round(servers, batches=batches)"
            )
        return self._connection.client

    def submitted(self, finished: Round) -> None:
        """Nothing more is to be done for `finished`: both servers have its report."""

    def rounds(self, timeout: float = 3600.0) -> Iterator[int]:
        """Number after number of rounds that open; first sends what an interruption left.

        Ends when the model has seen the plan's `max_rounds`, or when this client has sent its
        `max_participations` reports, where the plan has these limits. Rounds that come too early
        for this client, by its own count, are passed over.

        Args:
            timeout: longest wait for a round, in seconds.

        Raises:
            NotReady: no round opened in time.
            ProtocolError: the task is halted.
        """
        self._connection.resume()
        after = -1
        if self._is_over():
            log.warning(
                "no round is left for client %d: the task has opened all rounds of its plan, or "
                "this client has sent all its reports. Start this client again when a new task "
                "begins",
                self.client_id,
            )
        while not self._is_over():
            after = self._connection.wait_for_round(
                after=after, seconds=timeout, until=self._is_over
            )
            if after < 0:
                return
            if self._connection.may_report(after):
                self.number = after
                yield after

    def fetch(self, rows: Mapping[str, npt.ArrayLike]) -> Any:
        """The model as it was applied last: clear tensors, and rows by private retrieval.

        Args:
            rows: for every retrieving segment the rows wanted: distinct, increasing.
        """
        return self._connection.fetch(rows)

    def close(self) -> None:
        """Close the channels."""
        self._connection.close()

    def _is_over(self) -> bool:
        if self._connection.has_finished():
            return True
        return bool(self.plan.max_rounds) and self.rounds_applied >= self.plan.max_rounds


@public
def connect(
    urls: Sequence[str],
    *,
    client_id: int,
    tls: str | Path | TlsFiles,
    require: ClientPolicy | str | Path | None = None,
    outbox: str | Path | None = None,
    timeout: float = 300.0,
) -> RemoteServers:
    """Join the task that two servers run.

    Args:
        urls: of server 0 and server 1, `https://HOST:PORT`.
        client_id: number in the client's certificate.
        tls: folder of the client's files, as `torchfsl certs` makes it.
        require: what this client demands of the plan, or the policy file that says it; the default
            `ClientPolicy` when None.
        outbox: file in which a report waits until both servers have it; None for no resuming.
        timeout: seconds to wait for servers that are not there, or have no task yet.

    Returns:
        The servers, to pass to `Federated.round`.

    Raises:
        NotReady: if they were not there, or had no task, in time.
        ParameterError: if the certificate is another client's or has expired, or the plan is below
            the policy. Nothing of the client has been sent then.
        ProtocolError: if the servers disagree, or the plan is not bound to them.
    """
    connection = connect_client(
        urls,
        tls if isinstance(tls, TlsFiles) else Path(tls),
        client_id,
        require=Path(require) if isinstance(require, str) else require,
        outbox=None if outbox is None else Path(outbox),
        wait=timeout,
    )
    return RemoteServers(connection, client_id)

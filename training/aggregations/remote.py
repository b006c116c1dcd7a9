"""An experiment on two running servers; this process is the coordinator and all clients.

Every client has a separate certificate and a separate connection, as on a separate machine.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from torchfsl import Plan
from torchfsl.errors import Error, ProtocolError
from torchfsl.fsl import ClientPolicy
from torchfsl.service.client.owner import Owner
from torchfsl.service.client.remote import Connection, connect
from torchfsl.service.net.channels import TlsFiles
from torchfsl.submodel.aggregation import Closed, Participant
from torchfsl.submodel.in_process import Sessions
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel
from training.config import Config
from training.section_checks import ConfigError

_ROUND_SECONDS = 24 * 3600.0


class RemoteServers:
    """The protocol through two server processes; see `torchfsl.submodel.Aggregation`.

    Args:
        config: settings, which name the servers and the folder of certificates.
        plan: any plan; `self.plan` is the same one bound to these servers.
        settings: settings of the servers' optimizer.
        model: initial model. Follows the servers' after every round.
        clients: number of clients, numbered from 0; each needs a certificate.
        finished: rounds that the experiment has finished. It continues as a new task with a
            separate session, from the model and the optimizer's state that it had reached.

    Attributes:
        messages: number of messages from clients by method and server, over all clients and rounds;
            resends count.
    """

    def __init__(
        self,
        config: Config,
        plan: Plan,
        settings: OptimizerSettings,
        model: ServerModel,
        *,
        clients: int,
        finished: int,
    ) -> None:
        """Hand the task to both servers."""
        self._urls = config.servers.split(",")
        self._tls = Path(config.tls)
        if len(self._urls) != 2 or not config.tls:
            raise ConfigError(
                "--servers needs two addresses and a folder of certificates: pass --servers "
                "URL0,URL1 --tls FOLDER"
            )
        if not all((self._tls / f"client-{n}.pem").exists() for n in range(clients)):
            raise ConfigError(
                f"{self._tls} lacks certificates of some of this experiment's {clients} clients: "
                f"make the certificates with torchfsl certs {self._tls} --clients 0-{clients - 1}"
            )
        self._owner = Owner(self._urls, TlsFiles.in_folder(self._tls, "owner"))
        self.model, self.messages = model, Counter[str]()
        self._number = -1
        self.server_seconds = 0.0
        self._connections: list[Connection] = []
        self._sessions = Sessions()
        self._floors = ClientPolicy(
            verified=config.malicious_security, min_clients=config.min_clients
        )
        try:
            self._task = self._owner.bind(
                plan, optimizer=settings, source=model.source, reduce=model.reduce
            )
            self.plan = self._task.plan
            if finished:
                self._end_interrupted_round()
            moments = model.optimizer.state() if finished else {}
            replace = config.replace or finished > 0  # who resumes means the task that was left
            self._owner.set_up(self._task, model.state, moments, replace=replace)
        except Error as error:
            raise ConfigError(f"the servers refused the task: {error}") from error

    def open_round(self, round_number: int, cohort: Collection[int]) -> None:
        """See `Aggregation`; both servers take whoever comes."""
        start = time.perf_counter()
        self._number, self._sessions = round_number, Sessions()
        self._owner.open_round(round_number, seconds=_ROUND_SECONDS)
        self.server_seconds = time.perf_counter() - start

    @property
    def models(self) -> tuple[ServerModel, ...]:
        """See `Aggregation`; the servers hold their own."""
        return (self.model,)

    def abandon_round(self) -> None:
        """See `Aggregation`."""
        self._owner.abandon_round(self._number, "the experiment failed in this round")

    def participant(self, client: int) -> Participant:
        """See `Aggregation`."""
        connection = connect(self._urls, self._tls, client, require=self._floors)
        self._connections.append(connection)
        return self._sessions.watch(connection.client)

    def close_round(self) -> Closed:
        """See `Aggregation`. The time counts as the servers', who compute in it."""
        start = time.perf_counter()
        for connection in self._connections:
            for link in connection.links.links:
                for method, count in link.attempts.items():
                    self.messages[f"{method} to server {link.party}"] += count
            connection.close()
        self._connections = []
        self._owner.close_round(self._number)
        opened, number = self._owner.result()
        assert number == self._number
        fresh = self._owner.model(self._task)
        self.model.state, self.model.optimizer = fresh.state, fresh.optimizer
        self.server_seconds += time.perf_counter() - start
        return Closed(opened, self._sessions.receipts())

    def _end_interrupted_round(self) -> None:
        """End the round that this experiment left running when it was interrupted."""
        try:
            number = self._owner.running_round()
        except ProtocolError:
            return
        running = dataclasses.replace(
            self._owner.plan(), session=self.plan.session, hash_seed=self.plan.hash_seed
        )
        if running != self.plan:
            return  # another experiment's: the servers will refuse this one
        try:
            self._owner.abandon_round(number, "the experiment was interrupted")
        except ProtocolError:  # it can only be finished
            self._owner.close_round(number)

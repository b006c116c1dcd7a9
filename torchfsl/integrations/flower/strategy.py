"""The strategy: Flower samples nodes and waits for them, two torchfsl servers add up.

In a round, `configure_train` samples nodes as FedAvg does, opens the round at both servers and
sends its number. Clients fetch from both servers, train, and report to both servers.
`aggregate_train` closes the round and returns the model that both servers hold.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.federation.coordinator import for_two_servers
from torchfsl.federation.federated import Federated
from torchfsl.integrations.flower.records import Call, mean_metrics
from torchfsl.integrations.flower.servers import TaskServers
from torchfsl.service.net.channels import TlsFiles
from torchfsl.submodel.opened import Opened
from torchfsl.submodel.optimizer_settings import OptimizerSettings
from torchfsl.submodel.server_model import ServerModel

log = logging.getLogger("flwr.torchfsl")  # shown where Flower shows its own lines


class SubmodelAveraging(FedAvg):
    """Federated submodel learning under Flower; see the page on Flower.

    Weights of clients are those that they pass to `fed.round` under `average="weight"`;
    `weighted_by_key` names the metric that weighs other metrics.

    Args:
        fed: the federated model, with a plan; at most its `max_clients` nodes are sampled a round.
            Its present values are the initial model.
        servers: URLs of both servers, or `local` in a simulation: two processes on this machine
            while the strategy runs.
        tls: the coordinator's files, or a folder with `owner.pem`; None for `local`.
        server_optimizer: of `torchfsl.optim`; see `Federated.default_optimizer` for None.
        auditors: see `Coordinator.start`; servers at URLs alone, as both operators and each node
            name the auditors in their own settings.
        replace: begin also where the servers hold a task that has been trained; both operators must
            permit that.
        **sampling: arguments of Flower's `FedAvg` that say how nodes are sampled, and how metrics
            are averaged: `fraction_train`, `min_train_nodes`, ...

    Attributes:
        plan: once started, bound to these two servers.
        model: what both servers hold; None before the start.
        opened: exact sums of the last round and the clients in them; None if it did not open.

    Raises:
        ParameterError: servers, certificates and auditors do not go together, the plan is missing
            or for another protocol, or the optimizer is torch's.
    """

    def __init__(
        self,
        fed: Federated,
        *,
        servers: Literal["local"] | Sequence[str],
        tls: Path | TlsFiles | None = None,
        server_optimizer: OptimizerSettings | None = None,
        auditors: Sequence[str] = (),
        replace: bool = False,
        **sampling: Any,
    ) -> None:
        """Nothing is sent before `start`."""
        sampling.setdefault("train_metrics_aggr_fn", mean_metrics)
        sampling.setdefault("evaluate_metrics_aggr_fn", mean_metrics)
        super().__init__(**sampling)
        self.plan, self._optimizer = for_two_servers(fed, server_optimizer)
        self._servers = TaskServers(servers, tls, tuple(auditors) or self.plan.auditors)
        self._fed, self._replace = fed, replace
        self._timeout, self._sampled = 0.0, 0
        self.model: ServerModel | None = None
        self.opened: Opened | None = None

    @property
    def model_sha256(self) -> str:
        """Digest of the model that both servers hold, in hex; bit-identical models share it.

        Raises:
            ProtocolError: before `start`.
        """
        if self.model is None:
            raise ProtocolError("the strategy has no model yet: call start() first")
        return self.model.digest().hex()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds; see Flower's `Strategy.start`.

        Args:
            grid: from the ServerApp.
            initial_arrays: the model to begin with; that of `fed` when None.
            num_rounds: how many.
            timeout: seconds to wait for nodes in a round; then it closes without the others.
            train_config: str, int, float and bool for ClientApps.
            evaluate_config: the same, in evaluations.
            evaluate_fn: called with the model after each round.

        Raises:
            ParameterError: the arrays are not the plan's, or more nodes are sampled than it allows.
            ProtocolError: the servers hold another task, or a round cannot be opened.
        """
        state = self._fed.server_state()
        if initial_arrays is not None:
            state = {name: array.numpy() for name, array in initial_arrays.items()}
        self.model, self._timeout = ServerModel(state), timeout
        self.model.check(self.plan)
        with self._servers.running(grid.run.run_id):
            source = self._fed.hooks.settings.source
            self.plan = self._servers.set_up(
                self.plan, state, self._optimizer, source, replace=self._replace
            )
            arrays = _arrays(self.model)
            settings = (train_config, evaluate_config, evaluate_fn)
            return super().start(grid, arrays, num_rounds, timeout, *settings)

    def summary(self) -> None:
        """Log the settings."""
        where = ", ".join(self._servers.urls) or "this machine, for simulation only"
        log.info("\t├──> Two torchfsl servers: %s", where)
        log.info("\t├──> Plan: %s", self.plan.digest.hex())
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes, open the round and send its number.

        Args:
            server_round: number of the round.
            arrays: not used: clients fetch the model from both servers.
            config: str, int, float and bool for ClientApps.
            grid: from the ServerApp.

        Returns:
            A Message for each node that is sampled.

        Raises:
            ParameterError: if more nodes are sampled than the plan allows.
            ProtocolError: if the servers do not open the round.
        """
        messages = list(super().configure_train(server_round, ArrayRecord(), config, grid))
        self._sampled = len(messages)
        if self._sampled > self.plan.max_clients:
            raise ParameterError(
                f"the strategy samples {self._sampled} nodes, but the plan has max_clients = "
                f"{self.plan.max_clients}: pass Federated a larger max_clients=, or lower "
                "fraction_train"
            )
        if messages:
            self._servers.open(server_round, self._timeout)
        call = Call(server_round, self._servers.urls)
        return self._filled(messages, call, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round at both servers.

        Args:
            server_round: number of the round.
            replies: of the nodes, with their metrics.

        Returns:
            The model of both servers, or None if the round did not open; and the metrics.

        Raises:
            NotReady: if a server has not answered for as long as its policy allows.
        """
        metrics = self._metrics(replies, self.train_metrics_aggr_fn)
        self.opened = None
        if not self._sampled:
            return None, metrics
        try:
            self.opened, self.model = self._servers.close(server_round)
        except ProtocolError as error:
            log.warning("aggregate_train: the model did not change in this round: %s", error)
            return None, metrics
        log.info(
            "aggregate_train: the servers opened the sum of %d reports", self.opened.num_clients
        )
        if self.opened.scaled:
            log.warning("aggregate_train: the sum exceeded its bound: %s", self.opened.scaled)
        return _arrays(self.model), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes and ask for an evaluation; they fetch their rows from both servers.

        Args:
            server_round: number of the round.
            arrays: not used: clients fetch the model from both servers.
            config: str, int, float and bool for ClientApps.
            grid: from the ServerApp.

        Returns:
            A Message for each node that is sampled.
        """
        messages = list(super().configure_evaluate(server_round, ArrayRecord(), config, grid))
        return self._filled(messages, Call.to_evaluate(self._servers.urls), config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Means of the metrics that clients sent.

        Args:
            server_round: not used.
            replies: of the nodes, with their metrics.
        """
        return self._metrics(replies, self.evaluate_metrics_aggr_fn)

    def _filled(
        self, messages: list[Message], call: Call, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._servers.admit(len(list(grid.get_node_ids())))
        for message in messages:
            message.content = call.content(self.configrecord_key, config)
        return messages

    def _metrics(
        self, replies: Iterable[Message], mean: Callable[[list[Any], str], MetricRecord]
    ) -> MetricRecord | None:
        """Of replies without an error; what else a reply may hold is left alone."""
        contents = []
        for reply in replies:
            if reply.has_error():
                log.info("node %d failed: %s", reply.metadata.src_node_id, reply.error.reason)
            elif any(reply.content.metric_records.values()):
                contents.append(reply.content)
        return mean(contents, self.weighted_by_key) if contents else None


def _arrays(model: ServerModel) -> ArrayRecord:
    return ArrayRecord({name: Array(np.array(value)) for name, value in model.state.items()})

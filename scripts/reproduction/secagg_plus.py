"""Flower's SecAgg+ on a model of a given size: upload per client, seconds of all parties.

    python -m scripts.reproduction.secagg_plus --parameters 3617023 --clients 10 --json FILE

The program runs in a separate environment (`pip install flwr==1.41`), not in torchfsl's. Flower's
own workflow and client mod exchange their real messages. A loop replaces only the network between
them, and counts each reply as the bytes that Flower would send.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from scripts.program import Found, Options, option, program

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError as error:
    raise SystemExit(f"{__doc__}\n{error}: use a Python with flwr 1.41") from error


class Client:
    """One client app: its state, and an update that it "trains"."""

    def __init__(self, node_id: int, parameters: int) -> None:
        """A random update inside the clipping range."""
        self.node_id = node_id
        rng = np.random.default_rng(node_id)
        self.update = rng.uniform(-1, 1, parameters).astype(np.float32)
        self.context = Context(
            run_id=1, node_id=node_id, node_config={}, state=RecordDict(), run_config={}
        )
        self.upload_bytes, self.seconds = 0, 0.0

    def answer(self, message: Message) -> Message:
        """Let the client mod handle a message; count what it replies."""
        start = time.perf_counter()
        received = message_from_proto(message_to_proto(message))
        reply = message_to_proto(secaggplus_mod(received, self.context, self._train))
        self.seconds += time.perf_counter() - start
        self.upload_bytes += reply.ByteSize()
        return message_from_proto(reply)

    def _train(self, message: Message, _: Context) -> Message:
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self.update]), 1000, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)


def _unused(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("only `send_and_receive` and `get_node_ids` are used")


class Loop(Grid):
    """A grid that hands every message to its client app at once."""

    create_message = push_messages = pull_messages = _unused
    run = property(_unused)

    def __init__(self, clients: dict[int, Client]) -> None:
        """Clients by node."""
        self.clients = clients

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """All replies, in order."""
        return [self.clients[one.metadata.dst_node_id].answer(one) for one in messages]

    def get_node_ids(self) -> Iterable[int]:
        """All of them."""
        return list(self.clients)

    def set_run(self, run: Any) -> None:
        """There is one run."""


class Proxy:
    """A node with a name, which the strategy samples."""

    def __init__(self, node_id: int) -> None:
        self.node_id, self.cid = node_id, str(node_id)


class Everyone(FedAvg):
    """FedAvg over all clients."""

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Every registered client."""
        from flwr.common import FitIns

        return [(proxy, FitIns(parameters, {})) for proxy in client_manager.all().values()]


SERVER = 1


def run(parameters: int, num_clients: int, shares: int) -> dict[str, Any]:
    """One round; returns its figures and checks the average."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER, 1
    clients = {1000 + i: Client(1000 + i, parameters) for i in range(num_clients)}
    manager = SimpleClientManager()
    for node_id in clients:
        manager.register(Proxy(node_id))  # type: ignore[arg-type]
    context = Context(run_id=1, node_id=SERVER, node_config={}, state=RecordDict(), run_config={})
    legacy = LegacyContext(context, ServerConfig(num_rounds=1), Everyone(), manager)
    legacy.state.config_records["config"] = ConfigRecord({"current_round": 1})
    start_parameters = ndarrays_to_parameters([np.zeros(parameters, dtype=np.float32)])
    legacy.state.array_records["parameters"] = compat.parameters_to_arrayrecord(
        start_parameters, True
    )
    workflow = SecAggPlusWorkflow(num_shares=shares, reconstruction_threshold=shares // 2 + 1)
    start, cpu = time.perf_counter(), time.process_time()
    workflow(Loop(clients), legacy)
    total, cpu = time.perf_counter() - start, time.process_time() - cpu
    record = legacy.state.array_records["parameters"]
    (average,) = parameters_to_ndarrays(compat.arrayrecord_to_parameters(record, True))
    wanted = np.mean([client.update for client in clients.values()], axis=0)
    error = float(np.abs(average - wanted).max())
    assert error < 1e-4, f"the opened average is off by {error}"
    seconds = sum(client.seconds for client in clients.values())
    return {
        "parameters": parameters,
        "clients": num_clients,
        "shares": shares,
        "upload_bytes": max(client.upload_bytes for client in clients.values()),
        "client_seconds": seconds / num_clients,
        "server_seconds": total - seconds,
        "cpu_seconds": cpu,
        "largest_error": error,
    }


@program(
    option("--parameters", 3_617_023, "values of the model"),
    option("--clients", 10, "clients in the round"),
    option("--shares", 5, "neighbours of a client, itself too"),
)
def main(options: Options) -> Found:
    """Run and print."""
    figures = run(options.parameters, options.clients, options.shares)
    print(json.dumps(figures, indent=2))
    return figures

"""The two servers as a ClientApp sees them while it answers one Message.

@app.train()
def train(message, context):
    fed, optimizer, batches = ...
    with client_servers(message, context, fed) as servers:
        with fed.round(servers, batches=batches):
            loss = train_one_epoch(fed.model, optimizer, batches)
    return servers.reply()  # or servers.reply({"loss": loss}), in the clear
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from flwr.app import Context, Message

from torchfsl.engine.round import Round
from torchfsl.errors import ParameterError, ProtocolError
from torchfsl.federation.federated import Federated
from torchfsl.federation.remote_servers import RemoteServers
from torchfsl.fsl.client.client import Client
from torchfsl.integrations.flower import memory
from torchfsl.integrations.flower.node import connect_as
from torchfsl.integrations.flower.records import Call, reply_content
from torchfsl.integrations.flower.words import kept_here
from torchfsl.service.client.remote import Connection


class NodeServers(RemoteServers):
    """The two servers of the task, for one Message. Made by `client_servers`.

    Attributes:
        plan: of the task.
        client_id: number in the certificate of this node.
        number: of the round that the Message names; None in an evaluation.
    """

    def __init__(
        self, connection: Connection, message: Message, context: Context, fed: Federated
    ) -> None:
        """Read the Message; nothing is sent.

        Args:
            connection: to both servers.
            message: Flower's Message to this node.
            context: Flower's Context of this node, which keeps the residual.
            fed: the federated model.

        Raises:
            ParameterError: if the plan has sessions, and the Message asks for a round.
        """
        super().__init__(connection, connection.client.client_id)
        self.number = Call.of(message.content).round_number
        self._message, self._context, self._fed = message, context, fed
        if self.number is not None and self.plan.max_epochs > 1:
            raise ParameterError(
                f"the plan has max_epochs = {self.plan.max_epochs}, but a ClientApp is a new "
                "process for every Message and cannot keep reusable keys: make a plan with "
                "max_epochs=1"
            )

    def participant(self, client_id: int) -> Client:
        """This client; `client_id` is its number.

        Raises:
            ParameterError: if the number is not that of the certificate.
            ProtocolError: if the Message asks for an evaluation.
        """
        if self.number is None:
            raise ProtocolError(
                "this Message asks for an evaluation, but the ClientApp started a round: use "
                "fed.evaluating(servers, batches=batches)"
            )
        return super().participant(client_id)

    def submitted(self, finished: Round) -> None:
        """Store the residual and the personal parts of `finished`: both servers have the update."""
        memory.keep(self._context, self._fed.hooks, self.client_id)

    def reply(self, metrics: Mapping[str, float] | None = None) -> Message:
        """The reply to the SuperLink; call it after the block.

        Args:
            metrics: single numbers that the SuperLink sees **in the clear**, such as a loss or the
                number of examples; nothing protects them. None by default.

        Raises:
            ParameterError: something other than numbers, such as an array.
        """
        return Message(content=reply_content(metrics), reply_to=self._message)


@contextlib.contextmanager
def client_servers(message: Message, context: Context, fed: Federated) -> Iterator[NodeServers]:
    """Connect to both servers while a ClientApp answers one Message.

    Entering connects with the node's own certificate. It restores the residual and the personal
    parts of this client from the Context. Inside the block use the servers as all others:
    `fed.round(servers, batches=batches)` to train, `fed.evaluating(servers, batches=batches)` to
    evaluate. Once the update is sent, the residual and the personal parts are stored again.

    If the block raises, Flower tells the SuperLink that this ClientApp failed, but not why. The
    error may name rows and counts; it is in the log of this node.

    Args:
        message: from `SubmodelAveraging`.
        context: of the ClientApp. Flower keeps its state at the node.
        fed: the federated model. It needs no plan.

    Yields:
        The servers; their `reply` answers the Message.

    Raises:
        DecodeError: the Message is from another strategy.
        ParameterError: settings of the node are missing, or the plan is below its floors.
        ProtocolError: the block raised; without any words of the error.
    """
    call = Call.of(message.content)
    with connect_as(context, call) as connection:
        servers = NodeServers(connection, message, context, fed)
        what = "evaluation" if servers.number is None else "round"
        with kept_here(f"this client's {what}"):
            memory.recall(context, fed.hooks, servers.client_id)
            yield servers

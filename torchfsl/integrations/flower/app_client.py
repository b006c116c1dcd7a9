"""A ClientApp's part: its round through both servers, and its evaluation.

@app.train()
def train(message, context):
    ...
    with client_round(message, context, engine, rows=rows) as rnd:
        loss = train_one_epoch(model, optimizer, batches)
    return rnd.reply()  # or rnd.reply({"loss": loss}), in the clear
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType

import torch
from flwr.app import Context, Message

from torchfsl.engine.engine import SubmodelEngine
from torchfsl.engine.fetched import fetched_model
from torchfsl.engine.handle import Handle
from torchfsl.engine.wanted import RowIds
from torchfsl.errors import ParameterError
from torchfsl.integrations.flower import memory
from torchfsl.integrations.flower.node import connect_as
from torchfsl.integrations.flower.records import Call, reply_content
from torchfsl.integrations.flower.words import kept_here
from torchfsl.submodel.aggregation import Receipt
from torchfsl.submodel.update import Update

_ROUND = "this client's round"


class FlowerRound:
    """One round of a ClientApp, as a context manager; made by `client_round`.

    Attributes:
        receipt: after the block, what the report has cost.
        update: after the block, the quantised update as it was sent.
    """

    def __init__(
        self, message: Message, context: Context, engine: SubmodelEngine, *,
        rows: RowIds | None, handle: Handle | None, weight: int,
    ) -> None:  # fmt: skip
        """Read the Message; nothing is sent."""
        self.receipt: Receipt | None = None
        self.update: Update | None = None
        self._message, self._context, self._engine = message, context, engine
        self._handle = engine.the_handle(handle)
        self._rows, self._weight = rows, weight
        self._call = Call.of(message.content)
        self._number = self._call.round_number()

    def __enter__(self) -> FlowerRound:
        self._connection = connect_as(self._context, self._call)
        try:
            client = self._connection.client
            if client.plan.max_epochs > 1:
                raise ParameterError(
                    "the plan has max_epochs above 1: a ClientApp is a new process for every "
                    "Message and could not keep a session's secrets: plan with max_epochs=1"
                )
            with kept_here(_ROUND):
                self._residual = memory.recall(self._context, self._handle, client.client_id)
                self._round = self._engine.round(
                    client, rows=self._rows, handle=self._handle, number=self._number,
                    residual=self._residual,
                )  # fmt: skip
                self._round.__enter__()
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._connection, kept_here(_ROUND):
            self._round.__exit__(kind, error, trace)
            if error is not None:
                raise error
            self.receipt = self._round.submit(weight=self._weight)
            self.update = self._round.update
            memory.keep(self._context, self._handle, self._residual)

    def reply(self, metrics: Mapping[str, float] | None = None) -> Message:
        """The reply to the SuperLink. The report went to the two servers when the block was left.

        Args:
            metrics: single numbers that the SuperLink shall see **in the clear**, a loss or how
                many examples; they are protected by nothing. None by default.

        Raises:
            ParameterError: something else than numbers, an array above all.
        """
        return Message(content=reply_content(metrics), reply_to=self._message)


def client_round(
    message: Message,
    context: Context,
    engine: SubmodelEngine,
    *,
    rows: RowIds | None = None,
    handle: Handle | None = None,
    weight: int = 1,
) -> FlowerRound:
    """One round around a ClientApp's own training, as a context manager.

    Entering connects to both servers with the node's own certificate, reads the model and fetches
    the rows. Leaving sends the report to both. If the block raises, both servers get a report like
    any other that adds nothing, and Flower tells the SuperLink that this ClientApp failed, but not
    why: the error, which may name rows and counts, is in this node's log.

    Args:
        message: from `SubmodelAveraging`.
        context: of the ClientApp; what this client owes is kept in its state, at the node.
        engine: the model of the task is attached to it.
        rows: ids to fetch, see `SubmodelEngine.round`.
        handle: which attached model, where there are several.
        weight: of this client, under a plan with a weight lane; 1..max_weight, so pass
            `min(examples, plan's max_weight)`.

    Raises:
        DecodeError: the Message is from another strategy.
        ParameterError: settings of the node are missing, or the plan is below its floors; raised on
            entering.
        ProtocolError: the block raised, or the round failed; without any words of the error.
    """
    return FlowerRound(message, context, engine, rows=rows, handle=handle, weight=weight)


class FlowerEvaluation:
    """An evaluation of a ClientApp; made by `client_evaluation`.

    Attributes:
        rows: by table name the ids at hand: int64, increasing.
    """

    def __init__(self, message: Message, rows: dict[str, torch.Tensor]) -> None:
        """Made inside the block."""
        self.rows, self._message = rows, message

    def reply(self, metrics: Mapping[str, float] | None = None) -> Message:
        """See `FlowerRound.reply`."""
        return Message(content=reply_content(metrics), reply_to=self._message)


@contextlib.contextmanager
def client_evaluation(
    message: Message,
    context: Context,
    engine: SubmodelEngine,
    *,
    rows: RowIds | None = None,
    handle: Handle | None = None,
) -> Iterator[FlowerEvaluation]:
    """The servers' model in the ClientApp's module, while the block runs; nothing is reported.

    The rows are fetched privately from both servers, see `torchfsl.Client.fetch`; what lies beyond
    the plan's budget, or was not asked for, is NaN. Personal tensors are this client's own.

    Args:
        message: from `SubmodelAveraging`.
        context: of the ClientApp.
        engine: the model of the task is attached to it.
        rows: ids to fetch, see `SubmodelEngine.round`.
        handle: which attached model, where there are several.

    Raises:
        DecodeError, ParameterError: see `client_round`.
        ProtocolError: the block raised, or this client has fetched from this model as often as it
            may; the node's log says which.
    """
    mine = engine.the_handle(handle)
    with (
        connect_as(context, Call.of(message.content)) as connection,
        kept_here("this client's evaluation"),
    ):
        memory.recall(context, mine, connection.client.client_id)
        with fetched_model(mine, connection.client, rows) as ids:
            yield FlowerEvaluation(message, ids)

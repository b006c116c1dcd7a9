"""Flower without processes: a grid that runs the ClientApp for each Message, here and at once.

Messages travel as bytes, so that what they hold can be counted.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class HereGrid(Grid):
    """A grid of `nodes` nodes in this process.

    Args:
        client_app: runs every Message; what it raises becomes an error, as at a SuperNode.
        configs: of each node, beside its `partition-id`.
        run_id: of the run.
        run_config: of the app.

    Attributes:
        array_bytes: of all Messages, both ways.
        bytes: of all contents, both ways.
        contexts: by node; its state outlives Messages, as at a SuperNode.
        before: called with the node's number before its ClientApp runs.
        told: what the SuperLink heard of every error.
    """

    def __init__(
        self, client_app: ClientApp, configs: Iterable[dict[str, Any]], *, run_id: int,
        run_config: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._app = client_app
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1
        self._run = SimpleNamespace(run_id=run_id)
        self.contexts = [
            Context(run_id, 100 + n, {"partition-id": n, **config}, RecordDict(), run_config or {})
            for n, config in enumerate(configs)
        ]
        self.array_bytes = self.bytes = 0
        self.replies: list[Message] = []
        self.told: list[str] = []
        self.before: Callable[[int], None] = lambda node: None

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [context.node_id for context in self.contexts]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self.replies = []
        for message in sorted(messages, key=lambda m: m.metadata.dst_node_id):
            self._count(message.content)
            node = message.metadata.dst_node_id - 100
            try:
                self.before(node)
                reply = self._app(message, self.contexts[node])
                self._count(reply.content)
            except Exception as error:
                self.told.append(f"{type(error)}:<'{error}'>")
                reply = Message(Error(1, self.told[-1]), reply_to=message)
            self.replies.append(reply)
        return self.replies

    def _count(self, content: RecordDict) -> None:
        self.bytes += size_of(content)
        self.array_bytes += sum(array_bytes(record) for record in content.values())


def size_of(content: RecordDict) -> int:
    """Bytes of a Message's content and of all that hangs on it."""
    children = content.children or {}
    return len(content.deflate()) + sum(len(child.deflate()) for child in children.values())


def array_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    """Bytes of arrays, of bytes and of lists, in which an array could hide."""
    if isinstance(record, ArrayRecord):
        return sum(len(array.data) for array in record.values()) or 1
    return sum(np.asarray(v).nbytes for v in record.values() if isinstance(v, bytes | list))


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Flower prints results; not in tests."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        yield out

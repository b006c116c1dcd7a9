"""The owner of the check: two rounds, and what they ended with."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from tests.support.flower_grid import array_bytes, size_of
from tests.support.flower_task import build_planned
from torchfsl.integrations.flower import SubmodelAveraging

app = ServerApp()


class _Counted(SubmodelAveraging):
    """Counts what Messages hold, both ways."""

    bytes = 0
    array_bytes = 0
    messages = 0
    failures: ClassVar[list[str]] = []

    def configure_train(self, *arguments: Any) -> Iterable[Message]:
        """Counted."""
        return self._count(super().configure_train(*arguments))

    def aggregate_train(self, number: int, replies: Iterable[Message]) -> Any:
        """Counted."""
        return super().aggregate_train(number, self._count(replies))

    def configure_evaluate(self, *arguments: Any) -> Iterable[Message]:
        """Counted."""
        return self._count(super().configure_evaluate(*arguments))

    def aggregate_evaluate(self, number: int, replies: Iterable[Message]) -> Any:
        """Counted."""
        return super().aggregate_evaluate(number, self._count(replies))

    def _count(self, messages: Iterable[Message]) -> list[Message]:
        listed = list(messages)
        for message in listed:
            self.messages += 1
            if message.has_error():
                self.failures.append(message.error.reason)
            if message.has_content():
                self.bytes += size_of(message.content)
                self.array_bytes += sum(array_bytes(r) for r in message.content.values())
        return listed


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run two rounds; write down the results or, in the file `failed`, the error."""
    try:
        _run(grid, context)
    except Exception as error:
        (Path(str(context.run_config["out"])) / "failed").write_text(repr(error))
        raise


def _run(grid: Grid, context: Context) -> None:
    config, out = context.run_config, Path(str(context.run_config["out"]))
    nodes = int(config["nodes"])
    fed = build_planned(max_clients=nodes)
    where: dict[str, Any] = {"servers": "local"}
    if config["servers"] != "local":
        where = {"servers": str(config["servers"]).split(","), "tls": Path(str(config["tls"]))}
        where["replace"] = True  # one run after the other on the same two servers
    least = {f"min_{who}_nodes": nodes for who in ("available", "train", "evaluate")}
    strategy = _Counted(fed, **where, **least)
    (out / "state.pickle").write_bytes(pickle.dumps(fed.server_state()))
    opened: dict[int, tuple[int, ...]] = {}

    def note(number: int, arrays: ArrayRecord) -> None:
        if strategy.opened is not None:
            opened[number] = strategy.opened.clients

    strategy.start(grid, num_rounds=2, timeout=float(config["timeout"]), evaluate_fn=note)
    found = {
        "model_sha256": strategy.model_sha256,
        "plan": strategy.plan.to_json(),
        "opened": opened,
        "messages": strategy.messages,
        "bytes": strategy.bytes,
        "array_bytes": strategy.array_bytes,
        "failures": strategy.failures,
    }
    (out / "found.json.part").write_text(json.dumps(found))
    (out / "found.json.part").rename(out / "found.json")

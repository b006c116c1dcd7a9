"""Clients of the check: a round of known training, written down as it was sent."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from tests.support.flower_task import build, train, words_of
from torchfsl.integrations.flower import client_servers

_PATIENCE = 300.0

app = ClientApp()


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """One round; client 0 fails in the first one as the run's configuration says."""
    config, out = context.run_config, Path(str(context.run_config["out"]))
    number = int(message.content["config"]["server-round"])
    client = int(context.node_config["partition-id"])
    fault = str(config["fault"]) if (number, client) == (1, 0) else "none"
    if fault == "raise-before":
        raise RuntimeError("told to fail before the round")
    fed = build()
    with (
        client_servers(message, context, fed) as servers,
        fed.round(servers, batches=[words_of(client)]) as rnd,
    ):
        train(fed, client)
        _fail(fault, out)
    with (out / f"sent-{number}-{client}.pickle").open("wb") as file:
        pickle.dump(rnd.update, file)
    return servers.reply()


def _fail(fault: str, out: Path) -> None:
    """Inside the round, after the trees and before the report."""
    if fault == "raise-inside":
        raise RuntimeError("told to fail inside the round")
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "wait":
        (out / "inside").touch()
        deadline = time.monotonic() + _PATIENCE
        while not (out / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.1)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Rows that come back must be numbers."""
    fed = build()
    words = words_of(int(context.node_config["partition-id"]))
    with client_servers(message, context, fed) as servers:
        losses = []
        for _ in range(2):
            with fed.evaluating(servers, batches=[words]):
                losses.append(float(fed.model(words).detach().mean()))
    assert losses[0] == losses[1]
    return servers.reply({"mean": losses[0]})

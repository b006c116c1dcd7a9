"""The client: it fetches its rows from both servers, trains, and reports to both servers."""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from submodels.task import Batches, Task, federate, make_task, train
from torchfsl.integrations.flower import client_servers

app = ClientApp()


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """One round."""
    task = make_task(context.run_config)
    fed, optimizer = federate(task, context.run_config)
    batches = batches_of(task, message, context)
    with client_servers(message, context, fed) as servers, fed.round(servers, batches=batches):
        loss = train(fed.model, optimizer, batches)
    return servers.reply({"loss": loss})  # in the clear: leave it out if a loss is private


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Loss of the servers' model on this client's data; its rows are fetched privately."""
    task = make_task(context.run_config)
    fed, _ = federate(task, context.run_config)
    batches = batches_of(task, message, context)
    with client_servers(message, context, fed) as servers, fed.evaluating(servers, batches=batches):
        fed.model.eval()
        (*inputs, labels), *_ = batches
        with torch.no_grad():
            loss = nn.functional.cross_entropy(fed.model(*inputs), labels)
    return servers.reply({"loss": loss.item()})


def batches_of(task: Task, message: Message, context: Context) -> Batches:
    """The data of this client; simulations number their nodes by `partition-id`."""
    number = int(message.content["config"]["server-round"])
    return task.batches(number, int(context.node_config["partition-id"]))

"""The part of a client: rows from both servers, training, a report to both servers."""

from __future__ import annotations

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from submodels.task import attach, make_task, train
from torchfsl.integrations.flower import client_evaluation, client_round

app = ClientApp()


@app.train()
def train_round(message: Message, context: Context) -> Message:
    """One round."""
    task = make_task(context.run_config)
    engine, handle = attach(task)
    number = int(message.content["config"]["server-round"])
    work = task.work(number, int(context.node_config["partition-id"]))
    with client_round(message, context, engine, rows=work.rows) as rnd:
        loss = train(handle, work.batches)
    return rnd.reply({"loss": loss})  # in the clear: leave it out where a loss is private


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Loss of the servers' model on this client's data; its rows are fetched privately."""
    task = make_task(context.run_config)
    engine, handle = attach(task)
    number = int(message.content["config"]["server-round"])
    work = task.work(number, int(context.node_config["partition-id"]))
    with client_evaluation(message, context, engine, rows=work.rows) as evaluation, torch.no_grad():
        handle.model.eval()
        batch = work.batches[0]
        loss = nn.functional.cross_entropy(handle.model(*batch.inputs), batch.labels)
    return evaluation.reply({"loss": loss.item()})

"""The yardstick without federation: the same model and samples, trained in one place.

In a round the samples of the cohort that would take part, negatives included, are pooled, shuffled
and cut into batches of `local.batch_size`, and the servers' optimizer steps after each. So a run
reads as many samples as a federated one of as many rounds, and may step far more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchfsl.submodel.server_model import ServerModel
from torchfsl.types import Float64
from training.data.prf import Stream
from training.local import freeze_statistics
from training.tasks.task import Batch, Work


class CentralTraining:
    """Steps of one model on pooled samples.

    Args:
        model: of the experiment's kind, with nothing attached; becomes `server`'s.
        server: state and optimizer, changed in place.
        batch_size: samples a step.
    """

    def __init__(self, model: nn.Module, server: ServerModel, batch_size: int) -> None:
        """The model's parameters are the state's memory from now on."""
        self._model, self._server, self._batch_size = model, server, batch_size
        self._parameters = dict(model.named_parameters())
        for name, parameter in self._parameters.items():
            parameter.data = torch.from_numpy(server.state[name])

    def run(self, works: Sequence[Work], stream: Stream) -> None:
        """One round."""
        batches = [batch for work in works for batch in work.batches]
        if not batches:
            return
        inputs, labels = pooled(batches)
        order = torch.from_numpy(stream.permutation(len(labels)))
        torch.manual_seed(stream.torch_seed())
        self._model.train()
        freeze_statistics(self._model)
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            output = self._model(*(tensor[chosen] for tensor in inputs))
            loss = functional.cross_entropy(output, labels[chosen])
            found = torch.autograd.grad(loss, list(self._parameters.values()))
            gradients = zip(self._parameters, found, strict=True)
            step(self._server, {name: one.double().numpy() for name, one in gradients})


def step(server: ServerModel, gradients: Mapping[str, Float64]) -> None:
    """One step of a server's optimizer on gradients in the clear, tensor by tensor."""
    optimizer = server.optimizer
    optimizer.advance()
    for name, gradient in gradients.items():
        value = server.state[name]
        rows = gradient.reshape(len(gradient), -1) if gradient.ndim else gradient.reshape(1, 1)
        if optimizer.lazy:
            touched = np.flatnonzero(rows.any(axis=1))
            table = value.reshape(rows.shape)
            part = table[touched].astype(np.float64)
            optimizer.step_rows(name, touched, len(rows), part, rows[touched])
            table[touched] = part
        else:
            flat = value.reshape(-1)
            part = flat.astype(np.float64)
            optimizer.rows_of(name, rows.shape[1])
            optimizer.step(name, 0, flat.size, part, gradient.reshape(-1))
            flat[:] = part


def pooled(batches: Sequence[Batch]) -> tuple[list[Tensor], Tensor]:
    """All samples of several batches as one; shorter histories are padded with zeros."""
    inputs = []
    for parts in zip(*(batch.inputs for batch in batches), strict=True):
        longest = max(part.shape[-1] for part in parts)
        if parts[0].ndim > 1:
            parts = tuple(functional.pad(part, (0, longest - part.shape[-1])) for part in parts)
        inputs.append(torch.cat(parts))
    return inputs, torch.cat([batch.labels for batch in batches if batch.labels is not None])

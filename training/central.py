"""The baseline without federation: the same model and samples, trained in one place.

In a round the program pools and shuffles the samples of the cohort that would participate,
negatives included. It cuts them into batches of `local.batch_size`. After each batch the clients'
optimizer steps, whose state lasts over rounds here. If clients send gradients, the servers'
optimizer steps instead. So a run reads as many samples as a federated one of as many rounds, and
may step far more often.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchfsl.submodel.server_model import ServerModel
from torchfsl.submodel.server_optimizers import ServerOptimizer
from torchfsl.types import Array, Float64
from training.data.prf import Stream
from training.local import begin_local_training, freeze_statistics, loss, make_optimizer, train
from training.section_checks import ConfigError
from training.sections import Local
from training.tasks.task import Batch, Task, Work


class LocalSteps(ServerOptimizer):
    """The clients' optimizer and the model that it steps, where checkpoints look for the servers'.

    Args:
        model: what it steps.
        local: the clients' settings.
    """

    def __init__(self, model: nn.Module, local: Local) -> None:
        self.model, self.optimizer = model, make_optimizer(model, local)

    def advance(self) -> None:
        """Optimizers count their own steps."""

    def step(self, name: str, start: int, size: int, parameter: Float64, gradient: Float64) -> None:
        """Never called: `CentralTraining` steps the whole model."""

    def state(self) -> dict[str, Array]:
        """The optimizer's `state_dict` as `torch.save` writes it: one array of bytes."""
        written = io.BytesIO()
        torch.save(self.optimizer.state_dict(), written)
        return {"torch": np.frombuffer(written.getvalue(), np.uint8)}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Inverse of `state`."""
        saved = io.BytesIO(state["torch"].tobytes())
        self.optimizer.load_state_dict(torch.load(saved, weights_only=True))


class CentralTraining:
    """Steps of one model on pooled samples.

    Args:
        task: makes the model, which becomes `server`'s; nothing is attached to it.
        server: state and optimizer, changed in place.
        local: the clients' settings.
        pads: whether shorter inputs of some clients are padded with zeros.
    """

    def __init__(self, task: Task, server: ServerModel, local: Local, *, pads: bool) -> None:
        """The model's parameters are the state's memory from now on."""
        self._server, self._local, self._pads = server, local, pads
        own = server.optimizer
        self._model = own.model if isinstance(own, LocalSteps) else task.build_model()
        named = self._model.named_parameters()
        self._parameters = {name: p for name, p in named if name in server.state}
        for name, parameter in self._parameters.items():
            parameter.data = torch.from_numpy(server.state[name])

    def run(self, number: int, works: Sequence[Work], stream: Stream) -> None:
        """One round."""
        batches = [batch for work in works for batch in work.batches]
        if not batches:
            return
        samples = pooled(batches, pads=self._pads)
        order = torch.from_numpy(stream.permutation(len(samples.inputs[0])))
        torch.manual_seed(stream.torch_seed())
        size = self._local.batch_size
        starts = range(0, len(order), size)
        cut = tuple(_chosen(samples, order[start : start + size]) for start in starts)
        if isinstance(own := self._server.optimizer, LocalSteps):
            begin_local_training(self._model, own.optimizer, self._local, number)
            train(self._model, own.optimizer, Work({}, cut), self._local)
            return
        self._model.train()
        freeze_statistics(self._model)
        for batch in cut:
            found = torch.autograd.grad(
                loss(self._model, batch, Local()),
                list(self._parameters.values()),
                materialize_grads=True,
            )
            gradients = zip(self._parameters, found, strict=True)
            step(self._server, {name: g.to_dense().double().numpy() for name, g in gradients})


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


def pooled(batches: Sequence[Batch], *, pads: bool) -> Batch:
    """All samples of several batches as one.

    Args:
        batches: at least one.
        pads: whether shorter inputs get zeros at their ends, as histories have them.

    Raises:
        ConfigError: the samples of two batches differ in shape, or one input is not by sample.
    """
    rows = [_columns(batch) for batch in batches]
    if pads:
        columns = {name: _padded([row[name] for row in rows]) for name in rows[0]}
        rows = [{name: columns[name][i] for name in columns} for i in range(len(rows))]
    forms = [_form(row) for row in rows]
    odd = next((form for form in forms if form != forms[0] or not form), None)
    if odd is not None:
        raise ConfigError(
            f"the batches of clients have different shapes ({forms[0] or 'several lengths'}; "
            f"{odd or 'several lengths'}): give every input one row per sample, and pad samples "
            "to one shape in the task"
        )
    whole = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    labels = whole.pop("labels", None)
    return Batch(tuple(whole.values()), labels)


def _columns(batch: Batch) -> dict[str, Tensor]:
    columns = {f"input {place}": one for place, one in enumerate(batch.inputs)}
    return columns if batch.labels is None else {**columns, "labels": batch.labels}


def _form(row: Mapping[str, Tensor]) -> str:
    """The inputs in words, equal for batches that fit together; empty if lengths differ."""
    if len({one.shape[:1] for one in row.values()}) != 1:
        return ""
    return ", ".join(f"{n} {one.dtype} {list(one.shape[1:])}" for n, one in row.items())


def _padded(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    if parts[0].ndim < 2:
        return parts
    longest = max(part.shape[-1] for part in parts)
    return [functional.pad(part, (0, longest - part.shape[-1])) for part in parts]


def _chosen(samples: Batch, places: Tensor) -> Batch:
    labels = None if samples.labels is None else samples.labels[places]
    return Batch(tuple(one[places] for one in samples.inputs), labels)
